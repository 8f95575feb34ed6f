"""Options that the argument parser of a Megatron-LM checkout knows, read without running it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from ringproof.parsing import parsed_python
from ringproof.upstream.tree import UpstreamError, UpstreamTree, UpstreamUnavailable

ARGUMENTS = "megatron/training/arguments.py"
OTHERS = ("megatron/post_training/arguments.py", "pretrain_gpt.py", "pretrain_hybrid.py",
          "pretrain_mamba.py")  # fmt: skip
"""Files with options of the programs, which take them in addition."""
PROGRAMS = ("pretrain_gpt.py", "pretrain_hybrid.py", "pretrain_mamba.py")
"""Programs that take no options from elsewhere."""
FACTORY = "ArgumentGroupFactory"
"""Upstream's class that makes an option of each field of a dataclass."""
MOST_IMPORTS = 10
"""Modules through which a name is followed to its class."""


def options_of(tree: UpstreamTree) -> frozenset[str]:
    """Return the names of options, with their dashes; empty if the tree has no parser."""
    source = _Source(tree)
    if source.module(ARGUMENTS) is None:
        return frozenset()
    names = {name for path in (ARGUMENTS, *OTHERS) for name in source.added(path)}
    return frozenset((*names, *source.from_classes()))


class _Source:
    """Modules of a checkout, each parsed once."""

    def __init__(self, tree: UpstreamTree) -> None:
        self._tree = tree
        self._modules: dict[str, ast.Module | None] = {}

    def module(self, path: str) -> ast.Module | None:
        if path not in self._modules:
            try:
                self._modules[path] = parsed_python(self._tree.read(path))
            except (FileNotFoundError, UpstreamError, UpstreamUnavailable, ValueError):
                self._modules[path] = None
        return self._modules[path]

    def added(self, path: str) -> Iterator[str]:
        """Options that a module adds by name."""
        for node in ast.walk(self.module(path) or ast.Module([], [])):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            if node.func.attr == "add_argument":
                action = next((k.value for k in node.keywords if k.arg == "action"), None)
                yield from _names(node.args, negated="Boolean" in ast.dump(action or ast.Pass()))

    def from_classes(self) -> Iterator[str]:
        """Options that the parser makes of the fields of dataclasses."""
        module = self.module(ARGUMENTS) or ast.Module([], [])
        for function in (node for node in module.body if isinstance(node, ast.FunctionDef)):
            for made, excluded in _factories(function):
                fields = self.fields(ARGUMENTS, made)
                yield from (option for field in fields if _name(field) not in excluded
                            for option in _options(field))  # fmt: skip

    def fields(self, path: str, name: str) -> Iterator[ast.AnnAssign]:
        """Fields of a dataclass that a module defines or imports, of its bases first."""
        found = self.definition(path, name)
        if found is None:
            return
        where, node = found
        own = [line for line in node.body if isinstance(line, ast.AnnAssign)]
        for base in (base.id for base in node.bases if isinstance(base, ast.Name)):
            redefined = {_name(field) for field in own}
            yield from (field for field in self.fields(where, base)
                        if _name(field) not in redefined)  # fmt: skip
        yield from own

    def definition(self, path: str, name: str, depth: int = 0) -> tuple[str, ast.ClassDef] | None:
        """Where a class is defined that a module knows by a name."""
        module = self.module(path)
        if module is None or depth > MOST_IMPORTS:
            return None
        for node in module.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return path, node
        for node in (node for node in ast.walk(module) if isinstance(node, ast.ImportFrom)):
            original = next((a.name for a in node.names if name in (a.asname or a.name, "*")), None)
            if any(alias.name == "*" for alias in node.names):
                original = name
            if original is None:
                continue
            for target in _paths(path, node):
                found = self.definition(target, original, depth + 1)
                if found is not None:
                    return found
        return None


def _factories(function: ast.FunctionDef) -> Iterator[tuple[str, frozenset[str]]]:
    """Dataclasses of which a function makes options, each with the fields that it leaves out."""
    assigned = {
        target.id: node.value
        for node in ast.walk(function) if isinstance(node, ast.Assign)
        for target in node.targets if isinstance(target, ast.Name)
    }  # fmt: skip
    for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
        if not isinstance(call.func, ast.Name) or call.func.id != FACTORY:
            continue
        given = next((word.value for word in call.keywords if word.arg == "exclude"), None)
        if isinstance(given, ast.Name):
            given = assigned.get(given.id)
        if call.args and isinstance(call.args[0], ast.Name):
            yield call.args[0].id, frozenset(_texts(given))


def _paths(path: str, node: ast.ImportFrom) -> tuple[str, str]:
    """Files that an import may mean."""
    package = path.split("/")[: -node.level] if node.level else []
    folder = "/".join([*package, *(node.module or "").split(".")]).strip("/")
    return f"{folder}.py", f"{folder}/__init__.py"


def _names(given: list[ast.expr], *, negated: bool) -> Iterator[str]:
    for word in given:
        if isinstance(word, ast.Constant) and str(word.value).startswith("-"):
            yield str(word.value)
            if negated:
                yield str(word.value).replace("--", "--no-", 1)


def _name(field: ast.AnnAssign) -> str:
    return field.target.id if isinstance(field.target, ast.Name) else ""


def _options(field: ast.AnnAssign) -> Iterator[str]:
    """Options of a field, as upstream's factory names them."""
    settings = field.value if isinstance(field.value, ast.Call) else None
    keywords = {word.arg: word.value for word in settings.keywords} if settings else {}
    default = keywords.get("default", field.value if settings is None else None)
    if "init" in keywords or "ClassVar" in ast.dump(field.annotation):
        return
    given = _named(keywords.get("metadata"))
    dashed = _name(field).replace("_", "-")
    if given:
        yield from given
    elif not _is_bool(field.annotation) or (isinstance(default, ast.Constant)
                                            and default.value is False):  # fmt: skip
        yield f"--{dashed}"
    else:
        yield from (f"--no-{dashed}", f"--disable-{dashed}")


def _is_bool(annotation: ast.expr) -> bool:
    text = ast.unparse(annotation).strip("'\"")
    return text in ("bool", "Optional[bool]", "bool | None")


def _named(metadata: ast.expr | None) -> list[str]:
    """Names of options in a field's metadata."""
    dicts = (node for node in ast.walk(metadata or ast.Pass()) if isinstance(node, ast.Dict))
    pairs = (pair for node in dicts for pair in zip(node.keys, node.values, strict=True))
    found = next((value for key, value in pairs
                  if isinstance(key, ast.Constant) and key.value == "arg_names"), None)  # fmt: skip
    return _texts(found)


def _texts(node: ast.expr | None) -> list[str]:
    """Texts of a list that stands in the source; none of one that is computed."""
    return [str(item.value) for item in getattr(node, "elts", ()) if isinstance(item, ast.Constant)]
