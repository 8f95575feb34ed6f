"""Megatron's C++ dataset helpers, compiled outside the checkout, which stays as it is."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

from ringproof.errors import InputError, shown
from ringproof.extras import how_to_install
from ringproof.programs import program, run

MODULE = "megatron.core.datasets.helpers_cpp"
SOURCE = Path("megatron/core/datasets/helpers.cpp")
TRAINING = Path("megatron/training")


def find(root: Path, cache: Path) -> Path | None:
    """Return the helpers that a training loads from outside of its package, or ``None``.

    They are compiled where Megatron has none for this Python: a wheel holds them for one Python
    only. Its own are loaded in the same way where there is a training loop, which runs make else.

    Raises:
        InputError: They have to be compiled, and cannot be.
    """
    source = root / SOURCE
    own = source.with_name(f"helpers_cpp{_suffix()}")
    if own.is_file():
        return own if (root / TRAINING).is_dir() else None
    return compiled(root, cache) if source.is_file() else None


def _suffix() -> str:
    """End of the name of a compiled module of this Python."""
    return str(sysconfig.get_config_var("EXT_SUFFIX"))


def compiled(root: Path, cache: Path) -> Path:
    """Return the compiled helpers of a checkout, built once per source and interpreter.

    Raises:
        InputError: There is no compiler or no pybind11, or the source does not compile.
    """
    source = root / SOURCE
    key = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    target = cache / f"helpers_cpp-{key}{_suffix()}"
    if target.is_file():
        return target
    compiler = program("g++") or program("c++")
    if compiler is None:
        raise InputError("g++", "g++ is not installed; install a C++ compiler")
    if importlib.util.find_spec("pybind11") is None:
        sentence = f"pybind11 is not installed; {how_to_install('rehearsal')}"
        raise InputError("pybind11", sentence)
    import pybind11

    cache.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f"{os.getpid()}-{target.name}")
    includes = [f"-I{pybind11.get_include()}", f"-I{sysconfig.get_paths()['include']}"]
    command = [compiler, "-O2", "-shared", "-std=c++17", "-fPIC", *includes, str(source)]
    ended = run([*command, "-o", str(draft)])
    if ended.code:
        reason = (ended.log.strip().splitlines() or ["the compiler gave no reason"])[-1]
        sentence = f"the file in {shown(root)} does not compile ({reason}); mend the checkout"
        raise InputError(str(SOURCE), sentence)
    draft.replace(target)
    return target


def install(library: Path) -> None:
    """Load the compiled helpers under the name by which Megatron imports them."""
    spec = importlib.util.spec_from_file_location(MODULE, library)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules[MODULE] = module
    utils: Any = importlib.import_module("megatron.core.datasets.utils")
    utils.compile_helpers = lambda *_: None
