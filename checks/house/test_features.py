"""No feature is lost, renamed or added without a change of the list of features."""

from __future__ import annotations

from pathlib import Path

import typer

from checks.house.features import command_features, features

LISTED = Path(__file__).with_name("features.txt")


def test_the_list_of_features_is_the_code_s() -> None:
    listed = LISTED.read_text(encoding="utf-8").splitlines()
    found = set(features())
    assert sorted(set(listed) - found) == [], "lost or renamed: restore it, or say so in CHANGELOG"
    assert sorted(found - set(listed)) == [], (
        "new: python -m checks.house.features rewrites the list"
    )


def test_a_lost_option_and_a_new_default_are_seen() -> None:
    def lines(app: typer.Typer) -> set[str]:
        root = typer.main.get_command(app)
        return set(command_features(root, typer.Context(root, info_name="x")))

    before, after = typer.Typer(), typer.Typer()

    @before.command("run")
    def _before(size: int = 1, fast: bool = False) -> None:
        pass

    @after.command("run")
    def _after(size: int = 2) -> None:
        pass

    assert lines(before) - lines(after) == {
        "option x --size (int, default 1)",
        "option x --fast/--no-fast (bool, default False)",
    }
