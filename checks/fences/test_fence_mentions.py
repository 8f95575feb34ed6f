"""What counts as a mention of code in Markdown, and what does not."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.anchors.texts import TextTree
from checks.fences.trees import CODE, mentions
from checks.running import one_line
from ringproof.anchors.fences import judge
from ringproof.anchors.mentions import decoded_document, find_mentions
from ringproof.anchors.sources import SourceFiles
from ringproof.errors import InputError

FENCE = "```3:4:src/a.py\nx = 1\n  y = 2\n```\n"
FOUND = ("fence", "src/a.py", 3, 4, ("x = 1", "  y = 2", ""))


@pytest.mark.parametrize(
    "text",
    [
        FENCE,
        FENCE.replace("```", "~~~~"),
        FENCE.replace("```3", "```  3"),
        FENCE.replace("\n", "\r\n"),
        FENCE.replace("\n", "\r"),
        "\ufeff" + FENCE,
        FENCE[:-4],  # never closed
        "---\nname: a\ndescription: b\n---\n" + FENCE,
        "- item\n\n" + "".join(f"  {line}\n" for line in FENCE.splitlines()),
        "".join(f"> {line}\n" for line in FENCE.splitlines()),
    ],
)
def test_a_fence_is_found_in_every_dress(text: str) -> None:
    kind, path, start, end, quote = mentions(text)[0]
    assert (kind, path, start, end) == FOUND[:4]
    assert quote[:2] == FOUND[4][:2]


@pytest.mark.parametrize(
    "text",
    [
        f"````markdown\n{FENCE}````\n",
        f"<!--\n{FENCE}-->\n",
        "```python\nx = 1\n```\n",
        "```3:src/a.py\nx = 1\n```\n",
        "```3:4:\nx = 1\n```\n",
        "    ```3:4:src/a.py\n    x = 1\n    ```\n",
        "```text\nLocation: src/a.py:12\n```\n",
        "`path/to/file.py:123` and `foo.py:1`",
        "see https://example.org/src/a.py:12 or http://localhost:8080",
        "at 12:30, in ratio 3:4, `key: 12`, `localhost:80`, v1.2:3",
        "`src/a.py:12:34`",
        "std:a.py:12",
        "a.py:12.5",
        "`src/*.py:12`",
        "---\ndescription: see src/a.py:12\n---\n",
        "\\`src/a\\.py:12\\`",
    ],
)
def test_what_is_no_mention_is_none(text: str) -> None:
    assert mentions(text) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("See `src/a.py:12`.", ("src/a.py", 12, 12, ())),
        ("See src/a.py:12-15, please", ("src/a.py", 12, 15, ())),
        ("at (a.py:12).", ("a.py", 12, 12, ())),
        ("# `a.cu:L12-L15`", ("a.cu", 12, 15, ())),
        ("Enforced in `Manager` (graphs.py:14) and so on", ("graphs.py", 14, 14, ("Manager",))),
        ("`start()` runs at `setup.py:33`, before", ("setup.py", 33, 33, ("start()",))),
        ("`setup.py:33` — `start`", ("setup.py", 33, 33, ("start",))),
        ("`setup.py:33` (`start`)", ("setup.py", 33, 33, ("start",))),
        ("`start`. It is at `setup.py:33`", ("setup.py", 33, 33, ())),
        ("`True` in `setup.py:33`", ("setup.py", 33, 33, ())),
        ("`setup.py:33`, `start`", ("setup.py", 33, 33, ())),
    ],
)
def test_lines_in_running_text(text: str, expected: tuple[object, ...]) -> None:
    assert mentions(text) == [("inline", *expected)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- Config: `src/a.py` — `Config`", [("src/a.py", "Config")]),
        (
            "* `a.py`: `one`, `two()` and `C.three`",
            [(("a.py"), n) for n in ["one", "two()", "C.three"]],
        ),
        ("| f | s |\n|---|---|\n| `a.py` | `one` checks |", [("a.py", "one")]),
        ("1. `a.py` (`--my-flag`)", [("a.py", "--my-flag")]),
        ("- `a.py`, `b.py` — `Config`", [("b.py", "Config")]),
        ("`a.py` — `Config`", []),  # neither a list nor a table
        ("- `a.py` derives `Config` views", []),
        ("- `a.py` — `True`, `x`", []),
        ("- `Config`, `a.py`", []),
        ("- `pyproject.toml`, `uv.lock`", []),
        ("- `a.py` — `pytest -x`", []),
    ],
)
def test_symbols_listed_behind_a_path(text: str, expected: list[tuple[str, str]]) -> None:
    assert [(path, quote[0]) for _, path, _, _, quote in mentions(text)] == expected


def test_the_numbers_are_found_where_they_are_written() -> None:
    text = "\ufeffé `a.py:12-15`\r\nand a.py:12\r\n\r\n- x\r\n  ```3:4:ä.py\r\n  y\r\n  ```\r\n"
    found = find_mentions(text, "SKILL.md")
    assert [[text[start:end] for start, end in item.spans] for item in found] == [
        *(["12", "15"], ["12"], ["3", "4"])
    ]
    assert [item.line for item in found] == [1, 2, 5]


@pytest.mark.parametrize("target", ["[a](src/a.py:12)", '<a href="src/a.py:12">', "<src/a.py:12>"])
def test_the_target_of_a_link_is_left_alone(target: str) -> None:
    (found,) = find_mentions(f"{target} and src/a.py:12", "SKILL.md")
    assert found.spans == ((len(f"{target} and src/a.py:"), len(f"{target} and src/a.py:12")),)
    assert mentions("- [`a.py`](src/a.py): `Config`")[0][4] == ("Config",)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"x" * 1_000_001, "too large"),
        (b"a\0b", "binary"),
        (b"\xff\xfe\xfa", "not UTF-8"),
        (b"a" * 30_000, "a line of more than"),
        (b"see a.py:1\n\n" * 1_200, "more than 1,000 mentions"),
    ],
)
def test_a_document_that_is_none_is_refused_in_one_line(data: bytes, problem: str) -> None:
    with one_line(problem) as caught:
        find_mentions(decoded_document(data, "skills/a/SKILL.md"), "skills/a/SKILL.md")
    assert str(caught.value).startswith("skills/a/SKILL.md: ")


_BITS = st.sampled_from(
    ["```", "~~~", "3:4:", "a.py", "src/", ":12", "-15", "`", "\n", "\r", "> ", "- ", "| ", "|-|-|",
     " ", "...", "---\n", "<!--", "[x](", ")", "&#49;", "\\", "\ufeff", "\u2028", "é", "0",
     "9" * 12, "../", "/", "*", "_", "`X`", "\t", "1. ", "# ", "--flag"]
)  # fmt: skip


@settings(max_examples=300)
@given(st.one_of(st.lists(_BITS, max_size=60).map("".join), st.text(max_size=80)))
def test_junk_never_crashes(text: str) -> None:
    try:
        found = find_mentions(text, "SKILL.md")
    except InputError:
        return
    places = SourceFiles(TextTree({"src/a.py": text.replace("\0", ""), "a.py": CODE}), {})
    for item in found:
        judge(item, "skills/one/SKILL.md", places)
        assert all(text[start:end].isdecimal() for start, end in item.spans)


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_bytes_never_crash(data: bytes) -> None:
    try:
        find_mentions(decoded_document(data, "SKILL.md"), "SKILL.md")
    except InputError as error:
        assert "\n" not in str(error)
