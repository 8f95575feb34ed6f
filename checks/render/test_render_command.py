"""``ringproof render``: exit codes, what it prints and what it writes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from checks.render.miniature_skill import ALL_BLOCKS, block, write_skill
from checks.running import run_here

TEXT = "# T\n\n" + "\n".join(block(line) for line in ALL_BLOCKS)


class Run:
    """``ringproof render`` with some arguments: its exit code, output and messages."""

    def __init__(self, *arguments: str | Path) -> None:
        done = run_here(Path(), ["render", *map(str, arguments)])
        self.code, self.out, self.err = done.returncode, done.stdout, done.stderr


def test_check_writes_nothing_and_render_makes_it_green(tmp_path: Path) -> None:
    file = write_skill(tmp_path, TEXT)
    file.chmod(0o600)
    stale = Run("--skills", tmp_path, "--check")
    assert stale.code == 1
    assert file.read_text() == TEXT
    assert f"{file}:3: anchors: stale" in stale.out
    assert "+| `megatron/config.py` |" in stale.out
    assert f"{len(ALL_BLOCKS)} blocks in 1 files: {len(ALL_BLOCKS)} stale, 0 current" in stale.out
    written = Run("demo", "--skills", tmp_path)
    assert (written.code, f"{file}: written" in written.out) == (0, True)
    assert file.stat().st_mode & 0o777 == 0o600
    assert {path.name for path in file.parent.iterdir()} == {
        "SKILL.md",
        "anchors.lock",
        "card.yaml",
    }
    inode = file.stat().st_ino
    again = Run("--skills", tmp_path)
    assert (again.code, "written:" in again.out) == (0, False)
    assert file.stat().st_ino == inode, "what is current is not written again"
    assert Run("--skills", tmp_path, "--check").code == 0


def test_an_edited_block_is_found(tmp_path: Path) -> None:
    file = write_skill(tmp_path, TEXT)
    Run("--skills", tmp_path)
    fresh = file.read_text()
    file.write_text(fresh.replace("the switch |\n", "the lever |\n", 1))
    red = Run("--skills", tmp_path, "--check")
    assert red.code == 1
    assert red.out.count(": stale\n") == 1
    assert "    -| `megatron/config.py` | `Config.hybrid_switch` | the lever |" in red.out
    assert "    +| `megatron/config.py` | `Config.hybrid_switch` | the switch |" in red.out
    assert len(red.out.splitlines()) == 4
    assert Run("--skills", tmp_path).code == 0
    assert file.read_text() == fresh


def test_json_says_which_blocks(tmp_path: Path) -> None:
    file = write_skill(tmp_path, block("claims") + "\n" + block("constraints"))
    found = json.loads(Run("--skills", tmp_path, "--check", "--json", "-").out)
    assert (found["pass"], found["written"]) == (False, False)
    assert [(item["file"], item["line"], item["kind"]) for item in found["blocks"]] == [
        (str(file), 1, "claims"),
        (str(file), 4, "constraints"),
    ]
    assert all(item["stale"] and item["diff"] for item in found["blocks"])
    target = tmp_path / "report.json"
    Run("--skills", tmp_path, "--json", target)
    assert json.loads(target.read_text())["pass"] is True


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (block("clams"), "SKILL.md:1: 'clams' is not a kind of block"),
        ("<!-- ringproof:end -->\n", "SKILL.md:1: this marker ends a block that nothing began"),
        ("no block at all\n", "has a generated block"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(tmp_path: Path, text: str, says: str) -> None:
    file = write_skill(tmp_path, text)
    (file.parent / "a.md").write_text(block("claims") if "no block" not in text else "")
    result = Run("--skills", tmp_path)
    assert result.code == 2
    assert says in result.err
    assert result.err.count("\n") == 1
    assert file.read_text() == text
    assert (file.parent / "a.md").read_text() in ("", block("claims")), "all or nothing"


def test_what_a_file_holds_cannot_steer_the_terminal(tmp_path: Path) -> None:
    write_skill(tmp_path, block("claims", "\x1b[2Jold\n"))
    result = Run("--skills", tmp_path, "--check")
    assert result.code == 1
    assert "\x1b" not in result.out
    assert "?[2Jold" in result.out
