"""What a run of proofs takes over from the one before it in the same folder.

A whole run takes tens of minutes, and one that was interrupted, or in which one test has to be
mended, need not begin again. A test is taken over if it passed and these are the same: the sources
in the closure of its file (`closure`), the files beside the tests and skills that are not Python,
the packages that are installed, Python, the class of the environment, and what the user names as
upstreams. What else a test reads is not known. The facts of a run lie beside its events.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ringproof.files import write_atomically
from ringproof.prove.environment import Environment

FACTS = "facts.json"
_DATA = ("skills", "cards", "checks", "smoke")


def run_facts(environment: Environment, upstreams: Mapping[str, str], root: Path) -> dict[str, Any]:
    """Return on what all tests of a run depend, apart from their sources.

    Args:
        root: The repository's root.
    """
    installed = {f"{one.name}=={one.version}" for one in importlib.metadata.distributions()}
    return {
        "environment": [environment.name, environment.python, environment.torch],
        "packages": hashlib.sha256("\n".join(sorted(installed)).encode()).hexdigest(),
        "data": _data_digest(root),
        "upstreams": dict(upstreams),
    }


def _data_digest(root: Path) -> str:
    """Return the SHA-256 over names and contents of what tests may read, Python's files apart."""
    total = hashlib.sha256()
    for folder in _DATA:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and path.suffix not in (".py", ".pyc"):
                name = path.relative_to(root).as_posix()
                total.update(f"{name}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return total.hexdigest()


def taken_over(
    folder: Path, facts: Mapping[str, Any], digests: Mapping[str, str | None]
) -> tuple[str, ...]:
    """Return the events of the tests that passed before and would run on the same sources.

    Args:
        folder: Folder with the events and facts of the run before.
        facts: Facts of the new run, by `run_facts`.
        digests: Digests of the sources of the new run, by test file.

    Returns:
        Lines of events, in their order. There are none where there is no run before, where it
        cannot be read, or where its facts are others.
    """
    try:
        before = json.loads((folder / FACTS).read_bytes())
        lines = (folder / "events.jsonl").read_text("utf-8").splitlines()
        sources = before.pop("sources")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return ()
    if before != dict(facts):
        return ()
    same = {name for name, digest in digests.items() if digest and digest == sources.get(name)}
    events = [(line, event) for line in lines if (event := _event(line)) is not None]
    passed: dict[str, bool] = {}
    for _, event in events:
        name = event["id"]
        if event["event"] == "phase":
            good = event.get("outcome") == "passed" and not event.get("expected_failure")
            passed[name] = passed.get(name, True) and good
    ended = {event["id"] for _, event in events if event["event"] == "finish"}
    kept = {name for name in ended if passed.get(name) and name.split("::")[0] in same}
    return tuple(line for line, event in events if event["id"] in kept)


def keep_facts(folder: Path, facts: Mapping[str, Any], digests: Mapping[str, str | None]) -> None:
    """Write the facts of a run into its folder."""
    text = json.dumps({**facts, "sources": dict(digests)}, indent=1)
    write_atomically(folder / FACTS, text, field="--out")


def test_ids(events: tuple[str, ...]) -> tuple[str, ...]:
    """Return the tests of which there are events, each once."""
    return tuple(dict.fromkeys(json.loads(line)["id"] for line in events))


def _event(line: str) -> dict[str, Any] | None:
    """Return the event of a test; ``None`` for any other line."""
    try:
        event = json.loads(line)
        known = event["event"] in ("start", "phase", "finish") and isinstance(event["id"], str)
    except (ValueError, KeyError, TypeError):
        return None
    return event if known else None
