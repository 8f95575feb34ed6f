"""``ringproof logs parity``: exit codes, what is said, JSON, page, picture, bad input."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from checks.logs.parity_run import write_csv, write_jsonl, write_megatron
from ringproof.cli.logs import app

ROWS = [(step, 2.0 + 1 / 3 / step, 0.1 + 0.7 / step) for step in range(1, 101)]
FAULT = [
    (step, loss * (1.25 if step > 37 else 1.0), norm * (1.5 if step > 36 else 1.0))
    for step, loss, norm in ROWS
]
TINY = [(step, loss * (1 + 4e-16), norm) for step, loss, norm in ROWS]


def parity(*arguments: object, data: bytes | None = None) -> Any:
    return CliRunner().invoke(app, ["parity", *map(str, arguments)], input=data)


def embedded_data(page: str) -> Any:
    """What the page's script reads."""
    found = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def eight(loss: float) -> list[tuple[int, float, float]]:
    return [(step, loss, 0.5) for step in range(1, 9)]


@pytest.fixture
def logs(tmp_path: Path) -> dict[str, Path]:
    rounded = [(step, round(loss, 4), round(norm, 3)) for step, loss, norm in ROWS]
    lone = tmp_path / "lone"
    lone.write_text("step,loss\n" + "".join(f"{step},{loss!r}\n" for step, loss, _ in ROWS))
    return {
        "a": write_jsonl(tmp_path / "a.jsonl", ROWS),
        "same": write_jsonl(tmp_path / "same.jsonl", ROWS),
        "tiny": write_jsonl(tmp_path / "tiny.jsonl", TINY),
        "fault": write_jsonl(tmp_path / "fault.jsonl", FAULT),
        "text": write_megatron(tmp_path / "text.log", ROWS),
        "csv": write_csv(tmp_path / "a.csv", ROWS),
        "rounded": write_csv(tmp_path / "rounded", rounded),
        "short": write_jsonl(tmp_path / "short", ROWS[10:90]),
        "every": write_megatron(tmp_path / "every", [row for row in ROWS if row[0] % 10 == 0]),
        "lone": lone,
        "part": write_megatron(tmp_path / "part", [(k, x - 0.125, y) for k, x, y in ROWS]),
        "1": write_megatron(tmp_path / "1", eight(1.2345671)),
        "9": write_megatron(tmp_path / "9", eight(1.2345679)),
        "95": write_megatron(tmp_path / "95", eight(1.2345695)),
    }


RESOLVES = "caution: the log resolves 4e-07 of the loss, not 1e-09"
DIGITS = "no value of its loss has more than 5 digits"
CASES = [  # logs, options, exit code, and what is said
    ("a same", "", 0, "verdict: equal"),
    ("a same", "--tol 0", 0, "verdict: equal"),
    ("a csv", "--tol 0", 0, "verdict: equal"),
    ("a text", "", 0, "verdict: equal to the last printed digit"),
    ("a tiny", "", 0, "verdict: within"),
    ("a tiny", "--tol 0", 1, "different from the start"),
    ("a fault", "", 1, "verdict: jump"),
    ("a fault", "--tol 0.4", 0, "verdict: within"),
    ("a fault", "--tol 0.4 --series loss", 0, "verdict: within"),
    ("a fault", "--series loss", 1, "verdict: jump"),
    ("text text", "", 0, "caution: A and B are the same file"),
    ("text text", "", 0, RESOLVES),
    ("text text", "", 0, "use JSON lines"),
    ("rounded rounded", "", 0, DIGITS),
    ("1 9", "", 0, "as far as the logs show"),
    ("1 9", "", 0, "loss: 8 steps differ by no more than one unit in the last printed"),
    ("1 9", "--tol 0", 1, "verdict:"),
    ("1 95", "", 1, "verdict:"),
    ("a short", "", 0, "at 80 common steps, 11 to 90; 20 of A have no counterpart"),
    ("a every", "", 0, "B for every 10 steps, and the loss of B is a mean"),
    ("a lone", "", 0, "caution: grad_norm is not compared: only A has it"),
    ("a part", "", 1, "--columns 'loss=losses.lm|lm loss'"),
    ("a part", "--columns loss=losses.lm|lm_loss", 0, "verdict: equal"),
]


UNSAID = [("text a", "--tol 0.01"), ("rounded rounded", "--tol 0.01"), ("csv csv", "")]


@pytest.mark.parametrize(
    ("names", "options", "code", "said"), [*CASES, *((*case, 0, "") for case in UNSAID)]
)
def test_exit_codes_and_what_is_said(
    logs: dict[str, Path], names: str, options: str, code: int, said: str
) -> None:
    result = parity(*(logs[name] for name in names.split()), *options.split())
    assert result.exit_code == code, result.output
    assert said in result.output
    if not said:  # the print hides nothing that the tolerance asks for
        assert "the log resolves" not in result.output
        assert "digits" not in result.output


