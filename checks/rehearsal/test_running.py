"""Ranks that raise, die or hang are named, and nothing of them is left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from ringproof.rehearsal.fixtures import RanksFailed, SessionServers
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.runs import watch
from ringproof.rehearsal.runs.outcome import UpstreamFails
from ringproof.rehearsal.runs.server import Server
from ringproof.rehearsal.runs.upstreams import is_unpacked
from ringproof.rehearsal.verdict.refusal import refusal_of
from ringproof.rehearsal.verdict.variant import headline_of

MODULE = "checks.rehearsal.misbehaving"


def failure(stage: SessionServers, function: str, argument: object) -> Failure:
    with pytest.raises(RanksFailed) as caught:
        stage.call(f"{MODULE}:{function}", 2, argument)
    return caught.value.failure


@pytest.mark.parametrize(
    ("function", "kind", "said"),
    [("raise_on", "raised", "ValueError: rank 1 does not want to"), ("die_on", "died", "SIGKILL")],
)
def test_a_rank_that_fails_is_named_before_those_that_lost_it(
    stage: SessionServers, function: str, kind: str, said: str
) -> None:
    found = failure(stage, function, 1)
    assert (found.kind, found.rank) == (kind, 1)
    assert said in found.message


def test_a_hang_names_what_each_rank_waits_in(
    stage: SessionServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "STILL_SECONDS", 2.0)
    found = failure(stage, "never_send", 1)
    assert found.kind == "hung"
    assert "all_reduce in WORLD [0, 1]" in found.waiting[0]
    assert "irecv in PAIR [0, 1]" in found.waiting[1]
    assert "misbehaving.py" in found.waiting[1]


def test_a_request_may_be_waited_for_twice(stage: SessionServers) -> None:
    assert stage.call(f"{MODULE}:wait_twice", 2) == [1.0, 0.0]


@pytest.mark.parametrize("what", ["start_a_child", "start_a_daemon"])
def test_what_a_rank_started_ends_with_it(stage: SessionServers, what: str) -> None:
    left = stage.call(f"{MODULE}:{what}", 2)
    deadline = time.monotonic() + 10
    while left and time.monotonic() < deadline:
        time.sleep(0.05)
        left = [child for child in left if runs(child)]
    assert left == []


@pytest.mark.slow
def test_a_server_that_is_killed_is_a_failure_of_the_run(stage: SessionServers) -> None:
    found = failure(stage, "kill_the_server", None)
    assert (found.kind, found.rank) == ("died", -1)
    assert "starts ranks was ended by signal SIGKILL" in headline_of(refusal_of(found, []))
    assert stage.call(f"{MODULE}:wait_twice", 2), "another server has taken its place"


def test_an_import_that_takes_too_long_is_ended(stage: SessionServers) -> None:
    server = Server(stage.upstream(), import_seconds=0.25)
    before = set(psutil.Process().children(recursive=True))
    with pytest.raises(UpstreamFails) as caught, server:
        pass
    found = caught.value.failure
    assert found.kind == "timeout"
    said = headline_of(refusal_of(found, []))
    assert said == "It does not end well: it was ended while upstream was imported, after 0.25 s"
    assert set(psutil.Process().children(recursive=True)) <= before


@pytest.mark.parametrize("kind", ["empty", "deep", "number", "pipe", "other rank"])
def test_a_report_that_is_not_one_is_no_evidence(stage: SessionServers, kind: str) -> None:
    found = failure(stage, "replace_reports", kind)
    assert (found.kind, found.rank) == ("died", 0)
    assert "without a report that can be read" in found.message


def test_a_rank_that_left_quietly_is_named_and_not_the_one_that_lost_it(
    stage: SessionServers,
) -> None:
    found = failure(stage, "leave_quietly", None)
    assert (found.kind, found.rank) == ("died", 0)
    assert "without a report that can be read" in found.message


@pytest.mark.slow
def test_no_bytecode_is_written_into_a_folder_of_the_user(
    stage: SessionServers, tmp_path: Path
) -> None:
    """A folder that this package unpacked gets it, which saves seconds."""
    assert all(map(is_unpacked, stage.upstream().roots))
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "mine.py").write_text("pass\n")
    upstream = replace(stage.upstream(), extra=(tmp_path / "own",))
    stage.call(f"{MODULE}:import_mine", 1, upstream=upstream)
    assert [path.name for path in (tmp_path / "own").iterdir()] == ["mine.py"]


def runs(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_missing_stand_in_is_named_with_its_caller(stage: SessionServers) -> None:
    found = failure(stage, "call_missing", "fused_multi_row_padding")
    assert found.symbol == "transformer_engine_torch.fused_multi_row_padding"
    assert "misbehaving.py" in found.message


def test_ranks_that_end_without_a_report_did_not_end_well(stage: SessionServers) -> None:
    found = failure(stage, "leave", None)
    assert found.kind == "died" and found.rank in (0, 1)  # both leave, either one first
    assert "exit code 0 and without a report" in found.message
    assert failure(stage, "leave", 3).message == "ended by exit code 3: its log is empty"


def test_a_rank_that_is_killed_for_memory_says_so(
    stage: SessionServers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MEMORY_EVENTS", tmp_path / "memory.events")
    killed = failure(stage, "die_for_memory", str(tmp_path / "memory.events"))
    assert killed.kind == "memory" and "were left" in killed.message
    assert "memory ran out" in headline_of(refusal_of(killed, []))
    asked = failure(stage, "ask_for_memory", None)
    assert asked.kind == "memory" and asked.ours


@pytest.mark.parametrize(
    ("module", "package"),
    [("", "someattention"), ("no_such_package.part", "no_such_package"), ("megatron.no_part", "")],
)
def test_a_missing_package_is_not_a_refusal(
    stage: SessionServers, module: str, package: str
) -> None:
    found = failure(stage, "need_a_package", module)
    assert (found.package, found.ours) == (package, bool(package))
    said = headline_of(refusal_of(found, []))
    assert said.startswith(f"Whether it starts cannot be said here: it needs {package}") == bool(
        package
    )


def test_a_result_that_is_not_finite_is_named_before_the_error_that_hides_it(
    stage: SessionServers,
) -> None:
    found = failure(stage, "find_no_number", None)
    assert found.message.startswith("TypeError") and found.cause.endswith("in iteration 3")
    said = headline_of(refusal_of(found, []))
    assert "not finite (found NaN in a loss in iteration 3)" in said and "TypeError" in said


def test_the_words_of_a_parser_are_kept(stage: SessionServers) -> None:
    found = failure(stage, "refuse_an_option", None)
    assert found.message == "SystemExit: argument --sizes: invalid int value: '2 2'"


NAMES = ["NVTE_FLASH_ATTN", "RINGPROOF_SEEN"]
CLIENT = """
import json, sys
from pathlib import Path
from ringproof.cache import default_cache
from ringproof.rehearsal.fixtures import ENGINE, MEGATRON
from ringproof.rehearsal.protocol.program import calling
from ringproof.rehearsal.runs.server import Server
from ringproof.rehearsal.runs.upstreams import open_upstream

