"""An upstream of texts, and anchors into it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ringproof.cards import Anchor
from ringproof.upstream.tree import refuse_escape


class TextTree:
    """An upstream of texts by path."""

    origin = "texts"

    def __init__(self, files: Mapping[str, str | bytes]) -> None:
        self._files = files

    def read(self, path: str) -> bytes:
        refuse_escape(path)
        if path not in self._files:
            raise FileNotFoundError(path)
        source = self._files[path]
        return source if isinstance(source, bytes) else source.encode()

    def paths(self, under: str = "") -> Iterator[str]:
        return (path for path in self._files if path.startswith(under))


def anchor(symbol: str | None, *expects: str, path: str = "m.py") -> Anchor:
    return Anchor(id="a", upstream="u", path=path, symbol=symbol, role="r", expects=expects)
