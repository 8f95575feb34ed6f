"""``logs diagnose``: each symptom in the logs of eight ranks, other errors, and silent faults."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from checks.logs.diagnose_run import (
    CASES,
    RANKS,
    Case,
    files,
    lost_peer,
    mixed,
    progress,
    traceback,
    watchdog,
)
from checks.logs.groups_run import argument, engine, startup
from ringproof.cards.loading import find_cards, load_card
from ringproof.logs.diagnosis.cause import Diagnosis
from ringproof.logs.diagnosis.cause import diagnose as diagnose_logs
from ringproof.logs.diagnosis.errors import CUT, LogReader
from ringproof.logs.diagnosis.output import as_text, names
from ringproof.logs.diagnosis.symptoms import KINDS, load_index
from ringproof.logs.parsing import RunSetup

INDEX = load_index()
diagnose = partial(diagnose_logs, index=INDEX)
ROOT = Path(__file__).parents[2]
UNKNOWN = Case("", "mycode.BadError", "value 7 of 12 is bad", ("own_step",))
KNOWN = next(case for case in CASES if case.symptom == "rerun-iterator")
OTHER = next(case for case in CASES if case.symptom == "dispatcher")


def read(tmp_path: Path, lines: Sequence[str], name: str = "run.log") -> Diagnosis:
    path = tmp_path / name
    path.write_text("\n".join(lines) + "\n")
    return diagnose([str(path)])


def cause(report: Diagnosis) -> tuple[str, str]:
    one = report.cause
    if one is None:
        return "nothing", ""
    return one.symptom.id if one.symptom else one.first.error, names(one.who)


ELASTIC = (
    "torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: {}) local_rank: 3"
)


@pytest.mark.parametrize(
    ("line", "symptom"),
    [
        ("pretrain_gpt.py: error: unrecognized arguments: --cuda-graph-modules", "graph-options"),
        ("pretrain_gpt.py: error: unrecognized arguments: --no-such-thing", "usage"),
        (ELASTIC.format(-9) + " (pid: 12) of binary: /usr/bin/python", "killed"),
        (ELASTIC.format(-11) + " (pid: 12) of binary: /usr/bin/python", "crashed"),
        (
            "  what():  CUDA error: an illegal memory access was encountered",
            "illegal-memory-access",
        ),
        (
            " iteration 5/ 9 | elapsed time per iteration (ms): 1.0 | grad norm: nan |",
            "nan-in-line",
        ),
        (progress(5, 5)[0].replace("nan iterations:   0", "nan iterations:   1"), "nan-in-line"),
        ('{"step": 5, "loss": NaN}', "nan-in-line"),
        ("(Worker pid=9) Invalid handle. Cannot load symbol cublasLtGetVersion", "missing-symbol"),
        ("(Worker pid=9) *** SIGSEGV received at time=1773825404 on cpu 49 ***", "crashed"),
        ("command terminated with exit code 137", "killed"),
        ("      Exit Code:    139", "crashed"),
        ("worker-0 exited with code 137", "killed"),
        ("srun: error: n1: task 3: Exited with exit code 137", "killed"),
        ("n1:1:2 [0] transport.cc:154 NCCL WARN Cuda failure 'invalid argument'", "nccl-cuda"),
        (f" iteration 5/ 9 | lm loss: {float('nan'):.6E} |", "nan-in-line"),
        ("n1:1:2 [0] NCCL WARN NET/Socket : message truncated : 4 bytes, not 2", "nccl-sizes"),
        (
            "IndexKernel.cu:92: f(): block: [3,0,0], thread: [64,0,0] Assertion `x` failed.",
            "device-assert",
        ),
    ],
)
def test_a_line_alone(tmp_path: Path, line: str, symptom: str) -> None:
    report = read(tmp_path, [*progress(1, 4), line])
    assert cause(report)[0] == symptom
    assert report.found


@pytest.mark.parametrize(
    "line",
    [
        "usage: pretrain_gpt.py [-h] [--cuda-graph-modules X]", "finance: nan-iterations are bad",
        "exitcode  : <N/A>", "# grad norm: nan", "loss: nankai", "Root Cause?",
        "KeyError is raised by dict", "exited with code 1", "exit code: 1370",
        "note: CUDA error: an illegal memory access", "",
    ],
)  # fmt: skip
def test_a_line_that_shows_nothing(tmp_path: Path, line: str) -> None:
    report = read(tmp_path, [*progress(1, 4), line])
    assert not report.found
    assert "diagnosis: nothing found" in list(as_text(report))


DURING = ["", "During handling of the above exception, another exception occurred:", ""]
QUOTED = traceback(KNOWN)[-1]
NAN = progress(5, 5)[0].replace("1.000", "nan")
FIRST, *REST = traceback(KNOWN)
RAISED = [
    *(f"[rank1]: {line}" for line in traceback(KNOWN)),
    *(f"[rank2]: {line}" for line in traceback(OTHER)),
]
ROOT_CAUSE = [
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
    "Root Cause (first observed failure):", "[0]:", "  time      : 2026-11-02_12:00:00",
    "  rank      : 2 (local_rank: 2)", "  exitcode  : 1 (pid: 77)",
]  # fmt: skip
MESSAGE = ["CUDA graph mismatch:", "- Value mismatch at x.local_cp_size: 2"]
PRINTED_NEXT = "module 7: CUDA graph accepts only Tensor inputs"
FAULT = "  what():  CUDA error: an illegal memory access was encountered"
CUT_SHORT = [f"[rank1]: {line}" for line in traceback(UNKNOWN)[:-1]]
CAUSES = {
    "NaN": ([NAN, *progress(6, 9)], "nan-in-line"),
    "NaN that is overcome": ([NAN, *progress(6, 20)], "nothing"),
    "an exception without its traceback": ([QUOTED], "rerun-iterator"),
    "which is the weaker evidence": ([QUOTED, *traceback(UNKNOWN)], "mycode.BadError"),
    "the launcher's root cause": ([*RAISED, *ROOT_CAUSE], "dispatcher"),
    "no root cause": ([*RAISED, *ROOT_CAUSE[:2]], "rerun-iterator"),
    "what led to another": ([*traceback(UNKNOWN), *DURING, *traceback(KNOWN)], "rerun-iterator"),
    "what followed from it": ([*traceback(KNOWN), *DURING, *traceback(UNKNOWN)], "rerun-iterator"),
    "a traceback without its end": (CUT_SHORT, CUT),
    "which is the last resort": ([*CUT_SHORT, *RAISED[: len(REST) + 1]], "rerun-iterator"),
    "all lines of a message": (
        [*traceback(UNKNOWN)[:-1], f"mycode.BadError: {MESSAGE[0]}", MESSAGE[1]],
        "local-graphs",
    ),
    "what is printed after a message": ([*traceback(UNKNOWN), PRINTED_NEXT], "mycode.BadError"),
    "no line of the message": ([*traceback(UNKNOWN), "", MESSAGE[1]], "mycode.BadError"),
    "an error late in a long line": (["z" * 30_000 + FAULT], "illegal-memory-access"),
    "after a logger's prefix": ([f"ERROR | train:12 - {FIRST}", *REST], "rerun-iterator"),
    "a program that ends without a failure": (traceback(Case("", "SystemExit", "0")), "nothing"),
    "a mention": ([f"{FIRST} is what one reads"], "nothing"),
    **{
        f"the name {error}": (traceback(Case("", error, "words")), error)
        for error in ("Exception", "SystemExit", "a.b.Timeout", "KeyboardInterrupt")
    },
}


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause(tmp_path: Path, name: str) -> None:
    lines, expected = CAUSES[name]
    report = read(tmp_path, lines)
    first = next((one.first.error for one in (report.cause, *report.follow_ups) if one), "nothing")
    assert expected in (cause(report)[0], first)
    assert report.found == (expected != "nothing")
    assert bool(report.others) == ("root cause" in name or name == "what followed from it")
    assert bool(report.earlier) == (name == "NaN that is overcome")


@pytest.mark.parametrize(
    ("group", "symptom"),
    [
        ("DYNAMIC_DP_CP_GROUP_4", "hang-dynamic"), ("HYBRID_DP_CP_GROUP_2", "hang-dynamic"),
        ("CONTEXT_PARALLEL_GROUP", "hang-cp"),
        ("HIERARCHICAL_CONTEXT_PARALLEL_GROUP_L1", "hang-cp"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "hang-tp"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "hang-pp"), ("DATA_PARALLEL_GROUP", "hang"),
    ],
)  # fmt: skip
def test_a_hang_names_its_group_and_the_rank_without_a_timeout(
    tmp_path: Path, group: str, symptom: str
) -> None:
    waits = [watchdog(rank, group=group) for rank in range(RANKS) if rank != 5]
    report = read(tmp_path, [startup(RANKS, 4, "None"), *waits, *lost_peer()])
    assert cause(report) == (symptom, "ranks 0-4,6-7")
    assert report.missing == (5,)
    text = "\n".join(as_text(report))
    assert f"ranks 0-4,6-7: {group} ALLREDUCE 12" in text
    assert "no timeout of ranks 5" in text


def test_only_lost_peers_is_said(tmp_path: Path) -> None:
    report = read(tmp_path, lost_peer())
    assert cause(report)[0] == "nothing"
    assert report.found
    assert "own error is in none of these logs" in next(as_text(report))


def test_an_unknown_exception_is_not_assigned_to_a_pitfall(tmp_path: Path) -> None:
    lines = {3: traceback(UNKNOWN), 1: [watchdog(1)], 2: lost_peer()}
    report = read(tmp_path, mixed(lines, "[rank{}]: "))
    assert cause(report) == ("mycode.BadError", "rank 3")
    text = "\n".join(as_text(report))
    assert "does not know" in text
    assert "value 7 of 12 is bad" in text
    assert "cards" not in text
    assert "in own_step" in text


def test_the_earliest_by_time_comes_first(tmp_path: Path) -> None:
    for first in (KNOWN, UNKNOWN):
        for rank, case in ((1, KNOWN), (2, UNKNOWN)):
            clock = "2026-11-02 12:00:01" if case is first else "2026-11-02 12:00:09"
            lines = [f"{clock},123 {line}" for line in traceback(case)]
            (tmp_path / f"rank_{rank}.log").write_text("\n".join(lines) + "\n")
        paths = [str(tmp_path / f"rank_{rank}.log") for rank in (1, 2)]
        report = diagnose(paths)
        assert cause(report)[1] == ("rank 1" if first is KNOWN else "rank 2")
        assert len(report.others) == 1


@pytest.mark.parametrize(
    ("lines", "symptom"),
    [
        ([startup(4, 4, "[2, 2]"), argument("cp_comm_type", "['a2a+p2p']"),
          *[engine("a2a+p2p", False, 1)] * 4], "levels-missing"),
        ([startup(4, 4, "None"), *[engine("p2p", False, 1)] * 4], "never-parallel"),
        ([startup(4, 4, "None"), *[engine("p2p", True, 4)] * 3, engine("p2p", False, 1)],
         "layer-without"),
        ([startup(4, 4, "[2, 2]"), *[engine("p2p", True, 4)] * 4], "idle-levels"),
        ([startup(4, 4, "[2, 2]"), *[engine("a2a+p2p", True, 4)] * 4], ""),
        ([startup(4, 1, "None"), *[engine("p2p", False, 1)] * 4], ""),
        ([startup(4, 4, "None"), argument("dynamic_context_parallel", "True"),
          engine("p2p", True, 4), engine("p2p", False, 1)], ""),
    ],
)  # fmt: skip
def test_attention_without_its_groups(tmp_path: Path, lines: list[str], symptom: str) -> None:
    report = read(tmp_path, lines)
    assert [one.id for one in report.silent] == ([symptom] if symptom else [])
    if symptom == "layer-without":
        assert "3 lines with p2p over 4 ranks" in report.engine
        assert "evidence" in "\n".join(as_text(report))
    assert report.found == bool(symptom)


@pytest.mark.parametrize(
    ("name", "prefix", "who"),
    [
        ("node0/3/stderr.log", "", "local rank 3 of node0/3"), ("job-rank-12.out", "", "rank 12"),
        ("run.log", "[default2]:", "local rank 2 of run.log"),
        ("run.log", "[default2]:[rank10]: ", "rank 10"), ("run.log", "14: ", "rank 14"),
        ("run.log", "(WorkerDict pid=12, ip=10.0.0.1) ", "WorkerDict 12"),
        ("run.log", "2026-11-02T12:00:00.5Z stderr F ", "run.log"),
    ],
)  # fmt: skip
def test_ranks(tmp_path: Path, name: str, prefix: str, who: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(prefix + line for line in traceback(KNOWN)))
    report = diagnose([str(path)])
    symptom, found = cause(report)
    assert symptom == "rerun-iterator"
    assert found.replace(f"{tmp_path}/", "") == who


def test_lines_of_blocks_are_found_and_numbered() -> None:
    """Lines across the ends of blocks, long lines, progress bars and colours change nothing."""
    body = "\n".join(traceback(KNOWN))
    for size in ((1 << 20) - 40, (1 << 20) - 1, 1 << 20, (1 << 20) + 1):
        text = "x" * 999 + "\n"
        filler = text * (size // len(text)) + "y" * (size % len(text)) + "\n"
        report = diagnose(["-"], stdin=io.BytesIO((filler + body).encode()))
        assert report.cause is not None
        assert report.cause.first.line == filler.count("\n") + len(traceback(KNOWN))
    bar = "50%\r" * 300_000 + "\n"
    report = diagnose(["-"], stdin=io.BytesIO((bar + body).encode()))
    assert cause(report)[0] == "rerun-iterator"


LAYOUTS = ("torch", "srun", "files", "stamped")
ELSEWHERE = {  # see test_a_line_alone and test_diagnose_facts
    "graph-options", "killed", "crashed", "nan-in-line", "usage", "nan-line", "bus-error", "xid",
    "preempted", "nan-graphs-overlap", "nan-thd-padding", "evicted", "nccl-cuda",
    "missing-symbol", "nccl-sizes",
}  # fmt: skip
OF_OTHER_KINDS = {"hang", "follow-up", "silent"}
NO_MESSAGE = {
    "zero-loss", "misaligned-group", "config-accepts-anything", "padding-for-low-precision",
}  # fmt: skip


CARDS = {skill: load_card(path) for skill, path in find_cards(ROOT / "skills").items()}


def test_the_summary_of_torchrun_may_lie_in_two_blocks() -> None:
    lines = [
        "Root Cause (first observed failure):", "[0]:", "  rank      : 5 (local_rank: 1)",
        "  exitcode  : 1 (pid: 7)",
    ]  # fmt: skip
    data = "\n".join(lines).encode()
    for cut in range(len(lines)):
        place = data.find(lines[cut].encode())
        reader = LogReader("run.log", filter(None, (data[:place], data[place:])), RunSetup())
        assert [(e.who, e.error, e.root) for e in reader.errors()] == [
            ("rank 5", "exit code 1", True)
        ]


def test_the_index_names_statements_that_exist() -> None:
    known = {
        f"{skill}/{item.id}"
        for skill, card in CARDS.items()
        for item in (*card.pitfalls, *card.constraints, *card.claims)
    }
    assert {name for one in INDEX for name in one.statements} <= known
    assert {one.kind for one in INDEX} == set(KINDS)
    assert len({one.id for one in INDEX}) == len(INDEX)
    assert all(one.cause.endswith((".", "CP.")) and one.remedy.endswith(".") for one in INDEX)


def test_each_symptom_has_a_case_and_each_message_of_a_pitfall_an_entry() -> None:
    expected = {one.id for one in INDEX if one.kind not in OF_OTHER_KINDS}
    assert {case.symptom for case in CASES} == expected - ELSEWHERE
    named = {name for one in INDEX for name in one.statements}
    missing = {
        pitfall.id
        for skill, card in CARDS.items()
        for pitfall in card.pitfalls
        if re.search(r"\b[A-Z]\w+(Error|Exception)\b", pitfall.symptom)
        and f"{skill}/{pitfall.id}" not in named
    }
    assert missing <= NO_MESSAGE


@pytest.mark.parametrize("number", range(len(CASES)))
def test_a_symptom_of_one_rank_is_found(tmp_path: Path, number: int) -> None:
    case, layout = CASES[number], LAYOUTS[number % len(LAYOUTS)]
    report = diagnose(files(tmp_path, case, layout))
    assert cause(report) == (case.symptom, "rank 3")
    assert report.cause is not None
    assert case.error in report.cause.first.text
    assert not report.others
    waiting = {one.symptom.id for one in report.follow_ups if one.symptom}
    assert waiting == {"hang-dynamic" if case.dynamic else "hang", "lost-peer"}


@pytest.mark.parametrize("case", CASES, ids=[f"{case.symptom}-{n}" for n, case in enumerate(CASES)])
def test_a_mention_is_no_symptom(tmp_path: Path, case: Case) -> None:
    """The words in prose, in arguments and in an exception that training survived count as none."""
    said = f"{case.error}: {case.message}"
    lines = [
        *progress(1, 3),
        f"- `{said}` is what one sees", f"| {said} | use dev |", f"# {said}", f"note={said!r}",
        f"  remark ............... {said}", f"WARNING: ignored {said}", f"> {said}",
        "print('Traceback (most recent call last):')",
        said,
        *traceback(case),
        *progress(4, 20),
        *case.setup,
    ]  # fmt: skip
    report = read(tmp_path, lines)
    assert cause(report) == ("nothing", "")
    assert not report.found
    assert [one.symptom.id for one in report.earlier if one.symptom] == [case.symptom]


def mutated(lines: list[str], choice: random.Random) -> list[str]:
    """Damage a log as pipes, terminals and truncation do."""
    out = list(lines)
    for _ in range(choice.randint(1, 6)):
        at, other = choice.randrange(len(out)), choice.randrange(len(out))
        line = out[at]
        place = choice.randrange(len(line) + 1)
        noise = choice.choice(("", "INFO: saving", "x" * 3000, "\x00\x00", "Error: "))
        out[at : at + 1] = choice.choice(
            (
                [],
                [line, line],
                [line[:place]],
                [f"\x1b[3{choice.randrange(8)}m{line}\x1b[0m"],
                [f"{line[:place]}{chr(choice.randrange(0x3000))}{line[place:]}"],
                [f"{line}\r"],
                [noise, line],
                [out[other]],
            )
        )
        out = out or [""]
    return out


def damaged(folder: Path, seed: int) -> tuple[str, str]:
    """Diagnose a damaged log; return the symptom that it had and the one that was found."""
    choice = random.Random(seed)
    case = choice.choice(CASES)
    lines: dict[int, list[str]] = {3: traceback(case), 7: [*progress(1, 3), *case.setup]}
    lines |= {rank: [watchdog(rank, group=case.group)] for rank in (0, 1, 2, 4, 5)}
    text = "\n".join(mutated(list(mixed(lines, "[rank{}]: ")), choice)) + "\n"
    path = folder / "damaged.log"
    path.write_text(text, encoding="utf-8", errors="surrogatepass", newline="")
    return case.symptom, cause(diagnose([str(path)]))[0]


STATEMENTS = {one.id: set(one.statements) for one in INDEX}


def wrong(pair: tuple[str, str]) -> bool:
    """Whether another fault's statements are named; a fault that lost its words may be general."""
    case, other = pair
    named = STATEMENTS.get(other, set())
    hang = other.startswith("hang")  # the timeouts are there, even where the exception is not
    return case != other and bool(named) and not hang and named.isdisjoint(STATEMENTS[case])


