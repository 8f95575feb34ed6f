"""Put into a wheel what `ringproof prove` needs of a checkout; see `ringproof.shipped`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PARTS = (
    "skills", "cards", "evidence", "checks", "smoke", "benchmarks/graphs",
    "benchmarks/records.py", "conftest.py",
    "pyproject.toml",
)  # fmt: skip


class Shipped(BuildHookInterface):  # type: ignore[type-arg]  # older hatchling's is not generic
    """Add the parts to a wheel. An editable installation has the checkout itself."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name the files to include, as hatchling asks for them."""
        if version == "editable":
            return
        for part in PARTS:
            path = Path(self.root, part)
            if path.exists():  # a copy without skills can be installed, too
                build_data["force_include"][str(path)] = f"ringproof/_checkout/{part}"
