"""What the user expects of a run, checked for sense before any log is read."""

from __future__ import annotations

from dataclasses import dataclass

from ringproof.errors import InputError
from ringproof.harness.logs.verdict import Verdict


@dataclass(frozen=True)
class Expectation:
    """The expected verdict, level sizes (inner first), and whether creation is too weak a proof.

    Attributes:
        dynamic_sizes: CP sizes among which Dynamic CP chooses, ascending.
    """

    verdict: Verdict | None = None
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
        return self.require_traffic and self.verdict is not Verdict.NONE


def parse_expectation(
    expect: str | None,
    hcp: str | None,
    require_traffic: bool = False,
    dynamic: str | None = None,
) -> Expectation:
    """From the words of the command line. Level sizes alone expect ``hierarchical``.

    Raises:
        InputError: an unknown verdict, sizes that are no list of whole numbers or no hierarchy,
            sizes together with an expectation other than ``hierarchical``, dynamic sizes that are
            no ascending list.
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
    verdict = None if expect is None else Verdict(expect)
    dynamic_sizes = None if dynamic is None else _dynamic_sizes(dynamic)
    return Expectation(verdict, sizes, require_traffic, dynamic_sizes)


def _dynamic_sizes(text: str) -> tuple[int, ...]:
    sizes = _whole_numbers("--dynamic", text)
    if sizes != tuple(sorted(set(sizes))) or sizes[0] < 1:
        raise InputError("--dynamic", text, "not ascending CP sizes from 1 on", "write it as 1,2,4")
    return sizes


def _whole_numbers(option: str, text: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdigit() and len(part) <= 9 for part in parts):
        raise InputError(option, text, "not a list of whole numbers", "write it as 2,4")
    return tuple(int(part) for part in parts)


def _sizes(text: str) -> tuple[int, ...]:
    sizes = _whole_numbers("--hcp", text)
    if sum(size > 1 for size in sizes) < 2 or 0 in sizes:
        raise InputError(
            "--hcp",
            text,
            "not a hierarchy: it needs two levels of more than one rank",
            "give both sizes, inner (a2a) first, such as 2,4",
        )
    return sizes
