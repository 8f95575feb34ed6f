"""What the user expects of the groups of a run."""

from __future__ import annotations

from dataclasses import dataclass

from ringproof.errors import InputError, check_name, shown
from ringproof.logs.groups.decision import ParallelKind


@dataclass(frozen=True)
class Expectation:
    """The expected verdict, level sizes (inner first), and whether creation is too weak a proof.

    Attributes:
        dynamic_sizes: CP sizes among which Dynamic CP chooses, ascending.
    """

    verdict: ParallelKind | None = None
    level_sizes: tuple[int, ...] | None = None
    require_traffic: bool = False
    dynamic_sizes: tuple[int, ...] | None = None

    @property
    def given(self) -> bool:
        """Whether there is anything to compare with."""
        return self.verdict is not None or self.dynamic_sizes is not None or self.require_traffic

    @property
    def needs_use(self) -> bool:
        """Whether some context-parallel group, other than those of Dynamic CP, has to be in use."""
        if self.verdict is None and self.dynamic_sizes is not None:
            return False
        return self.require_traffic and self.verdict is not ParallelKind.NONE


def parse_expectation(
    expect: str | None,
    hcp: str | None,
    require_traffic: bool = False,
    dynamic: str | None = None,
) -> Expectation:
    """Parse the words of the command line. Level sizes alone expect ``hierarchical``.

    Raises:
        InputError: The verdict is unknown, the sizes are not whole numbers or not a hierarchy or
            given with an expectation other than ``hierarchical``, or the dynamic sizes do not
            ascend.
    """
    words = tuple(kind.value for kind in ParallelKind if kind is not ParallelKind.UNKNOWN)
    hierarchical = ParallelKind.HIERARCHICAL.value
    if expect is not None:
        check_name("--expect", expect, words)
    sizes = None if hcp is None else _whole_numbers("--hcp", hcp)
    if sizes is not None:
        if sum(size > 1 for size in sizes) < 2 or 0 in sizes:
            problem = f"{shown(hcp)} is not a hierarchy, which has two levels of several ranks"
            raise InputError("--hcp", f"{problem}; give both sizes, inner first, such as 2,4")
        if expect not in (None, hierarchical):
            raise InputError("--hcp", f"--hcp contradicts --expect {expect}; leave one of them out")
        expect = hierarchical
    verdict = None if expect is None else ParallelKind(expect)
    chosen = None if dynamic is None else _whole_numbers("--dynamic", dynamic)
    if chosen is not None and (chosen != tuple(sorted(set(chosen))) or chosen[0] < 1):
        sentence = f"{shown(dynamic)} does not list CP sizes in ascending order; write it as 1,2,4"
        raise InputError("--dynamic", sentence)
    return Expectation(verdict, sizes, require_traffic, chosen)


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise InputError(option, f"{shown(text)} is not a list of whole numbers; write it as 2,4")
    return tuple(int(part) for part in parts)
