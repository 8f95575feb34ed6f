"""How many seconds and how much memory of this machine `ringproof fit` takes.

``python -m benchmarks.rehearsal.costs --json results/fit-costs.json`` runs each of `RUNS` in a
process of its own; one that was recorded is not run again unless it is named by ``--only``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from benchmarks.records import environment
from benchmarks.rehearsal import degrees, published
from ringproof.files import write_atomically
from ringproof.programs import TimeLimit, python, started
from ringproof.tables import read_table

FETCHED = "fetched:NVIDIA/{}@{}"
DEV = FETCHED.format("Megatron-LM", "d48bd6be0a85cc0d6d3cc71e8750cf357cc6bdb1")
MAIN = FETCHED.format("Megatron-LM", "d98e8a64ddf34856e74b24714e3bedb2f5a39553")
BANKS = FETCHED.format("Megatron-LM", "986bf457874162909e1ee3ef1b59062b97fa44d5")
BANKS_ENGINE = FETCHED.format("TransformerEngine", "d12ff87e505635e9ab978202661bdbb34b24eba5")
ENGINE = "pip:transformer-engine==2.20.2"
SKILL = Path(__file__).parents[2] / "skills" / "dynamic-cp-cuda-graphs" / "SKILL.md"
LONGEST_SECONDS = 900.0
POLL_SECONDS = 0.5
LLAMA = (
    f"{degrees.RUN} --nnodes 4 pretrain_gpt.py {degrees.LLAMA} --seq-length {degrees.LONGEST} "
    f"--max-position-embeddings {degrees.LONGEST} --sequence-parallel"
)
TP4_CP8 = f"{LLAMA} --tensor-model-parallel-size 4 --context-parallel-size 8 --global-batch-size 1"
DYNAMIC = f"{degrees.DYNAMIC} {degrees.BUDGET} 8192"


@dataclass(frozen=True)
class Run:
    """One run of `ringproof fit`: a launch, options of `fit`, and the upstream."""

    launch: str
    options: str = ""
    upstream: str = DEV
    engine: str = ENGINE


def _published(name: str) -> Run:
    """Return the run of a configuration of ``published.toml``."""
    table = read_table("benchmarks.rehearsal", published.TABLE)
    entry = next(one for one in table["launch"] if one["name"] == name)
    launch = published.launch_of(table, entry)
    variables = (f"{name}={value}" for name, value in launch.environment.items())
    ranks = f"torchrun --nnodes {launch.ranks // 8} --nproc-per-node 8"
    return Run(" ".join((*variables, ranks, launch.script, *launch.arguments)), upstream=MAIN)


def _start_command() -> str:
    """Return the command with which the skill on CUDA graphs starts."""
    start = SKILL.read_text(encoding="utf-8").partition("begin start -->")[2]
    found = re.search(r"```bash\n(.*?)```", start, re.DOTALL)
    assert found is not None
    return " ".join(found[1].replace("\\\n", " ").replace("'", "").split())


RUNS = {
    "Llama-3-8B, 131,072 tokens, TP 4, SP, CP 8, 32 GPUs": Run(TP4_CP8),
    "the same, everything recomputed": Run(
        f"{TP4_CP8} --recompute-granularity full --recompute-method uniform "
        "--recompute-num-layers 1"
    ),
    "the same, TP 2, CP 16, `a2a+p2p` 4 x 4": Run(
        f"{LLAMA} --tensor-model-parallel-size 2 --context-parallel-size 16 --global-batch-size 1 "
        "--cp-comm-type a2a+p2p --hierarchical-context-parallel-sizes 4 4"
    ),
    "the same, TP 4, CP 4, PP 2, VPP 2": Run(
        f"{LLAMA} --tensor-model-parallel-size 4 --context-parallel-size 4 --global-batch-size 8 "
        "--pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2"
    ),
    "the same, twelve variants, two finalists": Run(
        TP4_CP8,
        "--finalists 2 --vary tensor-model-parallel-size=2,4 --vary context-parallel-size=2,4,8 "
        "--vary cp-comm-type=p2p,all_gather",
    ),
    "Llama-3-8B, Dynamic CP, budget 8,192, TP 2, 64 GPUs": Run(DYNAMIC),
    "the same, `--whole-batch`: 32 ranks": Run(DYNAMIC, "--whole-batch"),
    "Dynamic CP with CUDA graphs, the skill's start command, 8 GPUs": Run(
        _start_command(), upstream=BANKS, engine=BANKS_ENGINE
    ),
    "Llama-3-70B, 64 GPUs, PP 4, VPP 5": _published("Llama-3-70B, 64 GPUs"),
    "Qwen3-30B-A3B, 16 GPUs, EP 16": _published("Qwen3-30B-A3B, 16 GPUs, EP 16"),
    "Nemotron 3 Nano (hybrid), 8 GPUs": _published("Nemotron 3 Nano, 8 GPUs, 4096 tokens"),
    "DeepSeek-V3, 1,024 GPUs, PP 8": _published("DeepSeek-V3, 1024 GPUs"),
}
"""What is run, by name."""


def cost_of(run: Run) -> dict[str, Any]:
    """Run `ringproof fit`, and return what it took and what it said.

    ``others`` is how many cores other programs took meanwhile. Memory that processes share is
    counted once.
    """
    with tempfile.TemporaryDirectory(prefix="fit-costs-") as name:
        folder = Path(name).resolve()
        target, log = folder / "fit.json", folder / "fit.log"
        command = [*python(module="ringproof"), "fit", "--upstream", run.upstream]
        command += ["--te", run.engine, "--gpu", "h100", "--offline", *run.options.split()]
        command += ["--timeout", f"{LONGEST_SECONDS:g}", "--json", str(target)]
        command += ["--out", str(folder / "out"), "--", *run.launch.split()]
        load, busy, own = os.getloadavg()[0], _busy(), _of_children()
        began = time.monotonic()
        with log.open("w") as stream, started(command, stdout=stream) as process:
            most = _watched(process.pid, began + LONGEST_SECONDS)
            with contextlib.suppress(TimeLimit):
                process.wait(1)
        seconds, processor = time.monotonic() - began, _of_children() - own
        said = log.read_text(errors="replace").strip().splitlines() or [""]
        found = json.loads(target.read_text()) if target.is_file() else {}
    fits = [one["fit"] for one in found.get("choices", [{"fit": found}]) if one["fit"]]
    return {
        "seconds": round(seconds, 1),
        "processor": round(processor, 1),
        "memory": most,
        "load": round(load, 1),
        "others": round(max(_busy() - busy - processor, 0.0) / seconds, 1),
        "exit": process.returncode,
        "measured": [len(one["ranks"]) for one in fits],
        "peak": max((rank["peak"] for one in fits for rank in one["ranks"]), default=None),
        **({} if fits else {"said": said[-1][-300:]}),
    }


def _watched(pid: int, latest: float) -> int:
    """Return the most bytes that a process and all below it held, when it has ended."""
    most, process = 0, psutil.Process(pid)
    while time.monotonic() < latest:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                break
            tree = [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            break
        most = max(most, sum(map(_held, tree)))
        time.sleep(POLL_SECONDS)
    return most


def _held(process: psutil.Process) -> int:
    """Return the bytes of a process, its share of those that it has with others."""
    with contextlib.suppress(psutil.Error):
        return int(process.memory_full_info().pss)
    return 0


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _busy() -> float:
    times = psutil.cpu_times()
    return float(times.user + times.system + times.nice)


def main() -> None:
    """Run what is missing, and write the record after each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="parts of names, also again")
    given = parser.parse_args()
    rows = json.loads(given.json.read_text())["rows"] if given.json.is_file() else {}
    for name, run in RUNS.items():
        again = any(part in name for part in given.only)
        if (given.only and not again) or (name in rows and not again):
            continue
        rows[name] = {
            "upstream": run.upstream, "engine": run.engine, "options": run.options, **cost_of(run)
        }  # fmt: skip
        sys.stderr.write(f"{name} {rows[name]}\n")
        kept = {name: rows[name] for name in RUNS if name in rows}
        text = json.dumps({"environment": environment(), "rows": kept}, indent=1)
        write_atomically(given.json, text + "\n", field="--json")


if __name__ == "__main__":
    main()
