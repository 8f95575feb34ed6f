"""``logs diagnose``: what a run used decides between causes, and which group waits for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.logs.diagnose_run import (
    SETUP,
    Case,
    general,
    lost_peer,
    progress,
    traceback,
    watchdog,
)
from checks.logs.groups_run import argument, engine, startup
from checks.logs.test_diagnose import INDEX, KNOWN, UNKNOWN, cause, read
from ringproof.logs.diagnosis.facts import BUSY, FACTS
from ringproof.logs.diagnosis.output import as_json, as_text, headline
from ringproof.logs.diagnosis.places import upstream_place

NAN = general("", "RuntimeError", "Rank 3, iteration 5: Unexpected result nan (message='found NaN")
LENGTH = general(
    "", "RuntimeError", "shape '[1, 4, 9]' is invalid for input of size 37",
    ("get_batch_on_this_cp_rank",),
)  # fmt: skip
OVERLAP = argument("overlap_moe_expert_parallel_comm", "True")
GRAPHS = argument("cuda_graph_impl", "transformer_engine")
OLD_ENGINE = [
    engine("p2p", True, 2).replace(
        "'transformer_engine_version': '", "'transformer_engine_version': '2.6.0', 'x': '"
    ).replace("'cp_comm_type'", "'qkv_layout': 'thd_thd_thd', 'cp_comm_type'"),
    "DEBUG:DotProductAttention:Selected backend = FusedAttention (sub-backend 1)",
]  # fmt: skip


@pytest.mark.parametrize(
    ("case", "lines", "symptom"),
    [
        (NAN, [], "nan-found"),
        (NAN, SETUP, "nan-result"),
        (NAN, [GRAPHS, argument("overlap_moe_expert_parallel_comm", "False")], "nan-found"),
        (NAN, [argument("cuda_graph_impl", "none"), OVERLAP], "nan-found"),
        (NAN, [GRAPHS, OVERLAP], "nan-graphs-overlap"),
        (NAN, OLD_ENGINE, "nan-thd-padding"),
        (NAN, [line.replace("2.6.0", "2.8.0") for line in OLD_ENGINE], "nan-found"),
        (LENGTH, [], "cp-length"),
        (LENGTH, ["  dynamic_context_parallel ........ False"], "cp-length"),
        (LENGTH, ["python pretrain_gpt.py --dynamic-context-parallel --sft"], "static-padding"),
        (LENGTH, [watchdog(1)], "static-padding"),
    ],
)
def test_a_cause_needs_what_the_logs_show(
    tmp_path: Path, case: Case, lines: list[str], symptom: str
) -> None:
    assert cause(read(tmp_path, [*traceback(case), *lines]))[0] == symptom
    assert cause(read(tmp_path, [*lines, *traceback(case)]))[0] == symptom


def test_entries_need_known_facts_and_have_a_general_entry_or_none() -> None:
    assert {need for one in INDEX for need in one.needs} <= {*FACTS, BUSY}
    assert all(
        one.restart.startswith(("stop: ", "restart: ", "unknown: ")) and one.restart.endswith(".")
        for one in INDEX
        if one.restart
    )


@pytest.mark.parametrize(
    ("line", "symptom", "who", "advice"),
    [
        ("kernel: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.", "xid",
         "run.log", "restart"),
        ("slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-08-20T11:11:09 DUE TO PREEMPTION "
         "***", "preempted", "run.log", "restart"),
        ("srun: error: n1: task 3: Out Of Memory", "host-memory", "rank 3", "stop"),
        ("srun: error: n1: task 3: Killed", "killed", "rank 3", "unknown"),
        ("srun: error: n1: tasks 3-4: Segmentation fault (core dumped)", "crashed", "run.log",
         "unknown"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=7.0.", "host-memory", "run.log",
         "stop"),
        ("Fatal Python error: Segmentation fault", "crashed", "run.log", "unknown"),
        ("[n1:77] *** Process received signal: Segmentation fault (11)", "crashed", "run.log",
         "unknown"),
        ("Bus error (core dumped)", "bus-error", "run.log", "stop"),
        ("Warning  Evicted  2m  kubelet  The node was low on resource: memory.", "evicted",
         "run.log", "restart"),
        ("kernel: Out of memory: Killed process 77 (python3)", "host-memory", "run.log", "stop"),
        ("node_manager.cc:3041: 1 Workers killed due to memory pressure (OOM)", "host-memory",
         "run.log", "stop"),
        ("mpirun noticed that process rank 3 with PID 77 on node n1 exited on signal 9 (Killed).",
         "killed", "rank 3", "unknown"),
        ("launch.py:325: ['python', 'train.py'] exits with return code = -11", "crashed", "run.log",
         "unknown"),
        ("train: error: unrecognized arguments: --cp 2", "usage", "run.log", "stop"),
        ("[rank3]:[F82 ProcessGroupNCCL.cpp:1] Terminating the process, due to watchdog hang.",
         "watchdog-stuck", "rank 3", "unknown"),
        ("    reason: OOMKilled", "host-memory", "run.log", "stop"),
        ("Could not override 'model.tensor_paralel_size'.", "usage", "run.log", "stop"),
        ("worker-3: pretrain_gpt.py: error: unrecognized arguments: --x", "usage", "run.log",
         "stop"),
        ("  what():  [enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory",
         "host-memory", "run.log", "stop"),
    ],
)  # fmt: skip
def test_what_schedulers_and_systems_say(
    tmp_path: Path, line: str, symptom: str, who: str, advice: str
) -> None:
    report = read(tmp_path, [line])
    found = cause(report)
    assert (found[0], found[1].replace(f"{tmp_path}/", "")) == (symptom, who)
    assert report.restart.advice == advice


@pytest.mark.parametrize(
    ("lines", "advice"),
    [
        (traceback(KNOWN), "stop"),
        (traceback(Case("", "KeyError", "4")), "stop"),
        (traceback(UNKNOWN), "unknown"),
        (traceback(Case("", "ConnectionResetError", "by somebody")), "unknown"),
        (traceback(Case("", "torch.distributed.DistBackendError", "reason")), "unknown"),
        (traceback(Case("", "a.ChildFailedError", "train.py FAILED")), "unknown"),
        (traceback(Case("", "KeyboardInterrupt", "")), "unknown"),
        (traceback(Case("", "a.SignalException", "Process 77 got signal: 15")), "unknown"),
        ([*traceback(Case("", "KeyboardInterrupt", "")), *lost_peer()], "unknown"),
        ([*traceback(Case("", "a.ChildFailedError", "train.py FAILED")), *lost_peer()], "restart"),
        (traceback(Case("", "EOFError", "Ran out of input", ("load",))), "unknown"),
        (traceback(Case("", "EOFError", "", ("recv", "_recv_bytes", "_recv"))), "unknown"),
        (traceback(Case("", "TimeoutError", "the future took long")), "unknown"),
        ([watchdog(1, group="DATA_PARALLEL_GROUP")], "unknown"),
        (["{}"], "unknown"),
    ],
)
def test_whether_a_restart_can_help(tmp_path: Path, lines: list[str], advice: str) -> None:
    report = read(tmp_path, lines)
    assert as_json(report)["restart"] == {
        "advice": advice, "why": report.restart.why,
    }  # fmt: skip
    assert report.restart.why.endswith(".")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ("FileNotFoundError", "[Errno 2] No such file or directory: '/dev/shm/weights_0'"),
        ("OSError", "[Errno 22] Invalid argument: '/dev/shm/weights_0'"),
        ("ValueError", "memory pressure too high; see /dev/shm docs"),
        ("pandas.errors.ParserError", "Error tokenizing data. C error: Expected 3 fields"),
        ("dateutil.parser._parser.ParserError", "Unknown string format: x"),
        ("KeyError", "'CUDA_DEVICE_MAX_CONNECTIONS'"),
        ("ValueError", "port of the TCPStore must be a number"),
        ("EOFError", "EOF when reading a line"),
    ],
)
def test_a_word_that_other_errors_use_is_no_evidence(
    tmp_path: Path, error: str, message: str
) -> None:
    report = read(tmp_path, traceback(Case("", error, message)))
    assert cause(report) == (error, str(tmp_path / "run.log"))
    assert report.cause is not None
    assert report.cause.symptom is None


def test_an_interrupted_run_lost_no_rank(tmp_path: Path) -> None:
    report = read(
        tmp_path, [f"[rank2]: {one}" for one in traceback(Case("", "KeyboardInterrupt", ""))]
    )
    assert headline(report) == "rank 2 was interrupted, and none of these logs shows an error"


def inside(rank: int, place: int, group: str, guid: int, number: int = 12) -> list[str]:
    """A timeout as torch prints it: the group's line has the place in the group only."""
    head = f"[rank{rank}]:[E1102 12:10:01.123456789 ProcessGroupNCCL.cpp:2168]"
    work = f"WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=6)"
    return [
        f"{head} [Rank {place}] Watchdog caught collective operation timeout: {work} ran for 7",
        f"{head} [PG ID 4 PG GUID {guid}({group}) Rank {place}]  failure detected by watchdog at "
        f"work sequence id: {number} PG status: last enqueued work: {number}",
    ]


