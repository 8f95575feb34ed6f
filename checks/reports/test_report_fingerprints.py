"""Line fingerprints agree with GitHub's, and follow a line that moves."""

from __future__ import annotations

import pytest

from ringproof.harness.reports.formats import line_fingerprints

# Made with github/codeql-action's own src/fingerprints.ts under node.
MADE_BY_GITHUB = [
    (
        "anchors:\n- id: build\n  path: a.py\n- id: chéck \U0001d518\r\n\tpath: b.py\r\rend",
        [
            "ca55015fa5423ecc:1",
            "c272d734eec71832:1",
            "b8e52918de6190dc:1",
            "1e855f1fbdbcb08f:1",
            "1e9712c07d486e7a:1",
            "165fbdbbce84915c:1",
            "43b6461eda086fe2:1",
        ],
    ),
    ("x = 1\nx = 1\n", ["87c133c3324ef59b:1", "8e00d41f0ebba6bf:1", "c129715d7a2bc9a3:1"]),
    (
        "same line of text, long enough to fill it\n" * 6,
        [
            "f1f35b266ac2595b:1",
            "f1f35b266ac2595b:2",
            "f1f35b266ac2595b:3",
            "f1f35b266ac2595b:4",
            "18abc4b31ac8af41:1",
            "6ab5082d6ed6de96:1",
            "c129715d7a2bc9a3:1",
        ],
    ),
]


@pytest.mark.parametrize(("text", "expected"), MADE_BY_GITHUB)
def test_the_same_as_github_s(text: str, expected: list[str]) -> None:
    assert line_fingerprints(text) == dict(enumerate(expected, 1))


def test_a_line_keeps_its_fingerprint_when_it_moves_or_is_indented() -> None:
    tail = "- id: build\n  path: a.py\n" + "x: y\n" * 60
    before, after = line_fingerprints(tail), line_fingerprints("# new\n\n" + tail)
    assert before[1] == after[3]
    assert before[1] == line_fingerprints(tail.replace("- id", "   -  id"))[1]
    assert before[1] != line_fingerprints(tail.replace("build", "other"))[1]


def test_lone_surrogates_are_hashed() -> None:
    assert len(line_fingerprints("a\udcff\nb")) == 2
