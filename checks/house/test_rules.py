"""The tree keeps the rules of the house; and each rule can be broken.

ruff has those on parameters, ``global``, the environment and torch, import-linter those on the
direction of imports (both in ``pyproject.toml``, run by ``make lint``), and `violations` the rest.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType

import pytest

from checks.running import ran

MAX_FUNCTION_LINES = 60
MAX_NESTING = 3

MUTABLE_CALLS = frozenset(
    {"dict", "list", "set", "defaultdict", "Counter", "deque", "bytearray", "fromkeys"}
)
STARTERS = ("src/ringproof/programs.py", "src/ringproof/supervisor.py")
STARTS = re.compile(
    r"(subprocess|pty|multiprocessing(?!\.(connection|process|Pipe|parent_process|reductions))"
    r"|asyncio\.create_subprocess|asyncio\.subprocess|os\.(exec|spawn|posix_spawn|popen|system))"
)
CACHES = frozenset({"cache", "lru_cache"})
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
MUTABLE_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


def violations(path: str, source: str) -> dict[str, str]:
    """Return every rule that a file breaks as ``path::rule::what``, with its place.

    ``path`` is relative to the repository, with slashes.
    """
    tree = ast.parse(source, path)
    found = [*sizes(tree)]
    if path.startswith("src/"):
        found += mutable_state(tree)
        found += started_programs(tree) if path not in STARTERS else ()
    return {
        f"{path}::{rule}::{what}": f"{path}:{line} {rule}: {what}" for line, rule, what in found
    }


def sizes(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """A function fits a screen and nests little."""
    for node in below(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            if (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES:
                yield node.lineno, "function-length", node.name
            if nesting(node) > MAX_NESTING:
                yield node.lineno, "nesting", node.name


def below(node: ast.AST) -> Iterator[ast.AST]:
    """Statements and their parts at any depth; expressions have no statement in them."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield child
            yield from below(child)


def nesting(node: ast.AST) -> int:
    """Depth of loops, conditions, ``with`` and ``try`` below a node; ``elif`` adds none."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.expr):
            continue
        block = isinstance(child, ast.For | ast.While | ast.If | ast.With | ast.Try | ast.Match)
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deepest = max(deepest, nesting(child) + (block and not is_elif))
    return deepest


def started_programs(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """Only `ringproof.programs` starts programs; connections of `multiprocessing` start none."""
    for node in ast.walk(tree):
        names = [alias.name for alias in getattr(node, "names", ()) if isinstance(alias, ast.alias)]
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name}" for name in names]
        elif isinstance(node, ast.Attribute):
            names = [dotted(node)]
        elif not isinstance(node, ast.Import):
            continue
        for name in filter(STARTS.match, names):
            yield node.lineno, "starts-programs", name


def dotted(node: ast.expr) -> str:
    """``os.system`` for that attribute; empty where it is not one of a name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def mutable_state(tree: ast.Module) -> Iterator[tuple[int, str, str]]:
    """No module or class holds a list, dictionary, set or cache."""
    for node in module_level(tree):
        value = node.value if isinstance(node, ASSIGNMENTS) else None
        exported = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        cached = any(name_of(d) in CACHES for d in getattr(node, "decorator_list", []))
        if cached or (value is not None and is_mutable(value) and not exported):
            yield node.lineno, "mutable-state", ast.unparse(node)[:60]


def module_level(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements that run when the module is loaded, those of classes and conditions included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from module_level(child)


def is_mutable(value: ast.expr) -> bool:
    """A display or constructor that can change later, also as a part of a tuple or expression.

    An argument of another call does not count: ``frozenset({...})`` is frozen.
    """
    if isinstance(value, MUTABLE_DISPLAYS):
        return True
    if isinstance(value, ast.Call):
        return name_of(value) in MUTABLE_CALLS
    parts = (child for child in ast.iter_child_nodes(value) if isinstance(child, ast.expr))
    return isinstance(value, ast.Tuple | ast.BinOp | ast.IfExp | ast.BoolOp) and any(
        map(is_mutable, parts)
    )


def name_of(called: ast.expr) -> str:
    """``Counter`` for ``Counter``, ``collections.Counter`` and calls of either."""
    called = called.func if isinstance(called, ast.Call) else called
    return called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")


ROOT = Path(__file__).parents[2]
FOLDERS = ("src", "checks", "smoke", "benchmarks", "docs")
LOGS, PACKING = "src/ringproof/logs/b.py", "src/ringproof/reference/packing/b.py"

# path::rule::what -> why. An exception that is no longer needed fails, too.
EXCEPTIONS = MappingProxyType({})


def test_the_tree_keeps_the_rules() -> None:
    files = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    assert len(files) > 50
    found: dict[str, str] = {}
    for file in files:
        found |= violations(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8"))
    assert [found[key] for key in sorted(found.keys() - EXCEPTIONS.keys())] == []
    assert sorted(EXCEPTIONS.keys() - found.keys()) == [], "exceptions that are not needed"


MUTABLE = (
    "CACHE = {}",
    "CACHE: list[int] = []",
    "CACHE = collections.defaultdict(int)",
    "A, B = [], {}",
    "A = ([],)",
    "A = {} | other",
    "A = dict.fromkeys('ab')",
    "if x:\n    A = {}",
    "class A:\n    cache = {}",
    "@functools.lru_cache\ndef f():\n    pass",
    "@cache\ndef f():\n    pass",
)


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        *((source, "mutable-state") for source in MUTABLE),
        ("import subprocess", "starts-programs"),
        ("from subprocess import run", "starts-programs"),
        ("def f():\n    import multiprocessing", "starts-programs"),
        ("from multiprocessing import get_context", "starts-programs"),
        ("import multiprocessing.pool as p", "starts-programs"),
        ("import os\nos.execvp('a', ['a'])", "starts-programs"),
        ("from os import system", "starts-programs"),
        ("def f():\n" + "    x = 1\n" * MAX_FUNCTION_LINES, "function-length"),
        ("def f():\n if a:\n  for b in c:\n   with d:\n    if e:\n     pass", "nesting"),
    ],
)
def test_each_rule_can_be_broken(source: str, rule: str) -> None:
    assert {key.split("::")[1] for key in violations("src/ringproof/errors.py", source)} == {rule}


