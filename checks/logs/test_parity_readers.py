"""Three formats, as they come: dressed, cut, restarted, averaged, compressed."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.logs.parity_run import (
    iteration_line,
    write_csv,
    write_jsonl,
    write_megatron,
)
from checks.running import one_line
from ringproof.errors import InputError
from ringproof.logs.training.formats import MegatronReader, recognised
from ringproof.logs.training.quantities import Columns, parse_columns
from ringproof.logs.training.read import TrainingLog, read_log
from ringproof.logs.training.series import Precision

ROWS = [(step, 5.0 + 1 / 3 / step, 0.1 + 0.7 / step) for step in range(1, 31)]
BOTH = Columns()


def read(path: Path, columns: Columns = BOTH, format_name: str | None = None) -> TrainingLog:
    return read_log(str(path), "A", columns, format_name=format_name)


def read_text(tmp_path: Path, text: str | bytes, columns: Columns = BOTH) -> TrainingLog:
    path = tmp_path / "log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return read(path, columns)


def values(log: TrainingLog, name: str = "loss") -> dict[int, float]:
    return dict(zip(log.series[name].steps, log.series[name].values, strict=True))


@pytest.mark.parametrize("name", ["x.jsonl", "x.log", "x.csv", "x"])
@pytest.mark.parametrize(
    ("write", "expected"),
    [(write_jsonl, "jsonl"), (write_megatron, "megatron"), (write_csv, "csv")],
)
def test_the_format_is_known_by_content(
    tmp_path: Path, write: Callable[[Path, object], Path], expected: str, name: str
) -> None:
    log = read(write(tmp_path / name, ROWS))
    assert log.format == expected
    exact = expected != "megatron"
    for series, place, digits in (("loss", 1, 1e-6), ("grad_norm", 2, 1e-3)):
        found = values(log, series)
        assert list(found) == [row[0] for row in ROWS]
        for row in ROWS:
            apart = abs(found[row[0]] - row[place])
            assert apart == 0 if exact else apart <= digits
    assert log.notes == ()


def test_jsonl_is_exact_and_forgiving(tmp_path: Path) -> None:
    lines = [
        {"kind": "run", "version": 1, "arguments": {"step": 9}},
        {"kind": "step", "step": 1, "loss": 0.1 + 0.2, "grad_norm": 1, "new": {"a": []}},
        {"kind": "evaluation", "step": 1, "loss": 99.0},
        {"kind": "note", "step": 7, "loss": 98.0},
        {"kind": "step", "step": 2, "loss": math.nan, "grad_norm": math.inf},
        {"kind": "step", "step": 3, "loss": None},
        {"kind": "step", "step": "x", "loss": 97.0},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n\n{"kind": "step", "step": 4, "lo'
    log = read_text(tmp_path, text)
    assert values(log)[1].hex() == (0.1 + 0.2).hex()
    assert math.isnan(values(log)[2])
    assert math.isnan(values(log)[3])
    assert list(values(log)) == [1, 2, 3]
    assert values(log, "grad_norm") == {1: 1.0, 2: math.inf}
    assert log.exact
    assert log.notes == ("1 line could not be read, the first is line 9",)
    evaluated = read_text(tmp_path, text, Columns(("loss", "evaluation")))
    assert values(evaluated, "evaluation") == {1: 99.0}


@given(st.lists(st.floats(), min_size=1, max_size=20))
def test_every_float_comes_back(
    tmp_path_factory: pytest.TempPathFactory, many: list[float]
) -> None:
    path = tmp_path_factory.mktemp("exact") / "x"
    rows = [(step, value, 1.0) for step, value in enumerate(many, 1)]
    for write in (write_jsonl, write_csv):
        found = read(write(path, rows)).series["loss"].values
        assert [value.hex() for value in found] == [value.hex() for value in many]


@pytest.mark.parametrize(
    "dress",
    [
        lambda line: f"{line}\r\n",
        lambda line: f"[default7]:{line}\n",
        lambda line: f"\x1b[32m[rank7]:\x1b[0m {line}\x1b[0m\n",
        lambda line: f"{line}\n".replace("|", "\x1b[2m|\x1b[m").replace(
            "loss", "\x1b[1mloss\x1b[m"
        ),
        lambda line: f"2026-11-20T09:00:00.000Z node-7 3: {line}  \n",
        lambda line: f" 10%|#    | 1/10\r{line}\n",
        lambda line: f"{line}",  # glued, as by ranks that write at once
        lambda line: json.dumps({"log": f"{line}\n", "stream": "stdout"}) + "\n",
        lambda line: f"\ufeff{line}\n",
    ],
)
def test_dressed_megatron_lines(tmp_path: Path, dress: Callable[[str], str]) -> None:
    text = "".join(dress(iteration_line(*row)) for row in ROWS)
    log = read_text(tmp_path, text)
    assert log.format == "megatron"
    assert list(values(log)) == list(values(log, "grad_norm")) == [row[0] for row in ROWS]
    assert values(log)[1] == float(f"{ROWS[0][1]:.6E}")
    assert log.series["loss"].precision == Precision(significant=7)
    assert log.series["grad_norm"].precision == Precision(decimals=3)


def test_other_losses_and_validation_are_not_the_loss(tmp_path: Path) -> None:
    log = read(write_megatron(tmp_path / "x", ROWS))
    assert max(values(log).values()) < 6  # mtp is 9, validation 7, balancing 1
    assert min(values(log).values()) > 4
    wanted = Columns(("mtp_1 loss", "load_balancing_loss", "evaluation"))
    other = read(write_megatron(tmp_path / "x", ROWS), wanted)
    assert set(values(other, "mtp_1 loss").values()) == {9.034567}
    assert set(values(other, "load_balancing_loss").values()) == {1.034567}
    assert values(other, "evaluation") == {10: 7.0, 20: 7.0, 30: 7.0}


def test_the_language_models_loss_goes_before_others(tmp_path: Path) -> None:
    first = iteration_line(1, 2.5, 0.5).replace("mtp_1 loss", "contrast loss")
    log = read_text(tmp_path, first)
    assert log.series["loss"].column == "lm loss"
    alone = read_text(tmp_path, iteration_line(1, 2.5, 0.5).replace("lm loss", "dpo loss"))
    assert alone.series["loss"].column == "dpo loss"
    without = iteration_line(2, None, 0.5).replace("mtp_1 loss", "contrast loss")
    assert math.isnan(values(read_text(tmp_path, f"{first}\n{without}\n"))[2])


def test_a_long_preamble_and_a_cut_last_line(tmp_path: Path) -> None:
    preamble = "W1121 torch/distributed/run.py:793] step, OMP, {}\n" * 9000
    whole = "\n".join(iteration_line(*row) for row in ROWS)
    cut = whole[: whole.rindex("E+00 | loss scale") - 3]
    log = read_text(tmp_path, preamble + cut)
    for series in ("loss", "grad_norm"):
        assert list(values(log, series)) == [row[0] for row in ROWS[:-1]]


def test_nan_and_skipped_iterations(tmp_path: Path) -> None:
    lines = [
        iteration_line(1, None, 0.5),  # the loss was no number: the line leaves it out
        iteration_line(2, 2.5, None, skipped=1),
        iteration_line(3, 0.0, None, skipped=1, nan=1),
        iteration_line(4, None, None, skipped=1),
        iteration_line(5, 2.25, math.inf),
        iteration_line(6, math.nan, math.nan),
    ]
    log = read_text(tmp_path, "\n".join(lines))
    assert math.isnan(values(log)[1])
    assert math.isnan(values(log)[6])
    assert {step: value for step, value in values(log).items() if value == value} == {
        2: 2.5,
        5: 2.25,
    }
    assert values(log, "grad_norm")[5] == math.inf
    assert log.notes == (
        "3 lines count skipped iterations, the first at step 2",
        "1 lines count nan iterations, the first at step 3",
    )


ODD = (
    "validation loss at iteration 10 | lm loss value: 7.0E+00 |",
    "at iteration 7 of 9 something happened",
    iteration_line(100, None, 0.5),
    iteration_line(101, 0.0, 0.5, skipped=1),
    iteration_line(102, 2.5, None, skipped=1, nan=1),
    iteration_line(103, math.nan, math.nan),
    iteration_line(104, 2.5, 0.5).replace("lm loss", "\x1b[1mlm loss\x1b[m"),
    iteration_line(105, 2.5, 0.5) + iteration_line(106, 2.25, 0.25),
    iteration_line(107, 2.5, 0.5)[:90],
    iteration_line(3, 4.5, 0.5),  # a restart
)


@given(st.lists(st.sampled_from([*ODD, *(iteration_line(*row) for row in ROWS)]), max_size=12))
def test_a_block_is_read_as_its_lines_are(lines: list[str]) -> None:
    """The quick way through the lines that are as usual finds what the slow one finds."""
    data = "\n".join(lines).encode()
    blocks, single = MegatronReader(BOTH), MegatronReader(BOTH)
    blocks.read(data)
    for line in data.split(b"\n"):
        single.take(line)
    for name, series in single.series.items():
        assert list(blocks.series[name].steps) == list(series.steps)
        assert str(list(blocks.series[name].values)) == str(list(series.values))
    assert blocks.without_loss == single.without_loss


def test_a_restart_is_said_and_the_later_counts(tmp_path: Path) -> None:
    first = [(step, 5.0, 0.5) for step in range(1, 61)]
    again = [(step, 4.0 if step > 55 else 5.0, 0.5) for step in range(51, 101)]
    for write in (write_jsonl, write_megatron, write_csv):
        path = write(tmp_path / "x", [*first, *again])
        log = read(path)
        assert list(values(log)) == list(range(1, 101))
        assert values(log)[55] == 5.0
        assert values(log)[56] == 4.0
        assert log.series["loss"].interval == 1
        assert log.notes == (
            "10 steps stand more than once from step 51 on (5 with another value): the later one "
            "counts",
        )
    assert read(write_csv(tmp_path / "x", first)).notes == ()


NESTED = '{"train/loss": 2.5, "Global-Step": 10, "stats": {"norm": 0.5}}\n'
EXPORT = '"Step","run-7 - lm loss","run-7 - lm loss__MIN","run-7 - lm loss__MAX"\n"1","2","2","2"\n'
SKIPPED = f"{iteration_line(1, 0.0, None, skipped=1)}\n{iteration_line(2, 2.5, 0.5)}"


@pytest.mark.parametrize(
    ("text", "options", "values_of"),
    [
        ("step,loss,grad_norm\n1,2.5,0.5\n", (), {"loss": {1: 2.5}, "grad_norm": {1: 0.5}}),
        ("Iteration;LM Loss\n1;2.5\n2;\n3;nan\n", (), {"loss": {1: 2.5, 3: math.nan}}),
        ('\ufeff"Step"\t"train/loss"\n10.0\t2.5\n', (), {"loss": {10: 2.5}}),
        (EXPORT, (), {"loss": {1: 2.0}}),
        ("Wall time,Step,Value\n17.5,1,2.5\n17.6,2,2.25\n", (), {"loss": {1: 2.5, 2: 2.25}}),
        ("step,val_loss,eval/loss,my_loss\n1,9,9,2.5\n", (), {"loss": {1: 2.5}}),
        ("epoch,n,goal\n0,1,2.5\n", (None, "step=n,loss=goal"), {"loss": {1: 2.5}}),
        ("step,a,b,loss\n1,2,3\n2,2,3,2.5\n", (), {"loss": {2: 2.5}}),
        (NESTED, ("loss,n", "n=stats.norm"), {"loss": {10: 2.5}, "n": {10: 0.5}}),
        (NESTED, ("q", "q=nope|stats.norm,step=Global-Step"), {"q": {10: 0.5}}),
        (SKIPPED, (), {"loss": {2: 2.5}, "grad_norm": {2: 0.5}}),
    ],
)
def test_names_and_rows(
    tmp_path: Path, text: str, options: tuple[str | None, ...], values_of: dict[str, Any]
) -> None:
    log = read_text(tmp_path, text, parse_columns(*options) if options else BOTH)
    assert str({name: values(log, name) for name in log.series}) == str(values_of)
    cut = ("1 line could not be read, the first is line 2",)
    assert log.notes == (cut if "1,2,3\n" in text else log.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("\n\n", "no training steps"),
        ("hello\nworld\n", "no line with a step and a loss"),
        ("1,2.5\n2,2.25\n", "without a header"),
        ("step,loss\n", "no training steps among step, loss"),
        ("step,accuracy\n1,0.5\n", "no column for loss among step, accuracy"),
        ("when,loss\n1,0.5\n", "no column for step"),
        (
            "step,a_loss,b_loss\n1,2,3\n",
            "columns that could be loss .a_loss or b_loss.; choose",
        ),
        ('{"kind": "run"}\n', "no training steps"),
        ('{"step": 1, "accuracy": 0.5}\n', "no loss or grad_norm but step, accuracy"),
        (iteration_line(1, None, None).replace("loss", "l"), "no loss or grad_norm"),
    ],
)
def test_what_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    with one_line(message):
        read_text(tmp_path, text.encode("latin-1"))


def test_a_format_can_be_forced(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "x", ROWS)
    with pytest.raises(InputError, match="no line with a step and a loss"):
        read(path, format_name="megatron")
    assert read(path, format_name="jsonl").format == "jsonl"


def test_one_json_line_in_prose_is_no_json_log() -> None:
    assert recognised([b"a\n", b"b\n", b'{"config": 1}\n', b"c\n"]) == "megatron"
    assert recognised([b"warning\n", b'{"step": 1}\n', b'{"step": 2}\n']) == "jsonl"


PIECES = (
    *(b"iteration 1/ 2 |", b"iteration 9/9 |x|", b" lm loss: 1.0E+00 |", b"| grad norm: nan |"),
    *(b"{", b"}", b'"step": 1', b'"loss": ', b"1e999", b",", b"step,loss\n", b"1,2\n"),
    *(b"\n", b"\r", b"\x1b[", b"\0", b"\xff", b'"'),
)


@given(st.lists(st.sampled_from(PIECES), max_size=25))
def test_junk_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes]
) -> None:
    path = tmp_path_factory.mktemp("junk") / "x"
    path.write_bytes(b"".join(parts))
    for format_name in (None, "jsonl", "megatron", "csv"):
        try:
            log = read(path, format_name=format_name)
        except InputError as error:
            assert "\n" not in str(error)
        else:
            assert log.series
