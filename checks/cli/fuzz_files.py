"""Gives damaged files to commands: `python -m checks.cli.fuzz_files --runs N --seed S`.

Scripts, YAML, JSON, logs, wheels, cards, skills and documents of this repository, and the files of
a checkpoint of `train`, are changed at random: bytes and lines are lost, repeated, swapped, joined
with another file of the kind, and replaced by what readers stumble over. Each run is judged as one
of `checks.cli.fuzz`.
"""

from __future__ import annotations

import base64
import hashlib
import multiprocessing
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import typer

from checks.anchors.wheelhouse import make_wheel
from checks.cli.fuzz import SKILLS, complaint, leaves, rounds
from ringproof.cli import main as command

ROOT = Path(__file__).parents[2]
MOST_BYTES = 400_000
NAME = "hierarchical-context-parallel"
CHECKPOINTS = ("checkpoint latest", "checkpoint run", "checkpoint random-0")
SPECIAL = (
    b"\0", b"\x1b[2J", b"\xff\xfe", b"\xc3", "\u202e".encode(), "\u0663".encode(), b"\r",
    b"9" * 400, b"-1", b"1e999", b"0x7fffffffffffffff", b"nan", b"[" * 3000, b"{" * 3000,
    b"(" * 3000, b"$((", b"${X:", b"$X$X$X", b"`", b"'", b'"', b"\\", b"<<EOF\n", b"&a [*a, *a]",
    b"<<: *a", b"!!python/object:os.system x", b"!!bool abc", b"? ", b"- " * 500, b"a" * 20_000,
    b"\n" * 3000, b"while :; do :; done\n", b"f() { f; f; }; f\n", b"source x.sh\n",
    b"for i in {1..99999999}; do :; done\n", b"$(rm -rf x)", b"```\n", b"---\n", b"\t",
)  # fmt: skip
"""What readers of text stumble over."""


@dataclass(frozen=True)
class Kind:
    """Files of one kind.

    Attributes:
        seeds: Files that are read without a complaint, or with a known one.
        path: Where a changed one is put in the folder of a run.
        commands: Words of the commands that read it there.
        beside: Other files of that folder.
        served: What reads the file, where only ranks do.
        signed: Whether half of the changed files get the digest that belongs to them.
    """

    seeds: tuple[bytes, ...]
    path: str
    commands: tuple[tuple[str, ...], ...]
    beside: Mapping[str, bytes] = field(default_factory=dict)
    served: Callable[[], None] | None = None
    signed: bool = False


def _read(*patterns: str) -> tuple[bytes, ...]:
    paths = sorted(path for pattern in patterns for path in ROOT.glob(pattern))
    assert paths, patterns
    return tuple(path.read_bytes()[:MOST_BYTES] for path in paths)


YAML = b"""defaults:
  - base
model: &model {context_parallel_size: 4, cp_comm_type: a2a+p2p, seq_length: 4096}
trainer: {nnodes: 1, n_gpus_per_node: 8}
MODEL_ARGS:
  --context-parallel-size: 4
  --hierarchical-context-parallel-sizes: 2 2
  --num-layers: 2
copy: *model
"""
JSON = b"""{"entries": [{"record_id": 1, "pg_id": 0, "process_group": ["0", "default_pg"],
"collective_seq_id": 1, "p2p_seq_id": 0, "op_id": 1, "profiling_name": "nccl:all_reduce",
"time_created_ns": 1, "duration_ms": 1.5, "input_sizes": [[4]], "input_dtypes": ["Float"],
"output_sizes": [[4]], "output_dtypes": ["Float"], "state": "scheduled",
"time_discovered_started_ns": null, "time_discovered_completed_ns": null, "retired": false,
"timeout_ms": 600000, "is_p2p": false, "frames": []}], "version": "2.4",
"pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
"pg_status": {"0": {"last_enqueued_collective": 1, "last_started_collective": 1,
"last_completed_collective": 0}}}
"""


