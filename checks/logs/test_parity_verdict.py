"""Drift or jump: on real trainings in two orders of summation, with faults, and on made series."""

from __future__ import annotations

import math
import random
from array import array
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.logs.parity_run import Training
from ringproof.logs.training.compare import (
    Comparison,
    SeriesComparison,
    compare_logs,
    compare_series,
)
from ringproof.logs.training.kind import Kind
from ringproof.logs.training.output import readings
from ringproof.logs.training.quantities import JUDGED
from ringproof.logs.training.read import TrainingLog
from ringproof.logs.training.series import Precision, Series

QUIET = Training(rate=0.05)


def log(role: str, **columns: Sequence[float]) -> TrainingLog:
    series = {
        name: Series(name, name, array("q", range(1, len(values) + 1)), array("d", values))
        for name, values in columns.items()
    }
    return TrainingLog(role, role, "jsonl", series, True, False, (), ())


def trained(role: str, training: Training) -> TrainingLog:
    _, losses, norms = zip(*training.run(), strict=True)
    return log(role, loss=losses, grad_norm=norms)


def compared(other: Training, tolerance: float = 1e-9) -> Comparison:
    """A quiet training beside another one."""
    return compare_logs(trained("A", QUIET), trained("B", other), JUDGED, tolerance)


def made(a: Sequence[float], b: Sequence[float], tolerance: float = 1e-9) -> SeriesComparison:
    return compare_logs(log("A", loss=a), log("B", loss=b), ("loss",), tolerance).series[0]


def noisy(values: Sequence[float], level: Callable[[int], float], seed: int = 0) -> list[float]:
    chance = random.Random(seed)
    return [value * (1 + level(k) * chance.gauss(0, 1)) for k, value in enumerate(values)]


CURVE = [2 + 4 * math.exp(-k / 60) for k in range(200)]


@pytest.mark.parametrize(
    ("other", "tolerance", "loss", "norm"),
    [
        (QUIET, 0.0, Kind.EQUAL, Kind.EQUAL),
        (Training(rate=0.05, order=5), 1e-9, Kind.WITHIN, Kind.WITHIN),
        (Training(rate=0.05, order=5, seed=1), 1e-9, Kind.START, Kind.START),
        (Training(rate=0.05, order=5, normaliser=1.25), 1e-9, Kind.START, Kind.WITHIN),
        (Training(rate=0.05, order=5, swapped=40), 1e-9, Kind.JUMP, Kind.JUMP),
        (Training(rate=0.05, order=5, scaled=60), 1e-9, Kind.JUMP, Kind.JUMP),
    ],
)
def test_real_pairs(other: Training, tolerance: float, loss: Kind, norm: Kind) -> None:
    result = compared(other, tolerance)
    assert [one.judgement.kind for one in result.series] == [loss, norm]
    ratios = [one.judgement.ratio is not None for one in result.series]
    assert ratios == [other.normaliser != 1, False]  # another seed has none, for example
    if other.order and loss in (Kind.WITHIN, Kind.JUMP):
        assert result.series[0].differing > 10  # there was rounding to tell apart


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("rate", [0.45, 0.5])
def test_rounding_that_a_real_training_amplifies_is_drift(rate: float, seed: int) -> None:
    pair = (Training(rate=rate, seed=seed), Training(rate=rate, seed=seed, order=5))
    logs = trained("A", pair[0]), trained("B", pair[1])
    result = compare_logs(*logs, JUDGED, 1e-9)
    assert [one.judgement.kind for one in result.series] == [Kind.DRIFT, Kind.DRIFT]


def test_where_the_fault_is() -> None:
    scaled = compared(Training(rate=0.05, order=5, scaled=60))
    assert scaled.deciding.name == "grad_norm"
    assert [one.first.step for one in scaled.series if one.first] == [61, 60]
    assert any("backward pass" in said for said in readings(scaled))
    swapped = compared(Training(rate=0.05, swapped=40))
    assert [one.first.step for one in swapped.series if one.first] == [40, 40]
    assert any("batch" in said and "step 40" in said for said in readings(swapped))
    assert not any("backward" in said for said in readings(swapped))


def test_a_wrong_normaliser_is_a_constant_ratio() -> None:
    result = compared(Training(rate=0.05, order=5, normaliser=1.25))
    ratio = result.series[0].judgement.ratio
    assert ratio is not None
    assert math.isclose(ratio.ratio, 1.25, rel_tol=1e-12)
    assert ratio.steps == 120
    said = list(readings(result))
    assert said == ["loss: constant ratio 1.25 (B / A) over 120 steps: look at the loss normaliser"]


