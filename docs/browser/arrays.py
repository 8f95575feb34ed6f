"""The part of numpy that the planner uses, in plain Python, for the planner's page in a browser.

No registry offers numpy for a browser's Python, and the page asks no other host for it. The page
runs the planner's own files, and this module takes numpy's name there. The planner needs only
exact operations (see `ringproof.reference.planning.costs`), so its plans do not depend on which of
the two it gets; `checks/site/test_browser_planner.py` compares whole plans.

Arrays hold Python's own numbers. A slice or a reshape shares its elements with the array it was
made from, as in numpy. What the planner does not use is absent and raises `AttributeError` or
`TypeError`.
"""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from random import Random
from types import SimpleNamespace
from typing import Any


class _Kind(type):
    """A scalar type that is also a dtype, with numpy's order of promotion."""

    rank: int
    plain: Callable[[Any], Any]


class generic:
    """Base of the scalars that an array hands out."""

    def __getitem__(self, key: Any) -> ndarray:
        return asarray(self)[key]

    def astype(self, dtype: Any) -> Any:
        """The scalar as another type."""
        return _kind(dtype)(self)


class integer(generic):
    """Base of whole numbers."""


class floating(generic):
    """Base of fractional numbers."""


class int64(int, integer, metaclass=_Kind):
    """A whole number."""

    rank, plain = 1, int


class float64(float, floating, metaclass=_Kind):
    """A fractional number in double precision."""

    rank, plain = 2, float


class bool_(int, metaclass=_Kind):
    """The dtype of truth values; the elements are Python's own."""

    rank, plain = 0, bool

    def __new__(cls, value: Any) -> Any:
        """The truth of a value, as Python's own."""
        return bool(value)


_PLAIN = {bool: bool_, int: int64, float: float64}


def _kind(dtype: Any) -> _Kind:
    return _PLAIN.get(dtype, dtype)


def _scalar_kind(value: Any) -> _Kind:
    if isinstance(value, bool):
        return bool_
    return float64 if isinstance(value, float) else int64


def _wider(*kinds: _Kind) -> _Kind:
    return max(kinds, key=lambda kind: kind.rank)


def _strides(shape: Sequence[int]) -> list[int]:
    """How far neighbours along each dimension are apart."""
    return [math.prod(max(1, length) for length in shape[axis + 1 :]) for axis in range(len(shape))]


