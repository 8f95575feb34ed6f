"""``logs diagnose`` reads tracebacks under the prefixes of launchers, and says what it cannot read.

The lines are what each launcher puts in front of a rank's output, by its documentation.
"""

from __future__ import annotations

import codecs
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from checks.logs.diagnose_run import general, lost_peer, progress, traceback, watchdog
from checks.logs.test_diagnose import KNOWN, UNKNOWN, cause, read
from ringproof.cli.main import app
from ringproof.logs.diagnosis.cause import diagnose
from ringproof.logs.diagnosis.output import as_json, headline

TORCH = "[rank{0}]: "
PREFIXES = {
    "torch": (TORCH, "rank 3"),
    "torchrun": ("[default{0}]:", "local rank 3 of run.log"),
    "a role": ("[trainer{0}]:", "local rank 3 of run.log"),
    "torchrun and torch": ("[default1]:[rank{0}]: ", "rank 3"),
    "srun": ("{0}: ", "rank 3"),
    "srun, aligned": ("  {0}: ", "rank 3"),
    "srun and torch": (" {0}: [rank{0}]: ", "rank 3"),
    "pdsh": ("worker-{0}: ", "worker-3"),
    "a host's name": ("gpu{0}.cluster.example: ", "gpu3.cluster.example"),
    "Open MPI": ("[1,{0}]<stderr>: ", "rank 3"),
    "SageMaker": ("[1,mpirank:{0},algo-1]<stderr>:", "rank 3"),
    "MPICH": ("[{0}] ", "3"),
    "kubectl": ("[pod/train-{0}/main] ", "pod/train-3/main"),
    "kubectl with times": ("[pod/train-{0}/main] 2026-08-20T11:11:09.123Z ", "pod/train-3/main"),
    "stern": ("train-{0} main ", "train-3 main"),
    "docker compose": ("worker-{0}  | ", "worker-3"),
    "torchx": ("trainer/{0} ", "trainer/3"),
    "Ray": ("(Worker pid=10{0}, ip=10.0.0.1) ", "Worker 103"),
    "Ray, coloured": ("\x1b[36m(Worker pid=10{0}, ip=[2001:db8::1])\x1b[0m ", "Worker 103"),
    "NeMo-RL": ("(PolicyWorker[rank={0}] pid=77, ip=10.0.0.1) ", "rank 3"),
    "syslog": ("Aug  2 11:11:09 node1 train[10{0}]: ", "node1 train[103]"),
    "syslog and torch": ("Aug 12 11:11:09 node1 train[10{0}]: [rank{0}]: ", "rank 3"),
    "containerd": ("2026-08-20T11:11:09.5Z stderr F [rank{0}]: ", "rank 3"),
    "a service": ("2026-08-20 11:11:09.531 job-77/task-{0} stderr ", "job-77/task-3"),
    "a logger": ("2026-08-20 11:11:09,123 ERROR [Rank {0}] main.py:12: ", "rank 3"),
    "a clock": ("11:11:0{0} host{0} > ", "host3"),
    "a numbered console": ("[8074{0}] [rank{0}]: ", "rank 3"),
    "a quotation": ("> [rank{0}]: ", "rank 3"),
    "a quotation of a quotation": ("> > {0}: ", "rank 3"),
    "Horovod with times": ("Fri Aug 11 12:31:45 2023[1,{0}]<stderr>:", "rank 3"),
    "pdsh, twice": ("10.0.87.14{0}: 10.0.87.14{0}: ", "10.0.87.143: 10.0.87.143"),
    "torchx, torchrun and torch": ("i.train/0 [default{0}]:[rank{0}]: ", "rank 3"),
    "vLLM": ("(VllmWorker rank={0} pid=21{0}) ", "rank 3"),
    "GitHub": ("2026-01-31T04:40:19.3000000Z \x1b[31m[rank{0}]: ", "rank 3"),
    "Open MPI 5": ("[prterun-node1-77@1,{0}]<stderr>: ", "rank 3"),
    "SkyPilot": ("(worker1, rank={0}, pid=4521, ip=10.0.0.2) ", "rank 3"),
    "Determined": ("[2026-11-02T12:00:00.123456Z] 6a9f1b2c || [rank={0}] ERROR: ", "rank 3"),
    "Airflow": ("[2026-11-02, 12:00:00 UTC] {{subprocess.py:93}} INFO - [rank{0}]: ", "rank 3"),
    "Lightning": ("[rank: {0}] ", "rank 3"),
    "a rank and a bar": ("[RANK {0}] | ", "rank 3"),
    "a stream of Azure": ("2026-11-02T12:00:00.123456Z [stderr] [rank-{0}] ", "rank 3"),
    "Ray and torch": ("\x1b[36m(Worker pid=100{0})\x1b[0m [rank{0}]: ", "rank 3"),
}


