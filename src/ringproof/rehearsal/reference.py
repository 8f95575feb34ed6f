"""The program that a rehearsal is compared with: the same training without CP."""

from __future__ import annotations

from collections.abc import Collection

from ringproof.rehearsal.shrink import Small


def reference(small: Small, options: Collection[str]) -> Small:
    """Return the same program with CP 1, or with the feature off.

    Args:
        small: The rehearsal.
        options: Names of the options that this upstream knows.
    """
    raise NotImplementedError
