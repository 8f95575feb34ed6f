"""Draws the pictures of the concept pages from the functions that run.

    python -m docs.making.drawings

writes them to `docs/images`; `checks/site/test_pictures.py` fails when one of them is out of date.
A picture follows the reader's choice of light or dark, and its text says what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from types import MappingProxyType

from ringproof.cli.plan_options import PlanOptions
from ringproof.cli.plan_result import plan_result
from ringproof.palette import size_colour
from ringproof.reference.attention.steps import step_table
from ringproof.reference.packing.partition import rank_spans
from ringproof.reference.packing.shards import Sharding
from ringproof.reference.planning.simulate import Timeline
from ringproof.reference.topology.hierarchy import level_groups

IMAGES = Path(__file__).parents[1] / "images"
RANKS, TOKENS = 4, 32
"""CP ranks and tokens of the sequence in the pictures of one sequence."""
SIZES = (1, 2, 4, 8)
"""CP sizes that pictures show; ``cp4`` is the style of an area of size 4 and of the text in it."""
_STYLE = """
text { font: 13px system-ui, sans-serif; fill: var(--ink); }
rect { shape-rendering: crispEdges; }
.small { font-size: 11px; } .title { font-size: 15px; font-weight: 600; }
.on { fill: #10151a; } .middle { text-anchor: middle; } .end { text-anchor: end; }
.line { stroke: var(--line); fill: none; } .idle { fill: var(--idle); }
.c0 { fill: #7fb2e5; } .c1 { fill: #8fce87; } .c2 { fill: #f0bd5e; } .c3 { fill: #ea9a92; }
.s0 { stroke: var(--b0); } .s1 { stroke: var(--b1); } .arrow { fill: none; stroke-width: 2; }
.box { fill: var(--box); stroke: var(--line); } .back { stroke: var(--ink); stroke-width: 2; }
svg { --ink: #1f2328; --line: #8a929b; --idle: #e4e7eb; --box: #eef2f7; }
svg { --b0: #1f6feb; --b1: #b3540a; }
@media (prefers-color-scheme: dark) {
  svg { --ink: #e6e8eb; --line: #767e88; --idle: #3a3f4a; --box: #2b303b; }
  svg { --b0: #79b8ff; --b1: #f0a35e; }
}
""" + "".join(
    f"rect.cp{size} {{ fill: {colour.fill}; }} text.cp{size} {{ fill: {colour.ink}; }}\n"
    for size, colour in zip(SIZES, map(size_colour, SIZES), strict=True)
)


@dataclass
class Drawing:
    """An SVG under construction.

    Attributes:
        width, height: Size in pixels.
        title: What the picture shows, for readers that cannot see it.
    """

    width: int
    height: int
    title: str
    parts: list[str] = field(default_factory=list)

    def box(self, x: float, y: float, width: float, height: float, style: str) -> None:
        """Add a rectangle."""
        self.add("rect", x=x, y=y, width=width, height=height, class_=style)

    def text(self, x: float, y: float, words: object, style: str = "") -> None:
        """Add text; ``y`` is its baseline."""
        self.add("text", words, x=x, y=y, class_=style)

    def add(self, tag: str, words: object = None, **attributes: float | str) -> None:
        """Add an element; an underscore in the name of an attribute stands for a hyphen."""
        pairs = ((name.strip("_").replace("_", "-"), value) for name, value in attributes.items())
        head = " ".join((tag, *(f'{name}="{_short(value)}"' for name, value in pairs)))
        inner = "/>" if words is None else f">{escape(str(words))}</{tag}>"
        self.parts.append(f"<{head}{inner}")

    def __str__(self) -> str:
        """The file."""
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
            f'width="{self.width}" height="{self.height}" role="img">\n'
            f"<title>{escape(self.title)}</title>\n<style>{_STYLE}</style>\n"
            '<defs><marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="6" '
            'markerHeight="6" orient="auto-start-reverse"><path d="M0 0L8 4L0 8z" '
            'fill="context-stroke"/></marker></defs>\n' + "\n".join(self.parts) + "\n</svg>\n"
        )


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")


def zigzag() -> Drawing:
    """Which tokens each rank holds, and how many key positions its queries see."""
    made = Drawing(
        720,
        270,
        f"Tokens of one sequence on {RANKS} ranks. Contiguous shards give the last rank most "
        "of the causal work; zigzag shards give each rank one early and one late chunk, and equal "
        "work.",
    )
    left, wide = 96, 17
    for row, partition in enumerate(("contiguous", "zigzag")):
        top = 34 + row * 124
        made.text(8, top - 12, partition.capitalize(), "title")
        for rank in range(RANKS):
            for span in rank_spans(TOKENS, RANKS, rank, partition):
                x, width = left + span.start * wide, (span.stop - span.start) * wide
                made.box(x, top, width - 1, 30, f"c{rank}")
                made.text(x + width / 2, top + 20, f"rank {rank}", "on middle small")
        made.text(left - 8, top + 20, "tokens", "end small")
        made.text(left - 8, top + 60, "causal work", "end small")
        works = [_work(rank, partition) for rank in range(RANKS)]
        x = float(left)
        for rank, work in enumerate(works):
            width = work * TOKENS * wide / sum(works)
            made.box(x, top + 42, width - 1, 26, f"c{rank}")
            share = f"{work / sum(works):.0%}"
            made.text(x + width / 2, top + 60, share, "on middle small")
            x += width
    return made


def _work(rank: int, partition: str) -> int:
    """Pairs of query and key that a rank computes under a causal mask."""
    spans = rank_spans(TOKENS, RANKS, rank, partition)
    return sum(position + 1 for span in spans for position in range(span.start, span.stop))


def ring_steps() -> Drawing:
    """Which query meets which key in which step, for both partitions."""
    made = Drawing(
        720,
        400,
        "Queries by keys under a causal mask, coloured by the ring step in which they meet. With "
        "zigzag shards every rank works in every step; with contiguous shards rank 0 works in one.",
    )
    size, cell = TOKENS, 9.4
    for place, partition in enumerate(("zigzag", "contiguous")):
        left, top = 60 + place * 350, 40
        made.text(left, 24, partition.capitalize(), "title")
        for row, column, width, step in _step_runs(partition):
            made.box(left + column * cell, top + row * cell, width * cell, cell, f"c{step}")
        for rank in range(RANKS):
            for span in rank_spans(TOKENS, RANKS, rank, partition):
                y = top + span.start * cell
                made.add("path", d=f"M{left} {_short(y)}h{_short(size * cell)}", class_="line")
                middle = top + (span.start + span.stop) / 2 * cell + 4
                made.text(left - 6, middle, f"rank {rank}", "end small")
        edge = _short(size * cell)
        made.add("path", d=f"M{left} {top}h{edge}v{edge}h-{edge}z", class_="line")
        made.text(left + size * cell / 2, top + size * cell + 18, "key position", "middle small")
    for step in range(RANKS):
        made.box(190 + step * 90, 374, 16, 16, f"c{step}")
        made.text(212 + step * 90, 387, f"step {step}")
    return made


def _step_runs(partition: str) -> Iterator[tuple[int, int, int, int]]:
    """Row, first column, columns and step of the runs of equal colour."""
    met = dict(_meetings(partition))
    for row in range(TOKENS):
        start = 0
        while start < TOKENS:
            end = start + 1
            while end < TOKENS and met.get((row, end)) == met.get((row, start)):
                end += 1
            if (row, start) in met:
                yield row, start, end - start, met[row, start]
            start = end


def _meetings(partition: str) -> Iterator[tuple[tuple[int, int], int]]:
    """Positions of a query and a key, and the step in which they meet."""
    sharding = Sharding.of_sequence(TOKENS, RANKS, partition)
    held = [[p for s in shard for p in range(s.start, s.stop)] for shard in sharding.shards]
    tables = [step_table(sharding, rank, causal=True) for rank in range(RANKS)]
    tiles = (
        (index, held[rank][tile.q.index], held[step.source][tile.kv.index], tile.causal)
        for rank, table in enumerate(tables)
        for index, step in enumerate(table)
        for tile in step.tiles
    )
    for index, queries, keys, causal in tiles:
        for i, query in enumerate(queries):
            yield from (((query, key), index) for key in (keys[: i + 1] if causal else keys))


def hierarchy() -> Drawing:
    """Eight CP ranks as [2, 4]: pairs that exchange heads, and two rings over them."""
    made = Drawing(
        720,
        250,
        "Eight CP ranks with hierarchical sizes [2, 4]. Level 0 joins neighbours for an "
        "all-to-all; level 1 joins every second rank in a ring.",
    )
    left, step, middle = 170, 70, 125
    for pair in level_groups(range(8), (2, 4), level=0):
        made.box(left + pair[0] * step - 24, middle - 28, step + 48, 56, "box")
    for index, ring in enumerate(level_groups(range(8), (2, 4), level=1)):
        above = index == 0
        edge = middle + (-30 if above else 30)
        for here, there in zip(ring, (*ring[1:], ring[0]), strict=True):
            reach = 26 if there > here else 84
            top = edge + (-reach if above else reach)
            start, end = left + here * step, left + there * step
            curve = f"M{start} {edge}C{start} {top} {end} {top} {end} {edge}"
            made.add("path", d=curve, class_=f"arrow s{index}", marker_end="url(#head)")
        made.text(8, middle + (-78 if above else 86), f"level 1: ring {list(ring)}", "small")
    for rank in range(8):
        x = left + rank * step
        made.add("circle", cx=x, cy=middle, r=17, class_=f"c{rank % 2}")
        made.text(x, middle + 5, rank, "on middle")
    made.text(8, middle - 4, "level 0: all-to-all", "small")
    made.text(8, middle + 12, "inside each box", "small")
    return made


def dynamic_plan() -> Drawing:
    """A plan as ranks by time, below static packing of the same lengths."""
    options = PlanOptions(
        lengths="lognormal:mean=3000,sigma=1.8,min=128,max=65536,n=128,seed=1",
        ranks=8,
        max_tokens_per_rank=8192,
    )
    result = plan_result(options, options.read())
    static, gain = next((item, gain) for item, gain in result.gains() if item.name == "static")
    name = f"Static packing, CP {static.cp_size} for every sequence"
    made = Drawing(
        720,
        440,
        f"{len(result.lengths)} sequences on 8 ranks, ranks by time. {name} takes {gain:.2f} times "
        "as long as the dynamic plan, whose CP sizes follow the lengths.",
    )
    sizes = result.domain.cp_sizes
    scale = 650 / static.plan.metrics.makespan
    _panel(made, 34, name, static.line, scale)
    _panel(made, 230, f"Dynamic CP, {gain:.2f} times as fast", result.line, scale)
    for index, size in enumerate(sizes):
        made.box(60 + index * 90, 415, 16, 16, f"cp{size}")
        made.text(82 + index * 90, 428, f"CP {size}")
    made.box(60 + len(sizes) * 90, 415, 16, 16, "idle")
    made.text(82 + len(sizes) * 90, 428, "idle")
    return made


def _panel(made: Drawing, top: float, name: str, line: Timeline, scale: float) -> None:
    """The groups of a plan as blocks: ranks downwards, time to the right."""
    left, row = 60, 19
    made.text(left, top - 10, name, "title")
    made.box(left, top, line.ends[-1] * scale, 8 * row, "idle")
    for block in line.blocks:
        wide = max((block.end - block.start) * scale - 1, 0.5)
        x, y = left + block.start * scale, top + block.group.first_rank * row
        made.box(x, y, wide, block.group.size * row - 1, f"cp{block.group.size}")
    for rank in range(8):
        made.text(left - 6, top + rank * row + 14, f"rank {rank}", "end small")


PICTURES = MappingProxyType(
    {
        "zigzag.svg": zigzag,
        "steps.svg": ring_steps,
        "hierarchy.svg": hierarchy,
        "dynamic-plan.svg": dynamic_plan,
    }
)


if __name__ == "__main__":
    for name, draw in PICTURES.items():
        (IMAGES / name).write_text(str(draw()), encoding="utf-8")
