"""Runs commands with edge values of every option: `python -m checks.cli.fuzz --runs N --seed S`.

Each run is a process of its own, forked from this one, with 2 GB of data and 20 seconds, without
network and with an empty cache. No rank is started: what would start one counts as served. A run
fails if it ends with a traceback, by a signal or with an exit code other than 0, 1 and 2, if it is
too slow, if it makes a file in its folder that no option named, or if it leaves a process.

`fuzzed.json` has the counts of the runs that were recorded last, with `--record`, the commit on
which they ran, and all that was wrong in them. 5,000 runs are recorded by one command, which goes
on where it was if it is ended and given again:

    python -m checks.cli.fuzz --runs 5000 --seed 1000 --record checks/cli/fuzzed.json
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import typer

from ringproof.cli import main as command

ROUND = 50
SECONDS = 20
BYTES = 2 << 30
NUMBERS = ("", "0", "-1", "1", "2", "7", "1000000000", "9" * 30, "nan", "inf", "-inf", "1e300", "x")
TEXTS = ("", "-", "--", "é\u202e", "\udcff", "0", "-1", "1,2", "a" * 5000, "1,,2", "%s", "{}")
PATHS = ("", "folder", "missing/file", "file", "/dev/null", "new", "link", "fifo")
UNREACHABLE = {"HTTPS_PROXY": "http://127.0.0.1:9", "HTTP_PROXY": "http://127.0.0.1:9"}
SKILLS = str(Path(__file__).parents[2] / "skills")
ALWAYS = {
    "anchors": ("--skills", SKILLS, "--offline"),
    "conform": ("--upstream", "dir:folder"),
    "fences": ("--root", "folder"),
    "fit": ("--upstream", "dir:folder"),
    "plan": ("--ranks", "8", "--max-tokens-per-rank", "64"),
    "rehearse": ("--upstream", "dir:folder"),
    "stack": ("--skills", SKILLS),
    "train": ("--steps", "1"),
    "upstream": ("--skills", SKILLS),
}
"""Options with which a command gets beyond its first refusal, in half of its runs."""


def leaves(found: Any, name: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that can be run, with its words."""
    within = getattr(found, "commands", None)
    if name and (within is None or found.invoke_without_command):
        yield name, found
    if within is not None:
        for word in within:
            yield from leaves(within[word], (*name, word))


def drawn(dice: random.Random, option: Any) -> str:
    """An edge value for the option's type."""
    kind = str(option.type_descriptor.annotation)
    usual = NUMBERS if "int" in kind or "float" in kind else (*TEXTS, *PATHS)
    return dice.choice(usual if dice.random() < 0.9 else (*NUMBERS, *TEXTS, *PATHS))


def words_of(dice: random.Random, name: tuple[str, ...], found: Any) -> list[str]:
    """Words of one run: the command, and one to three options or arguments."""
    words, behind = [*name], []
    alone = len(name) == 1 or name[0] != "plan"
    words += ALWAYS.get(name[0], ()) if alone and dice.random() < 0.5 else ()
    options = [one for one in found.params if one.param_type_name == "option"]
    for option in dice.sample(options, min(len(options), dice.randint(1, 3))):
        words.append(dice.choice(option.opts))
        if not option.is_flag:
            words.append(drawn(dice, option))
    for one in found.params:
        if one.param_type_name == "argument" and (one.required or dice.random() < 0.5):
            behind.append(drawn(dice, one))
    return words + behind


def prepare(folder: Path) -> None:
    """Files of every kind that an option may be given; without skills, or all would be proven."""
    (folder / "folder").mkdir()
    (folder / "skills").mkdir()
    (folder / "file").write_text("1\n2\n")
    (folder / "link").symlink_to("file")
    os.mkfifo(folder / "fifo")