folder, names = Path(sys.argv[1]), json.loads(sys.argv[2])
upstream = open_upstream(MEGATRON, ENGINE, cache=default_cache())
with Server(upstream) as server:
    seen = server.run(calling(upstream, "{module}:seen_variables", names), folder)
    print(json.dumps(seen.ranks[0].results), flush=True)
    server.run(calling(upstream, "{module}:never_send", 1, 2), folder)
"""


@pytest.mark.slow
def test_a_caller_keeps_its_variables_and_leaves_nothing_when_it_is_killed(
    stage: SessionServers, tmp_path: Path
) -> None:
    """Deciding variables of the caller do not reach a rank; others do."""
    stage.upstream()  # so that nothing is downloaded below
    program = CLIENT.replace("{module}", MODULE)
    client = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), json.dumps(NAMES)],
        stdout=subprocess.PIPE,
        env={
            **os.environ,
            **dict.fromkeys(NAMES, "0"),
            "PYTHONPATH": str(Path(__file__).parents[2]),
        },
    )
    assert client.stdout is not None
    assert json.loads(client.stdout.readline()) == [None, "0"]
    board = tmp_path / "rank-1.board"
    deadline = time.monotonic() + 60
    while not (board.is_file() and b"irecv" in board.read_bytes()):
        assert time.monotonic() < deadline and client.poll() is None
        time.sleep(0.1)
    started = psutil.Process(client.pid).children(recursive=True)
    assert len(started) == 4  # a supervisor, the server and two ranks
    client.kill()
    client.wait()
    client.stdout.close()
    _, left = psutil.wait_procs(started, timeout=5)
    assert left == []