class ndarray:
    """Elements of one kind.

    Attributes:
        buffer: List that views share.
        places: Where the elements lie in the buffer, in order.
    """

    __slots__ = ("buffer", "dtype", "places", "shape")
    __hash__ = None  # type: ignore[assignment]  # as numpy's: == compares elements

    def __init__(
        self,
        buffer: list[Any],
        shape: tuple[int, ...],
        dtype: _Kind,
        places: Sequence[int] | None = None,
    ) -> None:
        self.buffer = buffer
        self.shape = shape
        self.dtype = dtype
        self.places = range(len(buffer)) if places is None else places

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return len(self.places)

    def __len__(self) -> int:
        return self.shape[0]

    def __bool__(self) -> bool:
        (value,) = self.flat()
        return bool(value)

    def __repr__(self) -> str:
        return f"array({self.tolist()})"

    def flat(self) -> list[Any]:
        """The elements in order, as a new list."""
        places = self.places
        if isinstance(places, range):
            stop = None if places.stop < 0 else places.stop
            return self.buffer[places.start : stop : places.step]
        return list(map(self.buffer.__getitem__, places))

    def tolist(self) -> Any:
        """Nested lists of plain numbers."""
        if len(self.shape) == 1:
            return self.flat()
        return [self[index].tolist() for index in range(self.shape[0])]

    def astype(self, dtype: Any, copy: bool = True) -> ndarray:
        """The elements as another kind."""
        del copy
        kind = _kind(dtype)
        return ndarray(list(map(kind.plain, self.flat())), self.shape, kind)

    def copy(self) -> ndarray:
        """An array of its own elements."""
        return ndarray(self.flat(), self.shape, self.dtype)

    def ravel(self) -> ndarray:
        """One dimension."""
        return ndarray(self.flat(), (self.size,), self.dtype)

    def reshape(self, *shape: int) -> ndarray:
        """The same elements in another shape; one length may be -1."""
        known = math.prod(length for length in shape if length >= 0)
        full = tuple(self.size // max(1, known) if length < 0 else length for length in shape)
        return ndarray(self.buffer, full, self.dtype, self.places)

    # -- selection ---------------------------------------------------------------------------

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, int) and len(self.shape) == 1:
            return self.dtype(self.buffer[self.places[key]])
        shape, chosen, is_view = self._selection(key)
        places = _picked(self.places, chosen)
        if not shape and is_view:
            return self.dtype(self.buffer[places[0]])
        if is_view:
            return ndarray(self.buffer, shape, self.dtype, places)
        return ndarray(list(map(self.buffer.__getitem__, places)), shape, self.dtype)

    def __setitem__(self, key: Any, value: Any) -> None:
        convert = self.dtype.plain
        if isinstance(key, int) and len(self.shape) == 1:
            self.buffer[self.places[key]] = convert(value)
            return
        shape, chosen, _ = self._selection(key)
        if isinstance(value, ndarray | list | tuple):
            values: Iterable[Any] = map(convert, broadcast(asarray(value), shape))
        else:
            values = itertools.repeat(convert(value), len(chosen))
        for place, item in zip(_picked(self.places, chosen), values, strict=True):
            self.buffer[place] = item

    def _selection(self, key: Any) -> tuple[tuple[int, ...], Sequence[int], bool]:
        """Shape and numbers of the chosen elements, and whether they are a view."""
        if len(self.shape) == 1 and isinstance(key, ndarray):
            if key.dtype is not bool_:
                return *_indexed([(key, len(self), 1)]), False
            kept = list(itertools.compress(range(self.size), key.flat()))
            return (len(kept),), kept, False
        keys = [*_keys(key, len(self.shape))]
        by_arrays = any(isinstance(item, ndarray) for item in keys)
        if by_arrays:
            keys = [item if isinstance(item, slice) else asarray(item) for item in keys]
        shape: list[int] = []
        chosen: Sequence[int] = range(1)
        was_array = False
        sizes = zip(self.shape, _strides(self.shape), strict=True)
        for is_array, group in itertools.groupby(keys, lambda item: isinstance(item, ndarray)):
            if is_array and was_array:
                raise TypeError("index arrays are not next to each other")
            if is_array:
                was_array = True
                common, steps = _indexed([(item, *next(sizes)) for item in group])
                shape += common
                chosen = [place + step for place in chosen for step in steps]
                continue
            for item in group:
                if item is None:
                    shape.append(1)
                    continue
                length, stride = next(sizes)
                if isinstance(item, slice):
                    found = range(*item.indices(length))
                    shape.append(len(found))
                else:
                    found = range(_number(item, length), _number(item, length) + 1)
                steps = range(found.start * stride, found.stop * stride, found.step * stride)
                chosen = _outer_sum(chosen, steps)
        return tuple(shape), chosen, not by_arrays

    # -- reduction ---------------------------------------------------------------------------

    def _lines(self, axis: int) -> tuple[tuple[int, ...], Iterator[list[Any]]]:
        """The shape without one axis, and the elements along it for each of the others."""
        axis %= len(self.shape)
        values, length = self.flat(), self.shape[axis]
        inner = math.prod(self.shape[axis + 1 :])
        outer = math.prod(self.shape[:axis])
        lines = (
            values[start + place : start + length * inner : inner] if length else []
            for start in range(0, outer * length * inner or outer, length * inner or 1)
            for place in range(inner)
        )
        return self.shape[:axis] + self.shape[axis + 1 :], lines

    def _reduced(self, function: Callable[[Any], Any], axis: int | None, kind: _Kind) -> Any:
        if axis is None:
            return kind(function(self.flat()))
        shape, lines = self._lines(axis)
        found = list(map(function, lines))
        return ndarray(found, shape, kind) if shape else kind(found[0])

    def sum(self, axis: int | None = None) -> Any:
        """The sum, exact for whole numbers; in numpy's order for others, as far as it is fixed."""
        kind = float64 if self.dtype is float64 else int64
        pairwise = kind is float64 and (axis is None or axis % len(self.shape) == self.ndim - 1)
        return self._reduced(_pairwise_sum if pairwise else sum, axis, kind)

    # -- search ------------------------------------------------------------------------------

    def nonzero(self) -> tuple[ndarray, ...]:
        """Indices of the elements that are not zero, by dimension."""
        found = [index for index, value in enumerate(self.flat()) if value]
        by_axis = []
        for length, step in zip(self.shape, _strides(self.shape), strict=True):
            by_axis.append(_whole([index // step % length for index in found]))
        return tuple(by_axis)

    def searchsorted(self, wanted: Any, side: str = "left") -> Any:
        """Where to insert, so that the order stays."""
        bisect = bisect_left if side == "left" else bisect_right
        values = self.flat()
        if isinstance(wanted, ndarray | list | tuple):
            wanted = asarray(wanted)
            return ndarray([bisect(values, item) for item in wanted.flat()], wanted.shape, int64)
        return int64(bisect(values, wanted))

    def take(self, indices: Any, axis: int = 0) -> ndarray:
        """The elements with these indices along one axis."""
        keys: list[Any] = [slice(None)] * len(self.shape)
        keys[axis] = asarray(indices)
        return self[tuple(keys)]

    # -- arithmetic --------------------------------------------------------------------------

    def __neg__(self) -> ndarray:
        return ndarray([-value for value in self.flat()], self.shape, self.dtype)

    def __invert__(self) -> ndarray:
        if self.dtype is not bool_:
            raise TypeError("only truth values are inverted")
        return ndarray([not value for value in self.flat()], self.shape, bool_)


def _number(index: int, length: int) -> int:
    """The number of an element, counted from the start."""
    if not -length <= index < length:
        raise IndexError(f"index {index} is out of bounds for {length} elements")
    return index % length


def _picked(places: Sequence[int], chosen: Sequence[int]) -> Sequence[int]:
    """Some of the places; a range if both are."""
    if not (isinstance(places, range) and isinstance(chosen, range)):
        return list(map(places.__getitem__, chosen))
    start, step = places.start, places.step
    return range(start + chosen.start * step, start + chosen.stop * step, chosen.step * step)


def _outer_sum(places: Sequence[int], steps: range) -> Sequence[int]:
    """Every place with every step; a range if there is one place or one step."""
    if isinstance(places, range) and len(places) == 1:
        return range(places[0] + steps.start, places[0] + steps.stop, steps.step)
    if isinstance(places, range) and len(steps) == 1:
        return range(places.start + steps[0], places.stop + steps[0], places.step)
    return [place + step for place in places for step in steps]


def _indexed(arrays: Sequence[tuple[ndarray, int, int]]) -> tuple[tuple[int, ...], list[int]]:
    """Shape and steps of elements that arrays of indices choose along neighbouring dimensions.

    Each array comes with length and stride of its dimension.
    """
    common = _common_shape([item.shape for item, _, _ in arrays])
    steps = [0] * math.prod(common)
    for item, length, stride in arrays:
        values = broadcast(item, common)
        if values and (max(values) >= length or min(values) < -length):
            raise IndexError(f"an index is out of bounds for {length} elements")
        steps = [step + v % length * stride for step, v in zip(steps, values, strict=True)]
    return common, steps


def _keys(key: Any, dimensions: int) -> Iterator[Any]:
    """The parts of a key, a slice for each dimension that it leaves out; lists become arrays."""
    parts = key if isinstance(key, tuple) else (key,)
    used = 0
    for part in parts:
        if isinstance(part, list | range | ndarray):
            part = asarray(part)
            if part.dtype is bool_:
                yield from part.nonzero()
                used += len(part.shape)
                continue
        if part is not None:
            used += 1
        yield part
    yield from [slice(None)] * (dimensions - used)


def _common_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    longest = max(map(len, shapes))
    padded = [(1,) * (longest - len(shape)) + shape for shape in shapes]
    found = []
    for lengths in zip(*padded, strict=True):
        different = {length for length in lengths if length != 1}
        if len(different) > 1:
            raise ValueError(f"shapes {shapes} do not fit")
        found.append(different.pop() if different else 1)
    return tuple(found)


def broadcast(array: ndarray, shape: tuple[int, ...]) -> list[Any]:
    """The elements of an array, repeated to a larger shape."""
    values = array.flat()
    if array.shape == shape:
        return values
    if len(values) == 1:
        return values * math.prod(shape)
    padded = (1,) * (len(shape) - len(array.shape)) + array.shape
    if len(padded) != len(shape) or any(
        a not in (1, b) for a, b in zip(padded, shape, strict=True)
    ):
        raise ValueError(f"shape {array.shape} does not fit {shape}")
    inner = 1
    for length, wanted in zip(reversed(padded), reversed(shape), strict=True):
        if length != wanted:
            blocks = [values[start : start + inner] for start in range(0, len(values), inner)]
            values = [value for block in blocks for _ in range(wanted) for value in block]
        inner *= wanted
    return values


def _binary(
    function: Callable[[Any, Any], Any], one: Any, other: Any, kind: _Kind | None = None
) -> ndarray:
    """Apply a function to pairs of elements; the kind of the result is the wider one's."""
    left, right = asarray(one), asarray(other)
    shape = _common_shape((left.shape, right.shape))
    kind = _wider(left.dtype, right.dtype) if kind is None else kind
    found = list(map(function, broadcast(left, shape), broadcast(right, shape)))
    if kind is float64 and found and not isinstance(found[0], float):
        found = list(map(float, found))
    return ndarray(found, shape, kind)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, int | float)


def _divided(one: Any, other: Any) -> float:
    if other:
        return one / other
    return math.nan if one == 0 or one != one else math.copysign(math.inf, one)


def _floor_divided(one: Any, other: Any) -> Any:
    return one // other if other else 0


def _method(function: Callable[[Any, Any], Any], kind: _Kind | None, *, swap: bool = False) -> Any:
    if swap:
        return lambda self, other: _binary(function, other, self, kind)
    return lambda self, other: _binary(function, self, other, kind)


def _in_place(function: Callable[[Any, Any], Any]) -> Any:
    def run(self: ndarray, other: Any) -> ndarray:
        self[:] = _binary(function, self, other)
        return self

    return run


def _reduction(function: Callable[[Any], Any], kind: _Kind | None) -> Any:
    return lambda self, axis=None: self._reduced(function, axis, kind or self.dtype)


# The operators of Python, and the reductions of numpy.
for _name, _function, _result in (
    ("add", operator.add, None),
    ("sub", operator.sub, None),
    ("mul", operator.mul, None),
    ("truediv", _divided, float64),
    ("floordiv", _floor_divided, None),
    ("mod", operator.mod, None),
    ("pow", operator.pow, None),
    ("and", operator.and_, None),
    ("or", operator.or_, None),
    ("xor", operator.xor, None),
):
    setattr(ndarray, f"__{_name}__", _method(_function, _result))
    setattr(ndarray, f"__r{_name}__", _method(_function, _result, swap=True))
    setattr(ndarray, f"__i{_name}__", _in_place(_function))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(ndarray, f"__{_name}__", _method(getattr(operator, _name), bool_))
for _name, _function, _result in (
    ("max", max, None),
    ("min", min, None),
    ("any", any, bool_),
    ("all", all, bool_),
    ("argmax", lambda line: line.index(max(line)), int64),
    ("argmin", lambda line: line.index(min(line)), int64),
):
    setattr(ndarray, _name, _reduction(_function, _result))


def _whole(values: list[int]) -> ndarray:
    return ndarray(values, (len(values),), int64)


def _pairwise_sum(values: list[float]) -> float:
    """The sum in numpy's order: eight partial sums in blocks of up to 128, halves above that."""
    count = len(values)
    if count < 8:
        return _running_sum(values)
    if count <= 128:
        whole = count - count % 8
        part = [_running_sum(values[start:whole:8]) for start in range(8)]
        total = ((part[0] + part[1]) + (part[2] + part[3])) + (
            (part[4] + part[5]) + (part[6] + part[7])
        )
        return _running_sum([total, *values[whole:]])
    half = count // 2
    half -= half % 8
    return _pairwise_sum(values[:half]) + _pairwise_sum(values[half:])


def _running_sum(values: list[float]) -> float:
    """One addition after the other; Python's own sum of floats compensates for rounding."""
    return reduce(operator.add, values, 0.0)


# -- functions -----------------------------------------------------------------------------------


def array(values: Any, dtype: Any = None) -> ndarray:
    """An array of nested sequences, of another array or of one number."""
    if isinstance(values, ndarray):
        return values.copy() if dtype is None else values.astype(dtype)
    if _is_scalar(values):
        kind = _scalar_kind(values) if dtype is None else _kind(dtype)
        return ndarray([kind.plain(values)], (), kind)
    items = list(values)
    if items and isinstance(items[0], ndarray | list | tuple | range):
        return stack([array(item, dtype) for item in items])
    kinds = map(_scalar_kind, items) if items else [float64]
    kind = _wider(*kinds) if dtype is None else _kind(dtype)
    return ndarray(list(map(kind.plain, items)), (len(items),), kind)


def asarray(values: Any, dtype: Any = None) -> ndarray:
    """The array itself where it has that kind, else a new one."""
    if isinstance(values, ndarray) and (dtype is None or values.dtype is _kind(dtype)):
        return values
    return array(values, dtype)


def fromiter(values: Iterable[Any], dtype: Any, count: int = -1) -> ndarray:
    """An array of the elements of an iterable, or of the first ones."""
    return array(list(values if count < 0 else itertools.islice(values, count)), dtype)


def _shape(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if isinstance(shape, int) else tuple(map(int, shape))


def full(shape: Any, value: Any, dtype: Any = None) -> ndarray:
    """An array of equal elements."""
    kind = _scalar_kind(value) if dtype is None else _kind(dtype)
    length = math.prod(_shape(shape))
    return ndarray([kind.plain(value)] * length, _shape(shape), kind)


def zeros(shape: Any, dtype: Any = float) -> ndarray:
    """An array of zeros."""
    return full(shape, 0, dtype)


def ones(shape: Any, dtype: Any = float) -> ndarray:
    """An array of ones."""
    return full(shape, 1, dtype)


empty = zeros


def full_like(like: ndarray, value: Any) -> ndarray:
    """Equal elements in the shape and kind of another array."""
    return full(like.shape, value, like.dtype)


def empty_like(like: ndarray) -> ndarray:
    """Zeros in the shape and kind of another array."""
    return full(like.shape, 0, like.dtype)


def arange(*bounds: int) -> ndarray:
    """Whole numbers in steps."""
    return _whole(list(range(*map(int, bounds))))


def flatnonzero(values: ndarray) -> ndarray:
    """Indices of the elements that are not zero, counted through all dimensions."""
    return _whole([index for index, value in enumerate(values.flat()) if value])


def argsort(values: Any, kind: str = "stable") -> ndarray:
    """The order that sorts, equal elements as they were."""
    del kind
    items = asarray(values).flat()
    return _whole(sorted(range(len(items)), key=items.__getitem__))


def sort(values: Any) -> ndarray:
    """The elements in ascending order."""
    made = asarray(values)
    return ndarray(sorted(made.flat()), made.shape, made.dtype)


def lexsort(keys: Sequence[ndarray]) -> ndarray:
    """The order by several keys, the last one first."""
    rows = list(zip(*(key.flat() for key in reversed(keys)), strict=True))
    return _whole(sorted(range(len(rows)), key=rows.__getitem__))


def where(condition: ndarray, one: Any, other: Any) -> ndarray:
    """Elements of one array where the condition holds, else of another."""
    arrays = [asarray(item) for item in (condition, one, other)]
    shape = _common_shape([item.shape for item in arrays])
    tests, first, second = (broadcast(item, shape) for item in arrays)
    kind = _wider(arrays[1].dtype, arrays[2].dtype)
    found = [kind.plain(a if test else b) for test, a, b in zip(tests, first, second, strict=True)]
    return ndarray(found, shape, kind)


def cumsum(values: Any, axis: int = -1, out: ndarray | None = None) -> Any:
    """Running sums along the last axis."""
    made = asarray(values)
    if axis % len(made.shape) != len(made.shape) - 1:
        raise TypeError("running sums are along the last axis")
    _, lines = made._lines(axis)
    found = [item for line in lines for item in itertools.accumulate(line)]
    kind = float64 if made.dtype is float64 else int64
    return _put(ndarray(list(map(kind.plain, found)), made.shape, kind), out)


def _put(result: ndarray, out: ndarray | None) -> ndarray:
    if out is None:
        return result
    out[:] = result
    return out


def diff(values: Any, prepend: Any = None, append: Any = None) -> ndarray:
    """Differences of neighbours."""
    made = asarray(values)
    items = made.flat()
    items = ([] if prepend is None else [prepend]) + items + ([] if append is None else [append])
    found = [after - before for before, after in itertools.pairwise(items)]
    return ndarray(found, (len(found),), made.dtype)


def concatenate(arrays: Sequence[Any], axis: int = 0) -> ndarray:
    """Arrays one after the other."""
    made = [asarray(item) for item in arrays]
    kind = _wider(*(item.dtype for item in made))
    if axis == 0:
        flat = [value for item in made for value in item.flat()]
        shape = (sum(item.shape[0] for item in made), *made[0].shape[1:])
        return ndarray(list(map(kind.plain, flat)), shape, kind)
    if axis != 1 or any(len(item.shape) != 2 for item in made):
        raise TypeError("arrays are joined along the first or second axis")
    rows = [[value for item in made for value in item[row].flat()] for row in range(len(made[0]))]
    width = sum(item.shape[1] for item in made)
    return ndarray([value for row in rows for value in row], (len(rows), width), kind)


def stack(arrays: Sequence[Any]) -> ndarray:
    """Arrays of one shape as the rows of a new one."""
    made = [asarray(item) for item in arrays]
    joined = concatenate([item.ravel() for item in made])
    return ndarray(joined.buffer, (len(made), *made[0].shape), joined.dtype)


def repeat(values: Any, counts: Any) -> ndarray:
    """Each element several times."""
    made = asarray(values)
    times = broadcast(asarray(counts), made.shape)
    found = [item for item, n in zip(made.flat(), times, strict=True) for _ in range(n)]
    return ndarray(found, (len(found),), made.dtype)


def tile(values: ndarray, times: int) -> ndarray:
    """All elements several times."""
    return ndarray(values.flat() * times, (len(values) * times,), values.dtype)


def bincount(values: ndarray, minlength: int = 0) -> ndarray:
    """How often each whole number occurs."""
    items = values.flat()
    found = [0] * max(minlength, max(items, default=-1) + 1)
    for item in items:
        found[item] += 1
    return _whole(found)


def unique(values: ndarray, return_inverse: bool = False) -> Any:
    """The different elements in order, and for each element its place among them."""
    different = sorted(set(values.flat()))
    found = ndarray(different, (len(different),), values.dtype)
    if not return_inverse:
        return found
    place = {item: index for index, item in enumerate(different)}
    return found, _whole([place[item] for item in values.flat()])


def isin(values: Any, others: Any) -> ndarray:
    """Whether each element is among others."""
    wanted, made = set(asarray(others).flat()), asarray(values)
    return ndarray([item in wanted for item in made.flat()], made.shape, bool_)


def array_split(values: ndarray, parts: int) -> list[ndarray]:
    """Parts of nearly equal length, the longer ones first."""
    length, rest = divmod(len(values), parts)
    ends = [0]
    for index in range(parts):
        ends.append(ends[-1] + length + (index < rest))
    return [values[start:end] for start, end in itertools.pairwise(ends)]


def searchsorted(values: ndarray, wanted: Any, side: str = "left") -> Any:
    """See `ndarray.searchsorted`."""
    return asarray(values).searchsorted(wanted, side)


def argmax(values: ndarray, axis: int | None = None) -> Any:
    """See `ndarray.argmax`."""
    return values.argmax(axis)


def clip(values: ndarray, least: Any, most: Any) -> ndarray:
    """The elements within limits."""
    return minimum(maximum(values, least), most)


def rint(values: ndarray) -> ndarray:
    """The nearest whole numbers, halves to the even one."""
    return ndarray([float(round(item)) for item in values.flat()], values.shape, float64)


class _Extreme:
    """``np.minimum`` or ``np.maximum``."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    def __call__(self, one: Any, other: Any) -> ndarray:
        return _binary(self._function, one, other)

    def accumulate(self, values: ndarray) -> ndarray:
        """The extreme so far, element by element."""
        found = list(itertools.accumulate(values.flat(), self._function))
        return ndarray(found, values.shape, values.dtype)


minimum, maximum = _Extreme(min), _Extreme(max)


def _reduceat(
    values: ndarray, starts: ndarray, axis: int = -1, out: ndarray | None = None
) -> ndarray:
    """Sums of the elements from each start up to the next, along the last axis."""
    if axis % len(values.shape) != len(values.shape) - 1:
        raise TypeError("parts are summed along the last axis")
    add_up = _part_sum if values.dtype is float64 else sum
    _, lines = values._lines(axis)
    first = starts.flat()
    found = [
        add_up(line[start:end]) if end > start else line[start]
        for line in lines
        for start, end in zip(first, [*first[1:], values.shape[-1]], strict=True)
    ]
    return _put(ndarray(found, (*values.shape[:-1], len(first)), values.dtype), out)


def _part_sum(values: list[float]) -> float:
    """The sum of a part, in numpy's order: the first element, and the rest in pairs."""
    return values[0] + _pairwise_sum(values[1:])


add = SimpleNamespace(reduceat=_reduceat)


def iinfo(kind: Any) -> SimpleNamespace:
    """The range of 64-bit whole numbers."""
    del kind
    return SimpleNamespace(min=-(1 << 63), max=(1 << 63) - 1)


def issubdtype(dtype: Any, kind: type) -> bool:
    """Whether elements of that type are of a kind."""
    return issubclass(dtype, kind)


class _RandomState:
    """numpy's legacy generator: the Mersenne twister, seeded with one number."""

    def __init__(self, seed: int) -> None:
        state = [seed & 0xFFFFFFFF]
        for place in range(1, 624):
            before = state[-1]
            state.append((1812433253 * (before ^ (before >> 30)) + place) & 0xFFFFFFFF)
        self._random = Random()
        self._random.setstate((3, (*state, 624), None))
        self._second: float | None = None

    def _gauss(self) -> float:
        """The polar method, which makes two numbers at a time."""
        if self._second is not None:
            found, self._second = self._second, None
            return found
        while True:
            one = 2.0 * self._random.random() - 1.0
            two = 2.0 * self._random.random() - 1.0
            square = one * one + two * two
            if 0.0 < square < 1.0:
                break
        factor = math.sqrt(-2.0 * math.log(square) / square)
        self._second = factor * one
        return factor * two

    def lognormal(self, mean: float, sigma: float, count: int) -> ndarray:
        """Random numbers whose logarithms are normal."""
        found = [math.exp(mean + sigma * self._gauss()) for _ in range(count)]
        return ndarray(found, (count,), float64)


random = SimpleNamespace(RandomState=_RandomState)
