"""Reading YAML that may be hostile: limits, refusals, and the line of every value."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checks.cards.hostile import BOMB
from checks.running import one_line
from ringproof.cards.document import MAX_DEPTH, read_document
from ringproof.cards.loading import load_card, load_lines
from ringproof.errors import InputError

ROOT = Path(__file__).parents[2]


def _write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "card.yaml"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def _refusal(path: Path) -> str:
    with one_line() as caught:
        read_document(path)
    assert str(caught.value).startswith(str(path))
    return str(caught.value)


def test_values_follow_the_core_schema_and_dates_stay_text(tmp_path: Path) -> None:
    path = _write(
        tmp_path,
        "int: 4\nnegative: -2\noctal: 0o17\nhex: 0x1F\nfloat: 1.5e3\nyes: yes\ntrue: true\n"
        "none: ~\nempty:\ndate: 2026-11-20\nquoted: '4'\nversion: 0.16.1\n"
        "folded: >\n  two\n  lines\nlong: 12345678901234567890\nflow: {a: [1, x]}\n",
    )
    assert read_document(path).data == {
        "int": 4,
        "negative": -2,
        "octal": 15,
        "hex": 31,
        "float": 1500.0,
        "yes": "yes",
        "true": True,
        "none": None,
        "empty": None,
        "date": "2026-11-20",
        "quoted": "4",
        "version": "0.16.1",
        "folded": "two lines\n",
        "long": "12345678901234567890",
        "flow": {"a": [1, "x"]},
    }


def test_every_value_has_its_line(tmp_path: Path) -> None:
    path = _write(tmp_path, "# comment\na: 1\nb:\n  - x\n  - c: >\n      text\n")
    document = read_document(path)
    assert document.line(("a",)) == 2
    assert document.line(("b", 0)) == 4
    assert document.line(("b", 1, "c")) == 5
    assert document.line(("b", 1, "absent")) == 5, "the nearest ancestor"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        pytest.param(BOMB, 1, "anchors and aliases", id="alias-bomb"),
        pytest.param("a: 1\nb: *nothing\n", 2, "anchors and aliases", id="alias"),
        pytest.param("base: {x: 1}\nb:\n  <<: *base\n", 3, "anchors and aliases", id="merge"),
        pytest.param("a: !!python/object/apply:os.system [x]\n", 1, "tag", id="python-tag"),
        pytest.param("a: 1\nb: 2\na: 3\n", 3, "second time", id="duplicate"),
        pytest.param("a: {b: 1, b: 2}\n", 1, "second time", id="duplicate-in-flow"),
        pytest.param("a: 1\n---\nb: 2\n", 2, "second YAML document", id="two-documents"),
        pytest.param("a: 1\nb: [1, 2\nc: 3\n", 3, "not valid YAML", id="broken"),
        pytest.param("a:\n\t- 1\n", 2, "not valid YAML", id="tab"),
        pytest.param("? [a, b]\n: 1\n", 1, "key is not plain text", id="list-as-key"),
        pytest.param('a: 1\nb: "\\e[31m"\n', 2, "U+001B", id="terminal-escape"),
        pytest.param('a: "\\ud800"\n', 1, "U+D800", id="half-a-character"),
        pytest.param('"k\\ney\\0": 1\n', 1, "U+0000", id="control-character-in-a-key"),
        pytest.param(b"a: 1\nb: \xff\n", 2, "UTF-8", id="not-utf8"),
        pytest.param("[" * 5000, 1, "deeper than", id="deep-flow"),
    ],
)
def test_refused_with_its_line(tmp_path: Path, text: str | bytes, line: int, words: str) -> None:
    path = _write(tmp_path, text)
    message = _refusal(path)
    assert message.startswith(f"{path}:{line}: ")
    assert words in message


def test_depth_just_below_the_limit_is_read(tmp_path: Path) -> None:
    deep = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    read_document(_write(tmp_path, deep))
    _refusal(_write(tmp_path, f"[{deep}]"))


def test_the_lines_of_a_card_are_read_without_what_is_behind(tmp_path: Path) -> None:
    path = ROOT / "cards/hierarchical-context-parallel/card.yaml"
    head, key, _ = path.read_text(encoding="utf-8").partition("\nfeature_meaning:")
    expected = load_card(path)
    found = load_lines(_write(tmp_path, f"{head}{key} ["))  # which cannot be read
    assert (found.lines, found.upstreams) == (expected.lines, expected.upstreams)
    assert key and len(found.lines) > 5
    with one_line("upstreams: the key is missing; add it"):
        load_lines(_write(tmp_path, "lines: []\ntitle: a\n"))


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_no_card(tmp_path: Path, text: str) -> None:
    path = _write(tmp_path, text)
    try:
        assert read_document(path).data is None
    except InputError as error:
        assert "is empty" in str(error)


def test_missing_file_and_folder_are_refused(tmp_path: Path) -> None:
    assert "no such file" in _refusal(tmp_path / "absent.yaml")
    assert "not a regular file" in _refusal(tmp_path)


@settings(max_examples=150)
@given(text=st.text(alphabet="ab:-[]{}&*!|>'\"#%?,\n\t 01\\~@`", max_size=60))
def test_any_text_is_data_or_one_line(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = _write(tmp_path_factory.getbasetemp(), text)
    try:
        read_document(path)
    except InputError as error:
        assert "\n" not in str(error)
