"""``logs diagnose`` of flight-recorder dumps, and input that it cannot use."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import re
import resource
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checks.logs.diagnose_run import CASES, traceback
from ringproof.cli.logs import app
from ringproof.errors import InputError
from ringproof.logs.diagnosis.cause import diagnose
from ringproof.logs.diagnosis.output import as_text

GROUP = "CONTEXT_PARALLEL_GROUP"


def entry(
    number: int,
    *,
    done: bool,
    operation: str = "nccl:all_reduce",
    group: str = "1",
    description: str = GROUP,
    p2p: bool = False,
) -> dict[str, Any]:
    """A collective as torch 2.9 records it."""
    return {
        "record_id": number, "pg_id": 1, "process_group": (group, description), "is_p2p": p2p,
        "collective_seq_id": number, "p2p_seq_id": number, "profiling_name": operation,
        "state": "completed" if done else "started", "retired": done, "input_sizes": ((4,),),
    }  # fmt: skip


def dump(entries: list[dict[str, Any]], ranks: str = "[0, 1, 2, 3]") -> dict[str, Any]:
    return {"version": "2.10", "pg_config": {"1": {"name": "1", "desc": GROUP, "ranks": ranks}},
            "entries": entries}  # fmt: skip


def write(folder: Path, dumps: dict[int, Any], *, as_json: bool = False) -> list[str]:
    paths = []
    for rank, content in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}{'.json' if as_json else ''}"
        path.write_bytes(json.dumps(content).encode() if as_json else pickle.dumps(content, 2))
        paths.append(str(path))
    return paths


DONE = [entry(number, done=True) for number in range(1, 12)]
WAITS = dump([*DONE, entry(12, done=False)])


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("last", [dump(DONE), None])
def test_the_rank_that_is_behind_is_named(tmp_path: Path, as_json: bool, last: Any) -> None:
    """Rank 3 did not enter the operation that the others wait in, or left no dump."""
    dumps = {0: WAITS, 1: WAITS, 2: WAITS, **({3: last} if last else {})}
    report = diagnose(write(tmp_path, dumps, as_json=as_json))
    (stuck,) = report.stuck
    behind, silent = ((3,), ()) if last else ((), (3,))
    assert (stuck.sequence, stuck.behind, stuck.silent) == (12, behind, silent)
    text = "\n".join(as_text(report))
    assert f"a hang: ranks waited in {GROUP} for rank 3" in text
    assert "dynamic-context-parallel/ranks-disagree" in text
    assert f"ranks 0-2 waited in nccl:all_reduce, number 12, of {GROUP}" in text
    assert f"rank 3 {'did not enter number 12' if last else 'left no dump here'}" in text


def test_ranks_that_disagree_are_seen(tmp_path: Path) -> None:
    other = dump([*DONE, entry(12, done=False, operation="nccl:all_gather")])
    report = diagnose(write(tmp_path, {0: WAITS, 1: WAITS, 2: WAITS, 3: other}))
    assert report.stuck[0].differ
    same = diagnose(write(tmp_path, dict.fromkeys(range(4), WAITS)))
    assert not same.stuck[0].differ
    sends = {
        0: dump([entry(1, done=False, operation="nccl:send 0->1", p2p=True)], "[0, 1]"),
        1: dump([entry(1, done=False, operation="nccl:recv 1<-0", p2p=True)], "[0, 1]"),
    }
    for path in tmp_path.iterdir():
        path.unlink()
    assert not diagnose(write(tmp_path, sends)).stuck[0].differ


def test_the_group_that_explains_the_others_comes_first(tmp_path: Path) -> None:
    """Rank 3 waits in a second group for rank 4, which waits for nothing."""
    second = {"group": "2", "description": "PIPELINE_MODEL_PARALLEL_GROUP"}
    dumps = {0: WAITS, 1: WAITS, 2: WAITS, 3: dump([*DONE, entry(5, done=False, **second)]),
             4: dump([entry(4, done=True, **second)])}  # fmt: skip
    told = {"name": "2", "desc": second["description"], "ranks": "[0, 1, 2, 3, 4]"}
    dumps[4]["pg_config"]["2"] = told  # the larger group, which would stand last
    dumps |= {0: dump([*WAITS["entries"], entry(4, done=True, **second)])}
    for rank in (1, 2):
        dumps[rank] = dumps[0]
    first, then = diagnose(write(tmp_path, dumps)).stuck
    assert first.description == second["description"]
    assert (first.behind, first.elsewhere) == ((0, 1, 2, 4), (0, 1, 2))
    assert (then.behind, then.elsewhere) == ((3,), (3,))


def test_dumps_without_a_hang_show_nothing(tmp_path: Path) -> None:
    report = diagnose(write(tmp_path, dict.fromkeys(range(4), dump(DONE))))
    assert not report.found
    assert report.dumps == 4
    for state, retired, waits in (("scheduled", True, 0), ("started", False, 1)):
        last = {**entry(12, done=False), "state": state, "retired": retired}
        report = diagnose(write(tmp_path, {0: dump([*DONE, last], "[0]")}))
        assert len(report.stuck) == waits


def test_the_recorder_of_torch_itself(tmp_path: Path) -> None:
    """A dump that torch wrote under gloo, as a pickle and as JSON."""
    torch = pytest.importorskip("torch")
    from torch._C import _distributed_c10d as c10d

    if not hasattr(c10d, "_dump_fr_trace_json"):
        pytest.skip("this torch has no recorder for gloo")
    del torch
    (tmp_path / "trace_0").write_bytes(c10d._dump_fr_trace())
    (tmp_path / "trace_1.json").write_bytes(c10d._dump_fr_trace_json())
    report = diagnose([str(tmp_path / "trace_0"), str(tmp_path / "trace_1.json")])
    assert report.dumps == 2


ENTRIES = b"\x80\x02}(X\x07\x00\x00\x00entries]"
DOUBLED = b"K\x01K\x02\x86" + b"".join(b"q%ch%c\x86" % (at, at) for at in range(60))
"""A tuple of twice a tuple, and so on: 60 levels of 5 bytes, 2^60 numbers if written out."""


def _field(name: str) -> bytes:
    return ENTRIES + b"}(X%c\x00\x00\x00%s" % (len(name), name.encode()) + DOUBLED + b"uau."


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "data",
    [
        *(_field(name) for name in ("profiling_name", "input_sizes", "process_group")),
        ENTRIES + b"u}(" + DOUBLED + b"K\x01u0.",
        ENTRIES + b"r\xff\xff\xff\x1fu.",
    ],
    ids=["operation", "sizes", "group", "key", "memo"],
)
def test_a_small_pickle_takes_little_time_and_memory(data: bytes, tmp_path: Path) -> None:
    """The last one would take 8 GB for the memo of Python's own reader."""
    path = tmp_path / "trace_0"
    path.write_bytes(data)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with contextlib.suppress(InputError):
        diagnose([str(path)])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


