"""Wheels and commits are unpacked once for the parts that are asked for."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from ringproof.errors import InputError
from ringproof.rehearsal.sources import open_engine, open_megatron


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


def test_a_wheel_named_for_the_wrong_option_does_not_spoil_the_cache(
    wheel: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="has no transformer_engine"):
        open_engine(wheel, cache=tmp_path / "cache")
    test_a_wheel_of_megatron_is_taken(wheel, tmp_path)
