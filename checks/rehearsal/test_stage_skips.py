"""The fixture ``stage`` where upstream is not on this machine, and where it is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.errors import InputError
from ringproof.rehearsal.fixtures import SessionServers
from ringproof.rehearsal.runs.server import Servers


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
