"""How many interpreters with an imported upstream are kept for the next program."""

from __future__ import annotations

import contextlib
from pathlib import Path
from unittest import mock

import pytest

from checks.running import one_line
from ringproof.rehearsal.protocol.program import Program, Upstream
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs import server as module
from ringproof.rehearsal.runs.outcome import Outcome


class CountedServer(contextlib.ExitStack):
    """A server without a process, which tells when it ends."""

    def __init__(self, ended: list[str], upstream: Upstream, script: str, **_: object) -> None:
        super().__init__()
        self.callback(ended.append, script)

    def run(self, program: Program, folder: Path, **_: object) -> Outcome:
        return Outcome((), None, 0.0, 0, folder)


@pytest.mark.parametrize(
    ("free", "ended_before", "ended"),
    [(module.LEAST_FREE_BYTES, [], "abc"), (0, ["a", "b", "a"], "aabc")],
    ids=["enough memory", "too little"],
)
def test_servers_end_where_memory_is_short(
    tmp_path: Path, free: int, ended_before: list[str], ended: str
) -> None:
    seen: list[str] = []
    program = mock.Mock(spec=Program, upstream=mock.Mock(), full_size=None, dtype="float32")
    new = lambda *given, **named: CountedServer(seen, *given, **named)  # noqa: E731
    with (
        mock.patch.object(module, "Server", new),
        module.Servers(tmp_path, free=lambda: free) as servers,
    ):
        for script in "abaac":
            servers.run(program, script, tmp_path)
        assert seen == ended_before
    assert sorted(seen) == [*ended]


def test_the_server_used_last_stays(tmp_path: Path) -> None:
    """Memory is short once, when the third one starts: of two, the one used longest ago ends."""
    seen: list[str] = []
    free = iter([module.LEAST_FREE_BYTES, 0, module.LEAST_FREE_BYTES])
    program = mock.Mock(spec=Program, upstream=mock.Mock(), full_size=None, dtype="float32")
    new = lambda *given, **named: CountedServer(seen, *given, **named)  # noqa: E731
    with (
        mock.patch.object(module, "Server", new),
        module.Servers(tmp_path, free=lambda: next(free)) as servers,
    ):
        for script in "abac":
            servers.run(program, script, tmp_path)
        assert seen == ["b"]


def test_a_server_that_died_is_not_used_again(tmp_path: Path) -> None:
    program = mock.Mock(spec=Program, upstream=mock.Mock(), full_size=None, dtype="float32")
    seen: list[str] = []
    dead, alive = CountedServer(seen, mock.Mock(), "a"), CountedServer(seen, mock.Mock(), "a")
    lost = Outcome((), Failure("died", -1, "ended by signal 40"), 0.0, 0, tmp_path)
    with (
        mock.patch.object(dead, "run", return_value=lost),
        mock.patch.object(module, "Server", side_effect=[dead, alive]),
        module.Servers(tmp_path) as servers,
    ):
        assert servers.run(program, "a", tmp_path) is lost
        assert servers.run(program, "a", tmp_path).failure is None
    assert seen == ["a", "a"]


def test_two_runs_do_not_mix_their_reports_in_one_folder(tmp_path: Path) -> None:
    with (
        module.Servers(tmp_path),
        one_line("--out: another run writes into .*; wait for it"),
        module.Servers(tmp_path),
    ):
        pytest.fail("the second run was not refused")
    with module.Servers(tmp_path):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("asked", [False, True], ids=["not asked", "asked"])
@pytest.mark.parametrize("unpacked", [False, True], ids=["folder of a user", "cache"])
def test_bytecode_is_written_into_the_cache_alone(
    unpacked: bool, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of a user's own asks for none beside its modules, wherever upstream is."""
    monkeypatch.setenv(module.NO_BYTECODE, "1")  # as containers do
    root = Path("/cache/trees" if unpacked else "/home/me", "0123456789abcdef0123")
    given = {module.NO_BYTECODE: "1"} if asked else {}
    server = module.Server(Upstream(root, "", root, "", None), environment=given)
    assert (module.NO_BYTECODE in server._environment) is (asked or not unpacked)
