"""Fixtures of several folders."""

from __future__ import annotations

import functools
import gc
import pickle
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version
from typer import testing

from ringproof.cache import default_cache
from ringproof.cards import document
from ringproof.logs.diagnosis import cause, symptoms
from ringproof.rehearsal.runs.upstreams import ENGINE_PARTS, unpacked
from ringproof.rehearsal.verdict import refusal
from ringproof.upstream.releases import Release
from ringproof.upstream.tree import UpstreamUnavailable, WheelTree
from ringproof.upstream.wanted import WHEELS_FILE, read_wheels

if TYPE_CHECKING:
    from ringproof.reference.topology.dynamic import ContextParallelGroup

ENGINES = tuple(
    wheel
    for wheel in read_wheels(Path(__file__).parent.parent / "cards" / WHEELS_FILE)
    if wheel.package == "transformer-engine"
)


@dataclass(frozen=True)
class EngineWheel:
    """A released Transformer Engine.

    Attributes:
        version: Its version, which compares like a number.
        spec: ``pip:transformer-engine==VERSION``, for ``stage.upstream(engine=...)``.
        tree: Its files, for reading.
    """

    version: Version
    spec: str
    tree: WheelTree

    @cached_property
    def root(self) -> Path:
        """Folder with its files, unpacked once, for importing."""
        return unpacked(self.tree, ENGINE_PARTS, default_cache())


@pytest.fixture(scope="session", params=ENGINES, ids=lambda wheel: wheel.version)
def te_wheel(request: pytest.FixtureRequest) -> EngineWheel:
    """Each released Transformer Engine from 2.9 on, one test for each.

    A test that takes it runs on every version, and says itself from which one its statement holds::

        def test_the_key_is_logged(te_wheel: EngineWheel) -> None:
            logged = b"cp_size" in te_wheel.tree.read("transformer_engine/pytorch/...")
            assert logged == (te_wheel.version >= Version("2.15"))

    To run upstream's code, take ``stage`` as well and use ``stage.upstream(engine=te_wheel.spec)``.
    The wheels come from the cache only, which ``ringproof upstream fetch --wheels`` fills; without
    it the test skips. ``cards/wheels.txt`` lists the versions and their hashes.
    """
    return _engine(request.param)


def _engine(wheel: Release) -> EngineWheel:
    try:
        tree = wheel.open(default_cache(), offline=True)
    except UpstreamUnavailable as error:
        pytest.skip(f"{error}: run `ringproof upstream fetch --wheels`")
    return EngineWheel(Version(wheel.version), wheel.spec, tree)


gc.set_threshold(200_000, 20, 100)
"""Listing the tests makes millions of objects that stay; by default they are scanned over and over,
which is half of the time that it takes."""


def _once(read: Callable[..., object]) -> Callable[..., object]:
    """Wrap a function that reads a text: of each, the first result is kept, and copied."""

    @functools.lru_cache(maxsize=64)
    def packed(text: str, until: tuple[str, ...]) -> bytes:
        return pickle.dumps(read(text, until=until))

    def reading(text: str, until: Iterable[str] = (), **options: object) -> object:
        if options:
            return read(text, until=until, **options)
        return pickle.loads(packed(text, (*until,)))

    return reading


# Cards and the index of symptoms take 1.2 s of a command, and each test that runs one reads them.
document.parse_yaml = _once(document.parse_yaml)
symptoms.load_index = functools.cache(symptoms.load_index)
cause.load_index = refusal.load_index = symptoms.load_index

# Otherwise a CliRunner builds all commands from their signatures each time that it runs one.
testing._get_command = functools.cache(testing._get_command)


def pytest_collection_finish() -> None:
    """Leave what was collected out of all later scans."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def alone() -> Iterator[ContextParallelGroup]:
    """A CP group of one rank: a real group, in this process."""
    from smoke.model_batches import group_of_one  # imports torch

    with group_of_one() as group:
        yield group
