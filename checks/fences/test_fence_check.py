"""Checking and mending skills in a checkout: roots, links, exit codes, JSON, and bytes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from checks.anchors.texts import TextTree
from checks.fences.trees import CODE, checkout, fence, findings, statuses
from checks.running import run_here
from ringproof.anchors.fences import check_documents, mended
from ringproof.cli.fences import check_fences
from ringproof.cli.reporting import Outputs
from ringproof.errors import InputError

BODY = "class Config:\n    size: int = 1"
GOOD = fence(3, 4, "src/a.py", BODY)
MOVED = fence(13, 14, "src/a.py", BODY)
SKILL = "skills/one/SKILL.md"


def repository(root: Path, *texts: str, **more: str | bytes) -> Path:
    names = [SKILL, *(f"skills/one/references/{number}.md" for number in range(1, len(texts)))]
    return checkout(root, {"src/a.py": CODE, **dict(zip(names, texts, strict=True)), **more})


def test_each_mention_gets_one_status(tmp_path: Path) -> None:
    text = "\n".join(
        [
            GOOD,
            MOVED,
            fence(3, 4, "src/a.py", "class Config:\n    size: int = 2"),
            fence(3, 4, "src/b.py", BODY),
            "See `a.py:15` and `src/a.py:99`.\n",
            "- `src/a.py` — `Config`, `Ring`",
        ]
    )
    out = tmp_path / "out.json"
    root = repository(tmp_path / "r", text)
    assert check_fences(root, {}, fix=False, outputs=Outputs(json_path=str(out))) == 1
    written = json.loads(out.read_text())
    assert list(written) == ["anchors"]
    anchors = written["anchors"]
    assert [(item["kind"], item["status"]) for item in anchors] == [
        ("fence", "exact"),
        ("fence", "moved"),
        ("fence", "changed"),
        ("fence", "missing"),
        ("inline", "exact"),
        ("inline", "missing"),
        ("symbol", "exact"),
        ("symbol", "missing"),
    ]
    assert anchors[1] == {
        "kind": "fence", "file": SKILL, "path": "src/a.py", "start": 13, "end": 14,
        "status": "moved", "new_start": 3, "new_end": 4,
    }  # fmt: skip


def test_all_exact_is_exit_code_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = repository(tmp_path, GOOD)
    assert check_fences(root, {}, fix=False, outputs=Outputs()) == 0
    assert "fence: 1 found: 1 exact, 0 moved" in capsys.readouterr().out
    assert check_fences(root / SKILL, {}, fix=False, outputs=Outputs(json_path="-")) == 0
    assert capsys.readouterr().out.startswith("{")
    (root / SKILL).write_text(MOVED)
    assert check_fences(root, {}, fix=False, outputs=Outputs()) == 1
    assert f"{SKILL}:1: RF201 src/a.py:13-14: moved to 3-4" in capsys.readouterr().out
    for more, code in (([], 1), (["--exit-zero"], 0)):
        done = run_here(root, ["fences", ".", *more])
        assert done.returncode == code and "moved to 3-4" in done.stdout, done.stderr


def test_the_same_skill_counts_once_however_it_is_reached(tmp_path: Path) -> None:
    root = repository(tmp_path, GOOD, MOVED)
    (root / ".agents").mkdir()
    (root / ".agents/skills").symlink_to("../skills")
    (root / "skills/again").symlink_to("one")
    (root / "skills/one/COPY.md").symlink_to("SKILL.md")
    everything = findings(root)
    assert [item.file for item in everything] == [SKILL, "skills/one/references/1.md"]
    for path in ("skills", "skills/one", ".agents/skills", ".agents/skills/one"):
        assert findings(root / path) == everything
    assert findings(root / "skills/one/references") == everything[1:]


def test_documents_outside_skills_are_not_read(tmp_path: Path) -> None:
    root = repository(tmp_path, GOOD, **{"docs/a.md": MOVED, "README.md": MOVED})
    assert statuses(root) == ["exact"]
    assert statuses(root / "README.md") == ["moved"]


@pytest.mark.parametrize("kind", [".git", "skills"])
def test_paths_start_at_the_repository(tmp_path: Path, kind: str) -> None:
    root = repository(tmp_path / "r", GOOD)
    if kind == ".git":
        (root / "skills").rename(root / "cards")
        (root / ".git").write_text("gitdir: elsewhere")
        assert statuses(root / "cards/one") == ["exact"]
    else:
        assert statuses(root / "skills/one/SKILL.md") == ["exact"]


def test_no_skill_is_no_success(tmp_path: Path) -> None:
    checkout(tmp_path, {"docs/a.md": GOOD})
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="PATH: "):
            findings(path)


def test_roots_stand_for_a_prefix_or_for_the_checkout(tmp_path: Path) -> None:
    text = fence(3, 4, "3rdparty/lib/src/b.py", BODY) + fence(3, 4, "src/b.py", BODY)
    root = repository(tmp_path, text + "`lib/src/b.py:3` `b.py:3` `b.py:99`\n")
    lib = TextTree({"src/b.py": CODE})
    assert statuses(root) == ["missing"] * 5
    assert statuses(root, **{"3rdparty/lib": lib}) == [
        "exact", "exact", "missing", "exact", "missing",
    ]  # fmt: skip
    both = TextTree({"src/b.py": CODE, "lib/src/b.py": "x\n\n\n"})
    assert statuses(root, **{".": both}) == ["missing", "exact", "changed", "exact", "missing"]
    shadow = TextTree({"b.py": "\n\n" + CODE})
    assert statuses(root, **{"3rdparty/lib": lib, "3rdparty/lib/src/": shadow})[0] == "moved"


def test_an_empty_submodule_is_not_missing_code(tmp_path: Path) -> None:
    root = repository(tmp_path, fence(3, 4, "3rdparty/lib/src/b.py", BODY))
    (root / ".gitmodules").write_text('[submodule "x"]\n\tpath = 3rdparty/lib\n\turl = u\n')
    with pytest.raises(InputError, match="--upstream 3rdparty/lib=git:PATH@REF"):
        findings(root)
    assert statuses(root, **{"3rdparty/lib": TextTree({"src/b.py": CODE})}) == ["exact"]
    checkout(root, {"3rdparty/lib/src/c.py": "x"})
    assert statuses(root) == ["missing"]


def test_a_name_that_several_files_have(tmp_path: Path) -> None:
    text = "`check` in `a.py:1`, `Other` in `a.py:1`, `a.py:17`.\n"
    root = repository(tmp_path, text, **{"lib/a.py": "class Other: pass\n" * 17})
    assert statuses(root) == ["moved", "exact", "exact"]
    checkout(root, {"node_modules/a.py": "def check(): pass\n", ".venv/a.py": CODE * 2})
    assert statuses(root) == ["moved", "exact", "exact"]
    (root / "lib/a.py").write_text("x\n\ndef check(): pass\n")
    assert statuses(root) == ["changed", "missing", "missing"]
    assert findings(root)[0].placement.why == "2 files of that name could be meant"


@pytest.mark.parametrize(
    "path", ["../secret.py", "/etc/passwd", "src/../../secret.py", "link.py", "linked/secret.py"]
)
def test_paths_never_leave_the_root(tmp_path: Path, path: str) -> None:
    root = repository(tmp_path / "r", fence(3, 4, path, BODY) + f"`{path}:3`\n")
    checkout(tmp_path, {"secret.py": CODE})
    (root / "link.py").symlink_to("../secret.py")
    (root / "linked").symlink_to("..")
    for found in findings(root):
        assert found.placement.status == "missing"
    (root / "inside.py").symlink_to("src/a.py")
    (root / SKILL).write_text(fence(3, 4, "inside.py", BODY))
    assert statuses(root) == ["exact"]


def test_a_path_beside_the_document_is_followed_inside_the_root(tmp_path: Path) -> None:
    text = "`scripts/run.py:3` `../../src/a.py:3` `../../../secret.py:3` `SKILL.md:1`\n"
    root = repository(tmp_path / "r", text, **{"skills/one/scripts/run.py": CODE})
    assert statuses(root) == ["exact", "exact", "missing", "exact"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"class Config:\0", "binary"),
        (b"x = 1\n" * 700_000, "too large"),
        (b"\n" * 60_001, "lines"),
    ],
)
def test_files_that_are_no_source_are_said_to_be(
    tmp_path: Path, content: bytes, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = repository(tmp_path, GOOD, **{"src/a.py": content})
    assert check_fences(root, {}, fix=False, outputs=Outputs()) == 1
    assert why in capsys.readouterr().out.splitlines()[1]


def test_pipes_and_odd_names_do_not_stop_the_check(tmp_path: Path) -> None:
    root = repository(tmp_path, fence(3, 4, "pipe.py", BODY) + fence(3, 4, "a" * 5_000, BODY))
    os.mkfifo(root / "pipe.py")
    assert statuses(root) == ["missing", "missing"]
    (root / SKILL).write_text(fence(1, 1, "src", "x") + fence(1, 1, "src/a.py/b", "x"))
    assert statuses(root) == ["missing", "missing"]


def test_what_is_printed_cannot_steer_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = repository(tmp_path, fence(3, 4, "src/\x1b[2J\u202ea.py", BODY))
    assert check_fences(root, {}, fix=False, outputs=Outputs()) == 1
    assert not re.search("[\x1b\u202e]", capsys.readouterr().out)


def test_mending_changes_the_numbers_alone(tmp_path: Path) -> None:
    text = f"\ufeff# A\t \r\n\r\n{MOVED}\n- x\n\n  ~~~~ 99:100:src/a.py\r  if config.size < 1:\n\n"
    text += "  ~~~~\n\n`check` (a.py:1-3) `Config` is at `src/a.py:L90-L91`, no end of line"
    root = repository(tmp_path, text, GOOD)
    (root / SKILL).chmod(0o754)
    before = (root / "skills/one/references/1.md").stat().st_mtime_ns
    assert check_fences(root, {}, fix=True, outputs=Outputs()) == 1
    expected = text.replace("13:14:", "3:4:").replace("99:100:", "9:9:")
    expected = expected.replace("a.py:1-3", "a.py:7-9").replace("L90-L91", "L3-L4")
    assert (root / SKILL).read_bytes() == expected.encode()
    assert (root / SKILL).stat().st_mode & 0o777 == 0o754
    assert (root / "skills/one/references/1.md").stat().st_mtime_ns == before
    assert sorted(path.name for path in (root / "skills/one").iterdir()) == [
        "SKILL.md", "references",
    ]  # fmt: skip
    assert check_fences(root, {}, fix=True, outputs=Outputs()) == 0
    assert (root / SKILL).read_bytes() == expected.encode()


def test_what_changed_or_vanished_is_not_mended(tmp_path: Path) -> None:
    text = fence(1, 2, "src/a.py", "class Config:\n    size: int = 2")
    text += fence(1, 2, "src/a.py", "gone = forever") + "`config` in `a.py:3`\n"
    root = repository(tmp_path, text)
    assert check_fences(root, {}, fix=True, outputs=Outputs()) == 1
    assert (root / SKILL).read_text() == text


def test_a_document_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    from ringproof.anchors.fences import mend

    root = repository(tmp_path, MOVED)
    documents = check_documents(root, {})
    (root / SKILL).write_text("mine\n")
    with pytest.raises(InputError, match="changed while"):
        mend(documents)
    assert (root / SKILL).read_text() == "mine\n"


_QUOTES = st.sampled_from(
    [(3, 4), (7, 8), (9, 10), (11, 13), (7, 13), (3, 8), (15, 15), (9, 9), (1, 15)]
)
_MENTION = st.one_of(
    st.builds(
        lambda lines, at, width: fence(
            at, at + width, "src/a.py", "\n".join(CODE.split("\n")[lines[0] - 1 : lines[1]])
        ),
        _QUOTES, st.integers(0, 20), st.integers(0, 9),
    ),
    st.builds(
        lambda name, at, width: f"`{name}` in `src/a.py:{at}-{at + width}` 13-14 a.py:{at}\n\n",
        st.sampled_from(["Config", "check", "TAIL", "strict", "gone"]),
        st.integers(0, 20), st.integers(0, 5),
    ),
    st.sampled_from(["text 3:4:src/a.py\n\n", "> é\u2028\n\n", "\t- x\n\n", "***\n", "   \n"]),
)  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(_MENTION, max_size=6), st.sampled_from(["\n", "\r\n", "\r"]), st.booleans())
def test_mending_once_is_enough(tmp_path: Path, parts: list[str], end: str, bom: bool) -> None:
    text = "\ufeff" * bom + "".join(parts).replace("\n", end)
    root = repository(tmp_path, "")
    (root / SKILL).write_bytes(text.encode())
    check_fences(root, {}, fix=True, outputs=Outputs())
    after = (root / SKILL).read_bytes()
    assert re.sub(rb"\d+", b"0", after) == re.sub(rb"\d+", b"0", text.encode())
    (document,) = check_documents(root, {})
    assert "moved" not in [item.placement.status for item in document.findings]
    assert mended(document).encode() == after