@pytest.mark.parametrize("decades_per_step", [0.02, 0.05, 0.2])
@pytest.mark.parametrize("tolerance", [1e-12, 1e-9, 1e-6])
@pytest.mark.parametrize("seed", range(5))
def test_exponential_growth_is_drift(decades_per_step: float, tolerance: float, seed: int) -> None:

    def level(k: int) -> float:
        return min(1e-16 * 10 ** (decades_per_step * k), 0.1)

    found = made(CURVE, noisy(CURVE, level, seed), tolerance)
    reached = level(len(CURVE)) > 10 * tolerance
    assert found.judgement.kind in ((Kind.DRIFT,) if reached else (Kind.WITHIN, Kind.DRIFT))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("noise", "fault", "tolerance"),
    [
        (0.0, 1e-6, 0.0),
        (0.0, 1e-6, 1e-9),
        (2e-16, 1e-7, 1e-9),
        (2e-16, 0.1, 1e-9),
        (1e-12, 1e-3, 1e-9),
        (1e-7, 0.05, 1e-5),
        (1e-3, 0.5, 1e-2),
    ],
)
def test_a_fault_at_one_step_is_a_jump(
    noise: float, fault: float, tolerance: float, seed: int
) -> None:
    b = noisy(CURVE, lambda _: noise, seed)
    b[100:] = [value * (1 + fault) for value in b[100:]]
    found = made(CURVE, b, tolerance)
    assert found.judgement.kind is Kind.JUMP
    assert found.first is not None and found.first.step == 101
    # The same noise without the fault is no jump.
    assert made(CURVE, noisy(CURVE, lambda _: noise, seed), 1e-2).within


def test_a_random_walk_at_rounding_level_is_no_jump() -> None:
    chance, apart, b = random.Random(3), 0.0, []
    for value in CURVE:
        apart += 2e-16 * chance.gauss(0, 1)
        b.append(value * (1 + apart))
    assert made(CURVE, b, 1e-9).judgement.kind is Kind.WITHIN
    assert made(CURVE, b, 1e-15).judgement.kind in (Kind.DRIFT, Kind.WITHIN)
    crossed = made(CURVE, b, 0.0)
    assert crossed.judgement.kind in (Kind.DRIFT, Kind.START)


@pytest.mark.parametrize(("last", "kind"), [(1e-10, Kind.DRIFT), (1e-9, Kind.JUMP)])
def test_a_jump_is_steeper_than_the_square_of_every_rise_before(last: float, kind: Kind) -> None:
    """The rise before is one of 56 times the rounding level, the last one of 1,000 or 10,000."""
    found = made([1.0] * 3, [1.0, 1.0 + 1e-13, 1.0 + last], 5e-11)
    assert found.judgement.kind is kind


def test_drift_and_then_a_jump() -> None:
    b = noisy(CURVE, lambda k: 1e-16 * 10 ** (0.08 * k))
    b[150:] = [value * 1.2 for value in b[150:]]
    found = made(CURVE, b).judgement
    assert (found.kind, found.later_jump and found.later_jump.step) == (Kind.DRIFT, 151)
    early = made(CURVE, noisy(CURVE, lambda k: 1e-8 * 10 ** (0.03 * k)), 1e-5).judgement
    assert (early.kind, early.earlier_jump) == (Kind.DRIFT, None)  # noise from the first step


def test_a_divergence_that_heals() -> None:
    b = list(CURVE)
    b[50:53] = [value * 1.1 for value in b[50:53]]
    found = made(CURVE, b)
    assert (found.judgement.kind, found.within) == (Kind.JUMP, False)
    assert (len(found.places), found.healed) == (3, 147)
    assert found.last is not None and found.last.step == 53


@pytest.mark.parametrize("seed", range(3))
def test_a_jump_below_the_tolerance_that_then_grows_is_named(seed: int) -> None:
    def level(k: int) -> float:
        return 1e-16 if k < 60 else 1e-12 * 10 ** (0.05 * (k - 60))

    found = made(CURVE, noisy(CURVE, level, seed))
    early = found.judgement.earlier_jump
    assert found.judgement.kind is Kind.DRIFT
    assert early is not None and abs(early.step - 61) <= 3  # a draw near zero hides the first
    logs = log("A", loss=CURVE), log("B", loss=noisy(CURVE, level, seed))
    said = list(readings(compare_logs(*logs, ("loss",), 1e-9)))
    assert any("before that, a jump" in text for text in said)
    grown = made(CURVE, noisy(CURVE, lambda k: 1e-16 * 10 ** (0.05 * k), seed))
    assert (grown.judgement.kind, grown.judgement.earlier_jump) == (Kind.DRIFT, None)


def test_a_small_spike_long_before_does_not_turn_a_jump_into_drift() -> None:
    b = noisy(CURVE, lambda _: 2e-16)
    b[10] *= 1 + 1e-10
    b[100:] = [value * (1 + 1e-6) for value in b[100:]]
    found = made(CURVE, b)
    assert found.judgement.kind is Kind.JUMP
    assert found.first is not None and found.first.step == 101


def test_a_period_and_a_ratio_of_the_differing_steps_are_named() -> None:
    b = [value * 1.25 if k % 10 == 9 else value for k, value in enumerate(CURVE)]
    found = made(CURVE, b)
    period, ratio = found.judgement.period, found.judgement.ratio
    assert period is not None
    assert (period.length, period.first, period.last, period.beyond, period.within) == (
        10, 10, 200, 20, 0,
    )  # fmt: skip
    assert ratio is not None
    assert (round(ratio.ratio, 9), ratio.steps) == (1.25, 20)
    said = list(readings(compare_logs(log("A", loss=CURVE), log("B", loss=b), ("loss",), 1e-9)))
    assert "loss: beyond the tolerance at every 10th step from 10 to 200 (20 of 20)" in said
    assert any("constant ratio 1.25 (B / A) over 20 differing steps" in text for text in said)


