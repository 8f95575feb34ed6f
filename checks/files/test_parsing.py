"""Files of others whose cost would grow faster than their size are refused in time."""

from __future__ import annotations

from pathlib import Path

import pytest

from checks.lint.skill_folder import make_skill, report_on
from checks.running import one_line
from ringproof.anchors.symbols import Module, UnparsableError
from ringproof.doctor.reading import read_settings
from ringproof.lint.fenced import MAX_WITH_YAML
from ringproof.parsing import MAX_DEPTH, MAX_PYTHON, parsed_python, yaml_size

MERGES = "a0: &a0 {x: 1}\n" + "".join(
    f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in range(1, 12)
)


@pytest.mark.timeout(60)
def test_a_fence_of_brackets_is_a_finding(tmp_path: Path) -> None:
    """The parser alone takes minutes for it."""
    folder = make_skill(tmp_path, f"\n```yaml\n{'[' * 4_000}\n```\n")
    (found,) = report_on(folder).findings
    assert (found.rule, "nested more than 100 levels" in found.message) == ("RP304", True)


def test_yaml_of_a_large_document_is_not_parsed(tmp_path: Path) -> None:
    line = f"- {'[' * 99}{']' * 99}\n"
    folder = make_skill(tmp_path, f"\n```yaml\n{line * (MAX_WITH_YAML // len(line))}```\n" * 2)
    found = [one for one in report_on(folder).findings if one.rule in ("RP208", "RP304")]
    assert [(one.rule, "its YAML is not checked" in one.message) for one in found] == [
        ("RP208", True)
    ]


def test_the_size_of_yaml_counts_what_aliases_stand_for() -> None:
    assert yaml_size("a: [1, 2]\nb: {c: d}\n") == 9
    assert yaml_size("a: &x [1, 2]\nb: *x\n") == 9
    assert yaml_size("[" * MAX_DEPTH + "]" * MAX_DEPTH) == MAX_DEPTH
    for text, problem in (
        ("[" * (MAX_DEPTH + 1), "nested more than"),
        (MERGES, "its aliases stand for more than 1,000,000 values"),
        ("a: [", "while parsing"),
    ):
        with pytest.raises(ValueError, match=problem):
            yaml_size(text)


def test_merge_keys_are_counted_before_they_are_expanded(tmp_path: Path) -> None:
    """The reader alone takes all memory for it."""
    file = tmp_path / "config.yaml"
    file.write_text(MERGES + "policy:\n  megatron_cfg: {context_parallel_size: 2}\n")
    with one_line("stand for more than 1,000,000 values"):
        read_settings([str(file)], {})


def test_python_of_any_size_is_not_parsed() -> None:
    text = "x=[]\n" * (MAX_PYTHON // 5 + 1)
    with pytest.raises(ValueError, match="larger than 2,000,000 bytes"):
        parsed_python(text)
    with pytest.raises(UnparsableError, match="larger than"):
        Module(text.encode())
    assert len(parsed_python("a = 1\nb = 2\n").body) == 2
    for wrong in ("(" * 5000, "a b", "a\0b", "-" * 100_000 + "1"):
        with pytest.raises(ValueError):
            parsed_python(wrong)