LOST = "ConnectionResetError: [Errno 104] Connection reset by peer"
NO_RANK = {
    "a storage": ("/opt/lib/boto3/client.py", LOST, "service", "unknown"),
    "a queue": ("/usr/lib/multiprocessing/connection.py", LOST, "lost-pipe", "restart"),
    "a hub": ("/opt/lib/requests/adapters.py", f"requests.exceptions.{LOST}", "service", "unknown"),
    "an environment named torch": (
        "/opt/conda/envs/torch/lib/python3.10/site-packages/requests/adapters.py",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='hub'): Connection refused",
        "service",
        "unknown",
    ),
    "an environment inside megatron": (
        "/opt/megatron/.venv/lib/python3.12/site-packages/wandb/sdk/lib/sock.py",
        LOST,
        "service",
        "unknown",
    ),
    "a folder named torch": ("/opt/torch/client.py", LOST, "service", "unknown"),
    "an installed queue": (
        "/opt/x/lib/python3.12/multiprocessing/connection.py",
        LOST,
        "lost-pipe",
        "restart",
    ),
    "torch": (
        "/opt/x/lib/python3.12/site-packages/torch/storage.py",
        LOST,
        "lost-pipe",
        "restart",
    ),
    "a reward service": (
        "/opt/code/train.py",
        "RuntimeError: reward: HTTPConnectionPool(host='n1', port=80): Connection refused",
        "RuntimeError",
        "unknown",
    ),
    "an address": (
        "/opt/code/train.py",
        "RuntimeError: http://n1:8000/reward: Connection reset by peer",
        "RuntimeError",
        "unknown",
    ),
    "a store": ("/opt/code/a.py", "RuntimeError: Connection reset by peer", "lost-peer", "restart"),
    "a closed output": (
        "/opt/code/train.py",
        "BrokenPipeError: [Errno 32] Broken pipe",
        "BrokenPipeError",
        "unknown",
    ),
    "a compiler in a folder of launches": (
        "/opt/launches/build.py",
        "subprocess.CalledProcessError: Command 'ninja' returned non-zero exit status 1.",
        "subprocess.CalledProcessError",
        "unknown",
    ),
    "a compiler": (
        "/usr/lib/python3.12/subprocess.py",
        "subprocess.CalledProcessError: Command 'ninja' returned non-zero exit status 1.",
        "subprocess.CalledProcessError",
        "unknown",
    ),
    "a launcher": (
        "/opt/lib/accelerate/commands/launch.py",
        "subprocess.CalledProcessError: Command 'train' returned non-zero exit status 1.",
        "launcher-failed",
        "unknown",
    ),
    "a reply": (
        "/opt/own/agent.py",
        "pydantic.ValidationError: 1 validation error for ChatReply",
        "pydantic.ValidationError",
        "stop",
    ),
    "an import": (
        "/opt/own/a.py",
        "ImportError: cannot import name 'a' from partially initialized module 'b' "
        "(most likely due to a circular import)",
        "ImportError",
        "stop",
    ),
    "a signal": ("/opt/own/a.py", "SystemExit: 143", "ended", "unknown"),
}