def two_ranks(prefix: str) -> list[str]:
    """The traceback of rank 3 and the consequence on rank 5, line by line in turn."""
    one, other = traceback(KNOWN), lost_peer()
    both = [(3, line, 5, more) for line, more in zip(one, [*other, ""], strict=False)]
    return [
        prefix.format(rank) + line
        for first, line, second, more in both
        for rank, line in ((first, line), (second, more))
    ]


@pytest.mark.parametrize(
    "before", ["RuntimeError: worker 3 failed: ", "^C", "^C^C", "host1 a.OwnError: ray: "]
)
def test_what_stands_in_front_of_a_traceback_and_is_no_prefix(tmp_path: Path, before: str) -> None:
    first, *rest = traceback(KNOWN)
    report = read(tmp_path, [before + first, *rest])
    assert cause(report) == ("rerun-iterator", str(tmp_path / "run.log"))


@pytest.mark.parametrize("name", PREFIXES)
def test_a_traceback_under_a_prefix(tmp_path: Path, name: str) -> None:
    prefix, who = PREFIXES[name]
    report = read(tmp_path, two_ranks(prefix))
    assert cause(report) == ("rerun-iterator", who)
    assert [one.symptom.id for one in report.follow_ups if one.symptom] == ["lost-peer"]
    assert report.cause is not None
    assert report.cause.first.functions == KNOWN.functions


def docker(rank: int, line: str) -> str:
    return json.dumps({"log": f"[rank{rank}]: {line}\n", "stream": "stderr", "time": "2026-08-20"})


def loki(rank: int, line: str) -> str:
    labels = {"pod": f"train-{rank}", "namespace": "ml"}
    return json.dumps({"labels": labels, "line": line, "timestamp": "2026-08-20T11:11:09Z"})


def cloud(rank: int, line: str) -> str:
    inner = {"message": line, "rank": rank}
    return "2026-08-20T11:11:09Z " + json.dumps({"severity": "ERROR", "jsonPayload": inner})


def azure(rank: int, line: str) -> str:
    return json.dumps({"LogEntry": line, "ContainerID": f"c{rank}", "Computer": "n"})


def of_a_list(rank: int, line: str) -> str:
    return json.dumps({"message": line, "logStreamName": f"algo-{rank}"}) + ","


def of_several_lines(rank: int, line: str) -> str:
    return json.dumps({"time": 7, "message": f"[rank{rank}]: {line}"}, indent=4) + ","


def of_a_local_rank(rank: int, line: str) -> str:
    return json.dumps({"msg": line, "local_rank": rank, "host": "n1"})


def of_mpi(rank: int, line: str) -> str:
    return f"[1,{rank}]<stderr>:" + json.dumps({"message": line})


def of_torch(rank: int, line: str) -> str:
    return f"[rank{rank}]: " + json.dumps({"message": line})


def first_of_a_list(rank: int, line: str) -> str:
    return "[" + json.dumps({"message": line, "rank": rank}) + ","


