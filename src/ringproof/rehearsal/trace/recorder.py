"""Records one rank: tensors at the borders of modules, their gradients, and parameters.

Everything is done from outside, by hooks of torch; upstream's files are as they are.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from ringproof.rehearsal.protocol.trace import (
    APPLIED,
    EXPERT,
    GRADIENTS,
    HEAD,
    LOCAL,
    LOSS,
    LOSS_CALLER,
    REDUCED,
    SCALING,
    WEIGHT,
    Place,
    RankTrace,
    TracedBatch,
    TracedCall,
    TracedNorm,
    TracedParameter,
    TracedTensor,
    TraceHead,
    TraceRequest,
    Values,
)
from ringproof.rehearsal.standins.communication import group_name
from ringproof.rehearsal.standins.guard import put, replace_everywhere, wrapped
from ringproof.rehearsal.trace.code import caller, forward_of, made_by, place_of
from ringproof.rehearsal.trace.layout import place_in, sharing
from ringproof.rehearsal.trace.replays import ReplayWatch
from ringproof.rehearsal.trace.shards import Shards, dealt, freed

FINALIZE = "megatron.core.distributed.finalize_model_grads"
NORM = "megatron.core.optimizer.clip_grads"
SCHEDULES = "megatron.core.pipeline_parallel.schedules"
LAYER = re.compile(r"\blayers\.\d+$")
BYTES_OF_RECORD = 600
"""What a tensor, a call or a parameter takes in the JSON of a trace: 270 to 350 were measured."""
CAPTURE, REPLAY = "_te_cuda_graph_capture", "_te_cuda_graph_replay"
"""Methods of a layer that Megatron calls in the place of its forward where graphs are on."""
INSIDE = re.compile(r"\bdecoder\.layers\.(\d+)\.")


@dataclasses.dataclass
class _Open:
    """A call of a module that has not ended."""

    index: int
    called: tuple[int, int, int, str]
    number: int
    entered: int
    parent: int
    site: str
    inputs: dict[str, int]
    misread: str = ""


class TraceRecorder:
    """What one rank records, and the file to which it writes values.

    Args:
        step: Says which training step is computed; evaluations have negative numbers.
        relative: Shortens the paths of upstream's files.
    """

    def __init__(
        self,
        request: TraceRequest,
        folder: Path,
        rank: int,
        step: Callable[[], int],
        relative: Callable[[str], str],
    ) -> None:
        self._request, self._folder, self._rank = request, folder, rank
        self._step, self._relative = step, relative
        self._file = (folder / f"trace-{rank}.bin").open("wb")
        self._full = False
        self._closed = set[int]()
        self._batches: list[TracedBatch] = []
        self._tensors: list[TracedTensor] = []
        self._calls: list[TracedCall | None] = []
        self._parameters: list[TracedParameter] = []
        self._forwards: dict[str, str] = {}
        self._chunks: list[Any] = []
        self._where: Place | None = None
        self._divisors: dict[str, float] = {}
        self._wrapped: list[Any] = []
        self._norms: dict[TracedNorm, None] = {}
        self._open: list[_Open] = []
        self._events: Counter[tuple[int, int, int]] = Counter()
        self._fired: Counter[tuple[int, int, int]] = Counter()
        self._numbers: Counter[tuple[int, int, int, str]] = Counter()
        self._microbatches: Counter[tuple[int, int]] = Counter()
        # A tensor is kept until its step ends, so that its identity stays its own.
        self._known: dict[tuple[int, int], tuple[torch.Tensor, int]] = {}
        self._replays: ReplayWatch | None = None
        self._dealt = self._freed = False

    @property
    def step(self) -> int:
        """The training step or evaluation that is recorded now; 0 for none."""
        number = self._step()
        return number if number in self._request.steps and not self._full else 0

    def watch(self, model: Any) -> None:
        """Record a model chunk from now on."""
        while hasattr(model, "module"):
            model = model.module
        chunk = len(self._chunks)
        self._chunks.append(model)
        if not chunk and not self._request.rows:
            self._watch_functions()
        for name, module, first in _named(model):
            name = _of_expert(name, first)
            if not self._records(model, name):
                continue
            self._forwards.setdefault(name, self._relative(forward_of(module)))
            implementation = getattr(getattr(module, "config", None), "cuda_graph_impl", "")
            if implementation == "transformer_engine" and hasattr(module, REPLAY):
                self._watch_graphs(chunk, name, module)
                continue
            if not name:  # Megatron's own FSDP calls the forward of its model without hooks
                self._watch_root(chunk, module)
                continue
            enter = functools.partial(self._enter, chunk, name)
            module.register_forward_pre_hook(enter, with_kwargs=True)
            leave = functools.partial(self._leave, chunk, name)
            module.register_forward_hook(leave, with_kwargs=True)

    def _watch_root(self, chunk: int, module: Any) -> None:
        forward = module.forward

        @functools.wraps(forward)
        def call(*given: Any, **named: Any) -> Any:
            self._enter(chunk, "", module, given, named)
            output = forward(*given, **named)
            if isinstance(output, torch.Tensor) and output._is_view():
                output = output.clone()  # verl divides it in place, which parts a view from hooks
            self._leave(chunk, "", module, given, named, output)
            return output

        module.forward = call

    def _watch_functions(self) -> None:
        """Record what functions of autograd are applied to, in the modules that apply them."""
        apply = vars(torch.autograd.Function)["apply"].__func__

        @functools.wraps(apply)
        def applied(kind: type, *given: Any, **named: Any) -> Any:
            def run() -> Any:
                return apply(kind, *given, **named)

            return self._applied(kind, given, run)

        put([(torch.autograd.Function, "apply", classmethod(applied))])

    def _applied(self, kind: type, given: tuple[Any, ...], run: Callable[[], Any]) -> Any:
        captures = self._replays is not None and self._replays.captures()
        records = self._open and self.step and torch.is_grad_enabled() and not captures
        if not records or _recomputes():
            return run()
        around = self._open[-1]
        place = around.called[:3]
        inputs = self._learning(place, enumerate(given))
        output = run()
        results = output if isinstance(output, tuple) else (output,)
        outputs = self._learning(place, enumerate(results))
        if inputs and outputs:
            name = f"{around.called[3]}{APPLIED}{kind.__name__}"
            called = (*place, name)
            number, now = self._numbers[called], self._events[place]
            self._numbers[called] += 1
            site = self._relative(caller())
            self._calls.append(
                TracedCall(*called, number, now, now, around.index, site, inputs, outputs)
            )
        return output

    def _learning(
        self, place: tuple[int, int, int], given: Iterable[tuple[int, Any]]
    ) -> dict[str, int]:
        """Record the tensors that have a gradient and are no parameters."""
        return {
            str(number): self._tensor(place, one)
            for number, one in given
            if isinstance(one, torch.Tensor) and one.requires_grad and not one.is_leaf
        }

    def _watch_graphs(self, chunk: int, name: str, module: Any) -> None:
        """Record a module of which graphs are captured, for which it may have no hooks."""
        watch = self._replays = self._replays or ReplayWatch()
        for call in ("forward", CAPTURE, REPLAY):
            given = (watch, chunk, name, module, getattr(module, call))
            around = functools.partial(self._around, *given)
            setattr(module, call, functools.update_wrapper(around, given[-1]))

    def _around(
        self, watch: ReplayWatch, chunk: int, name: str, module: Any, call: Any,
        *given: Any, **named: Any,
    ) -> Any:  # fmt: skip
        outer = len(self._open)
        self._enter(chunk, name, module, given, named)
        recorded = len(self._open) > outer
        if call.__name__ == CAPTURE:
            watch.called(_given(given, named))
        elif recorded and call.__name__ == REPLAY:
            entry, ranks = self._open[-1], self._batches[-1].ranks
            note = functools.partial(setattr, entry, "misread")
            moment = f"step {entry.called[0]}, microbatch {entry.called[2]}"
            watch.expect(name, moment, ranks, _given(given, named), note)
        output = call(*given, **named)
        self._leave(chunk, name, module, given, named, output)
        return output

    def _records(self, model: Any, name: str) -> bool:
        """Whether a module or parameter is not inside of a layer that the sample leaves out."""
        layer, count = INSIDE.search(name), self._request.layers
        if layer is None or not count:
            return True
        last = getattr(getattr(model, "config", None), "num_layers", 1) - 1
        if int(layer[1]) in {round(last * one / max(1, count - 1)) for one in range(count)}:
            return True
        self._closed.add(int(layer[1]))
        return False

    def watch_gradients(self) -> None:
        """Record the gradients of parameters before and after ranks reduce them."""
        module: Any = sys.modules[FINALIZE]
        finalize = module.finalize_model_grads
        self._forwards[GRADIENTS] = self._relative(place_of(finalize))
        replaced = {finalize: wrapped(finalize, self._finalized)}
        norm = getattr(sys.modules.get(NORM), "get_grad_norm_fp32", None)
        if norm is not None:
            replaced[norm] = wrapped(norm, self._normed)
        calls = getattr(sys.modules.get(SCHEDULES), "forward_step_calc_loss", None)
        if calls is not None:
            self._forwards[LOSS_CALLER] = self._relative(place_of(calls))
            replaced[calls] = wrapped(calls, self._lost)
        replace_everywhere(replaced, "megatron".__eq__)

    def _lost(self, given: inspect.BoundArguments, calls: Callable[[], Any]) -> Any:
        function = given.arguments.get("loss_func")
        self._forwards[LOSS] = self._relative(place_of(getattr(function, "func", function)))
        return calls()

    def _normed(self, given: inspect.BoundArguments, norm: Callable[[], Any]) -> Any:
        group = given.arguments.get("grad_stats_parallel_group")
        if self.step and group is not None:
            ranks = tuple(torch.distributed.get_process_group_ranks(group))
            site, shards = self._relative(caller()), Shards(self._wrapped).ranks
            self._norms[TracedNorm(ranks, str(group_name(group)), site, shards)] = None
        return norm()

    def _finalized(self, given: inspect.BoundArguments, finalize: Callable[[], Any]) -> Any:
        self._wrapped = list(given.arguments["model"])
        for group in getattr(self._wrapped[0], "bucket_groups", ())[:1]:
            self._forwards[SCALING] = self._relative(place_of(type(group).start_grad_sync))
        self._record_parameters(LOCAL)
        result = finalize()
        if self.step and (count := given.arguments.get("num_tokens")) is not None:
            self._divisors[str(self.step)] = float(count)  # summed over ranks by now
        self._record_parameters(REDUCED)
        self._known.clear()
        return result

    def _record_parameters(self, kind: str) -> None:
        step = self.step
        shards = Shards(self._wrapped if kind == REDUCED else ())
        for chunk, model in enumerate(self._chunks if step else ()):
            for name, parameter in _parameters(model):
                value = parameter if kind == WEIGHT else _gradient(parameter)
                if kind == LOCAL and value is not None and dealt(value):
                    self._dealt, value = True, None  # FSDP has reduced it already
                if value is not None and not dealt(value) and freed(value):
                    self._freed, value = True, None
                if value is not None and self._records(model, name):
                    value, start = shards.own(value)
                    summed = bool(getattr(parameter, "sequence_parallel", False))
                    stored = self._store(value, thinned=False)
                    self._parameters.append(
                        TracedParameter(step, chunk, name, kind, stored, summed, start)
                    )

    def _enter(self, chunk: int, name: str, module: Any, given: Any, named: Any) -> None:
        step = self.step
        if not step or _recomputes() or (self._replays and self._replays.captures()):
            return
        arguments = _by_name(module, given, named)
        if not name:
            # Now, since Bridge destroys its groups before the program ends.
            self._where = self._where or place_in(self._chunks[0])
            if step > 0 and not self._microbatches[step, chunk] and not chunk:
                self._record_parameters(WEIGHT)
            self._microbatches[step, chunk] += 1
            number = self._microbatches[step, chunk] - 1
            packed = arguments.get("packed_seq_params")
            self._batches.append(TracedBatch(step, chunk, number, *sharing(packed)))
        place = self._place(step, chunk)
        ports = {port: self._tensor(place, tensor) for port, tensor in _tensors(arguments)}
        self._calls.append(None)
        index = len(self._calls) - 1
        called = (*place, name)
        entry = _Open(
            index, called, self._numbers[called], self._events[place],
            self._open[-1].index if self._open else -1, self._relative(caller()), ports,
        )  # fmt: skip
        self._numbers[called] += 1
        self._events[place] += 1
        self._open.append(entry)

    def _leave(
        self, chunk: int, name: str, module: Any, given: Any, named: Any, output: Any
    ) -> None:
        step = self.step
        if self._replays and self._replays.captures():
            self._replays.attends(named)
            return
        if not step or _recomputes():
            return
        place = self._place(step, chunk)
        entry = self._open.pop()
        outputs = _tensors({"output": output})
        ports = {port: self._tensor(place, tensor) for port, tensor in outputs}
        self._calls[entry.index] = self._call(entry, self._events[place], ports)
        self._events[place] += 1

    def _call(self, entry: _Open, left: int, outputs: dict[str, int]) -> TracedCall:
        return TracedCall(
            *entry.called, entry.number, entry.entered, left, entry.parent, entry.site,
            entry.inputs, outputs, entry.misread,
        )  # fmt: skip

    def _place(self, step: int, chunk: int) -> tuple[int, int, int]:
        return step, chunk, self._microbatches[step, chunk] - 1

    def _tensor(self, place: tuple[int, int, int], tensor: torch.Tensor) -> int:
        """Return the index of a tensor, which is recorded when it is seen first."""
        key = id(tensor), tensor._version
        if key in self._known:
            return self._known[key][1]
        index = len(self._tensors)
        self._tensors.append(TracedTensor(self._store(tensor), made_by=self._made_by(tensor)))
        self._known[key] = tensor, index
        # Those of parameters are elsewhere: autograd may be given one without content.
        if tensor.requires_grad and not isinstance(tensor, torch.nn.Parameter):
            tensor.register_hook(functools.partial(self._gradient, place, index))
        return index

    def _made_by(self, tensor: torch.Tensor) -> tuple[str, str]:
        forward, backward = made_by(tensor)
        return self._relative(forward), self._relative(backward)

    def _gradient(self, place: tuple[int, int, int], index: int, gradient: torch.Tensor) -> None:
        if self._full:
            return
        fired = self._fired[place]
        self._fired[place] += 1
        stored = self._store(gradient)
        known = dataclasses.replace(self._tensors[index], gradient=stored, fired=fired)
        self._tensors[index] = known

    def _store(self, tensor: torch.Tensor, *, thinned: bool = True) -> Values:
        data = tensor.to_local().detach() if dealt(tensor) else tensor.detach()
        if data.is_floating_point() and data.dtype != torch.float64:
            data = data.float()
        every, rows = 1, self._request.rows if thinned and data.is_floating_point() else 0
        while rows and data.dim() and len(data) > rows * every:
            every *= 2  # so that two runs, which thin differently, have rows in common
        held = data[::every] if every > 1 else data
        # A copy, since FSDP resizes storages, and one that numpy shares cannot be resized.
        array = held.clone(memory_format=torch.contiguous_format).cpu().numpy()
        stored = Values(self._file.tell(), tuple(data.shape), array.dtype.str, every)
        records = len(self._tensors) + len(self._calls) + len(self._parameters)
        size = stored.offset + array.nbytes + BYTES_OF_RECORD * records
        self._full |= size > self._request.most_bytes
        if self._full:  # nothing is compared then
            return Values(0, (0,), array.dtype.str)
        self._file.write(array.tobytes())
        return stored

    def write(self, *, ended: bool) -> None:
        """Write ``trace-N.json``, whole or not at all; nothing where no model was called.

        Args:
            ended: Whether the program ran through.
        """
        self._file.close()
        if self._where is None:
            return
        for entry in self._open:
            self._calls[entry.index] = self._call(entry, -1, {})
        first = getattr(self._chunks[0], "config", None)
        configs = [getattr(chunk, "ddp_config", None) for chunk in self._wrapped]
        trace = RankTrace(
            rank=self._rank,
            place=self._where,
            tensors=tuple(self._tensors),
            calls=tuple(call for call in self._calls if call is not None),
            batches=tuple(self._batches),
            parameters=tuple(self._parameters),
            forwards=self._forwards,
            full=self._full,
            ended=ended,
            sharded=any(getattr(one, "use_distributed_optimizer", False) for one in configs),
            overlapped=self._dealt
            or any(getattr(one, "overlap_grad_reduce", False) for one in configs),
            gathered_late=self._freed
            or any(getattr(one, "overlap_param_gather", False) for one in configs),
            closed=len(self._closed),
            norms=tuple(self._norms),
            divisors=self._divisors,
            per_token=bool(getattr(first, "calculate_per_token_loss", False)),
        )
        if self._rank == 0:
            request, ranks = self._request, math.prod(trace.place.sizes)
            head = TraceHead(request.name, ranks, request.steps, request.disturbed)
            (self._folder / HEAD).write_text(json.dumps(dataclasses.asdict(head)))
        draft = self._folder / f"trace-{self._rank}.part"
        draft.write_text(json.dumps(dataclasses.asdict(trace)))
        draft.replace(self._folder / f"trace-{self._rank}.json")


def _recomputes() -> bool:
    """Whether a forward runs inside of a backward pass, to recompute activations."""
    return bool(torch._C._current_graph_task_id() != -1)


def _named(model: Any) -> Iterator[tuple[str, Any, int]]:
    """Yield the modules of a chunk with the numbers that their layers have in the whole model.

    The number of the first expert of the rank follows, for what is inside of a layer of experts.
    """
    renamed: dict[str, str] = {}
    first = 0
    for name, module in model.named_modules():
        number = getattr(module, "layer_number", None)
        outer, _, last = name.rpartition(".")
        whole = f"{renamed[outer]}.{last}" if renamed.get(outer) else name
        if LAYER.search(name) and isinstance(number, int):
            whole = f"{renamed[outer]}.{number - 1}"
        renamed[name] = whole
        first = next(iter(getattr(module, "local_expert_indices", ())), first)
        yield whole, module, first


def _of_expert(name: str, first: int) -> str:
    """Return a name with the number that its expert has in the whole model."""
    return EXPERT.sub(lambda found: f"{found[1]}{first + int(found[2])}", name, count=1)


def _parameters(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the parameters of a chunk by their names, and experts' numbers, in the whole model."""
    for prefix, module, first in _named(model):
        for name, parameter in module.named_parameters(prefix, recurse=False):
            yield _of_expert(name, first), parameter


def _by_name(module: Any, given: Any, named: Any) -> dict[str, Any]:
    """Arguments of a call by their names in the module's forward."""
    try:
        bound = inspect.signature(module.forward).bind(*given, **named)
    except TypeError:
        return {**{str(number): value for number, value in enumerate(given)}, **named}
    return dict(bound.arguments)


def _given(given: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return what a layer is given by name, the fields of packed sequences by their own."""
    first, packed = zip(("hidden_states",), given, strict=False), named.get("packed_seq_params")
    return dict(_tensors({**dict(first), **named, **(vars(packed) if packed else {})}))


def _tensors(tree: Mapping[str, Any]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of values by name; those in tuples and dictionaries with a longer name."""
    for name, value in tree.items():
        if isinstance(value, torch.Tensor):
            if value.dtype != torch.bool or value.dim() == 2:  # as the map of a router
                yield name, value
        elif isinstance(value, list | tuple):
            yield from _tensors({f"{name}.{number}": one for number, one in enumerate(value)})
        elif isinstance(value, dict):
            yield from _tensors({f"{name}.{key}": one for key, one in value.items()})


def _gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    found = getattr(parameter, "main_grad", None)
    return parameter.grad if found is None else found