@pytest.mark.parametrize("name", NO_RANK)
def test_a_cause_needs_evidence_of_its_own(tmp_path: Path, name: str) -> None:
    place, raised, symptom, advice = NO_RANK[name]
    lines = ["Traceback (most recent call last):", f'  File "{place}", line 7, in call', raised]
    report = read(tmp_path, lines)
    first = report.cause or report.follow_ups[0]
    assert (first.symptom.id if first.symptom else first.first.error) == symptom
    assert report.restart.advice == advice


@pytest.mark.parametrize(
    "before",
    [
        "Exception ignored in: <function Loader.__del__ at 0x7f>",
        "Exception ignored while calling deallocator <function Loader.__del__ at 0x7f>:",
        "Error in sys.excepthook:",
        "Task exception was never retrieved",
    ],
)
def test_an_exception_that_python_ignores_is_no_cause(tmp_path: Path, before: str) -> None:
    report = read(tmp_path, [before, *traceback(UNKNOWN), "", *traceback(KNOWN)])
    assert cause(report)[0] == "rerun-iterator"
    assert report.others == ()


STDOUT = "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>"
TASK = "Task exception was never retrieved"
MADE = "source_traceback: Object created at (most recent call last):"
FUTURE = "future: <Task finished name='Task-1' coro=<f() done> exception=BrokenPipeError(32)>"
BROKEN = "BrokenPipeError: [Errno 32] Broken pipe"
DURING = ["", "During handling of the above exception, another exception occurred:", ""]
OVER = {
    "without a traceback": [STDOUT, BROKEN],
    "of a task": [TASK, FUTURE, BROKEN],
    "of a task with a traceback": [TASK, FUTURE, *traceback(OTHER)],
    "of a task that asyncio debugs": [
        TASK,
        FUTURE,
        MADE,
        *traceback(OTHER)[1:-1],
        *traceback(OTHER),
    ],
    "of a future that asyncio debugs": [TASK, FUTURE, MADE, *traceback(OTHER)[1:-1], BROKEN],
    "while one is handled": [STDOUT, *traceback(UNKNOWN), *DURING, *traceback(OTHER), ""],
    "whose own lines are lost": [STDOUT, "saving the checkpoint"],
}


@pytest.mark.parametrize("name", OVER)
@pytest.mark.parametrize("prefix", ["", "[rank0]: "])
def test_what_follows_an_ignored_exception_is_not_ignored(
    tmp_path: Path, name: str, prefix: str
) -> None:
    report = read(tmp_path, [prefix + line for line in (*OVER[name], *traceback(KNOWN))])
    assert cause(report)[0] == "rerun-iterator"
    assert (report.others, report.follow_ups) == ((), ())


def test_an_ignored_exception_is_no_line_of_the_message_before(tmp_path: Path) -> None:
    listed = Case("", "pydantic.ValidationError", "1 validation error for ChatReply")
    report = read(tmp_path, [*traceback(listed), STDOUT, BROKEN])
    assert report.cause is not None
    assert report.cause.first.message == listed.message
    assert (report.others, report.follow_ups) == ((), ())


@pytest.mark.slow
def test_damaged_logs_mislead_rarely(tmp_path: Path) -> None:
    pairs = [damaged(tmp_path, seed) for seed in range(400)]
    assert sum(map(wrong, pairs)) <= 4
    assert sum(one == other for one, other in pairs) >= 280
