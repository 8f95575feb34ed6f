"""Options that `ringproof doctor` reads from a checkout, against upstream's own parser."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from checks.doctor.upstream_lines import COMMITS, TRAINED, stack_at, upstream_at
from ringproof.doctor.examine import examine
from ringproof.doctor.reading import of_launch, read_settings
from ringproof.errors import InputError
from ringproof.launch.options import options_of
from ringproof.launch.reading import read_command
from ringproof.upstream.tree import FolderTree

OPTIONAL = ("--export", "--kitchen", "--finetune", "--modelopt", "--enable-gpt-oss", "--qad-train",
            "--freeze-base")  # fmt: skip
"""Options of ModelOpt and of NVIDIA's kitchen, which upstream adds where those are installed."""
NAMES = "checks.doctor.asking:option_names"


@pytest.fixture(params=COMMITS)
def checkout(request, stage):
    upstream = upstream_at(stage, request.param)
    return request.param, FolderTree(upstream.megatron), upstream


def test_the_names_are_those_of_the_parser(checkout, stage):
    _, tree, upstream = checkout
    known = set(stage.call(NAMES, 1, None, upstream=upstream)[0]) - {"-h", "--help"}
    read = options_of(tree)
    assert len(known) > 600
    assert sorted(known - read) == []
    assert [name for name in sorted(read - known) if not name.startswith(OPTIONAL)] == []


def test_an_option_with_a_slip_is_named_with_the_nearest(checkout):
    line, tree, _ = checkout
    stack = replace(stack_at(line), options=options_of(tree))
    words = "torchrun --nproc-per-node 2 pretrain_gpt.py --context-parallel-sizes 2 --num-layers 2"
    settings = of_launch(read_command(words.split()))
    found = [one for one in examine(settings, stack).findings if one.rule.name == "unknown-option"]
    (finding,) = found
    assert "--context-parallel-sizes (perhaps --context-parallel-size)" in finding.says
    other = of_launch(read_command(words.replace("pretrain_gpt", "train").split()))
    names = [one.rule.name for one in examine(other, stack).findings]
    assert "unknown-option" not in names, "a program of its own may have options of its own"


def test_a_tree_without_a_parser_has_no_options(tmp_path: Path):
    assert options_of(FolderTree(tmp_path)) == frozenset()


CASES = "tests/functional_tests/test_cases"
OTHER_PROGRAM = ("flextron",)
"""Tests whose program the file does not name."""


@pytest.mark.parametrize("line", TRAINED)
def test_functional_tests_of_a_checkout_have_no_unknown_option(line, stage):
    folder = stage.checkout(f"NVIDIA/Megatron-LM@{COMMITS[line]}", CASES, "megatron")
    stack = replace(stack_at(line), options=options_of(FolderTree(folder)))
    read = 0
    for path in sorted((folder / CASES).glob("*/*/model_config.yaml")):
        variables = re.findall(r"\$\{?(\w+)", path.read_text(encoding="utf-8"))
        try:
            settings = read_settings([str(path)], dict.fromkeys(variables, "1"))
        except InputError:
            continue  # it does not train
        read += 1
        names = [one.says for one in examine(settings, stack).findings
                 if one.rule.name == "unknown-option"]  # fmt: skip
        assert not names or any(name in str(path) for name in OTHER_PROGRAM), (path, names)
    assert read > 180
