"""Plant a defect in a copy of Megatron-LM, and rehearse a launch of it as a user of the fork would.

``python -m benchmarks.rehearsal.forks --dev SPEC --json results/forks.json`` writes what was said
beside what ``forks.toml`` plants, and how many seconds it took.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.records import write_record
from benchmarks.rehearsal.located import judged, summary
from ringproof.cache import default_cache
from ringproof.programs import python, run
from ringproof.rehearsal.runs.upstreams import open_upstream
from ringproof.tables import read_table

LAUNCH = """#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1
torchrun --nproc-per-node 8 pretrain_gpt.py \\
  --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 8192 \\
  --max-position-embeddings 8192 --normalization RMSNorm --swiglu --disable-bias-linear \\
  --position-embedding-type rope --untie-embeddings-and-output-weights \\
  --transformer-impl transformer_engine --bf16 --attention-dropout 0 --hidden-dropout 0 \\
  --micro-batch-size 1 --global-batch-size 64 --train-iters 1000 --lr 3e-4 --min-lr 3e-5 \\
  --tokenizer-type NullTokenizer --vocab-size 32000 --mock-data --split 99,1,0 \\
  --log-interval 1 --eval-interval 1000 --eval-iters 1 \\
  {options}
"""


LONGEST = 1200.0
"""Seconds after which a rehearsal is ended."""


@dataclass(frozen=True)
class Fork:
    """One edit of a checkout; see ``forks.toml`` for the fields."""

    name: str
    breaks: str
    path: str
    find: str
    replace: str
    options: str
    phase: str
    module: str
    against: bool = False

    def copied(self, checkout: Path, folder: Path) -> Path:
        """Copy a checkout and plant the defect in the copy.

        Raises:
            ValueError: The text that is replaced does not occur once.
        """
        shutil.copytree(checkout, folder, symlinks=True)
        file = folder / self.path
        text = file.read_text()
        if text.count(self.find) != 1:
            raise ValueError(f"{self.name}: {self.find!r} is {text.count(self.find)} times there")
        file.write_text(text.replace(self.find, self.replace))
        return folder


def forks() -> tuple[Fork, ...]:
    """Return the forks of ``forks.toml``."""
    table = read_table("benchmarks.rehearsal", "forks.toml")
    return tuple(Fork(**fields) for fields in table["fork"])


@dataclass(frozen=True)
class Stranger:
    """A fork that somebody else made; see ``forks.toml`` for the fields."""

    name: str
    breaks: str
    upstream: str
    path: str
    find: str
    replace: str
    options: str
    phase: str
    module: str


def strangers() -> tuple[Stranger, ...]:
    """Return the forks of ``forks.toml`` that somebody else made."""
    table = read_table("benchmarks.rehearsal", "forks.toml")
    return tuple(Stranger(**fields) for fields in table["stranger"])


def rehearsed(fork: Fork, checkout: Path, engine: str, folder: Path) -> dict[str, Any]:
    """Rehearse a launch of a fork, and return what was said beside what was planted."""
    copy = fork.copied(checkout, folder / "Megatron-LM")
    script, target = folder / "train.sh", folder / "result.json"
    script.write_text(LAUNCH.format(options=fork.options))
    command = [*python(module="ringproof"), "rehearse", str(script), "--upstream", str(copy)]
    command += ["--te", engine, "--json", str(target), "--out", str(folder / "logs")]
    command += ["--against", str(checkout)] if fork.against else []
    started = time.monotonic()
    done = run(command, seconds=LONGEST)
    seconds = round(time.monotonic() - started, 1)
    text = target.read_text() if target.is_file() else "{}"
    result = json.loads(text.replace(f"{copy}/", "").replace(f"{checkout}/", ""))
    found = result.get("located_between" if fork.against else "located") or {}
    culprit = found.get("culprit") or {}
    row = {
        "name": fork.name,
        "breaks": fork.breaks,
        "against": fork.against,
        "planted": fork.phase,
        "phase": culprit.get("phase", ""),
        "module": culprit.get("module", ""),
        "computed_at": culprit.get("computed_at", ""),
        "headline": result.get("headline", ""),
        "said": found.get("sentence", ""),
        "exit": done.code,
        "seconds": seconds,
    }
    return row | {"verdict": judged(row, fork.module)}


def main() -> None:
    """Run the forks that are not in the record yet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--dev", required=True)
    parser.add_argument("--te", default="pip:transformer-engine==2.20.2")
    parser.add_argument("--json", type=Path, required=True)
    given = parser.parse_args()
    dev = open_upstream(given.dev, given.te, cache=default_cache())
    record = json.loads(given.json.read_text()) if given.json.is_file() else {}
    rows = {row["name"]: row for row in record.get("rows", [])}
    for fork in forks():
        if fork.name not in rows:
            with tempfile.TemporaryDirectory() as folder:
                row = rows[fork.name] = rehearsed(fork, dev.megatron, given.te, Path(folder))
            sys.stderr.write(f"{row['verdict']:<8}{fork.name}: {row['headline']} {row['said']}\n")
        listed = [rows[one.name] for one in forks() if one.name in rows]
        content = {
            "megatron": dev.megatron_name,
            "transformer_engine": dev.engine_version,
            "summary": summary(listed),
            "rows": listed,
            "strangers": record.get("strangers", []),  # which were rehearsed by hand
        }
        write_record(given.json, content)


if __name__ == "__main__":
    main()
