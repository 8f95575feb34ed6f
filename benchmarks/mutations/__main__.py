"""Plant each mistake in a copy of a checkout, and record whether the tests fail.

    python -m benchmarks.mutations --json benchmarks/mutations/results/after.json
    python -m benchmarks.mutations --only lint --only tape-lives

Ten minutes for all sixty. The tests run without any mistake first and must pass. Exit status 1 if a
mistake survives.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

from benchmarks.mutations.planted import REMEDY, Mutation, read_mutations
from ringproof.errors import InputError, shown
from ringproof.files import write_atomically

ROOT = Path(__file__).parents[2]
PYTEST = ("-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider")
SAME_EXAMPLES = "--hypothesis-profile=ci"
"""The examples that Hypothesis tries are the same in each run, and slow ones do not fail."""
FAILED = 1
"""Exit status of pytest if tests failed."""
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (.+?)(?: - |$)", re.MULTILINE)


class Checkout:
    """A copy of the files that git knows or would add, in which tests run.

    Args:
        source: The checkout.
        folder: An empty folder for the copy.
        timeout: Seconds after which a test run is ended.
    """

    def __init__(self, source: Path, folder: Path, timeout: float) -> None:
        self.folder, self._timeout = folder, timeout
        names = _git(source, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
        for name in filter(None, names.split("\0")):
            if (source / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source / name, folder / name)
        self._environment = os.environ | {
            "PYTHONPATH": str(folder / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",  # files change within a second
        }

    def run(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """Run tests, and return the exit status and the output; no status after the timeout."""
        process = subprocess.Popen(
            (sys.executable, *PYTEST, SAME_EXAMPLES, *tests),
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            output, _ = process.communicate(timeout=self._timeout)
        except subprocess.TimeoutExpired:
            started = psutil.Process(process.pid)
            for one in (*started.children(recursive=True), started):
                one.kill()
            return None, process.communicate()[0]
        return process.returncode, output

    def plant(self, mutation: Mutation) -> dict[str, Any]:
        """Run the tests of a mistake with it, and return its entry of the record."""
        path = self.folder / mutation.file
        source = path.read_text("utf-8")
        path.write_text(mutation.applied(source), "utf-8")
        started = time.perf_counter()
        status, output = self.run(mutation.tests)
        seconds = time.perf_counter() - started
        path.write_text(source, "utf-8")
        failure = _FAILURE.search(output)
        return {
            "id": mutation.id,
            "area": mutation.area,
            "breaks": mutation.breaks,
            "file": mutation.file,
            "tests": mutation.tests,
            "verdict": "survived" if status == 0 else "killed",
            "by": "timeout" if status is None else failure[1] if failure else None,
            "seconds": round(seconds, 1),
        }


def check_places(mutations: Sequence[Mutation], folder: Path) -> None:
    """Refuse a list that does not fit a checkout.

    Raises:
        InputError: A file is missing, or does not hold the text exactly once.
    """
    for mutation in mutations:
        path = folder / mutation.file
        if not path.is_file():
            raise InputError(mutation.id, f"{shown(mutation.file)} does not exist; {REMEDY}")
        mutation.applied(path.read_text("utf-8"))


def record(path: Path, commit: str, planted: Sequence[dict[str, Any]], ids: Sequence[str]) -> None:
    """Write the record, in the order of the list. Entries of the same commit that are not new stay.

    Args:
        path: The JSON file.
        commit: Commit of the checkout.
        planted: The new entries.
        ids: All ids of the list.
    """
    old = json.loads(path.read_text("utf-8")) if path.exists() else {}
    kept = old["mutations"] if old.get("commit") == commit else []
    entries = {entry["id"]: entry for entry in (*kept, *planted)}
    ordered = [entries[name] for name in ids if name in entries]
    verdicts = [entry["verdict"] for entry in ordered]
    data = {
        "commit": commit,
        "killed": verdicts.count("killed"),
        "survived": verdicts.count("survived"),
        "mutations": ordered,
    }
    write_atomically(path, (json.dumps(data, indent=1) + "\n").encode(), field="--json")


def _git(folder: Path, *arguments: str) -> str:
    command = ("git", "-C", str(folder), *arguments)
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--tree", type=Path, default=ROOT, help="checkout to copy")
    parser.add_argument("--only", action="append", default=[], help="id or area; may be repeated")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds for one test run")
    parser.add_argument("--json", type=Path, help="file for the record")
    return parser.parse_args()


def main() -> int:
    """Plant the mistakes, one after another, and return the exit status."""
    options = _options()
    mutations = read_mutations(tuple(options.only))
    check_places(mutations, options.tree)
    planted: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        checkout = Checkout(options.tree, Path(name), options.timeout)
        tests = dict.fromkeys(test for mutation in mutations for test in mutation.tests)
        status, output = checkout.run(tuple(tests))
        print(output.strip().splitlines()[-1], "without a mistake", flush=True)
        if status != 0:
            print(output)
            return 2
        for mutation in mutations:
            entry = checkout.plant(mutation)
            planted.append(entry)
            print(
                f"{entry['verdict']:9} {mutation.id:28} {entry['seconds']:5.1f} s  {entry['by']}",
                flush=True,
            )
    if options.json is not None:
        commit = _git(options.tree, "rev-parse", "--short", "HEAD").strip()
        ids = [mutation.id for mutation in read_mutations()]
        record(options.json, commit, planted, ids)
    return int(any(entry["verdict"] == "survived" for entry in planted))


if __name__ == "__main__":
    try:
        sys.exit(main())
    except InputError as error:
        sys.exit(f"error: {error}")
