"""The rules of the house, as functions from source text to violations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

MAX_FUNCTION_LINES = 60
MAX_FILE_LINES = 300
MAX_POSITIONAL = 6
MAX_NESTING = 3

# Inside ``reference`` imports point to the left of this order.
REFERENCE_ORDER = ("topology", "packing", "planning", "attention", "model", "graphs", "training")
HARNESS_MAY_IMPORT = ("topology", "packing", "planning")
NEEDS_TORCH = ("ringproof.reference.topology.context", "ringproof.reference.topology.census")
TORCH_ALLOWED_IN_HARNESS = "src/ringproof/harness/cluster/worker.py"
ENVIRONMENT_ALLOWED_IN = ("src/ringproof/harness/cluster/", "src/ringproof/cli/")
MUTABLE_CALLS = frozenset({"dict", "list", "set", "defaultdict", "Counter", "deque", "bytearray"})
MUTABLE_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


@dataclass(frozen=True)
class Violation:
    """One broken rule.

    Args:
        path: File, relative to the repository.
        line: Where.
        rule: Name of the rule.
        what: What broke it: a function, a module, a name.
    """

    path: str
    line: int
    rule: str
    what: str


def violations(path: str, source: str) -> list[Violation]:
    """Every rule that a file breaks. ``path`` is relative to the repository, with slashes."""
    tree = ast.parse(source, path)
    found = [*sizes(path, source, tree)]
    if path.startswith("src/"):
        found += [*imports(path, tree), *environment(path, tree), *mutable_state(path, tree)]
    return found


def sizes(path: str, source: str, tree: ast.Module) -> Iterator[Violation]:
    """A file is one idea; a function fits a screen, takes few arguments and nests little."""
    lines = source.count("\n")
    if lines > MAX_FILE_LINES:
        yield Violation(path, 1, "file-length", path)
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES:
            yield Violation(path, node.lineno, "function-length", node.name)
        if len(node.args.posonlyargs) + len(node.args.args) > MAX_POSITIONAL:
            yield Violation(path, node.lineno, "positional-parameters", node.name)
        if nesting(node) > MAX_NESTING:
            yield Violation(path, node.lineno, "nesting", node.name)


def nesting(node: ast.AST) -> int:
    """Depth of loops, conditions, ``with`` and ``try`` below a node; ``elif`` adds none."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        block = isinstance(child, ast.For | ast.While | ast.If | ast.With | ast.Try | ast.Match)
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and child in node.orelse
        deepest = max(deepest, nesting(child) + (block and not is_elif))
    return deepest


def imports(path: str, tree: ast.Module) -> Iterator[Violation]:
    """Imports point one way; the harness does without torch."""
    package = path.removeprefix("src/ringproof/").split("/")
    for line, module, at_top in imported_modules(tree):
        parts = module.split(".")
        target = parts[1:] if parts[0] == "ringproof" else []
        if package[0] == "reference" and target[:1] in (["harness"], ["cli"]):
            yield Violation(path, line, "import-direction", module)
        if points_up(package, target):
            yield Violation(path, line, "import-direction", module)
        if package[0] == "harness":
            if target[:1] == ["cli"] or (
                target[:1] == ["reference"] and target[1:2] and target[1] not in HARNESS_MAY_IMPORT
            ):
                yield Violation(path, line, "import-direction", module)
            torch_module = parts[0] == "torch" or module in NEEDS_TORCH
            if at_top and torch_module and path != TORCH_ALLOWED_IN_HARNESS:
                yield Violation(path, line, "torch-in-harness", module)


def points_up(package: list[str], target: list[str]) -> bool:
    """Whether an import inside ``reference`` goes against the order."""
    if package[0] != "reference" or len(package) < 3 or target[:1] != ["reference"]:
        return False
    return REFERENCE_ORDER.index(target[1]) > REFERENCE_ORDER.index(package[1])


def imported_modules(tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Line, dotted name, and whether the import runs when the module is loaded."""
    lazy = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, node not in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module, node not in lazy


def is_type_checking(node: ast.AST) -> bool:
    """Whether a node is ``if TYPE_CHECKING:``."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def environment(path: str, tree: ast.Module) -> Iterator[Violation]:
    """Nothing looks at the environment except the launcher and the command line."""
    if path.startswith(ENVIRONMENT_ALLOWED_IN):
        return
    for node in ast.walk(tree):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        if name in ("environ", "getenv", "putenv", "expandvars", "environb"):
            yield Violation(path, getattr(node, "lineno", 0), "environment", name)


def mutable_state(path: str, tree: ast.Module) -> Iterator[Violation]:
    """No module holds a list, dictionary, set or the like, and no function a ``global``."""
    for node in tree.body:
        value = (
            getattr(node, "value", None) if isinstance(node, ast.Assign | ast.AnnAssign) else None
        )
        if value is None or "__all__" in ast.unparse(node).split("=")[0]:
            continue
        call = value.func if isinstance(value, ast.Call) else None
        called = getattr(call, "id", getattr(call, "attr", ""))
        if isinstance(value, MUTABLE_DISPLAYS) or called in MUTABLE_CALLS:
            yield Violation(path, node.lineno, "mutable-state", ast.unparse(node)[:60])
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield Violation(path, inner.lineno, "mutable-state", f"global {inner.names[0]}")