@pytest.mark.parametrize(
    "source",
    [
        "NAMES = ('a', 'b')\n__all__ = ['x']",
        "from multiprocessing.connection import wait\nfrom multiprocessing import connection, Pipe",
        "A = MappingProxyType({'a': 1})\nB = frozenset({1})",
        "@dataclass\nclass A:\n    b: dict = field(default_factory=dict)",
        "def f():\n if a:\n  pass\n elif b:\n  pass\n elif c:\n  pass\n elif d:\n  pass",
    ],
)
def test_what_is_allowed_passes(source: str) -> None:
    assert violations("src/ringproof/errors.py", source) == {}


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        (LOGS, "import torch", "TID253"),
        (LOGS, "from ringproof.reference.topology.census import census", "TID253"),
        (LOGS, "from ringproof.reference.topology import census", "TID253"),
        (LOGS, "from ringproof.cluster.worker import serve", "TID253"),
        (LOGS, "def f():\n    import torch", None),
        (LOGS, "from ringproof.reference.topology.census_line import CensusLine", None),
        ("src/ringproof/cluster/worker.py", "import torch", None),
        (PACKING, "import os\nx = os.environ['A']", "TID251"),
        (LOGS, "from os import getenv\ngetenv('A')", "TID251"),
        ("src/ringproof/cli/b.py", "import os\nx = os.environ.get('A')", None),
        (LOGS, "def f():\n    global x\n    x = 1", "PLW0603"),
        ("smoke/b.py", "def f(a, b, c, d, e, g, h):\n    pass", "PLR0917"),
        ("smoke/b.py", "def f(a, *, b, c, d, e, g, h):\n    pass", None),
    ],
)
def test_ruff_has_its_rules(path: str, source: str, rule: str | None) -> None:
    ours = "--select=PLR0917,PLW0603,TID251,TID253"
    command = [sys.executable, "-m", "ruff", "check", ours, "--output-format=concise"]
    done = ran(*command, f"--stdin-filename={path}", "-", cwd=ROOT, input=source)
    assert done.returncode == int(rule is not None), done.stdout
    assert (rule or "All checks passed") in done.stdout


def lint_imports(**environment: str) -> subprocess.CompletedProcess[str]:
    program = "from importlinter.cli import lint_imports_command as run; run()"
    command = [sys.executable, "-c", program, "--no-cache", f"--config={ROOT / 'pyproject.toml'}"]
    return ran(*command, cwd=ROOT, env={**os.environ, **environment})


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("reference/model/b.py", "from ringproof.logs import x"),
        ("reference/packing/b.py", "from ringproof.reference.attention.steps import Step"),
        ("reference/packing/b.py", "from ..attention import loop"),
        ("reference/packing/b.py", "from ringproof import logs"),
        ("logs/b.py", "def f():\n    import ringproof.reference.attention.steps"),
        ("logs/b.py", "from ringproof.cli import main"),
    ],
)
def test_an_import_that_points_up_is_seen(tmp_path: Path, path: str, source: str) -> None:
    """The folders of the package, all empty but for one module."""
    for folder in (ROOT / "src" / "ringproof").rglob("*"):
        made = tmp_path / folder.relative_to(ROOT / "src")
        if folder.suffix == ".py":
            made.parent.mkdir(parents=True, exist_ok=True)
            made.touch()
    (tmp_path / "ringproof" / path).write_text(source, encoding="utf-8")
    done = lint_imports(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "1 broken" in done.stdout, done.stdout + done.stderr
