"""Runs of the hybrid line that end in the first step, each release where its card says."""

from __future__ import annotations

import pytest

from checks.skills.test_dynamic_training import HYBRID, MODEL, OTHERS, ROPE, RUN, SCRIPT, UNCHECKED
from ringproof.rehearsal.protocol.program import Program


def said(stage, upstream, ranks, *options):
    program = Program(upstream, SCRIPT, tuple(" ".join(options).split()), ranks)
    failure = stage.run(program).failure
    assert failure is not None
    return failure.message


@pytest.mark.slow
@pytest.mark.parametrize("version", [OTHERS[0], OTHERS[-1]])
def test_two_levels_fail_in_attention_or_before_it(version, stage, upstream_of):
    levels = "--context-parallel-size 4 --cp-comm-type a2a+p2p"
    sizes = "--hierarchical-context-parallel-sizes 2 2"
    options = (MODEL, RUN, ROPE, HYBRID, UNCHECKED, levels, sizes)
    refused = "a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]"
    expected = refused if version == OTHERS[0] else "IndexError: tuple index out of range"
    assert expected in said(stage, upstream_of(version), 4, *options)


@pytest.mark.slow
@pytest.mark.parametrize("version", [OTHERS[0], OTHERS[-1]])
def test_data_without_lengths_is_a_key_error(version, stage, upstream_of):
    options = (MODEL, RUN, ROPE, HYBRID.removeprefix("--sft "), UNCHECKED)
    assert said(stage, upstream_of(version), 2, *options) == "KeyError: 'cu_seqlens'"
