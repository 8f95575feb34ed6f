"""Synthetic wheels: a few source files in a zip that pip accepts."""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

SOURCES = MappingProxyType(
    {
        "pkg/__init__.py": "",
        "pkg/mod.py": '''"""Module words."""
import argparse
from dataclasses import dataclass

LIMIT: int = 4
NAMES = ("hierarchical", "flat")


@dataclass
class Config:
    """Class words."""

    size: int = 1
    """How many ranks; wrapped
    over two lines."""

    comm_type = "p2p"  # never a2a here

    def check(self, total: int) -> None:
        if total % self.size:
            raise ValueError(f"size {self.size} does not divide {total}")


def build(sizes, *, group_desc=None):
    # mentions forbidden_word in a comment
    def level(index):
        return make_group(ranks=sizes[index], desc=f"LEVEL_{index}")

    return [level(index) for index in range(len(sizes))]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cp-comm-type", "-c", default="p2p", help="a2a+p2p is two-level")
    parser.add_argument("--other", type=int)


try:
    import fast

    def chosen():
        return fast.kernel()
except ImportError:

    def chosen():
        return None
''',
    }
)


def make_wheel(
    folder: Path,
    sources: Mapping[str, str | bytes] = SOURCES,
    *,
    name: str = "demo_upstream",
    version: str = "1.0",
    tag: str = "py3-none-any",
) -> Path:
    """Write ``NAME-VERSION-TAG.whl`` into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-{tag}.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in sources.items():
            archive.writestr(file, text)
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        )
        archive.writestr(
            f"{info}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


def fill_cache(
    cache: Path, sources: Mapping[str, str | bytes] = SOURCES, *, version: str = "1.0"
) -> str:
    """Put a wheel of ``demo-upstream`` where an earlier download would have left it; its hash."""
    wheel = make_wheel(cache / "demo-upstream" / version, sources, version=version)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    wheel.with_name(f"{wheel.name}.sha256").write_text(f"{digest}\n")
    return digest


def only_index(folder: Path) -> dict[str, str]:
    """Make a folder and return an environment in which it is all that pip knows."""
    folder.mkdir()
    return {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
