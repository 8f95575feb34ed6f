"""What tests of several skills share: texts, groups without a world, and scans of source."""

from __future__ import annotations

import ast
import importlib
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path

from ringproof.cards import Card, PackageUpstream, load_card

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = {"num_layers": 2, "hidden_size": 16, "num_attention_heads": 4}  # of a TransformerConfig

# Calls that put text on a stream or into a log, by the last part of their name.
OUTPUT_NAMES = (
    "print", "print_rank_0", "print_rank_last", "log_single_rank", "log_on_each_pipeline_stage",
    "log", "debug", "info", "warning", "warn", "warn_rank_0", "error", "critical", "exception",
    "write",
)  # fmt: skip


class Group:
    """A process group as megatron-core asks it: its size and this rank's place."""

    def __init__(self, size: int, rank: int = 0) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


def spec_of(card: Card, name: str) -> str:
    """The version that a card names by a key, for ``stage.upstream``."""
    upstream = card.upstreams[name]
    if isinstance(upstream, PackageUpstream):
        return f"pip:{upstream.package}=={upstream.version}"
    return f"{upstream.repo}@{upstream.commit}"


def body_of(text: str) -> str:
    """The text of a skill below its frontmatter."""
    return text.split("\n---\n", 1)[1]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of a language in a text."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def check_markers(card: Card, printed: dict[str, str], near_misses: Sequence[str]) -> None:
    """Assert that each marker of a card matches its own line, and no other."""
    assert {marker.id for marker in card.markers} == set(printed)
    for marker in card.markers:
        lines = (*printed.values(), *near_misses)
        found = [line for line in lines if re.search(marker.pattern, line)]
        assert found == [printed[marker.id]]


def check_release(card: Path, record_property: Callable[[str, object], None]) -> None:
    """Assert that the installed megatron-core is the one that a card names."""
    installed = metadata.version("megatron-core")
    record_property("megatron_core", installed)
    assert installed == load_card(card).upstreams["megatron-core"].version


def parse_core() -> Iterator[tuple[Path, ast.Module]]:
    """Every Python file of the megatron-core that is imported, with its syntax tree."""
    (root,) = importlib.import_module("megatron.core").__path__
    for path in sorted(Path(root).rglob("*.py")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield path, ast.parse(path.read_bytes(), filename=str(path))


def output_calls(tree: ast.AST) -> Iterator[ast.Call]:
    """The calls that print or log."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            function = node.func
            name = getattr(function, "attr", None) or getattr(function, "id", None)
            if name in OUTPUT_NAMES:
                yield node


def mentions(node: ast.AST, text: str) -> bool:
    """Whether a name or a string literal inside the node contains the text."""
    return any(
        text in part
        for inner in ast.walk(node)
        for part in (
            getattr(inner, "id", None),
            getattr(inner, "attr", None),
            getattr(inner, "value", None),
        )
        if isinstance(part, str)
    )


def literals(tree: ast.AST, text: str) -> Iterator[ast.Constant]:
    """The string literals that contain the text, docstrings included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and text in node.value:
            yield node