def child(words: list[str], folder: str, served: Callable[[], None] | None) -> None:
    """Run the command, or what is served in its place, in this process, forked for it."""
    from ringproof.cluster import Cluster

    os.setsid()  # by which what it starts is found when it has ended
    os.chdir(folder)
    tempfile.tempdir = folder
    os.environ.update(HOME=folder, TMPDIR=folder, PATH="/nowhere", **UNREACHABLE)
    resource.setrlimit(resource.RLIMIT_DATA, (BYTES, BYTES))

    def start(_: Cluster) -> None:
        sys.exit(0)

    Cluster._start = start  # type: ignore[method-assign]
    output = os.open("../said", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    for number in (1, 2):
        os.dup2(output, number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 # lasts as long as the process
    sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
    sys.argv = ["ringproof", *words]
    if served is not None:
        command.app = lambda **_: served()
    command.main()


def _session(process_id: int) -> int:
    try:
        return os.getsid(process_id)
    except OSError:  # it has ended
        return 0


@contextlib.contextmanager
def fed(pipe: Path) -> Iterator[None]:
    """Let another process write a line into the pipe, as a shell does for ``<(COMMAND)``.

    Without a writer whoever opens the pipe to read waits for ever, which no command can mend.
    """
    writer = multiprocessing.get_context("fork").Process(target=pipe.write_text, args=("1\n",))
    writer.start()
    try:
        yield
    finally:
        writer.kill()
        writer.join()


def complaint(
    words: list[str],
    more: Callable[[Path], None] = lambda _: None,
    served: Callable[[], None] | None = None,
) -> str:
    """What is wrong with a run; empty if nothing is.

    Args:
        more: Function that puts more files into the folder of the run.
        served: What runs in the place of the command, for code that only ranks run.
    """
    with contextlib.ExitStack() as stack:
        top = stack.enter_context(tempfile.TemporaryDirectory(prefix="ringproof-fuzz-"))
        folder = Path(top) / "here"
        folder.mkdir()
        prepare(folder)
        more(folder)
        stack.enter_context(fed(folder / "fifo"))
        before = {path.name for path in folder.iterdir()}
        process = multiprocessing.get_context("fork").Process(
            target=child, args=(words, str(folder), served)
        )
        process.start()
        process.join(SECONDS)
        slow = process.is_alive()
        left = [one for one in psutil.process_iter() if _session(one.pid) == process.pid]
        for one in left:
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.join()
        if slow:
            return f"takes over {SECONDS} s"
        said = (Path(top) / "said").read_text(errors="replace")
        named = {Path(word).parts[0] for word in words if word and "\0" not in word}
        made = {path.name for path in folder.iterdir()} - before - named - {".cache"}
        if process.exitcode not in (0, 1, 2):
            return f"exit code {process.exitcode}: {said[-300:]}"
        if "Traceback" in said:
            return f"traceback: {said[-300:]}"
        if left or made:
            return f"left {left or made}"
        return ""


def fuzz(runs: int, seed: int, counts: Counter[str] | None = None) -> Iterator[str]:
    """Run commands, count them by their first word, and yield what was wrong."""
    dice = random.Random(seed)
    known = list(leaves(typer.main.get_command(command.app)))
    for _ in range(runs):
        words = words_of(dice, *dice.choice(known))
        if counts is not None:
            counts[words[0]] += 1
        if problem := complaint(words):
            yield f"{words}: {problem}"


def run_on() -> dict[str, object]:
    """Return the commit that is here, a digest of its code, and whether the code differs.

    The code is that of ringproof and of the programs that try it.
    """
    parts = ("src", *(f"checks/cli/{name}.py" for name in ("ends", "fuzz", "fuzz_files")))
    commit, *objects = _git("rev-parse", "HEAD", *(f"HEAD:{part}" for part in parts)).split()
    source = hashlib.sha256(" ".join(objects).encode()).hexdigest()
    return {
        "commit": commit,
        "source": source,
        "dirty": bool(_git("status", "--porcelain", *parts)),
    }


def _git(*words: str) -> str:
    command = ("git", "-C", str(Path(__file__).parents[2]), *words)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def kept_of(place: Path, kind: str, ran: dict[str, object]) -> dict[str, Any]:
    """Return the record of a kind if it is about the code that is here, else an empty one.

    A record goes on over commits that leave the code as it is, and names the first of them.
    """
    kept = json.loads(place.read_text()).get(kind, {}) if place.exists() else {}
    if any(kept.get(name) != ran[name] for name in ("source", "dirty")):
        return {**ran, "runs": 0, "wrong": [], "seeds": [], "counts": {}}
    return kept


def keep(place: Path, kind: str, seed: int, counts: Counter[str], problems: list[str]) -> None:
    """Add the counts of a round of a fuzzer to the record, a JSON file."""
    record = json.loads(place.read_text()) if place.exists() else {}
    kept = record[kind] = kept_of(place, kind, run_on())
    kept["runs"] += counts.total()
    kept["wrong"] += problems
    kept["seeds"].append(seed)
    kept["counts"] = dict(sorted((Counter(kept["counts"]) + counts).items()))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(json.dumps(record, indent=1) + "\n")


def rounds(kind: str, run: Callable[..., Iterator[str]], words: Sequence[str], **more: Any) -> int:
    """Run a fuzzer in rounds of `ROUND` runs, each with a seed of its own.

    A round is recorded when it ends, and one whose seed the record has is not run again: a command
    that was ended goes on where it was when it is given again.

    Args:
        run: Takes the number of runs, a seed, and ``counts``, and yields what was wrong.
        words: The arguments of the program.
        more: Further arguments of ``run``.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0, help="of the first round; others follow it")
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no round after these"
    )
    parser.add_argument("--record", type=Path, help="JSON file to which the counts are added")
    given = parser.parse_args(words)
    done = kept_of(given.record, kind, run_on())["seeds"] if given.record else []
    started, found, count = time.monotonic(), 0, 0
    for number in range(-(-given.runs // ROUND)):
        seed, seen = given.seed + number, Counter[str]()
        if seed in done or time.monotonic() - started > given.seconds:
            continue
        problems = []
        for problem in run(min(ROUND, given.runs - number * ROUND), seed, counts=seen, **more):
            problems.append(problem)
            print(problem, flush=True)
        found, count = found + len(problems), count + seen.total()
        if given.record:
            keep(given.record, kind, seed, seen, problems)
    print(f"{count} runs, {found} wrong")
    return bool(found)


if __name__ == "__main__":
    sys.exit(rounds("commands", fuzz, sys.argv[1:]))