def test_a_period_may_have_gaps_but_chance_is_none() -> None:
    periodic = [k for k in range(3, 200, 4) if k not in (43, 99)]

    def with_faults(places: Sequence[int]) -> SeriesComparison:
        faults = set(places)
        return made(CURVE, [v * (1 + 1e-4 * (k + 1)) if k in faults else v
                            for k, v in enumerate(CURVE)])  # fmt: skip

    found = with_faults(periodic).judgement
    assert found.period is not None
    assert (found.period.length, found.period.within) == (4, 2)
    assert found.ratio is None
    chance = random.Random(1)
    assert with_faults(chance.sample(range(200), 40)).judgement.period is None
    assert with_faults(range(50, 200)).judgement.period is None
    assert with_faults([10, 20]).judgement.period is None


NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("a", "b", "kind"),
    [
        ([1.0, 2.0, 3.0], [1.0, NAN, 3.0], Kind.NAN),
        ([1.0, 2.0, 3.0], [1.0, 2.0, INF], Kind.NAN),
        ([NAN, 2.0], [1.0, 2.0], Kind.NAN),
        ([1.0, INF], [1.0, -INF], Kind.NAN),
        ([1.0, NAN], [1.0, INF], Kind.NAN),
        ([1.0, 2.0, NAN], [1.0, 2.0, NAN], Kind.NAN),
        ([1.0, INF, 2.0], [1.0, INF, 2.0], Kind.EQUAL),
        ([1.0, NAN, 2.0], [1.0, NAN, 2.0], Kind.EQUAL),
        ([1.0, NAN, 2.0], [1.0, NAN, 2.5], Kind.JUMP),
        ([1.0, 2.0, 3.0], [1.0, 2.5, NAN], Kind.JUMP),
    ],
)
def test_not_finite(a: list[float], b: list[float], kind: Kind) -> None:
    found = made(a, b)
    assert found.judgement.kind is kind
    assert found.within == (kind is Kind.EQUAL)


def test_zero_and_bitwise() -> None:
    assert made([0.0, 1.0], [0.0, 1.0], 0.0).judgement.kind is Kind.EQUAL
    above = math.nextafter(1.0, 2.0)
    assert made([0.5, 1.0], [0.5, above], 0.0).judgement.kind is Kind.DRIFT
    assert made([0.5, 1.0], [0.5, above], 1e-15).judgement.kind is Kind.WITHIN
    gone = made([1.0, 0.0], [1.0, 1e-300], 0.5)
    assert gone.first is not None
    assert gone.first.relative == 1.0


SEVEN, THREE, EXACT = Precision(significant=7), Precision(decimals=3), Precision()


@pytest.mark.parametrize(
    ("a", "b", "precisions", "tolerance", "kind"),
    [
        (1.234567, 1.234567, (SEVEN, SEVEN), 1e-9, Kind.EQUAL),
        (1.234567, 1.234568, (SEVEN, SEVEN), 1e-9, Kind.WITHIN),
        (1.234567, 1.234569, (SEVEN, SEVEN), 1e-9, Kind.START),
        (1.234567, 1.234568, (SEVEN, SEVEN), 0.0, Kind.START),
        (1.234567, 1.234568, (EXACT, EXACT), 1e-9, Kind.START),
        (1.2345674, 1.234567, (EXACT, SEVEN), 0.0, Kind.EQUAL),
        (1.2345676, 1.234567, (EXACT, SEVEN), 1e-9, Kind.START),
        (0.123, 0.124, (THREE, THREE), 1e-9, Kind.WITHIN),
        (0.123, 0.125, (THREE, THREE), 1e-9, Kind.START),
    ],
)
def test_what_print_hides_is_no_difference(
    a: float, b: float, precisions: tuple[Precision, Precision], tolerance: float, kind: Kind
) -> None:
    one, other = (
        Series("loss", "lm loss", array("q", [1]), array("d", [value]), precision=precision)
        for value, precision in zip((a, b), precisions, strict=True)
    )
    assert compare_series(one, other, tolerance).judgement.kind is kind


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20),
    st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=20),
    st.sampled_from([0.0, 1e-9, 0.5]),
)
def test_any_two_series_get_a_verdict(a: list[float], b: list[float], tolerance: float) -> None:
    found = made(a, b, tolerance)
    mirrored = made(b, a, tolerance)
    assert found.within == mirrored.within
    assert found.judgement.kind is mirrored.judgement.kind
    assert len(found.places) == len(mirrored.places)
    assert (found.first is None) == (not found.places)
    finite = [pair for pair in zip(a, b, strict=False) if all(map(math.isfinite, pair))]
    beyond = [abs(x - y) > tolerance * max(abs(x), abs(y)) * (1 + 1e-9) for x, y in finite]
    assert not (found.within and any(beyond))
