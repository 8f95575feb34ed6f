"""Finds the first wrong tensor in the order of execution: forward, backward, parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringproof.rehearsal.locate.comparing import Compared, TraceComparison, ports
from ringproof.rehearsal.locate.factors import explained
from ringproof.rehearsal.locate.packs import lengths_of
from ringproof.rehearsal.locate.reading import CallKey, Port, RankRecord
from ringproof.rehearsal.locate.result import Beside, Culprit
from ringproof.rehearsal.locate.rows import PADDING
from ringproof.rehearsal.locate.saying import numbers
from ringproof.rehearsal.protocol.reports import Failure
from ringproof.rehearsal.protocol.trace import APPLIED, LOSS, TracedBatch, TracedCall


@dataclass(frozen=True)
class WrongTensor:
    """The first wrong tensor of one microbatch on one rank.

    Attributes:
        order: Position in the order of execution: pipeline stage, then event.
    """

    order: tuple[int, int]
    rank: RankRecord
    port: Port
    compared: Compared

    @property
    def call(self) -> TracedCall:
        """The call at whose border it is."""
        return self.rank.calls[self.port.call]


class Search:
    """Searches the traces of a run.

    Attributes:
        left_out: What could not be compared, and how often.
    """

    def __init__(self, comparison: TraceComparison) -> None:
        self.comparison = comparison
        self.left_out: Counter[str] = Counter()
        self._seen: dict[tuple[int, int, int | None, bool], Compared | str] = {}

    @property
    def compared(self) -> int:
        """Number of tensors that were compared so far."""
        return sum(not isinstance(one, str) for one in self._seen.values())

    def forward(self, step: int, number: int | None = None) -> Culprit | None:
        """Return what is wrong first in the forward of a step, or of one of its microbatches."""
        ports = [self._forward_ports(*place) for place in self.batches(step, number)]
        found = [one for given in ports if (one := self._first(given)) is not None]
        replayed = self._replayed(step, number)
        if replayed and all(replayed[0] <= one.order for one in found):
            return replayed[1]
        return self._culprit(found)

    def _replayed(self, step: int, number: int | None) -> tuple[tuple[int, int], Culprit] | None:
        """Return the first replay of a CUDA graph that reads other values than its caller gives."""
        found = [
            ((stage_of(rank, batch.chunk), call.entered), key, rank.trace.rank, call)
            for rank, batch in self.batches(step, number)
            for key, call in calls_of(rank, batch).items()
            if call.misread
        ]
        if not found:
            return None
        order, _, _, first = min(found, key=lambda one: one[:3])
        same = [one for one in found if (one[0], one[3].module) == (order, first.module)]
        return order, Culprit(
            "forward", first.module, first.misread, step,
            tuple(sorted({call.microbatch for *_, call in same})),
            tuple(sorted({rank for _, _, rank, _ in same})), called_from=first.site,
        )  # fmt: skip

    def data(self, step: int) -> Culprit | None:
        """Return what is wrong with the packed sequences that a step is given."""
        runs = self.comparison.runs
        if runs.layout:
            return None
        found = self.comparison.packed(step)
        odd, where = found.packs.odd, set(found.packs.odd)
        missing = found.missing if runs.run.ended else 0
        if odd:
            ranks = {rank for one in odd.values() for rank in one}
            said = "borders of sequences, which are others than those of the ranks that share them"
        elif found.wrong or missing:
            where = {one.pack[1] for one in found.wrong}
            ranks = {rank for one in found.wrong for rank in one.pack[0]}
            said = (
                f"sequences of {lengths_of(found.wrong)} tokens that the reference has not as often"
            )
            said = f"{said if found.wrong else 'all sequences are right'}; {missing} are missing"
        else:
            return None
        whole = tuple(rank.trace.rank for rank in runs.run.ranks)
        return Culprit(
            "data", "", said, step, tuple(sorted(where)), tuple(sorted(ranks)) or whole,
            evidence=(Beside("packed sequences", 1.0, 0.0),),
        )  # fmt: skip

    def failed(self, failure: Failure) -> Culprit | None:
        """Return the module in which a run ends whose tensors all agree until then."""
        found = [
            (call.step, call.entered, key, rank)
            for rank in self._ended_by(failure)
            for key, call in rank.calls.items()
            if call.left < 0
        ]
        if not found:
            return None
        *_, key, rank = max(found, key=lambda one: one[:2])
        agreeing = [Beside(_words(port), known.error, known.tolerance)
                    for port in ports(rank, key, "inputs", backward=False)
                    if (known := self.look(rank, port)) is not None]  # fmt: skip
        message = next(iter(failure.message.splitlines()), failure.kind)
        return Culprit(
            "forward", key[3], f"no output, but an error ({message})", key[0], (key[2],),
            (rank.trace.rank,), computed_at=failure.place, called_from=rank.calls[key].site,
            evidence=(*agreeing, Beside("output", 1.0, 0.0)),
        )  # fmt: skip

    def last(self, failure: Failure) -> str:
        """Name what a run computed last that ends outside of all modules; empty for nothing."""
        for rank in self._ended_by(failure):
            for batch in rank.trace.batches[-1:]:
                done = [*self._backward_ports(rank, batch)] or [*self._forward_ports(rank, batch)]
                for port in [port for *_, port in done if port.call[3]][-1:]:
                    step, _, microbatch, module, _ = port.call
                    return f"{_words(port)} of {module} in step {step}, microbatch {microbatch}"
        return ""

    def _ended_by(self, failure: Failure) -> Sequence[RankRecord]:
        """Return the rank that ended a run, or all where it has no trace."""
        ranks = self.comparison.runs.run.ranks
        return [one for one in ranks if one.trace.rank == failure.rank] or ranks

    def backward(self, step: int, number: int | None = None) -> Culprit | None:
        """Return what is wrong first in the backward of a step whose forward agrees."""
        found = [self._first(self._backward_ports(*place)) for place in self.batches(step, number)]
        return self._culprit([one for one in found if one is not None])

    def others(self, first: Culprit, *, backward: bool) -> list[Culprit]:
        """Return what is wrong beside the first culprit and does not follow from it.

        Microbatches of a step do not depend on each other. In the forward of one, a call does not
        follow from another one if what goes into it agrees on all ranks.

        Args:
            backward: Whether gradients can be compared.
        """
        if first.phase == "data":  # which all modules are given
            return []
        found: list[Culprit] = []
        for number in sorted({batch.microbatch for _, batch in self.batches(first.step)}):
            own = self.forward(first.step, number)
            # What is around a culprit is wrong because of it.
            found += [
                one
                for one in (own, *self._sources(first.step, number))
                if own and one and (one is own or not _is_around(one.module, own.module))
            ]
            if own is None and backward:
                found += filter(None, [self.backward(first.step, number)])
        named = {(one.phase, one.module): one for one in reversed(found)}
        named.pop((first.phase, first.module), None)
        return list(reversed(named.values()))

    def _sources(self, step: int, number: int) -> Iterator[Culprit]:
        """Yield the innermost calls of a microbatch that make a wrong output of right inputs."""
        held: dict[CallKey, list[RankRecord]] = {}
        for rank, batch in self.batches(step, number):
            for key in calls_of(rank, batch):
                held.setdefault(key, []).append(rank)
        wrong = {
            key: [
                WrongTensor((stage_of(rank, key[1]), rank.calls[key].left), rank, port, known)
                for rank in ranks
                for port in ports(rank, key, "outputs", backward=False)
                if (known := self.look(rank, port)) is not None and known.wrong
            ]
            for key, ranks in held.items()
            if self._agree([(rank, port) for rank in ranks
                            for port in ports(rank, key, "inputs", backward=False)])
        }  # fmt: skip
        names = {key[3] for key, found in wrong.items() if found}
        for key, found in wrong.items():
            if not any(name != key[3] and _is_around(key[3], name) for name in names):
                yield from filter(None, [self._culprit(found)])

    def _agree(self, given: list[tuple[RankRecord, Port]]) -> bool:
        found = [self.look(*one) for one in given]
        return bool(found) and all(one is not None and not one.wrong for one in found)

    def batches(
        self, step: int, number: int | None = None
    ) -> Iterator[tuple[RankRecord, TracedBatch]]:
        """Yield the microbatches of a step, or one of them, on all ranks of the run."""
        for rank in self.comparison.runs.run.ranks:
            for batch in rank.trace.batches:
                if batch.step == step and number in (None, batch.microbatch):
                    yield rank, batch

    def _first(
        self, given: Iterable[tuple[tuple[int, int], RankRecord, Port]]
    ) -> WrongTensor | None:
        for order, rank, port in given:
            compared = self.look(rank, port)
            if compared is not None and compared.wrong:
                return WrongTensor(order, rank, port, compared)
        return None

    def look(self, rank: RankRecord, port: Port) -> Compared | None:
        """Compare a tensor once, whatever its names."""
        index = getattr(rank.calls[port.call], port.side)[port.name]
        # A tensor that is right in one place is wrong in another, where it does not belong.
        key = (rank.trace.rank, index, self.comparison.twin(port), port.backward)
        known = self._seen.get(key)
        if known is None or isinstance(known, str):
            known = self._seen[key] = self.comparison.compare(rank, port)
            if isinstance(known, Compared) and known.lost:
                said = f"rows inside {port.call[3]} that the reference sends to other experts"
                self.left_out[said] += known.lost
        if isinstance(known, str):
            # Data, and what is computed from them alone, have no gradient in any run.
            if known != "has no gradient":
                self.left_out[f"{_words(port)} of {port.call[3] or 'the model'} {known}"] += 1
            return None
        return known

    def _forward_ports(
        self, rank: RankRecord, batch: TracedBatch
    ) -> Iterator[tuple[tuple[int, int], RankRecord, Port]]:
        stage = stage_of(rank, batch.chunk)
        events = [
            event
            for key, call in calls_of(rank, batch).items()
            for event in ((call.entered, key, "inputs"), (call.left, key, "outputs"))
        ]
        for position, key, side in sorted(events):
            for port in ports(rank, key, side, backward=False):
                yield (stage, position), rank, port

    def _backward_ports(
        self, rank: RankRecord, batch: TracedBatch
    ) -> Iterator[tuple[tuple[int, int], RankRecord, Port]]:
        stage = -stage_of(rank, batch.chunk)
        fired = sorted(
            (rank.trace.tensors[getattr(call, side)[port.name]].fired, -call.entered, port.name,
             side, port)
            for key, call in calls_of(rank, batch).items()
            for side in ("inputs", "outputs")
            for port in ports(rank, key, side, backward=True)
        )  # fmt: skip
        for position, *_, port in fired:
            if position >= 0:
                yield (stage, position), rank, port

    def _culprit(self, findings: list[WrongTensor]) -> Culprit | None:
        if not findings:
            return None
        first = min(findings, key=lambda one: (one.order, -one.compared.excess))
        same = [
            one
            for one in findings
            if one.order[0] == first.order[0] and _named(one.port) == _named(first.port)
        ]
        worst = max(same, key=lambda one: one.compared.error)
        blamed = self._blamed_backward(first) if first.port.backward else self._blamed(first)
        return self._made(blamed, same, worst)

    def _made(self, blamed: _Blamed, same: list[WrongTensor], worst: WrongTensor) -> Culprit:
        place = worst.rank.trace.place
        sizes = dict(zip(("TP", "CP", "DP", "PP"), place.sizes, strict=True))
        compared = worst.compared
        evidence = tuple(self._evidence(blamed, worst))
        beside = set(map(_words, blamed.beside))
        names = [one.what for one in evidence[:-1] if one.wrong and one.what in beside]
        return Culprit(
            phase=blamed.phase,
            module=blamed.module,
            tensor=", ".join((blamed.tensor, *names)) + _experts(same),
            step=worst.port.call[0],
            microbatches=tuple(sorted({one.port.call[2] for one in same})),
            ranks=tuple(sorted({one.rank.trace.rank for one in same})),
            positions=_ranges(same),
            samples=_samples(same),
            error=compared.error,
            tolerance=compared.tolerance,
            computed_at=blamed.computed_at,
            called_from=blamed.called_from,
            factor=explained(compared.mine, compared.expected, sizes),
            evidence=evidence,
            applied_at=blamed.applied_at,
        )

    def _evidence(self, blamed: _Blamed, worst: WrongTensor) -> Iterator[Beside]:
        for port in (*blamed.agreeing, *blamed.beside):
            known = self.look(worst.rank, port)
            if known is not None:
                yield Beside(_words(port), known.error, known.tolerance)
        yield Beside(_words(worst.port), worst.compared.error, worst.compared.tolerance)

    def _blamed(self, first: WrongTensor) -> _Blamed:
        """Return the computation of a tensor that is wrong in the forward."""
        rank, port, call = first.rank, first.port, first.call
        forwards = rank.trace.forwards
        if port.side == "outputs":
            made = rank.trace.tensors[call.outputs[port.name]].made_by[0]
            agreeing = tuple(ports(rank, port.call, "inputs", backward=False))
            every = ports(rank, port.call, "outputs", backward=False)
            beside = tuple(one for one in every if one != port)
            place = made or forwards.get(call.module, "")
            both = place, call.site
            return _Blamed("forward", call.module, _words(port), *both, agreeing, beside)
        if call.parent < 0:
            return _Blamed("data", "", _words(port), "", call.site, ())
        parent = rank.trace.calls[call.parent]
        before = _sibling(rank, call)
        agreeing = () if before is None else tuple(ports(rank, before, "outputs", backward=False))
        words = f"{_words(port)}, which the forward of {parent.module or 'the model'} computed"
        if before is not None:
            words += f" after {before[3]}"
        elif first.order[0] and not parent.inputs:
            words = f"{_words(port)}, which came from the pipeline stage before"
        at = rank.calls[before].site if before else forwards.get(parent.module, "")
        return _Blamed("forward", parent.module, words, at, call.site, agreeing)

    def _blamed_backward(self, first: WrongTensor) -> _Blamed:
        """Return the computation of a gradient that is wrong."""
        rank, port = first.rank, first.port
        index = getattr(first.call, port.side)[port.name]
        place = (port.call[0], port.call[1], port.call[2])
        good = [
            (key[3].count("."), call.entered, key)
            for key, call in rank.calls.items()
            if key[:3] == place and APPLIED not in key[3]
            and index in call.inputs.values() and self._right(rank, key, index)
        ]  # fmt: skip
        if good:
            key = max(good)[2]
            outputs = list(ports(rank, key, "outputs", backward=True))
            made = [rank.trace.tensors[rank.calls[key].outputs[one.name]] for one in outputs]
            at = next((one.made_by[1] for one in made if one.made_by[1]), "")
            at = at or rank.trace.forwards.get(key[3], "")
            name = next(name for name, at_ in rank.calls[key].inputs.items() if at_ == index)
            words = _words(Port(key, "inputs", name, backward=True))
            site = rank.calls[key].site
            beside = tuple(one for one in ports(rank, key, "inputs", backward=True)
                           if rank.calls[key].inputs[one.name] != index)  # fmt: skip
            inner, applied = self._applied(rank, key, at)
            return _Blamed("backward", key[3], words, inner, site, tuple(outputs), beside, applied)
        call = first.call
        while call.parent >= 0 and index in rank.trace.calls[call.parent].outputs.values():
            call = rank.trace.calls[call.parent]  # which only hands it on
        around = call
        while port.side == "inputs" and around.parent >= 0:
            outer = rank.trace.calls[around.parent]
            if index not in outer.inputs.values():
                break
            around = outer  # every module that consumes the tensor is inside of this one
        if around is not call:
            name = next(name for name, at_ in around.inputs.items() if at_ == index)
            words = _words(replace(port, name=name))
            at = rank.trace.forwards.get(around.module, "")
            return _Blamed("backward", around.module, words, at, around.site, ())
        if call.parent < 0 and port.side == "outputs":
            if rank.is_last(call.chunk):
                at = rank.trace.forwards.get(LOSS, "")
                return _Blamed("loss", "", _words(port), at, call.site, ())
            words = f"{_words(port)}, which came from the pipeline stage behind"
            return _Blamed("backward", "", words, "", call.site, ())
        parent = rank.trace.calls[call.parent] if call.parent >= 0 else call
        words = f"{_words(port)}, which the code of {parent.module or 'the model'} computed"
        return _Blamed("backward", parent.module, words, call.site, parent.site, ())

    def _applied(self, rank: RankRecord, key: CallKey, at: str) -> tuple[str, str]:
        """Return the backward of the function of autograd to blame in a module, and its place.

        It is the first one in the backward that gets right gradients and makes a wrong one; where
        none is known, that which made the module's output.
        """
        own = [
            (other, call)
            for other, call in reversed(list(rank.calls.items()))
            if APPLIED in other[3] and rank.trace.calls[call.parent] is rank.calls[key]
        ]

        def backward(call: TracedCall) -> str:
            return next(rank.trace.tensors[one].made_by[1] for one in call.outputs.values())

        wrong = [one for one in own if self._makes_wrong(rank, one[0])]
        for other, call in wrong or [one for one in own if backward(one[1]) == at]:
            count = sum(one[3] == other[3] for one, _ in own)
            said = f" (application {other[4] + 1} of {count} in the module)" if count > 1 else ""
            return backward(call) or at, call.site + said
        return at, ""

    def _makes_wrong(self, rank: RankRecord, key: CallKey) -> bool:
        """Whether a call gets gradients that agree, and makes one that is wrong."""
        given, made = (
            [one.wrong
             for port in ports(rank, key, side, backward=True)
             if not isinstance(one := self.comparison.compare(rank, port), str)]
            for side in ("outputs", "inputs")
        )  # fmt: skip
        return bool(given) and not any(given) and any(made)

    def _right(self, rank: RankRecord, key: CallKey, index: int) -> bool:
        """Whether the gradients of a call's outputs agree, and it does not just pass one on."""
        if index in rank.calls[key].outputs.values():
            return False
        found = [self.look(rank, port) for port in ports(rank, key, "outputs", backward=True)]
        known = [one for one in found if one is not None]
        return bool(known) and not any(one.wrong for one in known)