def test_what_is_said(logs: dict[str, Path]) -> None:
    lines = parity(logs["a"], logs["fault"]).output.splitlines()
    assert lines[0] == "verdict: jump in grad_norm at step 37, beyond 1e-09"
    first = [line.split() for line in lines if "first beyond" in line]
    assert first[0] == ["loss", "jump", "first", "beyond", "38", repr(ROWS[37][1]),
                        repr(FAULT[37][1]), "0.2"]  # fmt: skip
    assert first[1][4] == "37"
    assert any("look at the backward pass" in line for line in lines)
    assert not any(line.startswith("caution") for line in lines)


def test_json_is_the_contract(logs: dict[str, Path]) -> None:
    result = parity(logs["a"], logs["fault"], "--json", "-")
    assert result.exit_code == 1
    told = json.loads(result.stdout)
    assert (told["version"], told["verdict"], told["within"]) == (1, "jump", False)
    assert (told["series_name"], told["tolerance"]) == ("grad_norm", 1e-9)
    assert told["first_divergence"] == {
        "step": 37,
        "a": ROWS[36][2],
        "b": FAULT[36][2],
        "relative": pytest.approx(1 / 3),
    }
    assert set(told["series"]) == {"loss", "grad_norm"}
    assert told["series"]["loss"]["steps_beyond"] == 63
    assert told["series"]["loss"]["largest_before"] == 0
    assert told["series"]["loss"]["common_steps"] == 100
    assert told["series"]["loss"]["constant_ratio"]["b_over_a"] == pytest.approx(1.25)
    assert told["a"]["format"] == "jsonl"
    assert told["a"]["series"]["loss"]["steps"] == 100


def test_a_difference_that_is_not_finite_is_null(logs: dict[str, Path], tmp_path: Path) -> None:
    bad = write_jsonl(tmp_path / "nan", [*ROWS[:50], (51, math.nan, 1.0), *ROWS[51:]])
    told = json.loads(parity(logs["a"], bad, "--json", "-").stdout)
    assert told["verdict"] == "nan"
    assert told["first_divergence"]["b"] is None
    assert told["first_divergence"]["step"] == 51
    page = parity(logs["a"], bad, "--html", "-")
    assert page.exit_code == 1
    assert page.stdout.count('class="odd"') == 1


def test_stdin(logs: dict[str, Path]) -> None:
    data = logs["a"].read_bytes()
    assert parity("-", logs["same"], data=data).exit_code == 0
    assert parity(logs["fault"], "-", data=data).exit_code == 1


def test_the_page_needs_nothing_and_escapes_all(logs: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "<script>alert(1)<"
    folder.mkdir()
    evil = write_jsonl(folder / "script>", FAULT)
    target = tmp_path / "page.html"
    result = parity(logs["a"], evil, "--html", target)
    assert result.exit_code == 1
    assert "verdict: jump" in result.output
    page = target.read_text()
    assert "<script>alert" not in page
    assert page.count("<svg") == page.count("</svg>") == 2
    assert not re.findall(r"https?://|src=|@import|url\(", page)
    assert "$" not in re.sub(r"\$\{", "", page)  # no placeholder was left; JavaScript has its own
    data = embedded_data(page)
    assert [len(panel["steps"]) for panel in data["panels"]] == [100, 100]
    assert data["panels"][1]["b"][36] == repr(FAULT[36][2])
    for curve in "abd":
        paths = re.findall(rf'class="curve {curve}" d="([^"]*)"', page)
        assert len(paths) == 2
        assert all(path.count("L") == 99 for path in paths)
    assert len(re.findall('class="first"', page)) == 2
    equal = parity(logs["a"], logs["same"], "--html", "-").stdout
    assert equal.count("no difference at any step") == 2
    assert 'class="first"' not in equal


def test_a_long_page_stays_small_and_keeps_its_peak(tmp_path: Path) -> None:
    rows = [(step, 2.0, 1.0) for step in range(1, 20_001)]
    spike = [(step, 9.0 if step == 12_345 else 2.0, 1.0) for step in range(1, 20_001)]
    a, b = write_jsonl(tmp_path / "a", rows), write_jsonl(tmp_path / "b", spike)
    page = parity(a, b, "--html", "-").stdout
    assert len(page) < 400_000
    data = embedded_data(page)
    panel = data["panels"][0]
    assert panel["b"][panel["steps"].index(12_345)] == "9.0"
    assert "Too many steps to draw all" in page


@pytest.mark.slow
@pytest.mark.timeout(100)  # seconds on an idle core; a quadratic reader takes hours
def test_large_logs(tmp_path: Path) -> None:
    rows = [(step, 2 + 1 / step, 1.0) for step in range(1, 50_001)]
    a = write_jsonl(tmp_path / "a", rows)
    for b in (write_jsonl(tmp_path / "b", rows[::-1]), write_megatron(tmp_path / "c", rows)):
        assert parity(a, b).exit_code == 0
