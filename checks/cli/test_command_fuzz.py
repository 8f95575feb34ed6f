"""Edge values of options end with an exit code that says so; see `checks.cli.fuzz`."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.cli import fuzz
from ringproof.cli import main as command
from ringproof.errors import InputError

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_edge_values_are_served_or_refused() -> None:
    assert list(fuzz.fuzz(200, seed=15)) == []


def _refuses(**_options: object) -> None:
    raise InputError("--a", "1 is wrong; correct it")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        (lambda **_: {}["where"], "exit code 3"),
        (lambda **_: print("Traceback (most recent call last)"), "traceback"),
        (lambda **_: time.sleep(60), "takes over 1 s"),
        (lambda **_: Path("unnamed").touch(), "left {'unnamed'}"),
        (lambda **_: subprocess.Popen(["/bin/sleep", "60"]), "left ["),
        (_refuses, ""),
    ],
)
def test_the_fuzzer_sees_what_is_wrong(
    does: object, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "app", does)
    monkeypatch.setattr(fuzz, "SECONDS", 1)
    found = fuzz.complaint(["train"])
    assert found.startswith(said)
    assert bool(found) == bool(said)


def test_a_record_is_about_one_tree_of_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "fuzzed.json"

    def record(commit: str, source: str, seed: int, problems: list[str]) -> dict[str, object]:
        here = {"commit": commit, "source": source, "dirty": False}
        monkeypatch.setattr(fuzz, "run_on", lambda: here)
        fuzz.keep(place, "commands", seed, Counter(plan=2, train=1), problems)
        kept: dict[str, object] = json.loads(place.read_text())["commands"]
        return kept

    record("a", "x", 1, ["plan: traceback"])
    both = record("b", "x", 2, [])
    assert (both["commit"], both["seeds"], both["runs"]) == ("a", [1, 2], 6)
    assert (both["wrong"], both["counts"]) == (["plan: traceback"], {"plan": 4, "train": 2})
    other = record("c", "y", 3, [])
    assert (other["commit"], other["seeds"], other["runs"]) == ("c", [3], 3)
    assert other["wrong"] == []


def test_rounds_go_on_where_they_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[tuple[int, int]] = []

    def run(runs: int, seed: int, counts: Counter[str]) -> Iterator[str]:
        ran.append((runs, seed))
        counts["plan"] += runs
        yield from (("plan: wrong",) if seed == 8 else ())

    monkeypatch.setattr(fuzz, "run_on", lambda: {"commit": "a", "source": "x", "dirty": False})
    place = tmp_path / "fuzzed.json"
    words = ("--seed", "7", "--record", str(place))
    assert fuzz.rounds("commands", run, ("--runs", "50", *words)) == 0
    assert fuzz.rounds("commands", run, ("--runs", "120", *words)) == 1
    assert ran == [(50, 7), (50, 8), (20, 9)]
    kept = json.loads(place.read_text())["commands"]
    assert (kept["runs"], kept["seeds"], kept["wrong"]) == (120, [7, 8, 9], ["plan: wrong"])


def test_the_committed_record_is_whole_and_names_its_commit() -> None:
    record = json.loads(Path(fuzz.__file__).with_name("fuzzed.json").read_text(encoding="utf-8"))
    assert {*record} == {"commands", "files"}
    changes = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    for name, kept in record.items():
        assert sum(kept["counts"].values()) == kept["runs"] == fuzz.ROUND * len({*kept["seeds"]})
        assert len(kept["commit"]) == 40 and kept["dirty"] is False
        assert kept["wrong"] == []
        what = {"commands": "lines of options", "files": "damaged files"}[name]
        assert f"{kept['runs']:,} {what} (`{kept['commit'][:8]}`)" in changes
