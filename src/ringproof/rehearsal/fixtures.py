"""Pytest fixtures: Megatron at a version with Transformer Engine at a version, on N ranks.

Load them with ``pytest_plugins = ["ringproof.rehearsal.fixtures"]``. Servers start once per
version and session and run many cases. Released versions come from the package index; a commit is
named ``NVIDIA/Megatron-LM@REF`` and needs ``--ringproof-upstream NVIDIA/Megatron-LM=git:PATH``, or
``--ringproof-cache DIR`` with what ``ringproof upstream fetch`` brought. The test skips and says
so without either, or where a release is not in the cache and cannot be downloaded.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from ringproof.cache import default_cache
from ringproof.errors import InputError
from ringproof.prove.anchoring import CACHE_OPTION, OFFLINE_OPTION, UPSTREAM_OPTION
from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.locating import locate
from ringproof.rehearsal.locate.result import WrongPlace
from ringproof.rehearsal.protocol.program import Program, Upstream, calling
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs.outcome import Outcome
from ringproof.rehearsal.runs.server import Servers
from ringproof.rehearsal.runs.upstreams import PROGRAM, open_upstream, unpacked, without_unused
from ringproof.rehearsal.verdict.agreement import compare
from ringproof.upstream.fetching import fetched_spec
from ringproof.upstream.sources import open_tree, parse_overrides
from ringproof.upstream.tree import UpstreamUnavailable

MEGATRON = "pip:megatron-core==0.16.1"
ENGINE = "pip:transformer-engine==2.20.2"


class RanksFailed(AssertionError):
    """A run that was expected to end well did not."""

    def __init__(self, failure: Failure, log: str) -> None:
        self.failure = failure
        super().__init__(f"rank {failure.rank} {failure.kind}: {failure.message}\n{log}")


@dataclass(frozen=True, repr=False)
class FirstWrong:
    """Where a run departs from its reference; its text is what a failing test shows."""

    location: WrongPlace

    def __repr__(self) -> str:
        return "\n".join(saying.lines(self.location))


@dataclass(frozen=True)
class ComparedOutcome(Outcome):
    """What became of a run that was compared with its reference.

    Attributes:
        first_wrong: ``None`` where losses and gradient norms agree.
    """

    first_wrong: FirstWrong | None = None


class SessionServers:
    """Upstreams and their servers, for one test session.

    Args:
        given: Repositories by ``OWNER/NAME``, as specs.
        fetched: Cache in which other repositories are looked for, if any.
        offline: Whether releases come from the cache only.

    Attributes:
        cache: Where releases are kept.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        folder: Path,
        servers: Servers,
        *,
        fetched: Path | None = None,
        offline: bool = False,
    ) -> None:
        self._given, self._folder, self._servers = given, folder, servers
        self._fetched, self._offline = fetched, offline
        self.cache = fetched or default_cache()
        self._upstreams: dict[tuple[str, str], Upstream] = {}
        self._runs = 0

    def upstream(self, megatron: str = MEGATRON, engine: str = ENGINE) -> Upstream:
        """Return an upstream; skip the test where it is not on this machine.

        Args:
            megatron: ``pip:...`` or ``NVIDIA/Megatron-LM@REF``.
            engine: ``pip:...`` or ``NVIDIA/TransformerEngine@REF``.
        """
        key = (megatron, engine)
        if key not in self._upstreams:
            specs = [self._spec(name) for name in key]
            with _skipping_unavailable():
                opened = open_upstream(*specs, cache=self.cache, offline=self._offline)
            self._upstreams[key] = without_unused(opened, PROGRAM)
        return self._upstreams[key]

    def checkout(self, name: str, *parts: str) -> Path:
        """Return a folder with parts of ``OWNER/NAME@REF``; skip where it was not given."""
        tree = open_tree(self._spec(name), cache=self.cache, offline=True)
        return unpacked(tree, parts, self.cache)

    def run(
        self, program: Program, *, preload: str | None = None, folder: Path | None = None
    ) -> Outcome:
        """Run a program on its upstream's server; ``preload`` is its script unless given.

        Args:
            folder: Where its reports are; a new one unless given.
        """
        preload = program.script if preload is None else preload
        self._runs += 1
        return self._servers.run(program, preload, folder or self._folder / f"run-{self._runs}")

    def compare(self, program: Program, reference: Program) -> ComparedOutcome:
        """Run a program and its reference; where they part, find the first wrong tensor.

        Args:
            reference: Same training without context parallelism, with the same TP, DP and PP.

        Raises:
            RanksFailed: A rank of one of the two raised, died or hung.
        """
        outcome, expected = (self._ended_well(one) for one in (program, reference))
        agreement = compare(outcome, expected, program.dtype)
        wrong = None
        if agreement.agrees is False:
            first = agreement.first
            place = WrongPlace(None, agreement.reason)
            if first is not None:
                self._runs += 1
                traces = self._folder / f"trace-{self._runs}"
                place = locate(self._traced, program, reference, first.moment, traces)
            wrong = FirstWrong(place)
        fields = {one.name: getattr(outcome, one.name) for one in dataclasses.fields(Outcome)}
        return ComparedOutcome(**fields, first_wrong=wrong)

    def _traced(self, program: Program, folder: Path) -> Outcome:
        return self.run(program, folder=folder)

    def _ended_well(self, program: Program) -> Outcome:
        outcome = self.run(program)
        _check_end(outcome)
        return outcome

    def call(
        self,
        function: str,
        ranks: int,
        argument: Any = None,
        *,
        upstream: Upstream | None = None,
        dtype: str = "float64",
        faults: tuple[str, ...] = (),
        imported: bool = False,
    ) -> list[Any]:
        """Call ``module:function`` with a JSON value in every rank; return the values by rank.

        Args:
            faults: Planted defects; see `Program`.
            imported: Whether ranks are forked with what makes Megatron's groups imported.

        Raises:
            RanksFailed: A rank raised, died or hung.
        """
        program = calling(upstream or self.upstream(), function, argument, ranks, dtype=dtype)
        program = replace(program, faults=faults)
        outcome = self.run(program, preload=program.script if imported else "")
        _check_end(outcome)
        return [report.results for report in outcome.ranks]

    def _spec(self, name: str) -> str:
        repository, at, ref = name.partition("@")
        if name.startswith("pip:") or not at:
            return name
        if repository in self._given:
            return f"{self._given[repository].partition('@')[0]}@{ref}"
        if self._fetched is not None:
            with contextlib.suppress(InputError):
                return fetched_spec(self._fetched, repository, ref)
        pytest.skip(f"needs {UPSTREAM_OPTION} {repository}=git:PATH (for {ref[:12]})")