@dataclass(frozen=True)
class _Blamed:
    """A computation, and the tensors that went into it."""

    phase: str
    module: str
    tensor: str
    computed_at: str
    called_from: str
    agreeing: tuple[Port, ...]
    beside: tuple[Port, ...] = ()
    applied_at: str = ""


def calls_of(rank: RankRecord, batch: TracedBatch) -> Mapping[CallKey, TracedCall]:
    """Return the calls of a microbatch."""
    place = (batch.step, batch.chunk, batch.microbatch)
    return {
        key: call for key, call in rank.calls.items() if key[:3] == place and APPLIED not in key[3]
    }


def _sibling(rank: RankRecord, call: TracedCall) -> CallKey | None:
    """Return the call that ended last before this one, of the same caller."""
    before = [
        key
        for key, one in rank.calls.items()
        if one.parent == call.parent
        and APPLIED not in key[3]
        and key[:3] == (call.step, call.chunk, call.microbatch)
        and 0 <= one.left < call.entered
    ]
    return max(before, key=lambda key: rank.calls[key].left, default=None)


def stage_of(rank: RankRecord, chunk: int) -> int:
    """Position of a chunk in the pipeline, over all stages."""
    return chunk * rank.trace.place.sizes[3] + rank.trace.place.pipeline


def _is_around(module: str, inner: str) -> bool:
    return not module or f"{inner}.".startswith(f"{module}.")


