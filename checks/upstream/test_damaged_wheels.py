"""A damaged wheel in the cache: an error that names it, and `upstream fetch` mends it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

from checks.anchors.wheelhouse import fill_cache, make_wheel, only_index
from checks.prove.miniature import Miniature, anchor, claim, miniature
from checks.running import run_here

pytestmark = pytest.mark.slow


def _truncate(wheel: Path) -> None:
    wheel.write_bytes(wheel.read_bytes()[:-40])


def _flip(wheel: Path) -> None:
    data = bytearray(wheel.read_bytes())
    data[60] ^= 1
    wheel.write_bytes(data)


def _with_its_hash(wheel: Path, data: bytes) -> None:
    wheel.write_bytes(data)
    wheel.with_name(f"{wheel.name}.sha256").write_text(hashlib.sha256(data).hexdigest())


def _no_directory(wheel: Path) -> None:
    """A zip whose last record is sound, and whose directory is not."""
    _with_its_hash(wheel, wheel.read_bytes().replace(b"PK\x01\x02", b"XXXX", 1))


def _folder(wheel: Path) -> None:
    wheel.unlink()
    wheel.mkdir()


DAMAGE: Mapping[str, Callable[[Path], object]] = MappingProxyType(
    {
        "truncated": _truncate,
        "empty": lambda wheel: wheel.write_bytes(b""),
        "one bit": _flip,
        "garbage": lambda wheel: _with_its_hash(wheel, b"garbage" * 1000),
        "no directory": _no_directory,
        "no hash": lambda wheel: wheel.with_name(f"{wheel.name}.sha256").unlink(),
        "a folder": _folder,
    }
)
COMMANDS = (
    "stack --upstream pip:demo-upstream==1.0",
    "stack --upstream pip:demo-upstream==1.0 --offline",
    "anchors check",
    "anchors check --offline",
    "anchors lock --offline",
    "anchors drift --from pip:demo-upstream==1.0 --to dir:.",
    "prove --jobs 1",
    "prove --jobs 1 --offline",
    "upstream fetch",
)


@dataclass(frozen=True)
class Place:
    """A repository whose card needs a wheel, which is in its cache and in an index."""

    repository: Miniature
    wheel: Path
    index: Path

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_here(self.repository.root, [*words, "--cache", str(self.repository.cache)])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = miniature(tmp_path / "repo")
    (wheel,) = (made.cache / "demo-upstream" / "1.0").glob("*.whl")
    made.card(
        upstreams={"demo": {"package": "demo-upstream", "version": "1.0"}},
        anchors=[anchor("place")],
        claims=[claim("it", "anchor:place")],
    )
    for name, value in only_index(tmp_path / "index").items():
        monkeypatch.setenv(name, value)
    return Place(made, wheel, tmp_path / "index")


def _refused(done: subprocess.CompletedProcess[str], wheel: Path) -> None:
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1, done.stdout + done.stderr
    assert f"the wheel {wheel} is damaged: it" in errors[0] and "remove " in errors[0]


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_damaged_wheel_is_named(place: Place, kind: str) -> None:
    assert place.run("anchors", "check", "--offline").returncode == 0
    DAMAGE[kind](place.wheel)
    _refused(place.run("anchors", "check", "--offline"), place.wheel)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_reads_it_says_so(place: Place, command: str) -> None:
    before = place.run(*command.split())
    assert "damaged" not in before.stdout + before.stderr
    _truncate(place.wheel)
    _refused(place.run(*command.split()), place.wheel)
    assert place.wheel.is_file(), "nothing is removed unless there is something better"


def test_the_list_says_which_wheel_is_damaged(place: Place) -> None:
    assert place.run("upstream", "list").stdout.split()[:2] == ["here", "demo-upstream"]
    _truncate(place.wheel)
    assert place.run("upstream", "list").stdout.split()[:2] == ["damaged", "demo-upstream"]
    rows = json.loads(place.run("upstream", "list", "--json", "-").stdout)["upstreams"]
    assert [(row["here"], row["damaged"]) for row in rows] == [(False, True)]
    place.wheel.unlink()
    assert place.run("upstream", "list").stdout.split()[:2] == ["missing", "demo-upstream"]


@pytest.mark.parametrize("command", ["upstream fetch", "prove --jobs 1"])
@pytest.mark.parametrize("kind", ["truncated", "garbage", "no hash"])
def test_what_the_index_has_is_downloaded_again(place: Place, command: str, kind: str) -> None:
    make_wheel(place.index)
    DAMAGE[kind](place.wheel)
    done = place.run(*command.split())
    assert done.returncode == 0, done.stderr
    said = done.stdout + done.stderr
    assert f"{place.wheel} was damaged and is downloaded again: it" in said
    again = place.run(*command.split())
    assert again.returncode == 0 and "damaged" not in again.stdout + again.stderr
    assert place.run("anchors", "check", "--offline").returncode == 0


def test_a_sound_wheel_with_another_hash_is_not_here(place: Place) -> None:
    """It may be the wheel for another Python: no damage, and not what the card names."""
    digest = hashlib.sha256(b"").hexdigest()
    place.repository.card(
        upstreams={
            "demo": {"package": "demo-upstream", "version": "1.0", "file_sha256": digest},
            "here": {"package": "demo-upstream", "version": "2.0"},
        },
        anchors=[anchor("place"), anchor("other", upstream="here")],
        claims=[claim("it", "anchor:place")],
    )
    fill_cache(place.repository.cache, version="2.0")
    done = place.run("anchors", "check", "--offline")
    assert done.returncode == 0
    assert f"is not in the cache ({place.wheel.name} has another hash)" in done.stdout