@pytest.mark.parametrize(
    ("record", "who"),
    [
        (of_mpi, "rank 3"),
        (of_torch, "rank 3"),
        (first_of_a_list, "rank 3"),
        (docker, "rank 3"),
        (loki, "train-3"),
        (cloud, "rank 3"),
        (azure, "c3"),
        (of_a_list, "algo-3"),
        (of_several_lines, "rank 3"),
        (of_a_local_rank, "local rank 3 of n1"),
    ],
)
def test_a_traceback_in_json_records(tmp_path: Path, record: object, who: str) -> None:
    assert callable(record)
    report = read(tmp_path, [record(3, line) for line in traceback(KNOWN)])
    assert cause(report) == ("rerun-iterator", who)
    assert report.cause is not None
    assert report.cause.first.text.lstrip()[:7] != "rank3]:"


@pytest.mark.parametrize("name", ["utf-16", "utf-16-be"])
def test_a_log_in_two_bytes_a_character(tmp_path: Path, name: str) -> None:
    text = "\r\n".join(TORCH.format(3) + line for line in traceback(KNOWN))
    bytes_of = codecs.BOM_UTF16_BE if name.endswith("be") else b""
    path = tmp_path / "run.log"
    path.write_bytes(bytes_of + text.encode(name))
    assert cause(diagnose([str(path)])) == ("rerun-iterator", "rank 3")


@pytest.mark.parametrize("style", ["record", "list", "escaped"])
def test_a_traceback_in_one_line(tmp_path: Path, style: str) -> None:
    text = "\n".join(traceback(KNOWN))
    line = {
        "record": json.dumps({"level": "error", "message": text, "host": "node3"}),
        "list": f"2026-08-20 11:11:09.1 node3 {[part + chr(10) for part in text.splitlines()]}",
        "escaped": 'level=error host=node3 err="' + text.replace("\n", "\\n") + '"',
    }[style]
    report = read(tmp_path, [line, line])
    assert cause(report)[0] == "rerun-iterator"
    assert report.cause is not None
    assert report.cause.count == 2
    assert "node3" in cause(report)[1]


def test_ranks_that_stand_behind_one_another(tmp_path: Path) -> None:
    lines = [
        f"[rank3]: {one}[rank5]: {other}"
        for one, other in zip(traceback(KNOWN), lost_peer(), strict=True)
    ]
    report = read(tmp_path, lines)
    assert cause(report) == ("rerun-iterator", "rank 3")
    assert report.cause is not None
    assert "[rank5]" not in report.cause.first.place


def test_a_timeout_behind_a_progress_bar(tmp_path: Path) -> None:
    bar = "Packing (num_proc=1):   1%|1   | 85/10000 [30:00<67:35:04, 444.15it/s]"
    report = read(tmp_path, [bar + watchdog(1, group="default_pg", operation="BROADCAST")])
    assert cause(report) == ("hang-data", "rank 1")


def test_the_exception_in_the_summary_of_torchrun(tmp_path: Path) -> None:
    lines = [
        "Root Cause (first observed failure):",
        "[0]:",
        "  time      : 2026-08-20_11:11:09",
        "  rank      : 6 (local_rank: 2)",
        "  exitcode  : 1 (pid: 77)",
        "  error_file: /tmp/x/2/error.json",
        "  traceback : " + traceback(KNOWN)[0],
        *(f"  {line}" for line in traceback(KNOWN)[1:]),
    ]
    assert cause(read(tmp_path, lines)) == ("rerun-iterator", "rank 6")


def test_a_traceback_without_its_first_line(tmp_path: Path) -> None:
    assert cause(read(tmp_path, traceback(KNOWN)[1:]))[0] == "rerun-iterator"