def _check_end(outcome: Outcome) -> None:
    """Raise `RanksFailed` where a rank did not run through."""
    if outcome.failure is not None:
        log = outcome.folder / f"rank-{outcome.failure.rank}.log"
        text = log.read_text(errors="replace") if log.is_file() else ""
        raise RanksFailed(outcome.failure, text[-3000:])


@contextlib.contextmanager
def _skipping_unavailable() -> Iterator[None]:
    """Skip the test if the cause of an error is that an upstream is not on this machine."""
    try:
        yield
    except InputError as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, UpstreamUnavailable):
                pytest.skip(str(cause))
            cause = cause.__cause__
        raise


@pytest.fixture(scope="session")
def stage(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SessionServers]:
    """Upstream code on ranks without GPUs; see `SessionServers`."""
    entries: Sequence[str] = request.config.getoption(UPSTREAM_OPTION, default=None) or []
    cache = request.config.getoption(CACHE_OPTION, default=None)
    folder = tmp_path_factory.mktemp("rehearsal")
    with Servers(folder, path=request.config.rootpath) as servers:
        yield SessionServers(
            parse_overrides(entries),
            folder,
            servers,
            fetched=None if cache is None else Path(cache),
            offline=bool(request.config.getoption(OFFLINE_OPTION, default=False)),
        )
