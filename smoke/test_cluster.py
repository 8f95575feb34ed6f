"""Workers under fire: who failed first, how fast it is said, and what is left running."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest

from ringproof.cluster import Cluster, ClusterOptions, RankFailure, drop
from ringproof.cluster.cluster import WORKER_MODULE, _serve
from ringproof.cluster.worker import limit_data
from ringproof.errors import InputError
from smoke import cases
from smoke.conftest import needs_gpu
from smoke.processes import assert_gone, running

REPORTED_WITHIN_SECONDS = 15.0
HUNG_AFTER_SECONDS = 6.0
"""By then every rank waits, also on a busy machine; an idle one needs half a second."""


KILLED = [("SIGKILL", "SIGKILL"), ("SIGSEGV", "SIGSEGV"), ("raised", "the real cause")]


@pytest.fixture
def four() -> Iterator[Cluster]:
    with Cluster(4, ClusterOptions(timeout_seconds=30, log_sink=drop)) as workers:
        yield workers


def failure_of(ranks: Cluster, case: Callable[..., Any], **arguments: Any) -> RankFailure:
    """The failure of a case, reported in time; no worker is left running."""
    before, start = ranks.process_ids, time.monotonic()
    with pytest.raises(RankFailure) as caught:
        ranks.run(case, **arguments)
    assert time.monotonic() - start < REPORTED_WITHIN_SECONDS
    assert_gone(before)
    return caught.value


def listen() -> None:
    """What a terminal starts hears Ctrl-C; what a script starts in the background does not."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_many_cases_run_on_the_same_workers(four: Cluster, world: int) -> None:
    first = four.run(cases.report, world_size=world, text="hello")
    second = four.run(cases.report, world_size=world, text="again")
    assert [value[:2] for value in first.values] == [(rank, world) for rank in range(world)]
    assert [value[2] for value in first.values] == list(four.process_ids[:world])
    assert first.values == second.values
    assert sorted(first.logs) == [(rank, f"hello {rank}") for rank in range(world)]


def test_the_rank_that_raised_is_named_not_those_that_waited(four: Cluster) -> None:
    failure = failure_of(four, cases.fail_on, culprits=[2], how="raised")
    assert failure.rank == 2
    assert failure.reason == "ValueError: the real cause"
    assert "in fail_on" in failure.detail
    assert len(four.run(cases.report, text="still here").values) == 4


@pytest.mark.slow
def test_a_hung_rank_is_told_from_those_that_wait_for_it(four: Cluster) -> None:
    hung = {"culprits": [3], "how": "hung", "timeout_seconds": HUNG_AFTER_SECONDS}
    failure = failure_of(four, cases.fail_on, **hung)
    assert failure.rank == 3
    assert "in fail" in failure.reason
    assert "torch/distributed" in failure.others


@pytest.mark.slow
def test_work_that_shows_progress_may_take_longer_than_the_limit(four: Cluster) -> None:
    steps = {"steps": 6, "seconds": 0.5}
    with pytest.raises(RankFailure, match="not finished after 2 s"):
        four.run(cases.step_then_hang, culprit=-1, timeout_seconds=2, **steps)
    run = {**steps, "timeout_seconds": 2, "renewed_by_output": True}
    assert len(four.run(cases.step_then_hang, culprit=-1, **run).values) == 4
    with pytest.raises(RankFailure, match=r"silent for 2 s, at .*in fail") as caught:
        four.run(cases.step_then_hang, culprit=3, **run)
    assert caught.value.rank == 3


@pytest.mark.slow
@pytest.mark.parametrize("comm_type", ["p2p", "all_gather", "a2a"])
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_a_rank_that_never_enters_attention_is_named(
    four: Cluster, comm_type: str, backward: bool
) -> None:
    where = {"comm_type": comm_type, "backward": backward}
    limit = HUNG_AFTER_SECONDS
    failure = failure_of(four, cases.hang_in_attention, culprit=2, timeout_seconds=limit, **where)
    assert failure.rank == 2
    assert "in fail" in failure.reason
    assert "communicator.py" in failure.others


@pytest.mark.slow
def test_a_rank_that_prints_for_ever_is_stopped_in_time(four: Cluster) -> None:
    failure = failure_of(four, cases.print_for_ever, world_size=1, timeout_seconds=2)
    assert "print_for_ever" in str(failure)


@pytest.mark.parametrize(
    ("how", "reason", "printed"),
    [(how, reason, "in fail_on" if how == "raised" else "about to die") for how, reason in KILLED],
)
def test_the_first_failure_counts_not_the_lowest_rank(
    four: Cluster, how: str, reason: str, printed: str
) -> None:
    failure = failure_of(four, cases.fail_on, culprits=[2], follower=0, how=how)
    assert failure.rank == 2
    assert reason in failure.reason
    assert printed in failure.detail
    assert "rank 0 died too" in failure.others


@needs_gpu
@pytest.mark.parametrize(("how", "reason"), [*KILLED, ("hung", "in fail")])
def test_a_failure_on_a_gpu_is_reported_as_quickly(how: str, reason: str) -> None:
    """The others wait in a kernel of NCCL, which no signal of Python interrupts."""
    options = ClusterOptions(backend="nccl", share_gpus=True, timeout_seconds=60, log_sink=drop)
    with Cluster(4, options) as ranks:
        ranks.run(cases.report, text="NCCL has started")
        limit = {"timeout_seconds": HUNG_AFTER_SECONDS} if how == "hung" else {}
        failure = failure_of(ranks, cases.fail_on, culprits=[2], how=how, **limit)
        assert failure.rank == 2
        assert reason in failure.reason
        assert len(ranks.run(cases.report, text="still here").values) == 4


