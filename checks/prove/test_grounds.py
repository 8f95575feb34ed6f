"""The kind of evidence of a statement covers all lines of upstream that it is about."""

from __future__ import annotations

from pathlib import Path

import pytest

from ringproof.cards import Proof, ProofKind, Statement, StatementKind
from ringproof.cards.card import Card
from ringproof.prove.grounds import Grounds
from ringproof.prove.judging import judge
from ringproof.prove.results import Ground, Judged, ProofState, Verdict
from ringproof.prove.touches import Evidence, Touch

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


def result(kind: ProofKind, evidence: Evidence, *touches: Touch) -> Judged:
    name = "anchor:place" if kind is ProofKind.ANCHOR else "checks/t.py"
    return Judged(name, ProofState.PASSED, touches=touches, ground=Ground(evidence))


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
    lines: tuple[str, ...], proofs: list[Judged], evidence: Evidence, verdict: Verdict
) -> None:
    named = tuple(Proof(proof.kind, proof.id.removeprefix("anchor:")) for proof in proofs)
    statement = Statement("s", StatementKind.CLAIM, "says", named, lines)
    ground = Grounds(CARD).of(statement, proofs)
    assert ground is not None
    judged = judge(statement, tuple(proofs), ground)
    assert (ground.evidence, judged.outcome) == (evidence, verdict)
    assert (judged.detail == "nothing ran or was read on first") == bool(ground.uncovered)


def test_a_folder_is_matched_by_its_code(tmp_path: Path) -> None:
    (tmp_path / "core.py").write_text("def new():\n    pass\n")
    ran = Touch(True, REPO, "whatever it is called", str(tmp_path))
    statement = Statement("s", StatementKind.CLAIM, "says", (), ("second",))
    ground = Grounds(CARD).of(statement, [result(ProofKind.PYTEST, Evidence.UPSTREAM, ran)])
    assert ground is not None and ground.executed == ("second",)
    (tmp_path / "core.py").write_text("def other():\n    pass\n")
    ground = Grounds(CARD).of(statement, [result(ProofKind.PYTEST, Evidence.UPSTREAM, ran)])
    assert ground is not None and ground.executed == ()
