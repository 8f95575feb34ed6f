"""Two training logs compared, as one page that needs nothing but the file itself."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from string import Template
from typing import Any

from ringproof.cli.logs_parity_curves import LEFT, WIDTH, picture
from ringproof.cli.logs_parity_text import described, headline, rows, shown
from ringproof.cli.page import asset, embedded
from ringproof.harness.logs.training.comparison import Comparison, cautions, readings
from ringproof.harness.logs.training.drawing import Curves, curves
from ringproof.harness.reports.printable import showable


def page(result: Comparison) -> str:
    """The page's text. Everything that came from outside is escaped."""
    drawn = curves(result)
    lead = "\n".join(f"{log.role}  {described(log)}" for log in (result.a, result.b))
    return Template(asset("parity.html")).substitute(
        title=_safe(f"Training logs: {headline(result)}"),
        mood="within" if result.within else "beyond",
        style=asset("parity.css"),
        script=asset("parity.js"),
        lead=html.escape(lead),
        panels="\n".join(_panels(result, drawn)),
        remarks="\n".join(_remarks(result)),
        rows="\n".join(_rows(result)),
        data=embedded(_data(drawn)),
    )


def _safe(text: str) -> str:
    return html.escape(showable(text, 400))


def _panels(result: Comparison, drawn: Sequence[Curves]) -> Iterator[str]:
    for one, curve in zip(result.series, drawn, strict=True):
        verdict = one.judgement.kind.value
        at = f" at step {one.first.step:,}" if one.first else ""
        said = _safe(f"{verdict}{at}, {len(one.common.steps):,} common steps")
        yield f"<section><h2>{_safe(one.name)}<small>{said}</small></h2>"
        yield '<div class="scroll">'
        yield from picture(curve, result.tolerance)
        yield "</div>"
        if not curve.complete:
            yield '<p class="hint">Too many steps to draw all: the extremes of each part are.</p>'
        yield "</section>"


def _remarks(result: Comparison) -> Iterator[str]:
    said = [f"Finding: {text}" for text in readings(result)]
    said += [f"Caution: {text}" for text in cautions(result)]
    if said:
        yield '<ul class="remarks">'
        yield from (f"<li>{_safe(text)}</li>" for text in said)
        yield "</ul>"


def _rows(result: Comparison) -> Iterator[str]:
    for one in result.series:
        verdict = one.judgement.kind.value
        points = [(what, point) for what, point in rows(one) if point is not None]
        if not points:
            yield _row(one.name, verdict, "none", "", "", "", "")
        for what, point in points:
            values = (f"{point.step:,}", shown(point.a), shown(point.b), f"{point.relative:.3g}")
            yield _row(one.name, verdict, what, *values)


def _row(*cells: str) -> str:
    return f"<tr>{''.join(f'<td>{_safe(cell)}</td>' for cell in cells)}</tr>"


def _data(drawn: Sequence[Curves]) -> dict[str, Any]:
    """Numbers as text: JSON has neither all digits for certain nor what is not a number."""
    panels = [
        {
            "steps": one.steps,
            "a": [shown(value) for value in one.a],
            "b": [shown(value) for value in one.b],
            "relative": [f"{value:.3g}" for value in one.relative],
        }
        for one in drawn
    ]
    return {"left": LEFT, "width": WIDTH, "panels": panels}
