"""What the user expects of a run, checked for sense before any log is read."""

from __future__ import annotations

from dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.harness.logs.verdict import Verdict


@dataclass(frozen=True)
class Expectation:
    """The expected verdict, level sizes (inner first), and whether creation is too weak a proof."""

    verdict: Verdict | None = None
    level_sizes: tuple[int, ...] | None = None
    require_traffic: bool = False

    @property
    def given(self) -> bool:
        """Whether there is anything to compare with."""
        return self.verdict is not None


def parse_expectation(
    expect: str | None, hcp: str | None, require_traffic: bool = False
) -> Expectation:
    """From the words of the command line. Level sizes alone expect ``hierarchical``.

    Raises:
        InputError: an unknown verdict, sizes that are no list of whole numbers or no hierarchy,
            sizes together with an expectation other than ``hierarchical``.
    """
    words = tuple(verdict.value for verdict in Verdict if verdict is not Verdict.UNKNOWN)
    if expect is not None and expect not in words:
        raise InputError("--expect", expect, "no such verdict", f"give one of {', '.join(words)}")
    sizes = None if hcp is None else _sizes(hcp)
    if sizes is not None and expect not in (None, Verdict.HIERARCHICAL.value):
        raise InputError(
            "--hcp", hcp, f"level sizes do not go with --expect {expect}", "leave one of them out"
        )
    if expect is None and sizes is not None:
        expect = Verdict.HIERARCHICAL.value
    return Expectation(None if expect is None else Verdict(expect), sizes, require_traffic)


def _sizes(text: str) -> tuple[int, ...]:
    parts = text.split(",")
    if not all(part.strip().isascii() and part.strip().isdigit() for part in parts):
        raise InputError("--hcp", text, "not a list of whole numbers", "write it as 2,4")
    sizes = tuple(int(part) for part in parts)
    if sum(size > 1 for size in sizes) < 2 or 0 in sizes:
        raise InputError(
            "--hcp",
            text,
            "not a hierarchy: it needs two levels of more than one rank",
            "give both sizes, inner (a2a) first, such as 2,4",
        )
    return sizes
