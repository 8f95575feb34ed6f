"""One mechanism makes commands of dataclasses; see `ringproof.options`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from ringproof.cli.options import command_of, known_skills
from ringproof.errors import InputError
from ringproof.options import check_options, option, seconds
from ringproof.shipped import shipped_skills


@dataclass(frozen=True, kw_only=True)
class Inner:
    """Options of another dataclass."""

    kind: str = option("a", "Kind of the result.", choices=("a", "b"))
    sizes: tuple[int, ...] = option((), "Sizes.", "--group-sizes", metavar="N,N")
    clip: float = option(1.0, "Largest norm.", least=0)


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Options of a command."""

    inner: Inner
    steps: int = option(2, "Number of steps.", least=1, most=9)
    timeout: float = seconds(5.0, "Longest time.")
    graphs: bool = option(False, "Size graphs.")
    batches: int = option(1, "Number of batches.", needs="graphs")
    causal: bool = option(True, "Mask.", "--causal/--full")
    scale: float | None = option(None, "Scale.")

    def __post_init__(self) -> None:
        check_options(self.inner)
        check_options(self)


def run(*words: str) -> list[Outer]:
    """What the command is given."""
    given: list[Outer] = []
    app = typer.Typer(rich_markup_mode=None)

    @app.command()
    @command_of(Outer)
    def command(options: Outer) -> None:
        """Do it."""
        if options.scale:
            raise InputError("sizes", "the sizes are wrong")
        given.append(options)

    CliRunner().invoke(app, words, catch_exceptions=False)
    return given


def test_options_become_fields() -> None:
    assert run() == [Outer(inner=Inner())]
    words = "--kind b --group-sizes 2,4 --steps 3 --graphs --batches 2 --full"
    inner = Inner(kind="b", sizes=(2, 4))
    assert run(*words.split()) == [
        Outer(inner=inner, steps=3, graphs=True, batches=2, causal=False)
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--kind c", "--kind: 'c' is unknown; use one of a, b"),
        ("--group-sizes 2,x", "--group-sizes: '2,x' is not a list of integers; write it as 2,4"),
        ("--clip -1", "--clip: -1.0 is less than 0; give 0 or more"),
        ("--clip nan", "--clip: nan is not a finite number; give 0 or more"),
        ("--steps 10", "--steps: 10 is not between 1 and 9; give a number between them"),
        ("--timeout 0", "--timeout: 0.0 is not a time in seconds; give a number above 0, and at "),
        ("--batches 2", "--batches needs --graphs"),
        ("--scale 1", "--group-sizes: the sizes are wrong"),
    ],
)
def test_a_refusal_names_the_option(words: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        run(*words.split())
    assert str(refused.value).startswith(said)


def test_the_skills_of_a_project_are_taken_where_they_have_what_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "skills" / "mine").mkdir(parents=True)
    (tmp_path / "skills" / "mine" / "card.yaml").write_text("upstreams: {}\n")
    monkeypatch.chdir(tmp_path)
    assert known_skills(None) == known_skills(None, "mine") == Path("skills")
    assert known_skills(None, "hierarchical-context-parallel") == shipped_skills()
    (tmp_path / "skills" / "hierarchical-context-parallel").mkdir()  # has no card
    assert known_skills(None, "hierarchical-context-parallel") == shipped_skills()
    assert known_skills(Path("a"), "hierarchical-context-parallel") == Path("a")
