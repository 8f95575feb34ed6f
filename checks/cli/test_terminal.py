"""Tests: on terminals, results have colours and fit; in pipes they are lines without either."""

import io
import re
from pathlib import Path

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from checks.render.miniature_skill import ALL_BLOCKS, block, write_skill
from ringproof.cli.console import HarmlessConsole
from ringproof.cli.main import app
from ringproof.cli.output import write_result
from ringproof.cli.rehearse import rank_progress
from ringproof.progress import progress
from ringproof.prove.showing import print_records
from ringproof.styles import BAD, fitted, word_style

LINES = (
    "failed",
    "refused: 8 ranks x 512 tokens < seq_length 8192, which no packing of such sequences can hold",
    "  remedy: raise max_seqlen_per_dp_cp_rank, or lower seq_length until everything fits into it",
    "Starts      yes: 5 iterations in 28.4 s, 3.4 GiB of memory, and more than one line of text",
    "            Group of a label that is empty, of 2 x 4 ranks (0-3; 4-7), 96.0 MiB were sent",
    "    see a/path/" + "x" * 200 + ".py and what follows it",
)
ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


class Terminal(io.StringIO):
    """Text that a terminal got."""

    def isatty(self) -> bool:
        return True


def printed(monkeypatch: pytest.MonkeyPatch, *, width: int = 80, no_color: str = "") -> str:
    """Return what a terminal of some width gets."""
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if no_color:
        monkeypatch.setenv("NO_COLOR", no_color)
    stream = Terminal()
    HarmlessConsole(file=stream, width=width, force_terminal=True).say(LINES, good=False)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_lines_fit_and_words_are_whole(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    plain = ESCAPE.sub("", printed(monkeypatch, width=width))
    assert plain.split() == " ".join(LINES).split(), "every word is there once, and in one piece"
    for line in plain.splitlines():
        assert len(line) <= width or len(line.split()) == 1 or line.strip().endswith("x.py"), line


def test_what_goes_on_stands_below_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = ESCAPE.sub("", printed(monkeypatch, width=60)).splitlines()
    after = lines[next(at for at, one in enumerate(lines) if one.startswith("Starts")) + 1]
    assert re.match(r" {12}\S", after)
    after = lines[next(at for at, one in enumerate(lines) if one.startswith("  remedy")) + 1]
    assert re.match(r" {6}\S", after)


def test_colours_are_for_terminals_that_want_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(monkeypatch)
    assert "\x1b[1;31mfailed\x1b[0m" in shown and "\x1b[1;31mrefused\x1b[0m" in shown
    assert "\x1b[36mremedy\x1b[0m" in shown and "\x1b[32myes\x1b[0m" in shown
    assert "\x1b" not in printed(monkeypatch, no_color="1"), "not even bold"
    monkeypatch.delenv("NO_COLOR")
    HarmlessConsole().say(LINES, good=False)
    assert capsys.readouterr().out.splitlines() == list(LINES), "a pipe gets each line as it is"


def test_a_pipe_with_colours_gets_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    stream = io.StringIO()
    HarmlessConsole(file=stream, width=40).say(LINES, good=False)
    assert "\x1b[1;31mfailed\x1b[0m" in stream.getvalue()
    assert ESCAPE.sub("", stream.getvalue()).splitlines() == list(LINES)


def test_a_terminal_of_unknown_width_has_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "0")
    for console in (HarmlessConsole(file=(stream := Terminal())), HarmlessConsole(width=0)):
        assert console.width == 80
    HarmlessConsole(file=stream).say(LINES, good=False)
    assert ESCAPE.sub("", stream.getvalue()).split() == " ".join(LINES).split()


@pytest.mark.parametrize("first", [True, False])
def test_only_a_verdict_has_the_style_of_the_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], first: bool
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    with pytest.raises(typer.Exit):
        write_result({}, ("a/path: updated",), "", good=False, verdict_first=first)
    assert ("\x1b[1;31ma/path: updated" in capsys.readouterr().out) is first