def test_a_traceback_in_a_frame(tmp_path: Path) -> None:
    lines = [
        "╭──────────── Traceback (most recent call last) ─────────────╮",
        "│ /opt/own/train.py:12 in own_step                           │",
        "│ ❱ 12     call(value)                                       │",
        "╰────────────────────────────────────────────────────────────╯",
        f"{UNKNOWN.error}: {UNKNOWN.message}",
    ]
    report = read(tmp_path, lines)
    assert cause(report)[0] == UNKNOWN.error
    assert report.cause is not None
    assert report.cause.first.place == "/opt/own/train.py:12"


def test_the_worker_of_a_task_of_ray(tmp_path: Path) -> None:
    first, *rest = traceback(KNOWN)
    task = "ray.exceptions.RayTaskError(AssertionError): ray::WorkerDict.update() (pid=77, ip=::1)"
    lines = [f"(Driver pid=5) {line}" for line in (first, *rest[:2], task, *rest)]
    assert cause(read(tmp_path, lines)) == ("rerun-iterator", "WorkerDict 77")


IGNORED = "Exception ignored in: <_io.TextIOWrapper name='<stdout>' mode='w' encoding='utf-8'>"
BROKEN = "BrokenPipeError: [Errno 32] Broken pipe"
UNREAD = {
    "frames alone": traceback(UNKNOWN)[1:-1],
    "frames of a fault": ['  File "/opt/own/a.py", line 4 in step [repeated 7x across cluster]'],
    "an exception that ends nothing": ["Exception ignored in: <function f>", *traceback(UNKNOWN)],
    "a pipe that Python closes at the end": [IGNORED, BROKEN],
    "a task without a traceback": ["Task exception was never retrieved", "future: <Task>", BROKEN],
    "exceptions without a traceback": ["RuntimeError: something of my own", "OwnError: 7"],
}


@pytest.mark.parametrize("name", UNREAD)
def test_errors_that_were_not_understood_are_counted(tmp_path: Path, name: str) -> None:
    report = read(tmp_path, [*progress(1, 4), *UNREAD[name]])
    assert not report.found
    assert headline(report).startswith("unread: ")
    assert as_json(report)["unread"]["lines"] == len(report.unread)
    command = ["logs", "diagnose", str(tmp_path / "run.log")]
    assert CliRunner().invoke(app, command).exit_code == 1


def test_an_error_that_training_survived_is_not_unread(tmp_path: Path) -> None:
    lines = [*progress(1, 4), *UNREAD["exceptions without a traceback"], *progress(5, 9)]
    report = read(tmp_path, lines)
    assert headline(report) == "nothing found"
    assert CliRunner().invoke(app, ["logs", "diagnose", str(tmp_path / "run.log")]).exit_code == 0


DUMP = [
    "Timeout (0:10:00)!",
    "Thread 0x00007f12 (most recent call first):",
    '  File "/opt/own/a.py", line 4 in step',
    '  File "/opt/own/a.py", line 9 in <module>',
]


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize(
    ("title", "then", "said"),
    [
        (2, 1, "nothing found"),
        (2, 0, "unread: 2 lines look like errors"),
        (0, 1, "unread: 2 lines look like errors"),
    ],
)
def test_a_dump_of_stacks_is_no_error_where_training_goes_on(
    tmp_path: Path, prefix: str, title: int, then: int, said: str
) -> None:
    dump = [prefix + line for line in DUMP[2 - title :]]
    report = read(tmp_path, [*progress(1, 4), *dump, *progress(5, 4 + then)])
    assert headline(report).startswith(said)
    code = CliRunner().invoke(app, ["logs", "diagnose", str(tmp_path / "run.log")]).exit_code
    assert code == (0 if said == "nothing found" else 1)


def test_lines_of_a_message_under_a_stamped_prefix(tmp_path: Path) -> None:
    memory = general(
        "", "torch.distributed.DistBackendError", "NCCL error\nncclInternalError\nLast error:\n"
        "Failed to CUDA calloc 7 bytes",
    )  # fmt: skip
    lines = [f"2026-08-20T11:11:09.1Z stderr F {line}" for line in traceback(memory)]
    assert cause(read(tmp_path, lines))[0] == "nccl-memory"
