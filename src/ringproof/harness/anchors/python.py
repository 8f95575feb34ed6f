"""Python as a language of anchors, by `ast`; see `symbols` for the syntax of symbols."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

from ringproof.harness.anchors.catalog import catalog
from ringproof.harness.anchors.changes import summarise
from ringproof.harness.anchors.contents import (
    documentation_fingerprint,
    fingerprint,
    missing_expectations,
)
from ringproof.harness.anchors.protocol import Definition
from ringproof.harness.anchors.similarity import similarity
from ringproof.harness.anchors.symbols import (
    Found,
    OptionIndex,
    choose_option,
    find_symbol,
    option_index,
    parse_source,
)


@dataclass(frozen=True)
class PythonDefinition:
    """See `protocol.Definition`."""

    found: Found

    @property
    def start(self) -> int:
        """Its first line, decorators excluded."""
        return self.found.start

    @property
    def end(self) -> int:
        """Its last line."""
        return self.found.end

    def missing(self, expects: Sequence[str]) -> tuple[str, ...]:
        """See `contents.missing_expectations`."""
        return missing_expectations(self.found.nodes, expects)

    def fingerprint(self) -> str:
        """See `contents.fingerprint`."""
        return fingerprint(self.found.nodes)

    def documentation(self) -> str:
        """See `contents.documentation_fingerprint`."""
        return documentation_fingerprint(self.found.nodes)

    def changes(self, later: Definition) -> tuple[str, ...]:
        """See `changes.summarise`."""
        if not isinstance(later, PythonDefinition):
            return ("language",)
        return summarise(self.found, later.found)

    def likeness(self, other: Definition) -> float:
        """See `similarity.similarity`."""
        return similarity(self.found, other.found) if isinstance(other, PythonDefinition) else 0.0


class PythonModule:
    """One Python file."""

    def __init__(self, module: ast.Module) -> None:
        self._module = module

    @cached_property
    def _options(self) -> OptionIndex:
        return option_index(self._module)

    def find(self, symbol: str) -> PythonDefinition:
        """See `protocol.Module.find`."""
        if symbol.startswith("--"):
            return PythonDefinition(choose_option(self._options, symbol))
        return PythonDefinition(find_symbol(self._module, symbol))

    def catalog(self) -> Mapping[str, PythonDefinition]:
        """See `protocol.Module.catalog`."""
        found = catalog(self._module)
        return MappingProxyType({name: PythonDefinition(item) for name, item in found.items()})


class Python:
    """Python source."""

    name = "Python"

    def parse(self, source: bytes) -> PythonModule:
        """See `symbols.parse_source`."""
        return PythonModule(parse_source(source))

    def last_name(self, symbol: str) -> str:
        """See `protocol.Language.last_name`."""
        return symbol.split(".")[-1].split("#")[0]
