"""A public class has its name to itself, and the planted mistakes fit the tree."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from benchmarks.mutations.__main__ import check_places
from benchmarks.mutations.planted import read_mutations
from ringproof.errors import InputError

ROOT = Path(__file__).parents[2]
SHARED = MappingProxyType(
    {
        "RMSNorm": "the stand-in has the name that mamba_ssm gives it",
        "Rule": "what a finding breaks, for doctor as for the other checks",
    }
)


def shared_names(sources: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return public classes that several files define, with the paths of these files."""
    places = defaultdict(list)
    for path, source in sources:
        for node in ast.parse(source, path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(path)
    return {name: paths for name, paths in places.items() if len(paths) > 1}


def test_a_class_has_its_name_to_itself() -> None:
    files = sorted((ROOT / "src").rglob("*.py"))
    found = shared_names((file.relative_to(ROOT).as_posix(), file.read_text()) for file in files)
    assert {name: paths for name, paths in found.items() if name not in SHARED} == {}
    assert sorted(SHARED.keys() - found.keys()) == [], "exceptions that are not needed"


def test_a_shared_name_is_seen() -> None:
    sources = (("a.py", "class A: pass\nclass _B: pass"), ("b.py", "class A: pass\nclass _B: pass"))
    assert shared_names(sources) == {"A": ["a.py", "b.py"]}


def test_the_planted_mistakes_fit_the_tree() -> None:
    mutations = read_mutations()
    assert len(mutations) > 50
    check_places(mutations, ROOT)
    tests = {test.partition("::")[0] for mutation in mutations for test in mutation.tests}
    assert [test for test in sorted(tests) if not (ROOT / test).exists()] == []


def test_a_planted_mistake_that_fits_nowhere_is_seen() -> None:
    first, *_ = read_mutations()
    with pytest.raises(InputError, match="holds the text 0 times"):
        check_places([replace(first, text="a text that is not there")], ROOT)
