"""The rules of the house, as functions from source text to violations."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 6
MAX_NESTING = 3

# Inside ``reference`` imports point to the left of this order.
REFERENCE_ORDER = ("topology", "packing", "planning", "attention", "model", "graphs", "training")
HARNESS_MAY_IMPORT = ("topology", "packing", "planning")
# The tape is a test double of a device for ``reference.graphs``, which records torch's operations.
TAPE = ["harness", "tape"]
NEEDS_TORCH = (
    "torch",
    "ringproof.reference.topology.context",
    "ringproof.reference.topology.census",
    "ringproof.reference.topology.dynamic",
    "ringproof.harness.cluster.worker",
)
TORCH_ALLOWED_IN_HARNESS = (
    "src/ringproof/harness/cluster/worker.py",
    "src/ringproof/harness/tape/",
)
ENVIRONMENT_ALLOWED_IN = (
    "src/ringproof/harness/cluster/",
    "src/ringproof/cli/",
    "src/ringproof/rehearsal/rank/",  # a rank's place in the world is in its environment
    "src/ringproof/rehearsal/running.py",  # which starts them
)
# Stand-ins of compiled functions take the arguments that upstream's bindings take.
UPSTREAM_SIGNATURES = "src/ringproof/rehearsal/standins/"
MUTABLE_CALLS = frozenset(
    {"dict", "list", "set", "defaultdict", "Counter", "deque", "bytearray", "fromkeys"}
)
CACHES = frozenset({"cache", "lru_cache"})
ASSIGNMENTS = (ast.Assign, ast.AnnAssign, ast.AugAssign)
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
    found = [*sizes(path, tree)]
    if path.startswith("src/"):
        found += [*imports(path, tree), *environment(path, tree), *mutable_state(path, tree)]
    return found


def sizes(path: str, tree: ast.Module) -> Iterator[Violation]:
    """A function fits a screen, takes few arguments and nests little."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if (node.end_lineno or node.lineno) - node.lineno + 1 > MAX_FUNCTION_LINES:
            yield Violation(path, node.lineno, "function-length", node.name)
        positional = len(node.args.posonlyargs) + len(node.args.args)
        if positional > MAX_POSITIONAL and not path.startswith(UPSTREAM_SIGNATURES):
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
    for line, module, at_top in imported_modules(path, tree):
        if points_up(package, module.split(".")):
            yield Violation(path, line, "import-direction", module)
        needs_torch = any(f"{module}.".startswith(f"{name}.") for name in NEEDS_TORCH)
        allowed = path.startswith(TORCH_ALLOWED_IN_HARNESS)
        if package[0] == "harness" and at_top and needs_torch and not allowed:
            yield Violation(path, line, "torch-in-harness", module)


def points_up(package: list[str], module: list[str]) -> bool:
    """Whether a file of ``reference`` or ``harness`` may not import a module."""
    if module[0] != "ringproof" or len(module) < 2 or package[0] not in ("reference", "harness"):
        return False
    half, part = module[1], module[2] if len(module) > 2 else ""
    if half == "cli" or (package[0] == "reference" and half == "harness"):
        return True
    if half != "reference" or part not in REFERENCE_ORDER:
        return False
    if package[0] == "harness":
        return part not in HARNESS_MAY_IMPORT and not (package[:2] == TAPE and part == "graphs")
    return len(package) > 2 and REFERENCE_ORDER.index(part) > REFERENCE_ORDER.index(package[1])


def imported_modules(path: str, tree: ast.Module) -> Iterator[tuple[int, str, bool]]:
    """Line, dotted name, and whether the import runs when the module is loaded.

    ``from a import b`` may name a module ``a.b`` or something in ``a``: both are given.
    """
    lazy = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or is_type_checking(node)
        for inner in ast.walk(node)
    }
    package = path.removeprefix("src/").removesuffix(".py").split("/")
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, node not in lazy) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: -node.level] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield node.lineno, module, node not in lazy
            names = (alias.name for alias in node.names)
            yield from ((node.lineno, f"{module}.{name}", node not in lazy) for name in names)


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
    """No module or class holds a list, dictionary, set or cache, and no function a ``global``."""
    for node in module_level(tree):
        value = node.value if isinstance(node, ASSIGNMENTS) else None
        exported = isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        cached = any(name_of(d) in CACHES for d in getattr(node, "decorator_list", []))
        if cached or (value is not None and is_mutable(value) and not exported):
            yield Violation(path, node.lineno, "mutable-state", ast.unparse(node)[:60])
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield Violation(path, inner.lineno, "mutable-state", f"global {inner.names[0]}")


def module_level(node: ast.AST) -> Iterator[ast.stmt]:
    """Statements that run when the module is loaded, those of classes and conditions included."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            yield child
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.expr):
            yield from module_level(child)


def is_mutable(value: ast.expr) -> bool:
    """A display or constructor that can change later, also as a part of a tuple or expression.

    What is passed to another call is that call's affair: ``frozenset({...})`` is frozen.
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
