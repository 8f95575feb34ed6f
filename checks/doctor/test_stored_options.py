"""The options of each line of Megatron-LM that are stored, and what doctor makes of them."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from checks.doctor.upstream_lines import COMMITS, TRAINED, cards, stack_at, upstream_at
from ringproof.cli.main import app
from ringproof.doctor.lines import known_stacks, with_stored_options
from ringproof.launch.options import options_of
from ringproof.launch.stored import stored_options, table
from ringproof.upstream.tree import FolderTree

LAUNCH = ("--", "torchrun", "--nproc-per-node", "8", "pretrain_gpt.py", "--num-layers", "8",
          "--num-attention-heads", "8", "--seq-length", "512", "--eval-interval", "10",
          "--micro-batch-size", "1", "--global-batch-size", "8")  # fmt: skip


@pytest.mark.parametrize("line", [*COMMITS, "r0.17", "r0.18"])
def test_each_line_has_options_of_its_own(line):
    names = stored_options(line)
    assert {"--context-parallel-size", "--num-layers", "--sft"} <= names
    assert ("--dynamic-context-parallel" in names) == (line in {"dev", "pr5618", "pr6479"})
    assert ("--megatron-fsdp-version" in names) == (line == "main")


@pytest.mark.parametrize("line", TRAINED)
def test_they_are_those_of_the_source(line, stage):
    folder = upstream_at(stage, line).megatron
    assert stored_options(line) == {
        name for name in options_of(FolderTree(folder)) if name.startswith("--")
    }


def test_a_table_is_read_as_it_was_written():
    text = table({"a": ["--x", "--y", "-z"], "b": ["--y"]})
    assert text.count("[[options]]") == 2
    assert 'lines = ["a", "b"]\nnames = """\ny\n"""' in text
    assert "z" not in text


@pytest.mark.parametrize("line", ["dev", "main", "r0.17", "release"])
def test_a_misspelt_option_is_refused_on_every_line(line):
    words = ["doctor", "--quick", "--line", line, *LAUNCH, "--context-paralel-size", "8"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 1, result.output
    assert "--context-paralel-size (perhaps --context-parallel-size)" in result.output


def test_a_release_without_a_parser_has_the_options_of_its_line():
    known = known_stacks(cards())
    assert not stack_at("megatron-core").options
    assert with_stored_options(known["megatron-core"]).options == stored_options("release")
    assert not with_stored_options(known["dynamic-v2"]).options, "it is not stored"
