"""The console of rich on which every command prints what it did not write itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from ringproof.findings.printable import harmless
from ringproof.styles import BAD, GOOD, shown_on, word_style


class HarmlessConsole(Console):
    """A console that escapes, in what it prints, what `harmless` escapes.

    rich itself removes only five control characters from a text, and prints all others. Where
    NO_COLOR is set, nothing has a style; rich itself would print in bold. A width of 0, as
    COLUMNS=0 gives it, counts as 80; rich itself would print nothing.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        if not self.width:
            self.width = 80

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Yield the segments of something to print, of which those with text are harmless."""
        for text, style, control in super().render(renderable, options):
            plain = None if self.no_color else style
            yield Segment(text if control else harmless(text), plain, control)

    def say(self, lines: Iterable[str], *, good: bool | None = None) -> None:
        """Print the lines of a result, each as it is if nobody sees this on a terminal.

        A terminal gets colours, and no line is wider than it: lines are broken between words.

        Args:
            good: Whether the verdict in the first line is good; ``None`` where it is not a verdict.
        """
        style = {None: "", True: f"bold {GOOD}", False: BAD}[good]
        for line in lines:
            if self.is_terminal:
                text = Text(harmless(line), style)
                if not style and (word := word_style(line)):
                    text.stylize(*word)
                self.print(shown_on(self, text), soft_wrap=True, highlight=False)
            else:
                typer.echo(harmless(line), err=self.stderr)
            style = ""
