"""Puts the planner's page together: Python for a browser, the planner's files, and a first plan.

Python comes from the npm package ``pyodide`` (`docs/browser/package.json`), and the compiled part
of pydantic from the package index. ``make docs`` fetches both. Without them the site is built all
the same; then the page shows its first plan and names the command.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import distribution
from pathlib import Path
from types import MappingProxyType
from typing import Any

DOCS = Path(__file__).parents[1]
BROWSER = DOCS / "browser"
PYODIDE = BROWSER / "node_modules" / "pyodide"
WHEELS = DOCS.parent / "build" / "browser"
"""Wheels for a browser's Python, fetched by ``make docs``."""
FILES = (
    "pyodide.mjs",
    "pyodide.asm.mjs",
    "pyodide.asm.wasm",
    "pyodide-lock.json",
    "python_stdlib.zip",
)
FIRST = MappingProxyType(
    {
        "lengths": "lognormal:mean=1024,sigma=1.5,min=128,max=8192,n=256,seed=0",
        "ranks": 16,
        "max_tokens_per_rank": 2048,
        "cost": "full",
        "objective": "sync",
        "cp_sizes": "pow2",
    }
)
"""The options of the first plan; the form starts with them."""
PACKAGE = DOCS.parent / "src" / "ringproof"
_COMPILED = "pydantic_core"
_ELSEWHERE = ("entry", _COMPILED)
_LOG = logging.getLogger("mkdocs.hooks.browser")


def first_plan() -> tuple[dict[str, object], dict[str, Path]]:
    """Run the entry as the browser does, without numpy, and note what it imported.

    Returns:
        What `docs/browser/entry.py` answers, and the files to be packed by their names in the
        archive.

    Raises:
        subprocess.CalledProcessError: The planner needs something that a browser does not have.
    """
    command = [sys.executable, "-c", "from docs.making import browser; browser.list_modules()"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=DOCS.parent)
    found = json.loads(done.stdout)
    return found["answer"], dict(_sources(found["loaded"]))


def list_modules() -> None:
    """Plan in this process, and print the answer and the file of each module that it loaded."""
    sys.modules["markupsafe._speedups"] = None  # type: ignore[assignment]  # compiled
    entry = planner(with_numpy=False)
    answer = json.loads(entry.answer(json.dumps(dict(FIRST))))
    entry.answer(json.dumps({"text": "12 x"}))  # refusing it needs other modules
    files = {name: getattr(item, "__file__", None) for name, item in list(sys.modules.items())}
    foreign = {
        name: file
        for name, file in files.items()
        if file and name.partition(".")[0] not in sys.stdlib_module_names
    }
    print(json.dumps({"answer": answer, "loaded": foreign}))


def planner(*, with_numpy: bool) -> Any:
    """Load `docs/browser/entry.py`. Without numpy, as in a browser, importing that fails."""
    if not with_numpy:
        sys.modules["numpy"] = None  # type: ignore[assignment]
    spec = importlib.util.spec_from_file_location("entry", BROWSER / "entry.py")
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules["entry"] = made
    spec.loader.exec_module(made)
    return made


def _sources(loaded: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Names in the archive, and files.

    Of this repository those that were imported, and of other packages all: what they import depends
    on Python's version, and a browser has another.
    """
    yield "entry.py", BROWSER / "entry.py"
    for name, text in loaded.items():
        file, top = Path(text), name.partition(".")[0]
        if top == "ringproof":
            package = file.name == "__init__.py"
            yield name.replace(".", "/") + ("/__init__.py" if package else ".py"), file
        elif name == top and name not in _ELSEWHERE and not name.startswith("_"):
            whole = sorted(file.parent.rglob("*.py")) if file.name == "__init__.py" else [file]
            base = file.parent.parent if file.name == "__init__.py" else file.parent
            yield from ((path.relative_to(base).as_posix(), path) for path in whole)
    for path in sorted((PACKAGE / "cli" / "pages").iterdir()):
        yield f"ringproof/cli/pages/{path.name}", path


def put(site: Path) -> bool:
    """Write the planner's files into a built site; tell whether it has Python for the browser.

    Raises:
        FileNotFoundError: There is no wheel of pydantic's compiled part for the installed version.
    """
    folder = site / "assets" / "planner"
    folder.mkdir(parents=True, exist_ok=True)
    answer, sources = first_plan()
    (folder / "first.html").write_text(str(answer.pop("page")), encoding="utf-8")
    there = PYODIDE.is_dir()
    state = {"python": there, "options": dict(FIRST), **answer}
    (folder / "first.json").write_text(json.dumps(state), encoding="utf-8")
    if not there:
        _LOG.info("no Python for the browser: run `make docs`, or npm ci in docs/browser")
        return False
    for name in FILES:
        shutil.copyfile(PYODIDE / name, folder / name)
    shutil.copyfile(compiled_wheel(), folder / "compiled.whl")
    with zipfile.ZipFile(folder / "ringproof.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, path in sorted(sources.items()):
            archive.write(path, name)
    return True


def compiled_wheel() -> Path:
    """The wheel of pydantic's compiled part, of the version that is installed here.

    Raises:
        FileNotFoundError: It was not fetched.
    """
    wanted = f"{_COMPILED}-{distribution(_COMPILED).version}-*wasm32.whl"
    found = sorted(WHEELS.glob(wanted))
    if not found:
        raise FileNotFoundError(f"{WHEELS / wanted}: run `make docs`, which fetches it")
    return found[0]


def fetch() -> None:
    """Download the wheel of pydantic's compiled part that fits Pyodide's Python.

    Raises:
        subprocess.CalledProcessError: The package index has none for the installed version.
    """
    info = json.loads((PYODIDE / "pyodide-lock.json").read_text(encoding="utf-8"))["info"]
    version = ".".join(info["python"].split(".")[:2])
    options = {
        "--platform": f"pyemscripten_{info['abi_version']}_{info['arch']}",
        "--python-version": version,
        "--implementation": "cp",
        "--abi": f"cp{version.replace('.', '')}",
        "--dest": str(WHEELS),
    }
    words = [word for option in options.items() for word in option]
    package = f"{_COMPILED}=={distribution(_COMPILED).version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *words, package]
    subprocess.run([*command, "--only-binary", ":all:"], check=True)


if __name__ == "__main__":
    fetch()
