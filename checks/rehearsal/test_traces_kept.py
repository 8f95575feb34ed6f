"""Traces on disk: what is kept is compared again, and a folder of anybody's is refused or read."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checks.rehearsal.test_locate import add, one_rank, run
from checks.rehearsal.test_locate_rows_of_experts import World
from ringproof.cli.main import app
from ringproof.errors import InputError
from ringproof.rehearsal.locate.kept import keep, read_trace
from ringproof.rehearsal.locate.locating import located
from ringproof.rehearsal.locate.reading import RunTrace
from ringproof.rehearsal.protocol.trace import HEAD, TraceHead

Change = Callable[[Path], None]


def written(record: RunTrace, folder: Path, *, disturbed: bool = False) -> Path:
    """Write a trace as the ranks of a run do, and keep it."""
    found = folder.with_name(f"{folder.name}-written")
    found.mkdir(parents=True)
    for rank in record.ranks:
        path = found / f"trace-{rank.trace.rank}.json"
        path.write_text(json.dumps(asdict(rank.trace)))
        path.with_suffix(".bin").write_bytes(rank.data.tobytes())
    head = TraceHead(f"program {folder.name}", len(record.ranks), (1,), disturbed)
    (found / HEAD).write_text(json.dumps(asdict(head)))
    keep(found, folder)
    assert not list(found.iterdir())
    return folder


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    written(run((1, add("attended", 0.5))), tmp_path / "run")
    written(one_rank(), tmp_path / "reference")
    written(one_rank(1e-15), tmp_path / "disturbed", disturbed=True)
    return tmp_path


def compared(*words: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["trace", "compare", *map(str, words)])
    if isinstance(result.exception, InputError):
        return 2, str(result.exception)
    assert isinstance(result.exception, SystemExit | None), result.exception
    return result.exit_code, result.output


def test_what_is_kept_is_compared_again(traces: Path) -> None:
    code, text = compared(traces / "run", traces / "reference")
    assert code == 1
    verdict, *names = text.splitlines()[:3]
    assert verdict.startswith("block.attention is wrong in the forward")
    assert names == ["A: program run", "B: program reference"]
    assert "computed at te.py:7, called at site:block.attention" in text
    code, text = compared(traces / "run", traces / "reference", "--json", "-")
    data = json.loads(text[: text.rindex("}") + 1])
    assert code == 1 and data["culprit"]["positions"] == [[6, 6]]
    assert data["a"]["ranks"] == 2 and data["b"]["name"] == "program reference"


def test_traces_that_agree_end_with_0(traces: Path) -> None:
    code, text = compared(traces / "reference", traces / "reference")
    assert code == 0 and "every tensor that was compared agrees" in text


def test_traces_of_other_layouts_are_not_compared(traces: Path) -> None:
    code, text = compared(traces / "reference", traces / "run", "--disturbed", traces / "disturbed")
    assert code == 1 and "not located: the positions of the ranks are in no known layout" in text


def test_a_second_rehearsal_does_not_write_over_a_kept_trace(traces: Path) -> None:
    """It is refused before an upstream is opened."""
    before = {path: path.stat().st_mtime_ns for path in traces.rglob("*")}
    words = ["rehearse", "--upstream", "nowhere", "--keep-trace", str(traces), "--", "torchrun"]
    done = CliRunner().invoke(app, words)
    said = f"--keep-trace: '{traces}' is not empty; name a new folder"
    assert isinstance(done.exception, InputError) and str(done.exception) == said
    assert {path: path.stat().st_mtime_ns for path in traces.rglob("*")} == before


def change(name: str, edit: Callable[[dict[str, Any]], None]) -> Change:
    def changed(folder: Path) -> None:
        data = json.loads((folder / name).read_text())
        edit(data)
        (folder / name).write_text(json.dumps(data))

    return changed


def cut(folder: Path) -> None:
    path = folder / "trace-1.bin"
    path.write_bytes(path.read_bytes()[:-1])


def replaced(name: str, text: str) -> Change:
    return lambda folder: (folder / name).write_text(text) and None


def linked(folder: Path) -> None:
    (folder / "trace-0.bin").unlink()
    (folder / "trace-0.bin").symlink_to("/dev/zero")


def first(name: str, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data[name][0].update(fields)


def shape(value: Any, **fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda data: data["tensors"][0]["value"].update(shape=value, **fields)


RANK = "trace-0.json"


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (lambda folder: (folder / "trace.json").unlink(), "has no trace.json of a trace; name a"),
        (replaced("trace.json", "[" * 60_000), "has no trace.json of a trace"),
        (replaced("trace.json", " " * (1 << 17)), "has no trace.json of a trace"),
        (
            change(RANK, lambda data: data["place"].update(experts=[1, 2])),
            "rank 0 has no place among the ranks that share experts",
        ),
        (
            change(RANK, lambda data: data["place"].update(experts=[0, 1, 1])),
            "rank 0 has no place among the ranks that share experts",
        ),
        (change("trace.json", lambda data: data.update(format=4)), "is a trace of format 4, and"),
        (change("trace.json", lambda data: data.update(format="\x1b[2J")), "of format '?[2J'"),
        (change("trace.json", lambda data: data.update(ranks=10**9)), "has 1000000000 ranks"),
        (change("trace.json", lambda data: data.update(ranks=3)), "trace-2.json is not there"),
        (change(RANK, first("batches", layout="spiral")), "not shared by ranks in a known layout"),
        (
            change(RANK, first("batches", borders=[0, 1 << 40])),
            "sequences of microbatch 0 end nowhere",
        ),
        (cut, "trace-1.json: a tensor is cut off: the file of values is too short"),
        (linked, "trace-0.bin is not there"),
        (replaced(RANK, "{"), "is damaged: "),
        (replaced(RANK, "[" * 100_000), "is damaged: "),
        (change(RANK, first("calls", inputs={"\x1b[2J": "x"})), "calls.0.inputs.?[2J: "),
        (change(RANK, shape([-1, 4])), "a tensor is of no possible shape"),
        (change(RANK, shape([1] * 99)), "a tensor is of no possible shape"),
        (change(RANK, shape([1 << 60, 1 << 60])), "a tensor is cut off"),
        (change(RANK, shape([2], every=0)), "a tensor is of rows that it cannot have"),
        (change(RANK, shape([1 << 30], every=1 << 29)), "a tensor is of rows that it cannot have"),
        (change(RANK, shape([2], dtype="|O8")), "a tensor is of type '|O8'"),
        (change(RANK, first("calls", parent=3)), "call 0 names a tensor or a call that is not"),
        (change(RANK, first("calls", inputs={"x": 99})), "call 0 names a tensor or a call"),
        (
            change(RANK, lambda data: data["tensors"].extend([data["tensors"][1]] * 9)),
            "its tensors overlap",
        ),
        (
            change(RANK, lambda data: data["place"].update(sizes=[1, 1 << 40, 1, 1])),
            "its layout [1, 1099511627776, 1, 1] does not have 2 ranks",
        ),
        (change(RANK, lambda data: data["place"].update(context=1)), "rank 1 is there twice"),
        (change(RANK, lambda data: data.update(rank=7)), "microbatch 0 is not shared by ranks"),
    ],
)
def test_a_folder_that_is_no_trace_is_refused_in_one_line(
    traces: Path, broken: Change, said: str
) -> None:
    broken(traces / "run")
    with pytest.raises(InputError) as raised:
        read_trace(traces / "run", "A")
    text = str(raised.value)
    assert said in text and text.isprintable(), text


def emptied(*where: str | int) -> Callable[[dict[str, Any]], None]:
    def edit(data: Any) -> None:
        for name in where[:-1]:
            data = data[name]
        data[where[-1]] = {} if where[-1] == "inputs" else [0, *data[where[-1]][1:]]

    return edit


@pytest.mark.parametrize(
    ("where", "said"),
    [(("calls", 2, "inputs"), "unknown order of experts"),
     (("calls", 3, "inputs"), "unknown order of experts"),
     (("tensors", 0, "value", "shape"), "the tokens of the ranks are not those of the reference")],
)  # fmt: skip
def test_a_trace_whose_rows_cannot_be_read_says_so(
    tmp_path: Path, where: tuple[str | int, ...], said: str
) -> None:
    """Its router or experts are given nothing, or it has no samples."""
    folder = written(World(2, 2).run(), tmp_path / "run")
    for rank in range(2):
        change(f"trace-{rank}.json", emptied(*where))(folder)
    others = (World(disturbed=by).run() for by in (0.0, 1e-15))
    place = located(read_trace(folder, "A").run, *others, (1,))
    assert said in " ".join([place.reason, *(what for what, _ in place.left_out)])


def test_the_order_of_the_traces_is_checked(traces: Path) -> None:
    code, text = compared(traces / "run", traces / "disturbed")
    assert code == 2 and "weights have to be disturbed in this trace and not in B" in text
    change("trace.json", lambda data: data.update(steps=[7]))(traces / "run")
    code, text = compared(traces / "run", traces / "reference")
    assert code == 2 and "it has no training step of A" in text