def test_the_smallest_group_with_a_missing_rank_comes_first(tmp_path: Path) -> None:
    lines = [startup(16, 4, "None")]
    for rank in range(16):
        if rank // 4 == 1 and rank != 6:
            lines += inside(rank, rank % 4, "CONTEXT_PARALLEL_GROUP", 21)
        elif rank != 6:
            lines += inside(rank, rank // 4, "DATA_PARALLEL_GROUP", 30 + rank % 4, 7)
    report = read(tmp_path, lines)
    assert cause(report) == ("hang-cp", "ranks 4-5,7")
    assert report.missing == (6,)
    assert headline(report).endswith("waited in CONTEXT_PARALLEL_GROUP for rank 6")
    assert len(report.follow_ups) == 2, "the group with the same gap, and all others together"


def test_a_gap_in_a_group_is_named_without_the_number_of_ranks(tmp_path: Path) -> None:
    lines = [line for rank in (8, 9, 10, 12, 13) for line in inside(rank, rank - 8, "X", 21)]
    assert read(tmp_path, lines).missing == (11,)


def test_lines_of_local_ranks_are_those_of_the_ranks(tmp_path: Path) -> None:
    head = inside(11, 3, "TENSOR_MODEL_PARALLEL_GROUP", 21)
    again = "  what():  " + head[1].partition("] ")[2].replace(
        " failure detected by watchdog at work sequence id: 12",
        "terminated with exception: [Rank 3] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=12, OpType=ALLREDUCE)",
    )
    report = read(tmp_path, [f"[default3]:{line}" for line in (*head, again)])
    assert cause(report) == ("hang-tp", "rank 11")


def test_different_collectives_at_one_number_are_a_disagreement(tmp_path: Path) -> None:
    lines = [
        watchdog(0, "ALLREDUCE", "CONTEXT_PARALLEL_GROUP"),
        watchdog(1, "ALLREDUCE", "CONTEXT_PARALLEL_GROUP"),
        watchdog(2, "BROADCAST", "CONTEXT_PARALLEL_GROUP"),
    ]
    report = read(tmp_path, lines)
    assert cause(report) == ("collectives-differ", "ranks 0-2")
    assert report.restart.advice == "stop"
    text = "\n".join(as_text(report))
    assert "rank 2: CONTEXT_PARALLEL_GROUP BROADCAST 12" in text
    other = [lines[0], lines[1].replace("NumelIn=1,", "NumelIn=2,")]
    assert cause(read(tmp_path, other))[0] == "collectives-differ"
    elsewhere = [lines[0], lines[2].replace("GUID 9", "GUID 8")]
    assert cause(read(tmp_path, elsewhere))[0] == "hang-cp"


def test_an_actor_that_died_is_a_consequence(tmp_path: Path) -> None:
    died = Case("", "ray.exceptions.ActorDiedError", "The actor died unexpectedly")
    report = read(tmp_path, [*traceback(died), *(f"(W pid=7) {one}" for one in traceback(UNKNOWN))])
    assert cause(report) == ("mycode.BadError", "W 7")
    assert [one.symptom.id for one in report.follow_ups if one.symptom] == ["actor-died"]


def test_an_empty_assertion_shows_its_source_and_its_place_in_upstream(tmp_path: Path) -> None:
    frame = '  File "/opt/x/site-packages/megatron/core/own.py", line 7, in check'
    lines = [traceback(UNKNOWN)[0], frame, "    assert a == b", "AssertionError"]
    text = "\n".join(as_text(read(tmp_path, [*progress(1, 2), *lines])))
    assert "code      assert a == b" in text
    assert "upstream  Megatron-LM, megatron/core/own.py" in text
    assert upstream_place("/opt/other/train.py:9") == ""


WRAPPED = {
    "a data loader's worker": (
        [
            "Traceback (most recent call last):",
            '  File "/opt/own/train.py", line 7, in step',
            "    batch = next(loader)",
            "KeyError: Caught KeyError in DataLoader worker process 0.",
            "Original Traceback (most recent call last):",
            '  File "/opt/own/data.py", line 9, in item',
            "    row['text']",
            "KeyError: 'text'",
        ],
        ("KeyError", "/opt/own/data.py:9"),
    ),
    "several exceptions": (
        [
            "  + Exception Group Traceback (most recent call last):",
            '  |   File "/opt/own/train.py", line 7, in step',
            "  |     run()",
            "  | ExceptionGroup: unhandled errors in a TaskGroup (1 sub-exception)",
            "  +-+---------------- 1 ----------------",
            "    | Traceback (most recent call last):",
            '    |   File "/opt/own/data.py", line 9, in item',
            "    |     call()",
            "    | OwnError: seven",
            "    +------------------------------------",
        ],
        ("OwnError", "/opt/own/data.py:9"),
    ),
    "an actor that could not be made": (
        [
            "Traceback (most recent call last):",
            '  File "/opt/own/train.py", line 7, in step',
            "    worker.init()",
            "ray.exceptions.ActorDiedError: The actor died because of an error raised in its "
            "creation task, ray::WorkerDict.__init__() (pid=77, ip=::1)",
            '  File "/opt/own/data.py", line 9, in item',
            "    call()",
            "OwnError: seven",
        ],
        ("OwnError", "/opt/own/data.py:9"),
    ),
    "a name that does not say that it is an error": (
        [
            "Traceback (most recent call last):",
            '  File "/opt/own/data.py", line 9, in item',
            "    call()",
            "triton.runtime.errors.OutOfResources: out of resource: shared memory",
        ],
        ("triton.runtime.errors.OutOfResources", "/opt/own/data.py:9"),
    ),
}


@pytest.mark.parametrize("name", WRAPPED)
def test_the_exception_inside_another_is_the_cause(tmp_path: Path, name: str) -> None:
    lines, expected = WRAPPED[name]
    report = read(tmp_path, lines)
    assert report.cause is not None
    assert (report.cause.first.error, report.cause.first.place) == expected
    assert not report.others


def test_a_rank_whose_own_error_is_missing_is_named(tmp_path: Path) -> None:
    lines = ["Root Cause (first observed failure):", "[0]:", "  rank      : 5 (local_rank: 1)",
             "  exitcode  : 1 (pid: 7)"]  # fmt: skip
    report = read(tmp_path, lines)
    assert headline(report) == "rank 5 ended, and the error is in none of these logs"
    assert report.restart.advice == "unknown"
    barrier = Case(
        "", "RuntimeError", "[Rank 0]: Ranks 3, 5 failed to pass monitoredBarrier in 1 ms"
    )
    assert "Ranks 3, 5 failed to pass" in headline(read(tmp_path, traceback(barrier)))


def test_a_stack_of_a_running_process_says_where_it_stands(tmp_path: Path) -> None:
    lines = ['Thread 0x7F12 (active+gil): "MainThread"', "    dispatch (own/buffer.py:511)"]
    report = read(tmp_path, [*progress(1, 4), *lines])
    assert cause(report)[0] == "stack-dump"
    assert "in dispatch" in headline(report)
    assert headline(read(tmp_path, [*progress(1, 4), *lines, *progress(5, 9)])) == "nothing found"
