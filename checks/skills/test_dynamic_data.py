"""Statements of the dynamic CP skill on single samples, on Megatron-LM's own code."""

from __future__ import annotations

import pytest

CASES = "checks.skills.dynamic_cases"
DEV, MAIN, RELEASE = "megatron-lm-dev", "megatron-lm-main", "megatron-lm-release"

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(scope="module")
def ask(stage, upstream_of):
    def call(name, key, argument=None, ranks=1):
        return stage.call(f"{CASES}:{name}", ranks, argument, upstream=upstream_of(key))

    return call


@pytest.mark.parametrize(("cp", "dp", "sp"), [(2, 4, 1), (2, 2, 2), (1, 8, 1)])
def test_dev_pads_to_the_domain(ask, cp, dp, sp):
    (found,) = ask("padded_lengths", DEV, {"cp": cp, "dp": dp, "sp": sp})
    multiple = 2 * cp * dp * sp
    assert found == [-(-length // multiple) * multiple for length in (5, 9)]


@pytest.mark.parametrize("key", [MAIN, RELEASE])
def test_main_and_the_release_pad_to_the_static_size(ask, key):
    """Eight ranks cannot cut these rows in zigzag order, which takes multiples of 16."""
    (found,) = ask("padded_lengths", key, {"cp": 2, "dp": 4, "sp": 1})
    assert found == [8, 12]
    assert any(length % 16 for length in found)


def test_dev_shifts_inside_padded_sequences(ask):
    (found,) = ask("shifted", DEV)
    assert found == [2, 3, 4, 5, 6, 7, 8, 0, 10, 11, 12, 13, 14, 15, 16, 0]


def test_the_release_shifts_inside_unpadded_ones(ask):
    """The second sequence, in rows 8 to 15, is not shifted at all, and the first is cut."""
    (found,) = ask("shifted", RELEASE)
    assert found[:5] == [2, 3, 4, 5, 0]
    assert found[8:] == list(range(9, 17))


@pytest.mark.parametrize("key", [DEV, MAIN, RELEASE])
def test_a_sequence_weighs_its_square_over_its_ranks(ask, key):
    cases = [[100, 1, 128], [200, 1, 256], [200, 2, 128], [400, 4, 128]]
    (found,) = ask("costs", key, cases)
    for (length, ranks, _), work in zip(cases, found, strict=True):
        assert work == [length**2 / ranks] * ranks


def test_dev_sends_counts_in_single_precision(ask):
    exact, rounded = 2**24, 2**24 + 1
    assert ask("counted", DEV, exact, 2) == [exact, exact]
    assert ask("counted", DEV, rounded, 2) == [rounded, exact], "rank 0 keeps its own"
