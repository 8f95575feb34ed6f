"""Rules by which tests decide a proof, and proofs a statement."""

from __future__ import annotations

from collections.abc import Sequence

from ringproof.cards.proof import ProofKind
from ringproof.cards.statements import Statement
from ringproof.prove.results import NO_GROUND, Ground, Judged, ProofState, Verdict
from ringproof.prove.touches import Evidence, merged

LEFT_OUT = "left out of the quick run"
"""Why a test that is marked slow was skipped."""

TEST_STATES = (
    ProofState.FAILED,
    ProofState.NOT_RUN,
    ProofState.PASSED,
    ProofState.SKIPPED,
    ProofState.LEFT_OUT,
)
"""States of tests: the first that any of its tests has is that of a proof."""

_REFUTING = (ProofState.FAILED, ProofState.MISSING)


def judge_proof(
    proof_id: str, tests: Sequence[Judged], *, own: Evidence, sources: str | None = None
) -> Judged:
    """Judge a pytest node id by all the tests that it names, of which there is one at least.

    Args:
        own: Kind of evidence if no test touched upstream code.
    """
    touches = merged(touch for test in tests if test.passed for touch in test.touches)
    evidence = own
    if touches:
        ran = any(touch.executed for touch in touches)
        evidence = Evidence.UPSTREAM if ran else Evidence.READ
    outcomes = {test.outcome for test in tests}
    return Judged(
        proof_id,
        next(state for state in TEST_STATES if state in outcomes),
        _test_detail(tests),
        parts=tuple(tests),
        touches=touches,
        sources=sources,
        ground=Ground(evidence),
    )


def _test_detail(tests: Sequence[Judged]) -> str:
    failed, not_run, passed, skipped, left_out = (
        [test for test in tests if test.outcome is state] for state in TEST_STATES
    )
    if failed:
        more = f"\n({len(failed) - 1} more failed)" if len(failed) > 1 else ""
        return f"{failed[0].id}\n{failed[0].detail}{more}"
    parts = []
    if not_run:
        parts.append(f"{len(not_run)} not run: {not_run[0].detail}")
    if skipped:
        reasons = ", ".join(dict.fromkeys(test.detail for test in skipped))
        parts.append(f"{len(skipped)} skipped: {reasons}" if passed else reasons)
    if left_out:
        parts.append(f"{len(left_out)} {LEFT_OUT}" if passed else LEFT_OUT)
    return "; ".join(parts)


def judge(statement: Statement, proofs: tuple[Judged, ...], ground: Ground = NO_GROUND) -> Judged:
    """Judge a statement by its proofs.

    It is refuted if any proof failed or does not exist, and proven only if all of them ran and
    passed. An anchor shows that upstream's code exists, but not what it does. So if a statement
    also has tests and none of them ran, the anchor alone does not prove a part of it.
    """
    bad = [proof for proof in proofs if proof.outcome in _REFUTING]
    if bad:
        reason = "; ".join(_telling_line(proof) for proof in bad)
        return Judged(statement.id, Verdict.REFUTED, reason, parts=proofs)
    if any(proof.outcome is ProofState.DECLARED for proof in proofs):
        reason = "; ".join(proof.detail for proof in proofs)
        return Judged(statement.id, Verdict.UNPROVEN, reason, parts=proofs)
    tests = [proof for proof in proofs if proof.kind is ProofKind.PYTEST]
    passed = [proof for proof in tests or proofs if proof.passed]
    cut_off = any(proof.outcome is ProofState.NOT_RUN for proof in proofs)
    open_points = "; ".join(dict.fromkeys(proof.detail for proof in proofs if proof.detail))
    if not passed or cut_off:
        return Judged(statement.id, Verdict.NOT_HERE, open_points, parts=proofs)
    verdict = Verdict.PROVEN if all(proof.complete for proof in proofs) else Verdict.PARTLY
    if verdict is Verdict.PROVEN and statement.lines:
        if ground.evidence in (Evidence.REFERENCE, Evidence.DERIVED):
            verdict = Verdict.IN_REFERENCE
        elif ground.uncovered:
            verdict = Verdict.PARTLY
            open_points = f"nothing ran or was read on {', '.join(ground.uncovered)}"
    return Judged(statement.id, verdict, open_points, parts=proofs, ground=ground)


def _telling_line(proof: Judged) -> str:
    """Return the proof and its most informative line. pytest marks the exception with ``E``."""
    lines = [line.strip() for line in proof.detail.splitlines() if line.strip()]
    raised = [line[2:].strip() for line in lines if line.startswith("E ")]
    telling = [*raised[:1], *reversed(lines), proof.outcome.value][0]
    return f"{proof.id}: {telling}"