def test_ranks_see_the_variables_of_now(four: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RINGPROOF_TEST_VARIABLE", "now")
    with Cluster(1, ClusterOptions(log_sink=drop)) as later:
        value = later.run(cases.variable, name="RINGPROOF_TEST_VARIABLE").values
    assert value == ("now",)


def test_input_that_all_ranks_refuse_stays_an_input_error(four: Cluster) -> None:
    with pytest.raises(InputError, match=r"^b.txt: it cannot be read; leave it out$"):
        four.run(cases.fail_on, culprits=range(4), how="refused")


def test_a_value_that_cannot_be_sent_is_refused_by_rank(four: Cluster) -> None:
    with pytest.raises(RankFailure, match="pickle"):
        four.run(cases.allocate_unpicklable, world_size=1)
    with pytest.raises(RankFailure, match="value cannot be read"):
        four.run(cases.return_unreadable, world_size=1)


def test_a_cluster_that_was_left_has_no_process_and_says_so() -> None:
    with Cluster(2, ClusterOptions(log_sink=drop)) as workers:
        process_ids = workers.process_ids
        assert all(map(running, process_ids))
    assert_gone(process_ids)
    with pytest.raises(RuntimeError, match="has been left"):
        workers.run(cases.report, text="")


PARENT = """
import sys, time
from ringproof.cluster import Cluster
from smoke import cases
if __name__ == "__main__":
    with Cluster(2) as workers:
        print(*workers.process_ids, flush=True)
        workers.run(cases.fail_on, culprits=[0], how="hung", timeout_seconds=600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_workers_do_not_outlive_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        env=environment, text=True, preexec_fn=listen,
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        process_ids = tuple(map(int, parent.stdout.readline().split()))
        time.sleep(1)
        assert all(map(running, process_ids))
        if how == signal.SIGKILL:  # a rank that is stopped cannot look after its parent
            os.kill(process_ids[1], signal.SIGSTOP)
        below = psutil.Process(parent.pid).children(recursive=True)  # the server of forks, too
        process_ids = (*process_ids, *(process.pid for process in below))
        parent.send_signal(how)
        parent.wait(timeout=REPORTED_WITHIN_SECONDS)
    assert_gone(process_ids)


@pytest.mark.parametrize("asked", [0, 5])
def test_a_world_that_does_not_fit_is_refused(four: Cluster, asked: int) -> None:
    with pytest.raises(InputError, match="world_size"):
        four.run(cases.report, world_size=asked, text="")


def test_options_that_cannot_be_are_refused(four: Cluster) -> None:
    with pytest.raises(InputError, match="nproc"):
        Cluster(0)
    with pytest.raises(InputError, match="backend"):
        ClusterOptions(backend="carrier-pigeon")
    with pytest.raises(InputError, match="threads"):
        ClusterOptions(threads=0)
    for seconds in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InputError, match="timeout"):
            four.run(cases.report, text="", timeout_seconds=seconds)


@pytest.mark.parametrize(
    ("most", "limit"), [(resource.RLIM_INFINITY, 1000), (400, 400), (4000, 1000)]
)
def test_a_rank_keeps_the_hard_limit_that_it_was_given(most: int, limit: int) -> None:
    """Only root may raise it; anybody else gets an error."""
    with (
        mock.patch.object(resource, "getrlimit", return_value=(most, most)),
        mock.patch.object(resource, "setrlimit") as setting,
    ):
        limit_data(1000)
    setting.assert_called_once_with(resource.RLIMIT_DATA, (limit, most))


def test_a_limit_that_torch_does_not_fit_is_refused_before_a_rank_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (300 << 20, -1))
    with pytest.raises(InputError, match="too little for torch; raise `ulimit -v`"), Cluster(2):
        pass


def test_a_rank_that_cannot_load_torch_says_so_in_a_report() -> None:
    (parent, control), (_, output) = multiprocessing.Pipe(), multiprocessing.Pipe(duplex=False)
    with mock.patch.dict(sys.modules, {WORKER_MODULE: None}):
        _serve({}, 1, control, output)
    report = pickle.loads(parent.recv_bytes())
    assert report.rank == 1 and report.error.startswith("ModuleNotFoundError: import of ringproof")


@pytest.mark.slow
def test_a_killed_server_of_forks_is_a_failure_and_no_abort(tmp_path: Path) -> None:
    """It is stopped first, so that it certainly ends while a rank waits to be forked.

    A process has one such server, and that of the tests is not to end, so another process asks.
    """
    program = tmp_path / "program.py"
    program.write_text(
        "import os, signal, threading, psutil\n"
        "from ringproof.cluster import Cluster\n"
        "if __name__ == '__main__':\n"
        "    with Cluster(1):\n"
        "        children = psutil.Process().children()\n"
        "    [server] = [c for c in children if 'forkserver' in ' '.join(c.cmdline())]\n"
        "    server.suspend()\n"
        "    threading.Timer(1, server.kill).start()\n"
        "    Cluster(2).__enter__()\n"
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    said = "RankFailure: rank 0 failed first: the process that starts ranks was ended"
    assert said in done.stderr, done.stderr