class _Runs:
    """A pickle that would create a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def run(*arguments: str, data: bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["diagnose", *arguments], input=data)


def test_a_dump_that_names_a_function_is_refused(tmp_path: Path) -> None:
    made = tmp_path / "made"
    for content in (_Runs(made), {"entries": [], "more": _Runs(made)}):
        path = tmp_path / "trace_0"
        path.write_bytes(pickle.dumps(content, 2))
        with pytest.raises(InputError, match="may run code"):
            diagnose([str(path)])
    assert not made.exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("trace", pickle.dumps(WAITS, 2), "name has no rank"),
        ("trace_1", pickle.dumps(WAITS, 2)[:-9], "damaged"),
        ("trace_1", pickle.dumps([1], 2), "not a dump"),
        ("trace_1", b'{"entries": [', "damaged"),
        ("trace_1", b'{"entries": 7}', "not a dump"),
        ("run.gz", b"\x1f\x8bnot gzip", "gzip"),
    ],
)
def test_damaged_dumps_are_refused(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"LOG: .*{re.escape(said)}"):
        diagnose([str(path)])


def test_strange_entries_of_a_dump_are_left_out(tmp_path: Path) -> None:
    strange: list[Any] = [7, None, {}, {"process_group": 3}, {"collective_seq_id": "x"}, []]
    content = {
        "entries": [*strange, entry(1, done=False)],
        "pg_config": {"1": 7, "2": {"ranks": 3}},
    }
    report = diagnose(write(tmp_path, {0: content, 1: {"entries": [], "pg_config": None}}))
    assert report.stuck


def test_exit_codes_and_json(tmp_path: Path) -> None:
    (tmp_path / "bad.log").write_text("\n".join(traceback(CASES[3])) + "\n")
    (tmp_path / "good.log").write_text("fine\n")
    (tmp_path / "empty.log").write_text("")
    (tmp_path / "binary.log").write_bytes(bytes(range(256)) * 40)
    assert run(str(tmp_path / "good.log")).exit_code == 0
    found = run(str(tmp_path / "bad.log"), "--json", "-")
    assert found.exit_code == 1
    data = json.loads(found.stdout)
    assert data["cause"]["statements"] == ["dynamic-context-parallel/iterator-not-rerun"]
    assert data["cause"]["evidence"][0]["line"] == 4
    others = run(str(tmp_path / "empty.log"), str(tmp_path / "binary.log"))
    assert others.exit_code == 0
    assert "is empty" in others.stdout
    assert "looks binary" in others.stdout
    assert run("-", data="\n".join(traceback(CASES[3])).encode()).exit_code == 1