def _training(folder: Path, *, save: bool) -> None:
    """Save a checkpoint of a tiny run into a folder, or load the one that is there."""
    import torch

    from ringproof.reference.training import checkpoint
    from ringproof.reference.training.assembly import assembly
    from smoke.model_batches import group_of_one
    from smoke.training_matrix import ONE_RANK, options_of

    torch.set_num_threads(1)
    options = options_of("qwen3-tiny", ONE_RANK)
    with group_of_one(), assembly(options, torch.device("cpu")) as parts:
        if save:
            checkpoint.save(folder, parts, 1)
        else:
            checkpoint.load(folder, parts)


def _saved() -> Mapping[str, bytes]:
    """Return the files of a checkpoint, which another process saves: this one goes on to fork."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save = partial(_training, folder, save=True)
        process = multiprocessing.get_context("fork").Process(target=save)
        process.start()
        process.join()
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {f"saved/{path.relative_to(folder)}": path.read_bytes() for path in files}


def _checkpoints() -> Iterator[tuple[str, Kind]]:
    """Yield a kind for each file of a checkpoint that fits: its name, its run, random states."""
    import torch

    # Here, so that the forks find all that torch loads with its first optimizer.
    torch.optim.AdamW([torch.zeros(1, requires_grad=True)])
    saved, words = _saved(), (("train", "--resume", "saved"),)
    load = partial(_training, Path("saved"), save=False)
    for path, data in saved.items():
        if len(data) < MOST_BYTES:
            signed = path.endswith(".tensors")
            yield f"checkpoint {Path(path).stem}", Kind((data,), path, words, saved, load, signed)


def kinds(only: str = "") -> Mapping[str, Kind]:
    """All kinds of files, or one; those of checkpoints need torch, and seconds to import it."""
    found = {**_texts(), **(dict(_checkpoints()) if only in ("", *CHECKPOINTS) else {})}
    return {name: kind for name, kind in found.items() if only in ("", name)}


def _texts() -> Mapping[str, Kind]:
    sources = {"megatron/core/__init__.py": "a = 1\n", "megatron/training.py": "b = 2\n"}
    with tempfile.TemporaryDirectory() as folder:
        made = make_wheel(Path(folder), sources, name="megatron_core", version="0.16.1")
        wheel = made.read_bytes()
    card, skill = f"cards/{NAME}/card.yaml", f"skills/{NAME}/SKILL.md"
    both = {path: (ROOT / path).read_bytes() for path in (card, skill)}
    names = ("--skills", "skills")
    return {
        "script": Kind(
            _read("examples/*.sh", "checks/**/*.sh"), "x.sh",
            (("doctor", "--quick", "x.sh"), ("rehearse", "--upstream", "dir:folder", "x.sh"),
             ("fit", "--upstream", "dir:folder", "x.sh")),
        ),
        "yaml": Kind((YAML, *_read("checks/**/*.yaml")), "x.yaml",
                     (("doctor", "--quick", "x.yaml"),)),
        "json": Kind(
            (JSON, *_read("checks/**/*.json")), "x_0",
            (("logs", "diagnose", "x_0"), ("doctor", "--quick", "x_0"),
             ("train", "--lengths", "x_0")),
        ),
        "log": Kind(
            _read("checks/logs/reports/*.log"), "x.log",
            (("logs", "groups", "x.log"), ("logs", "diagnose", "x.log"),
             ("doctor", "--quick", "x.log"),
             ("logs", "parity", "x.log", "x.log")),
        ),
        "wheel": Kind(
            (wheel,), "megatron_core-0.16.1-py3-none-any.whl",
            (("stack", "megatron_core-0.16.1-py3-none-any.whl", "--offline", "--skills", SKILLS),
             ("rehearse", "--offline", "--upstream", "megatron_core-0.16.1-py3-none-any.whl",
              "--", "python", "pretrain_gpt.py")),
        ),
        "card": Kind(
            _read("cards/*/card.yaml"), card,
            (("skills", "list", *names), ("render", "--check", *names),
             ("anchors", "check", "--offline", *names), ("upstream", "list", *names)),
            both,
        ),
        "skill": Kind(
            _read("skills/*/SKILL.md", "skills/*/references/*.md"), skill,
            (("lint", f"skills/{NAME}"), ("skills", "list", *names),
             ("skills", "install", "--agent", "codex", "--into", "folder", *names)),
            both,
        ),
        "document": Kind(_read("docs/*.md"), "x.md", (("fences", "x.md", "--root", "folder"),)),
    }  # fmt: skip


def _lose(dice: random.Random, data: bytes) -> bytes:
    start = dice.randrange(len(data) + 1)
    return data[:start] + data[start + int(dice.expovariate(1 / 40)) :]


def _cut(dice: random.Random, data: bytes) -> bytes:
    return data[: dice.randrange(len(data) + 1)]


def _flip(dice: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.randint(1, 8) if data else 0):
        changed[dice.randrange(len(data))] ^= 1 << dice.randrange(8)
    return bytes(changed)


def _insert(dice: random.Random, data: bytes) -> bytes:
    start = dice.randrange(len(data) + 1)
    return data[:start] + dice.choice(SPECIAL) + data[start:]


def _replace_word(dice: random.Random, data: bytes) -> bytes:
    words = data.split(b" ")
    words[dice.randrange(len(words))] = dice.choice(SPECIAL)
    return b" ".join(words)


def _repeat(dice: random.Random, data: bytes) -> bytes:
    start = dice.randrange(len(data) + 1)
    part = data[start : start + dice.randint(1, 400)]
    return data[:start] + part * dice.randint(2, 200) + data[start:]


def _shuffle(dice: random.Random, data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    if lines:
        one, other = dice.randrange(len(lines)), dice.randrange(len(lines))
        lines[one], lines[other] = lines[other], lines[one]
    return b"".join(lines)


CHANGES: tuple[Callable[[random.Random, bytes], bytes], ...] = (
    _lose, _cut, _flip, _insert, _insert, _replace_word, _repeat, _shuffle,
)  # fmt: skip


def changed(dice: random.Random, kind: Kind) -> bytes:
    """Return a file of a kind after one to four changes."""
    data = dice.choice(kind.seeds)
    if dice.random() < 0.2:
        other = dice.choice(kind.seeds)
        data = data[: dice.randrange(len(data) + 1)] + other[dice.randrange(len(other) + 1) :]
    for _ in range(dice.randint(1, 4)):
        data = dice.choice(CHANGES)(dice, data)[:MOST_BYTES]
    if kind.signed and dice.random() < 0.5:
        data = data[:-32] + hashlib.sha256(data[:-32]).digest()
    return data


def _put(files: Mapping[str, bytes], folder: Path) -> None:
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)


def fuzz(
    runs: int,
    seed: int,
    only: str = "",
    counts: Counter[str] | None = None,
    known: Mapping[str, Kind] | None = None,
) -> Iterator[str]:
    """Give changed files to commands, and yield what was wrong with the file in base64."""
    dice = random.Random(seed)
    known = known or kinds(only)
    for _ in range(runs):
        name = dice.choice([*known])
        kind = known[name]
        data, words = changed(dice, kind), [*dice.choice(kind.commands)]
        if counts is not None:
            counts[name] += 1
        files = {**kind.beside, kind.path: data}
        problem = complaint(words, partial(_put, files), kind.served)
        # Logs hold tracebacks that commands repeat; one of a command itself ends it with 3.
        if problem and not (name == "log" and problem.startswith("traceback")):
            yield f"{name} {words}: {problem}\n  {base64.b64encode(data[:3000]).decode()}"


if __name__ == "__main__":
    [*leaves(typer.main.get_command(command.app))]  # imports all commands once, before the forks
    sys.exit(rounds("files", fuzz, sys.argv[1:], known=kinds()))
