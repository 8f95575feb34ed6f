"""Draws the pictures of the docs from the step tables themselves.

    python docs/pictures.py

So a picture cannot show another schedule than the one that runs.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap

from ringproof.reference.attention.steps import flat_step_table
from ringproof.reference.packing.partition import rank_spans
from ringproof.reference.topology.hierarchy import level_groups

IMAGES = Path(__file__).parent / "images"
SIZE, SEQ_LEN = 4, 32
COLOURS = ("#ffffff", "#3b6ea5", "#7aa874", "#e0a458", "#b85c5c")


def steps_of_pairs(partition: str) -> np.ndarray:
    """``[SEQ_LEN, SEQ_LEN]``: 1 + the step in which query (row) meets key (column); 0: never."""
    met = np.zeros((SEQ_LEN, SEQ_LEN), dtype=int)
    held = [
        [p for s in rank_spans(SEQ_LEN, SIZE, rank, partition) for p in range(s.start, s.stop)]
        for rank in range(SIZE)
    ]
    for rank in range(SIZE):
        table = flat_step_table(SEQ_LEN, SIZE, rank, partition=partition, causal=True)
        for index, step in enumerate(table):
            for tile in step.tiles:
                queries = np.array(held[rank][tile.q.rows])
                keys = np.array(held[step.source][tile.kv.rows])
                seen = np.ones((len(queries), len(keys)), dtype=int)
                seen = np.tril(seen) if tile.causal else seen
                met[np.ix_(queries, keys)] += seen * (index + 1)
    return met


def draw_steps(axes: Axes, partition: str) -> None:
    """Who meets whom in which step, with the owners of the rows at the side."""
    axes.imshow(steps_of_pairs(partition), cmap=ListedColormap(COLOURS), vmin=0, vmax=SIZE)
    for rank in range(SIZE):
        for span in rank_spans(SEQ_LEN, SIZE, rank, partition):
            middle = (span.start + span.stop - 1) / 2
            axes.text(-1.5, middle, f"rank {rank}", ha="right", va="center", fontsize=8)
            axes.axhline(span.start - 0.5, color="#999999", linewidth=0.5)
            axes.axvline(span.start - 0.5, color="#999999", linewidth=0.5)
    axes.set_title(partition, fontsize=11)
    axes.set_xlabel("key position")
    axes.set_xticks([])
    axes.set_yticks([])
    for side in axes.spines.values():
        side.set_color("#999999")


def steps_picture() -> None:
    """Ring steps under a causal mask, zigzag beside contiguous."""
    figure, both = plt.subplots(1, 2, figsize=(9, 4.6))
    for axes, partition in zip(both, ("zigzag", "contiguous"), strict=True):
        draw_steps(axes, partition)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS[step + 1]) for step in range(SIZE)]
    labels = [f"step {step}" for step in range(SIZE)]
    figure.legend(handles, labels, ncol=SIZE, loc="lower center", frameon=False)
    figure.subplots_adjust(left=0.09, right=0.99, bottom=0.16, top=0.92, wspace=0.25)
    save(figure, "steps.svg")


def hierarchy_picture() -> None:
    """Eight CP ranks as [2, 4]: all-to-all pairs side by side, two rings over them."""
    figure, axes = plt.subplots(figsize=(9, 2.9))
    for pair in level_groups(range(8), (2, 4), level=0):
        box = plt.Rectangle((pair[0] - 0.42, -0.35), 1.84, 0.7)
        box.set(facecolor="#e8eef5", edgecolor=COLOURS[1])
        axes.add_patch(box)
    for index, ring in enumerate(level_groups(range(8), (2, 4), level=1)):
        sign = 1 if index else -1
        for here, there in zip(ring, (*ring[1:], ring[0]), strict=True):
            bend = -0.25 * sign if there > here else 0.24 * sign
            axes.annotate(
                "",
                xy=(there, 0.27 * sign),
                xytext=(here, 0.27 * sign),
                arrowprops={
                    "arrowstyle": "->",
                    "color": COLOURS[3 + index],
                    "connectionstyle": f"arc3,rad={bend}",
                },
            )
    for rank in range(8):
        axes.text(rank, 0, str(rank), ha="center", va="center", fontsize=13)
    for height, text, colour in (
        (0.0, "level 0\nall-to-all", COLOURS[1]),
        (0.75, "level 1, ring", COLOURS[4]),
        (-0.75, "level 1, ring", COLOURS[3]),
    ):
        axes.text(-0.55, height, text, ha="right", va="center", fontsize=9, color=colour)
    axes.set_xlim(-1.9, 7.7)
    axes.set_ylim(-1.35, 1.35)
    axes.axis("off")
    figure.subplots_adjust(left=0.01, right=0.99, bottom=0.02, top=0.98)
    save(figure, "hierarchy.svg")


def save(figure: plt.Figure, name: str) -> None:
    """Write an SVG that is the same for the same picture."""
    figure.savefig(IMAGES / name, metadata={"Date": None})
    figure.savefig(Path("build") / name.replace(".svg", ".png"), dpi=80)


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "ringproof"
    Path("build").mkdir(exist_ok=True)
    steps_picture()
    hierarchy_picture()
