"""What builds of torch have or lack that the tests here do not run on."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

dist = pytest.importorskip("torch.distributed")


def test_triton_without_a_driver_is_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 for CUDA brings Triton 3.2, which wants libcuda.so to declare a kernel."""
    from ringproof.rehearsal.standins.engine import placeholders

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)  # all are installed
    assert placeholders() == ("triton",)


def test_ranks_of_the_whole_world_are_found_on_torch_2_6(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks the group up in a mapping that has no ``None``."""
    import torch

    from ringproof.rehearsal.hollow.groups import Peers

    known: Mapping[Any, list[int]] = {"world": [0, 1, 2]}
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: known[group])
    monkeypatch.setattr(dist, "group", SimpleNamespace(WORLD="world"))
    given = torch.tensor([1.5])
    alone = Peers(None, (0,), 0, None)  # type: ignore[arg-type]  # nobody is waited for
    assert alone.gather(given, None) == [given] * 3
