"""Rehearse launches that upstream keeps as its functional tests and examples, and record verdicts.

``python -m benchmarks.rehearsal.launches --checkout PATH`` runs each of `LAUNCHES` by
``ringproof rehearse`` on a work tree of Megatron-LM and writes ``results/launches.json``; a launch
that was recorded for the same commit is not run again unless it is named.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "launches.json"
SECOND = 2  # of the two trainings of that script: the dynamic one
CASES = "tests/functional_tests/test_cases"
LAUNCHES = (
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp1_cp2_nondeterministic/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp1_cp4_dcp/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp1_pp2_cp4_a2a_p2p_nondeterministic/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp1_pp2_resume_torch_dist_cp4_a2a_p2p_nondeterministic/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp1_resume_torch_dist_cp2_nondeterministic/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp1_frozen_resume_torch_dist_cp2_nondeterministic/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp2_cp2_nondeterministic/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp2_cp2_calculate_per_token_loss_nondeterministic/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp2_cp2_etp4_dp_last/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp2_cp2_etp4_calculate_per_token_loss_dp_last/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp2_resume_torch_dist_cp2_nondeterministic/model_config.yaml",
    f"{CASES}/gpt/gpt3_mcore_te_tp2_pp2_cp2/model_config.yaml",
    f"{CASES}/gpt/gpt3_weekly_mcore_tp4_cp2_current_scaling_native_fp8_tp_sp_cp_tp_overlap/model_config.yaml",
    f"{CASES}/gpt-nemo/llama3-nemo_8b_mr_mbs4_gbs64_mcore_te_tp1_pp1_cp2_dgx_a100_1N8G/model_config.yaml",
    f"{CASES}/moe/gpt3_mcore_cp2_pp2_ep2_te_4experts2parallel_nondeterministic/model_config.yaml",
    f"{CASES}/moe/gpt3_mcore_tp2_cp2_pp2_ep2_te_4experts2parallel/model_config.yaml",
    f"{CASES}/moe/gpt3_mcore_tp2_cp2_pp2_ep2_te_4experts2parallel_dp_last/model_config.yaml",
    f"{CASES}/hybrid/hybrid_mr_mcore_te_tp2_pp1_cp4_dgx_a100_1N8G/model_config.yaml",
    f"{CASES}/hybrid/hybrid_mr_mcore_te_tp1_pp2_dsv4_hybrid_mhc_mtp/model_config.yaml",
    f"{CASES}/multimodal-llava/multimodal_llava_mcore_te_tp4_sp_cp2/model_config.yaml",
    "examples/dynamic_context_parallel/benchmark_dcp.sh",
)


def rehearsed(checkout: Path, path: str, engine: str | None, folder: Path) -> dict[str, Any]:
    """Rehearse one launch and return the row of its verdict."""
    target = folder / "result.json"
    command = [sys.executable, "-m", "ringproof", "rehearse", str(checkout / path)]
    command += ["--upstream", str(checkout), "--json", str(target), "--out", str(folder)]
    command += ["--te", engine] if engine else []
    command += ["--set", f"RINGPROOF_LAUNCH={SECOND}"] if path.endswith("benchmark_dcp.sh") else []
    folder.mkdir(parents=True, exist_ok=True)
    target.unlink(missing_ok=True)
    started = time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    row: dict[str, Any] = {
        "path": path,
        "exit": done.returncode,
        "seconds": round(time.monotonic() - started, 1),
    }
    if not target.is_file():
        return {**row, "message": (done.stderr.strip().splitlines() or [""])[-1]}
    result = json.loads(target.read_text().replace(f"{checkout}/", ""))
    kept = ("headline", "starts", "agrees", "largest_relative_difference", "feature", "dtype")
    return {
        **row,
        **{name: result[name] for name in kept},
        "ranks": result["launch"]["ranks"],
        "taken": result["path"]["taken"] if result["path"] else [],
        "refused_by": result["refused_by"],
        "transformer_engine": result["transformer_engine"],
    }


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkout", type=Path, required=True, help="work tree of Megatron-LM")
    parser.add_argument("--commit", required=True, help="its commit, for the record")
    parser.add_argument("--te", default=None, help="see ringproof rehearse --te")
    parser.add_argument("--only", nargs="*", default=[], help="run these again (substrings)")
    given = parser.parse_args()
    record = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    if record.get("commit") != given.commit:
        record = {"commit": given.commit, "launches": {}}
    for path in LAUNCHES:
        again = any(word in path for word in given.only)
        if path in record["launches"] and not again:
            continue
        name = path.split("/")[-2]
        row = rehearsed(given.checkout, path, given.te, Path("build/rehearsal/launches") / name)
        record["launches"][path] = row
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
        print(row["exit"], row["seconds"], name, row.get("headline", row.get("message")))


if __name__ == "__main__":
    main()
