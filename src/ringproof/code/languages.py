"""Chooses the language of a file."""

from __future__ import annotations

from ringproof.code.definitions import Module
from ringproof.code.native.module import NATIVE_ENDINGS, NativeModule
from ringproof.code.python import PythonModule


def has_symbols(path: str) -> bool:
    """Return whether symbols are searched in a file that no anchor names."""
    return path.endswith((".py", *NATIVE_ENDINGS))


def is_native(path: str) -> bool:
    """Return whether a file is C++ or CUDA by its suffix; other files count as Python."""
    return path.endswith(NATIVE_ENDINGS)


def parse_module(path: str, source: bytes) -> Module:
    """Parse upstream's source without executing it.

    Raises:
        UnparsableError: The file cannot be parsed.
        InputError: The parser of its language is not installed.
    """
    return NativeModule(source) if is_native(path) else PythonModule(source)


def last_name(path: str, symbol: str) -> str:
    """Return a word that every file that defines a symbol contains."""
    if is_native(path):
        return symbol.split("::")[-1].partition("#")[0].lstrip("~").split()[-1]
    return symbol.split(".")[-1].split("#")[0]