def _named(port: Port) -> tuple[object, ...]:
    return port.call[3], port.call[4], port.side, port.name


def _words(port: Port) -> str:
    side = port.side.removesuffix("s")
    name = port.name.removeprefix("output").removeprefix(".")
    words = f"{side} {name}".strip()
    return f"gradient of {words}" if port.backward else words


def _samples(same: list[WrongTensor]) -> tuple[int, ...]:
    """Return the wrong samples of a microbatch, or the wrong sequences of a pack."""
    found: set[int] = set()
    for one in same:
        errors = one.compared.row_errors
        wrong = (errors > one.compared.tolerance).reshape(len(errors), -1)
        if wrong.shape[1] > 1:
            found |= set(np.nonzero(wrong.any(axis=0))[0].tolist())
        else:
            found |= set(one.compared.sequence[wrong[:, 0]].tolist())
    return tuple(sorted(found - {PADDING}))


def _experts(same: list[WrongTensor]) -> str:
    """Name the experts whose rows are wrong; empty outside of experts."""
    found = {
        int(number)
        for one in (wrong.compared for wrong in same)
        if one.expert is not None
        for number in one.expert[one.row_errors > one.tolerance]
    }
    return f" (rows of expert{'s' * (len(found) > 1)} {numbers(sorted(found))})" if found else ""


def _ranges(same: list[WrongTensor]) -> tuple[tuple[int, int], ...]:
    """Return the wrong positions of all ranks together, as ranges with their ends."""
    found: set[int] = set()
    for one in same:
        errors = one.compared.row_errors
        wrong = errors > one.compared.tolerance
        rows = wrong.any(axis=1) if wrong.ndim == 2 else wrong
        found |= set(one.compared.index[rows].tolist())
    ends: list[tuple[int, int]] = []
    for row in sorted(found - {PADDING}):
        if ends and ends[-1][1] == row - 1:
            ends[-1] = ends[-1][0], row
        else:
            ends.append((row, row))
    return tuple(ends)