def test_rows_of_a_command_have_no_style_of_a_verdict(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills", "# T\n\n" + block(ALL_BLOCKS[0]))
    for words, code, said in (
        (("render", "--skills", str(tmp_path / "skills"), "--check"), 1, ": stale"),
        (("skills", "install", "--agent", "claude", "--into", str(tmp_path)), 0, ": installed"),
    ):
        done = CliRunner().invoke(app, words, env={"FORCE_COLOR": "1", "NO_COLOR": None})
        row = done.output.splitlines()[0]
        assert done.exit_code == code and row.endswith(said) and "\x1b" not in row, done.output


def test_words_inside_of_a_line_have_no_style() -> None:
    assert word_style("refused: it") == (BAD, 0, 7)
    for line in ("it is refused: so", "no timeout of ranks 0-1", "nothing refused", "yesterday: 1"):
        assert word_style(line) is None, line


def test_styles_stay_on_their_words() -> None:
    text = Text("a long path/to/some/where RP101 and a message that goes on")
    text.stylize("red", 26, 31)
    shown = fitted(text, 28)
    assert [shown.plain[span.start : span.end] for span in shown.spans] == ["RP101"]


def test_a_run_of_all_skills_is_one_screen_unless_asked() -> None:
    def record(skill: str) -> dict[str, object]:
        claims = [
            {"id": f"{skill}-{n}", "kind": "fact", "verdict": verdict, "evidence": "upstream",
             "proofs": [], "seconds": 0.0, "reason": f"reason {n}", "lines": [], "executed": []}
            for n, verdict in enumerate(("proven", "partly", "not-here", "unproven") * 30)
        ]  # fmt: skip
        totals = {"proofs_executed": 3}
        where = {"class": "linux-x86_64-cpu"}
        return {"skill": skill, "claims": claims, "about_upstream": {"upstream": 30, "none": 90},
                "totals": totals, "environment": where, "seconds": 1.0}  # fmt: skip

    records = [record(name) for name in ("dynamic-context-parallel", "hierarchical", "graphs")]
    screens = {}
    for verbose in (False, True):
        stream = Terminal()
        console = HarmlessConsole(file=stream, width=80, force_terminal=True, no_color=True)
        print_records(records, [], console, "seen", verbose=verbose)
        screens[verbose] = stream.getvalue().splitlines()
    assert len(screens[False]) <= 24 and max(map(len, screens[False])) <= 80
    assert screens[False][0].startswith("nothing refuted; 360 statements")
    assert any("graphs-119" in line for line in screens[True])


@pytest.mark.parametrize("kind", ["tests", "ranks"])
def test_a_pipe_with_colours_gets_lines_of_progress_and_no_bar(kind: str) -> None:
    """FORCE_COLOR lets rich take a pipe for a terminal."""
    stream = io.StringIO()
    console = HarmlessConsole(file=stream, width=80, force_terminal=True)
    if kind == "tests":
        with progress(console, "tests") as update:
            update(20, 40, 0, "one")
    else:
        with rank_progress(console) as tell:
            tell("train", "step 1")
    assert ("tests: 20/40" if kind == "tests" else "train: step 1") in stream.getvalue()
    assert "\x1b[?25l" not in stream.getvalue(), "a bar hides the cursor"


def test_progress_is_one_line_whatever_it_says() -> None:
    """A name of a commit fits beside no word on 80 columns; it was broken into two lines."""
    stream = Terminal()
    console = HarmlessConsole(file=stream, width=80, force_terminal=True, no_color=True)
    with rank_progress(console) as tell:
        tell("import", f"git:{'a' * 76}")
    shown = stream.getvalue()
    assert "import: git:aaa" in shown and "import: \n" not in shown.replace("\r", "")


def test_a_plan_fits_the_terminal_and_only_its_labels_are_dim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr("sys.stdout", stream := Terminal())
    words = "plan --ranks 8 --max-tokens-per-rank 2048 --lengths lognormal:mean=2048,sigma=1,n=64"
    app(words.split(), standalone_mode=False)
    shown = stream.getvalue()
    assert "\x1b[2mmicrobatches    \x1b[0m" in shown, "a number is not an aside"
    assert max(map(len, ESCAPE.sub("", shown).splitlines())) <= 80
