"""The console of rich on which every command prints what it did not write itself."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from ringproof.cli.output import harmless


class HarmlessConsole(Console):
    """A console that escapes, in what it prints, what `harmless` escapes.

    rich itself removes only five control characters from a text, and prints all others.
    """

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of something to print, of which those with text are harmless."""
        for text, style, control in super().render(renderable, options):
            yield Segment(text if control else harmless(text), style, control)
