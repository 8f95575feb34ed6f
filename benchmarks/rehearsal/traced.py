"""Locate in launches of verl and Megatron-Bridge: defects planted in copies, verl's own, and none.

A launch runs by ``ringproof rehearse`` as a user would run it, once without the search and once
with it, and cases of verl as ``ringproof conform`` runs them. Needs the extras ``verl`` and
``bridge``; what is in the record is not run again.

    python -m benchmarks.rehearsal.traced --json FILE [--only NAME ...]
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.records import write_record
from benchmarks.rehearsal.located import ROOT, STEPS, judged, summary
from ringproof.cache import default_cache
from ringproof.rehearsal.conform.cases import VERL_CASES, chosen
from ringproof.rehearsal.conform.record import Status
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import AGREES
from ringproof.rehearsal.runs.releases import BRIDGE
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_bridge, open_upstream
from ringproof.rehearsal.verl.conforming import VerlMatrix
from ringproof.rehearsal.verl.running import VerlRuns
from ringproof.rehearsal.verl.upstreams import open_stack, open_verl

CORE = "pip:megatron-core==0.19.2"
ENGINE = "pip:transformer-engine==2.20.2"
SFT = (
    "-m", "verl.trainer.sft_trainer", "engine=megatron", "optim=megatron",
    "model.path=Qwen/Qwen3-8B", "engine.context_parallel_size=2",
)  # fmt: skip
MINE = (str(ROOT / "examples" / "train_mine.py"),)
RECIPE = ("run_recipe.py", "--recipe", "llama3_8b_pretrain_config")
TUNED = (
    "run_recipe.py", "--recipe", "llama32_1b_sft_config", "model.context_parallel_size=2",
    "model.calculate_per_token_loss=true", "ddp.average_in_collective=false",
    "dataset.offline_packing_specs.pad_seq_to_mult=4",
)  # fmt: skip
SECONDS = 400.0
"""Longest time of one program of a case."""


@dataclass(frozen=True)
class TracedRow:
    """One launch or case.

    Attributes:
        words: Command of torchrun on two ranks; empty for a case of ``conform``.
        copied: Which option names a copy with a defect; empty for none.
        edit: File in the copy, a text that occurs once, and what takes its place.
        breaks: What is wrong.
        phase: Where the defect is; empty where nothing is wrong.
        module: The same, as a regular expression.
    """

    name: str
    framework: str
    words: tuple[str, ...] = ()
    copied: str = ""
    edit: tuple[str, str, str] = ("", "", "")
    breaks: str = ""
    phase: str = ""
    module: str = ".*"


ROWS = (
    TracedRow(
        "verl-label-of-chunk", "verl", SFT, "--verl",
        (
            "verl/models/mcore/util.py",
            "saved_roll_dict[start_idx + half_seqlen - 1] = d[(cp_rank + 1) * half_seqlen]",
            "saved_roll_dict[start_idx + half_seqlen - 1] = d[(cp_rank + 1) * half_seqlen - 1]",
        ),
        "The label of the last token in the first chunk of a rank is this token itself.",
        "loss", "",
    ),
    TracedRow(
        "verl-first-chunk", "verl", SFT, "--verl",
        (
            "verl/models/mcore/util.py",
            "\n                half_seqlen * cp_rank : half_seqlen * (cp_rank + 1)\n",
            "\n                half_seqlen * cp_rank + 1 : half_seqlen * (cp_rank + 1) + 1\n",
        ),
        "The first chunk of each rank begins one token too late.", "data", "",
    ),
    TracedRow(
        "bridge-last-token", "Bridge", MINE, "--bridge",
        (
            "megatron/bridge/training/losses.py",
            "loss = torch.sum(losses * loss_mask)",
            "loss = torch.sum((losses * loss_mask)[:-1])",
        ),
        "The loss of the last token of each CP rank is left out.", "loss", "",
    ),
    TracedRow(
        "bridge-rope-chunk", "Bridge", MINE, "--upstream",
        (
            "megatron/core/models/common/embeddings/rope_utils.py",
            "(2 * cp_size - cp_rank - 1)",
            "(2 * cp_size - cp_rank - 2)",
        ),
        "The second half of the rotary embedding of each CP rank is one chunk too early.",
        "forward", r"rotary_pos_emb|decoder\.layers\.0\.self_attention",
    ),
    TracedRow(
        "verl-sft-cp4-per-token", "verl", phase="scale",
        breaks="verl's own: the tokens of a microbatch are divided by CP without remainder.",
    ),
    TracedRow(
        "verl-moe-cp2-z-loss", "verl", phase="backward", module=r"decoder\.layers\.3\.mlp\.router",
        breaks="verl's own: padding of CP enters the z-loss of the router.",
    ),
    TracedRow("verl-sft-cp2-dp2", "verl"),
    TracedRow("verl-sft-cp2-tp2", "verl"),
    TracedRow("verl-ppo-cp2", "verl"),
    TracedRow("verl-critic-cp2", "verl"),
    TracedRow("verl-reference-cp2", "verl"),
    TracedRow("bridge-recipe", "Bridge", RECIPE),
    TracedRow("bridge-packed-tuning", "Bridge", TUNED),
)  # fmt: skip
"""Planted defects, defects of verl 0.9.1, and what agrees."""


def copied(row: TracedRow, cache: Path, folder: Path) -> Path:
    """Copy the release that a row names, and plant its defect in the copy.

    Raises:
        ValueError: The text that is replaced does not occur once.
    """
    opened = {
        "--verl": lambda: open_verl("", cache=cache, offline=False)[0],
        "--bridge": lambda: open_bridge(BRIDGE, option="--bridge", cache=cache)[0],
        "--upstream": lambda: open_upstream(CORE, ENGINE, cache=cache).megatron,
    }
    shutil.copytree(opened[row.copied](), folder, symlinks=True)
    path, find, replace = row.edit
    text = (folder / path).read_text()
    if text.count(find) != 1:
        raise ValueError(f"{row.name}: {find!r} is {text.count(find)} times there")
    (folder / path).write_text(text.replace(find, replace))
    return folder


def launched(row: TracedRow, folder: Path) -> dict[str, Any]:
    """Rehearse a launch without the search and with it, and return what was found."""
    names = {"--upstream": CORE, "--bridge": BRIDGE}
    if row.copied:
        names[row.copied] = str(copied(row, default_cache(), folder / "copy"))
    specs = [word for pair in names.items() for word in pair]
    launch = ["--", "torchrun", "--nproc-per-node=2", *row.words]
    command = ["rehearse", *specs, "--te", ENGINE, "--steps", str(STEPS)]
    plain, _ = run([*command, "--no-locate"], launch, folder / "plain")
    traces = folder / "traces"
    whole, result = run([*command, "--keep-trace", str(traces)], launch, folder / "traced")
    found = result.get("located")
    if found is None:
        pair = (str(traces / "launch" / name) for name in ("run", "reference"))
        _, found = run(["trace", "compare", *pair], (), folder / "compared")
    size = sum(path.stat().st_size for path in traces.rglob("*") if path.is_file())
    return {
        **placed(found),
        "program": " ".join(word.removeprefix(f"{ROOT}/") for word in row.words),
        "headline": result.get("headline", ""),
        "plain_cpu_seconds": round(plain, 1),
        "traced_cpu_seconds": round(whole, 1),
        "trace_bytes": size,
    }


def run(words: Sequence[str], launch: Sequence[str], folder: Path) -> tuple[float, dict[str, Any]]:
    """Run a command of ringproof; return the processor's seconds of all its processes, and JSON."""
    folder.mkdir(parents=True)
    command = [sys.executable, "-m", "ringproof", *words, "--json", "result.json", *launch]
    before = used()
    subprocess.run(command, check=False, cwd=folder)
    return used() - before, json.loads((folder / "result.json").read_text())


