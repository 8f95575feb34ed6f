"""Kinds of proof: noted by what executes upstream, and covering the lines of a statement."""

from __future__ import annotations

import ast
import textwrap
from pathlib import Path

import pytest

from ringproof.cards import Proof, ProofKind, Statement, StatementKind
from ringproof.cards.model import Card
from ringproof.prove.anchoring import GivenTree
from ringproof.prove.executed import Evidence, Touch, collecting, note
from ringproof.prove.grounds import Grounds
from ringproof.prove.imports import ImportedUpstreams
from ringproof.prove.verdicts import ProofResult, ProofState, Verdict, judge
from ringproof.upstream.tree import FolderTree

REPO = "NVIDIA/Megatron-LM"
CARD = Card.model_validate(
    {
        "title": "demo",
        "summary": "x",
        "validated_on": "2026-11-20",
        "upstreams": {
            "old": {"repo": REPO, "ref": "old", "commit": "a" * 40},
            "new": {"repo": REPO, "ref": "new", "commit": "b" * 40},
        },
        "lines": [
            {"id": "first", "repo": REPO, "says": "x", "trains": True, "upstreams": ["old"],
             "probe": [{"path": "core.py", "symbol": "old"}]},
            {"id": "second", "repo": REPO, "says": "x", "trains": True, "upstreams": ["new"],
             "probe": [{"path": "core.py", "symbol": "new"}]},
            {"id": "coming", "repo": REPO, "says": "x", "trains": True, "unread": "x",
             "probe": [{"path": "next.py"}]},
        ],
        "anchors": [
            {"id": "place", "upstream": "new", "path": "core.py", "symbol": "new", "role": "x"}
        ],
    }
)  # fmt: skip
RAN_OLD = Touch(True, REPO, "a" * 40)
RAN_NEW = Touch(True, REPO, "b" * 40)


def result(kind: ProofKind, evidence: Evidence, *touches: Touch) -> ProofResult:
    name = "anchor:place" if kind is ProofKind.ANCHOR else "checks/t.py"
    return ProofResult(name, kind, ProofState.PASSED, touches=touches, evidence=evidence)


ANCHOR = result(ProofKind.ANCHOR, Evidence.READ)
OURS = result(ProofKind.PYTEST, Evidence.REFERENCE)


@pytest.mark.parametrize(
    ("lines", "proofs", "evidence", "verdict"),
    [
        (("second",), [result(ProofKind.PYTEST, Evidence.UPSTREAM, RAN_NEW)],
         Evidence.UPSTREAM, Verdict.PROVEN),
        (("first", "second"), [result(ProofKind.PYTEST, Evidence.UPSTREAM, RAN_NEW)],
         Evidence.READ, Verdict.PARTLY),
        (("first", "second"), [result(ProofKind.PYTEST, Evidence.UPSTREAM, RAN_OLD, RAN_NEW)],
         Evidence.UPSTREAM, Verdict.PROVEN),
        (("first", "second"), [result(ProofKind.PYTEST, Evidence.UPSTREAM, RAN_OLD), ANCHOR],
         Evidence.READ, Verdict.PROVEN),
        (("second", "coming"), [result(ProofKind.PYTEST, Evidence.UPSTREAM, RAN_NEW)],
         Evidence.UPSTREAM, Verdict.PROVEN),
        (("second",), [ANCHOR, OURS], Evidence.READ, Verdict.PROVEN),
        (("first",), [ANCHOR, OURS], Evidence.REFERENCE, Verdict.IN_REFERENCE),
        (("first",), [OURS], Evidence.REFERENCE, Verdict.IN_REFERENCE),
        ((), [OURS], Evidence.REFERENCE, Verdict.PROVEN),
    ],
)  # fmt: skip
def test_the_kind_covers_the_whole_scope(
    lines: tuple[str, ...], proofs: list[ProofResult], evidence: Evidence, verdict: Verdict
) -> None:
    named = tuple(Proof(proof.kind, proof.id.removeprefix("anchor:")) for proof in proofs)
    statement = Statement("s", StatementKind.CLAIM, "says", named, lines)
    ground = Grounds(CARD).of(statement, proofs)
    assert ground is not None
    judged = judge(statement, tuple(proofs), ground)
    assert (ground.evidence, judged.verdict) == (evidence, verdict)
    assert (judged.reason == "nothing ran or was read on first") == bool(ground.uncovered)


def test_a_folder_is_matched_by_its_code(tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text("def new():\n    pass\n")
    ran = Touch(True, REPO, "whatever it is called", str(tmp_path))
    statement = Statement("s", StatementKind.CLAIM, "says", (), ("second",))
    ground = Grounds(CARD).of(statement, [result(ProofKind.PYTEST, Evidence.UPSTREAM, ran)])
    assert ground is not None and ground.executed == ("second",)
    (tmp_path / "core.py").write_text("def other():\n    pass\n")
    ground = Grounds(CARD).of(statement, [result(ProofKind.PYTEST, Evidence.UPSTREAM, ran)])
    assert ground is not None and ground.executed == ()


def test_notes_reach_whoever_collects() -> None:
    note(RAN_OLD)  # nobody collects
    with collecting() as outer:
        with collecting() as inner:
            note(RAN_NEW)
        note(RAN_OLD)
    assert (inner, outer) == ([RAN_NEW], [RAN_NEW, RAN_OLD])


def test_a_checkout_tells_reading_from_running(tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text("def new():\n    return 7\n")
    tree = GivenTree(FolderTree(tmp_path), REPO, "b" * 40)
    with collecting() as read:
        text = tree.read("core.py")
    with collecting() as ran:
        assert tree.run("core.py", ast.parse(text).body, {})["new"]() == 7
    assert (read, ran) == ([Touch(False, REPO, "b" * 40)], [RAN_NEW])


def test_an_import_counts_for_the_tests_that_reach_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "test_x.py"
    source.write_text(
        textwrap.dedent("""
        from megatron.core.transformer import TransformerConfig
        import pytest

        @pytest.fixture
        def config():
            return TransformerConfig(num_layers=1)

        def build():
            return TransformerConfig

        MODEL = build()

        def test_by_fixture(config):
            pass

        def test_by_function():
            build()

        def test_by_constant():
            assert MODEL

        def test_by_own_import():
            import transformer_engine.pytorch

        def test_of_something_else():
            text = "TransformerConfig"
        """)
    )
    found = {}
    monkeypatch.setattr(
        "ringproof.prove.imports._installed", lambda module: Touch(True, module, "1")
    )
    imports = ImportedUpstreams()
    for name in ("fixture", "function", "constant", "own_import", "of_something_else"):
        test = f"test_{name}" if name.startswith("of") else f"test_by_{name}"
        found[name] = [touch.repo for touch in imports.touches(source, test)]
    assert found == {
        "fixture": ["megatron.core"],
        "function": ["megatron.core"],
        "constant": ["megatron.core"],
        "own_import": ["transformer_engine"],
        "of_something_else": [],
    }
