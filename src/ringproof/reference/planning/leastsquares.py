"""Least squares without negative answers, for a handful of unknowns."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringproof.reference.planning.costs import FloatArray

_RESIDUAL = 1e-3
"""A column is its own when this part of it is not a sum of the columns before it."""


def independent(matrix: FloatArray) -> tuple[int, ...]:
    """Columns, from the left, that are no linear combination of those taken before."""
    taken: list[int] = []
    basis: list[FloatArray] = []
    for index, column in enumerate(matrix.T):
        norm = float(np.linalg.norm(column))
        rest = column.copy()
        for direction in basis:
            rest = rest - direction * float(direction @ rest)
        if norm > 0 and float(np.linalg.norm(rest)) > _RESIDUAL * norm:
            taken.append(index)
            basis.append(rest / float(np.linalg.norm(rest)))
    return tuple(taken)


def nonnegative(matrix: FloatArray, target: FloatArray) -> FloatArray:
    """``min |matrix @ x - target|`` over ``x >= 0``.

    The active set method of Lawson and Hanson (Solving Least Squares Problems, chapter 23) on
    columns scaled to length 1.

    Args:
        matrix: Shape ``(samples, unknowns)``, columns independent.
        target: Shape ``(samples,)``.

    Returns:
        Shape ``(unknowns,)``.
    """
    norms = np.linalg.norm(matrix, axis=0)
    scaled = matrix / norms
    count = scaled.shape[1]
    solution = np.zeros(count)
    used = np.zeros(count, bool)
    tolerance = 1e-12 * float(np.linalg.norm(target))
    for _ in range(10 * count):
        gradient = scaled.T @ (target - scaled @ solution)
        gradient[used] = -np.inf
        if used.all() or float(gradient.max()) <= tolerance:
            break
        used[int(gradient.argmax())] = True
        solution, used = _feasible(scaled, target, solution, used)
    return solution / norms


def _feasible(
    matrix: FloatArray, target: FloatArray, solution: FloatArray, used: npt.NDArray[np.bool_]
) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Solve for the used unknowns; step back and drop those that would turn negative."""
    while True:
        wanted = np.zeros(len(solution))
        wanted[used] = np.linalg.lstsq(matrix[:, used], target, rcond=None)[0]
        negative = used & (wanted <= 0)
        if not negative.any():
            return wanted, used
        steps = solution[negative] / (solution[negative] - wanted[negative])
        solution = solution + float(steps.min()) * (wanted - solution)
        used = used & (solution > 1e-15)
        solution = np.where(used, solution, 0.0)
