"""Upstreams are unpacked once; one that is not here skips a test, and a damaged one fails it."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from checks.anchors.wheelhouse import make_wheel
from checks.running import one_line
from ringproof.errors import InputError
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.protocol.program import Upstream
from ringproof.rehearsal.runs import upstreams
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import open_engine, open_megatron, without_unused
from ringproof.upstream.releases import sha256_of


@pytest.fixture
def wheel(tmp_path: Path) -> str:
    path = tmp_path / "megatron_core-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("megatron/core/__init__.py", "")
    return str(path)


def test_a_wheel_of_megatron_is_taken(wheel: str, tmp_path: Path) -> None:
    root, name = open_megatron(wheel, cache=tmp_path / "cache")
    assert (root / "megatron" / "core" / "__init__.py").is_file()
    assert name.startswith("wheel:megatron_core-1")
    (tmp_path / "mine").mkdir()
    assert root.stat().st_mode == (tmp_path / "mine").stat().st_mode, "others may share a cache"


def test_folders_with_one_name_are_used_as_they_are(tmp_path: Path) -> None:
    """What was unpacked of one is not taken for another, or for the same after a change."""
    found = []
    for parent in ("a", "b"):
        module = tmp_path / parent / "Megatron-LM" / "megatron" / "core" / "__init__.py"
        module.parent.mkdir(parents=True)
        module.write_text(parent)
        root, name = open_megatron(f"dir:{module.parents[2]}", cache=tmp_path / "cache")
        found.append((root / "megatron" / "core" / "__init__.py").read_text())
        assert name == "dir:Megatron-LM"
    assert found == ["a", "b"] and not (tmp_path / "cache").exists()


def _archive(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "megatron_core-1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("megatron/core/__init__.py", *names):
            archive.writestr(name, "x" * 100)
    return path


@pytest.mark.parametrize("kind", ["above", "both", "long", "damaged", "large"])
def test_a_wheel_that_cannot_be_unpacked_is_one_line(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of it is written, neither outside of the cache nor in it."""
    outside = tmp_path / "outside"
    names = {
        "above": ("megatron/../../../outside/file.py",),
        "both": ("megatron/a", "megatron/a/b"),
        "long": (f"megatron/{'a' * 300}",),
    }
    wheel = _archive(tmp_path / "given", *names.get(kind, ()))
    if kind == "damaged":
        data = bytearray(wheel.read_bytes())
        data[:4] = b"none"
        wheel.write_bytes(data)
    if kind == "large":
        monkeypatch.setattr(upstreams, "MOST_UNPACKED_BYTES", 99)
    with one_line(r"cannot be unpacked \(.*\); "):
        open_megatron(str(wheel), cache=tmp_path / "cache")
    assert not outside.exists()
    assert [path.name for path in (tmp_path / "cache").rglob("*")] == ["trees"]


def test_a_wheel_named_for_the_wrong_option_does_not_spoil_the_cache(
    wheel: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="has no transformer_engine"):
        open_engine(wheel, cache=tmp_path / "cache")
    test_a_wheel_of_megatron_is_taken(wheel, tmp_path)


@pytest.mark.parametrize("spec", [None, "pip:transformer-engine==2.15.0"])
def test_a_damaged_engine_in_the_cache_is_named(spec: str | None, tmp_path: Path) -> None:
    sources = {"transformer_engine/pytorch/__init__.py": ""}
    folder = tmp_path / "transformer-engine" / "2.15.0"
    made = make_wheel(folder, sources, name="transformer_engine", version="2.15.0")
    made.with_name(f"{made.name}.sha256").write_text(sha256_of(made))
    assert open_engine(spec, cache=tmp_path, offline=True)[1] == "2.15.0"
    made.write_bytes(made.read_bytes() + b"x")
    with pytest.raises(InputError, match=f"the wheel {made} is damaged: its SHA-256"):
        open_engine(spec, cache=tmp_path, offline=True)


def _stage(folder: Path) -> SessionServers:
    return SessionServers({}, folder, Servers(folder), fetched=folder / "cache", offline=True)


def test_a_release_that_is_not_here_skips_and_does_not_fail(tmp_path: Path) -> None:
    """A test that fails refutes the statements that name it."""
    with pytest.raises(pytest.skip.Exception, match=r"megatron-core==0\.16\.1 is not in the cache"):
        _stage(tmp_path).upstream()


def test_a_release_that_is_damaged_fails(tmp_path: Path) -> None:
    folder = tmp_path / "cache" / "megatron-core" / "0.16.1"
    folder.mkdir(parents=True)
    (folder / "megatron_core-0.16.1-py3-none-any.whl").write_bytes(b"no wheel")
    with pytest.raises(InputError):
        _stage(tmp_path).upstream()


OPTIONS = "add('--export-kd-cfg')\nadd(\"--modelopt-enabled\")\n"


@pytest.mark.parametrize(
    ("script", "words", "hidden"),
    [
        ("pretrain_gpt.py", ["--num-layers", "2", "--export"], True),
        ("pretrain_gpt.py", ["--modelopt-enabled"], False),
        ("pretrain_gpt.py", ["--export-kd-cfg=a.yaml"], False),
        ("pretrain_mamba.py", [], False),
        ("own.py", [], False),
    ],
)
def test_what_a_launch_does_not_use_is_not_imported(
    script: str, words: list[str], hidden: bool, tmp_path: Path
) -> None:
    """A program of the user's own, or one that is not there, may import anything."""
    options = tmp_path / "megatron" / "post_training" / "arguments.py"
    options.parent.mkdir(parents=True)
    options.write_text(OPTIONS)
    for name in ("pretrain_gpt.py", "own.py"):
        (tmp_path / name).write_text("")
    upstream = Upstream(tmp_path, "dir:here", tmp_path, "2.20", None)
    assert without_unused(upstream, script, words).hidden == (("modelopt",) if hidden else ())


@pytest.mark.slow
def test_ranks_run_as_without_what_is_hidden(stage: SessionServers) -> None:
    pytest.importorskip("modelopt")
    hidden = replace(stage.upstream(), hidden=("modelopt",))
    assert stage.call("importlib.util:find_spec", 1, "modelopt", upstream=hidden) == [None]