def used() -> float:
    """Return the processor's seconds of all processes that ended below this one."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def cased(row: TracedRow, matrix: VerlMatrix) -> dict[str, Any]:
    """Run a case of verl, and locate where it differs or in its first steps."""
    (case,) = chosen([row.name], among=VERL_CASES)
    result = matrix.run(case)
    step = result.since if result.status is Status.DIFFERS else STEPS
    found = matrix.located(case, (), step or STEPS)
    culprit = found.culprit
    return {
        **placed({
            "sentence": saying.sentence(found),
            "compared": found.compared,
            "left_out": found.left_out,
            "culprit": culprit and vars(culprit),
        }),
        "program": case.id,
        "headline": result.status.value,
    }  # fmt: skip


def placed(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a row keeps of a location."""
    culprit = found.get("culprit") or {}
    return {
        **{
            name: culprit.get(name, "") for name in ("phase", "module", "computed_at", "applied_at")
        },
        "said": found["sentence"],
        "compared": found["compared"],
        "left_out": [f"{what} ({count})" for what, count in found["left_out"]],
    }


def verdict_of(row: TracedRow, found: Mapping[str, Any]) -> str:
    """Return how what was named fits what is wrong; ``agrees`` or ``alarm`` where nothing is."""
    if row.phase:
        return judged({"planted": row.phase, "phase": found["phase"], "module": found["module"]},
                      row.module)  # fmt: skip
    return "agrees" if AGREES in found["said"] and found["compared"] else "alarm"


def matrix_of(servers: Servers, folder: Path) -> VerlMatrix:
    """Return the matrix of verl."""
    source: dict[str, Any] = {"cache": default_cache(), "offline": False}
    upstream, verl = open_upstream(CORE, ENGINE, **source), open_verl("", **source)
    stack = open_stack(upstream, verl, BRIDGE, vanilla=False, **source)
    runs = VerlRuns(servers, stack, folder, STEPS, "float32", SECONDS, lambda *_: None)
    return VerlMatrix(runs, folder, vanilla=False)


def main() -> None:
    """Run what is not in the record yet, and write it after each row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--only", nargs="*", default=[], help="names of rows")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, Servers(Path(name)) as servers:
        matrix = matrix_of(servers, Path(name, "cases"))
        for row in ROWS:
            record = json.loads(given.json.read_text()) if given.json.is_file() else {}
            rows = {one["name"]: one for one in record.get("rows", [])}
            if row.name in rows or (given.only and row.name not in given.only):
                continue
            found = launched(row, Path(name, row.name)) if row.words else cased(row, matrix)
            made = {"name": row.name, "framework": row.framework, "breaks": row.breaks}
            made |= {"planted": row.phase, "megatron": CORE, **found}
            rows[row.name] = made | {"verdict": verdict_of(row, found)}
            sys.stderr.write(f"{rows[row.name]['verdict']:<8}{row.name}: {found['said']}\n")
            listed = [rows[one.name] for one in ROWS if one.name in rows]
            write_record(given.json, {"summary": summary(listed), "rows": listed})


if __name__ == "__main__":
    main()
