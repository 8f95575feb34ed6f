"""The first wrong tensor, from traces that are made up: rows, tolerances, culprits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import astuple, replace

import numpy as np
import pytest

from ringproof.rehearsal.locate import saying
from ringproof.rehearsal.locate.comparing import Runs, TraceComparison, row_kind
from ringproof.rehearsal.locate.factors import explained
from ringproof.rehearsal.locate.gradients import differences, loss_scales, wrong_weights
from ringproof.rehearsal.locate.locating import located
from ringproof.rehearsal.locate.reading import Array, Port, RankRecord, RunTrace
from ringproof.rehearsal.locate.result import MOST_TIMES, Culprit, WrongPlace
from ringproof.rehearsal.locate.rows import LAYOUTS, Source, contiguous, plain_rows, zigzag
from ringproof.rehearsal.protocol.trace import (
    AFTER,
    LOCAL,
    REDUCED,
    WEIGHT,
    Place,
    RankTrace,
    TracedBatch,
    TracedCall,
    TracedParameter,
    TracedTensor,
    Values,
)

ROWS, WIDTH, EXACT = 16, 3, 1e-10
TENSORS = ("tokens", "embedded", "query", "attended", "loss")
FORWARDS = {"": "m.py:1", "embedding": "m.py:2", "block": "m.py:3", "block.attention": "m.py:4"}
Change = Callable[[dict[str, Array]], None]


def whole(disturbed: float = 0.0) -> dict[str, Array]:
    """All tensors of a microbatch, whole, and their gradients under ``~NAME``."""
    generator = np.random.default_rng(1)
    found: dict[str, Array] = {"tokens": generator.integers(0, 99, (1, ROWS))}
    for name in TENSORS[1:4]:
        found[name] = generator.standard_normal((ROWS, 1, WIDTH)) * (1 + disturbed)
    found["loss"] = generator.standard_normal((1, ROWS)) * (1 + disturbed)
    for name in TENSORS[1:]:
        found[f"~{name}"] = generator.standard_normal(found[name].shape) * (1 + disturbed)
    found["weight"] = generator.standard_normal((WIDTH, WIDTH)) * (1 + disturbed)
    found["bias"] = generator.standard_normal(WIDTH) * (1 + disturbed)
    return found


class _File:
    """Values one after the other, as a rank writes them."""

    def __init__(self) -> None:
        self.bytes = b""

    def put(self, value: Array) -> Values:
        stored = Values(len(self.bytes), value.shape, value.dtype.str)
        self.bytes += np.ascontiguousarray(value).tobytes()
        return stored


def share(number: int, size: int, name: str) -> float:
    """What a rank has of a gradient before its reduction: of a bias the last rank has most."""
    return 1 / size if name == "weight" else (2 * number + 1) / size**2


def rank(
    number: int, size: int, values: Mapping[str, Array], parameters: Mapping[str, Array]
) -> RankRecord:
    """One CP rank with a part of the rows: embedding, and a block with attention."""
    file = _File()
    gradients = [values.get(f"~{name}") for name in TENSORS]
    fired = dict(zip(("loss", "attended", "query", "embedded"), range(4), strict=True))
    tensors = tuple(
        TracedTensor(
            file.put(values[name]),
            None if gradient is None else file.put(gradient),
            fired.get(name, -1),
            ("te.py:7", "te.py:9") if name == "attended" else ("", ""),
        )
        for name, gradient in zip(TENSORS, gradients, strict=True)
    )
    at = {name: index for index, name in enumerate(TENSORS)}

    def call(
        name: str, events: tuple[int, int], parent: int, given: Mapping[str, int], made: int
    ) -> TracedCall:
        return TracedCall(
            1, 0, 0, name, 0, *events, parent, f"site:{name}", given, {"output": made}
        )

    calls = (
        call("", (0, 7), -1, {"input_ids": at["tokens"]}, at["loss"]),
        call("embedding", (1, 2), 0, {"input_ids": at["tokens"]}, at["embedded"]),
        call("block", (3, 6), 0, {"x": at["embedded"]}, at["attended"]),
        call("block.attention", (4, 5), 2, {"query": at["query"]}, at["attended"]),
    )
    held = tuple(
        TracedParameter(1, 0, f"block.attention.{name}", kind, file.put(value), False)
        for kind in (LOCAL, REDUCED)
        for name, value in parameters.items()
        for value in (value * share(number, size, name) if kind == LOCAL else value,)
    )
    batch = TracedBatch(1, 0, 0, tuple(range(size)), ())
    place = Place(0, number, 0, 0, (1, size, 1, 1), False)
    trace = RankTrace(
        number, place, tensors, calls, (batch,), held, FORWARDS,
        full=False, sharded=False, overlapped=False,
    )  # fmt: skip
    return RankRecord(trace, np.frombuffer(file.bytes, np.uint8))


def one_rank(disturbed: float = 0.0) -> RunTrace:
    values = whole(disturbed)
    return RunTrace((rank(0, 1, values, {n: values[n] for n in ("weight", "bias")}),))


def run(
    *changes: tuple[int, Change], layout: str = "zigzag", scale: float = 2.0, reduced: float = 1.0
) -> RunTrace:
    """Two CP ranks whose loss is scaled differently; each change is made on one rank."""
    ranks = []
    for number in range(2):
        values = whole()
        index = LAYOUTS[layout](number, 2, ROWS)
        part = {
            name: value[:, index] if name.removeprefix("~") in ("tokens", "loss") else value[index]
            for name, value in values.items()
            if name not in ("weight", "bias")
        }
        part |= {name: value * scale for name, value in part.items() if name.startswith("~")}
        for where, change in changes:
            if where == number:
                change(part)
        gradients = {name: values[name] * reduced for name in ("weight", "bias")}
        ranks.append(rank(number, 2, part, gradients))
    return RunTrace(tuple(ranks))


def found(record: RunTrace, disturbed: float = 1e-15) -> WrongPlace:
    return located(record, one_rank(), one_rank(disturbed), (1,))


def culprit(record: RunTrace) -> Culprit:
    location = found(record)
    assert location.culprit is not None, location.reason
    return location.culprit


def add(name: str, value: float, row: int = 2) -> Change:
    def change(values: dict[str, Array]) -> None:
        values[name] = values[name].copy()
        values[name][row] += value

    return change


def times(name: str, factor: float) -> Change:
    def change(values: dict[str, Array]) -> None:
        values[name] = values[name] * factor

    return change


def test_zigzag_and_contiguous_deal_every_row_once() -> None:
    assert zigzag(0, 2, 16).tolist() == [0, 1, 2, 3, 12, 13, 14, 15]
    for layout in (zigzag, contiguous):
        rows = np.concatenate([layout(number, 4, 32) for number in range(4)])
        assert sorted(rows.tolist()) == list(range(32))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_run_that_agrees_has_no_culprit(layout: str) -> None:
    location = found(run(layout=layout))
    assert location.culprit is None and location.left_out == ()
    assert location.compared == 2 * 9  # five values and four gradients on each rank
    assert saying.sentence(location) == "not located: every tensor that was compared agrees"


def test_the_first_wrong_output_is_named_and_not_what_follows() -> None:
    # The block's own output and the loss are wrong because attention's output is.
    changes = [(1, add("attended", 0.5)), (0, add("loss", 0.5, 0)), (1, add("~query", 0.5))]
    one = culprit(run(*changes))
    assert (one.phase, one.module, one.tensor) == ("forward", "block.attention", "output")
    assert (one.ranks, one.microbatches, one.positions) == ((1,), (0,), ((6, 6),))
    assert (one.computed_at, one.called_from) == ("te.py:7", "site:block.attention")
    assert [(beside.what, beside.wrong) for beside in one.evidence] == [
        ("input query", False), ("output", True),
    ]  # fmt: skip
    largest = float(np.abs(whole()["attended"]).max())
    assert one.error == pytest.approx(0.5 / largest, rel=EXACT)


def test_an_evaluation_is_searched_in_its_forward_only() -> None:
    def evaluated(record: RunTrace) -> RunTrace:
        ranks = []
        for one in record.ranks:
            calls = tuple(replace(call, step=-1) for call in one.trace.calls)
            batches = tuple(replace(batch, step=-1) for batch in one.trace.batches)
            trace = replace(one.trace, calls=calls, batches=batches, parameters=())
            ranks.append(RankRecord(trace, one.data))
        return RunTrace(tuple(ranks))

    references = evaluated(one_rank()), evaluated(one_rank(1e-15))
    wrong = evaluated(run((0, add("attended", 0.5)), (0, add("~query", 0.5))))
    place = located(wrong, *references, (-1,))
    assert place.culprit is not None and place.errors is not None
    assert "is wrong in the forward in evaluation 1, microbatch 0" in saying.sentence(place)
    only_backward = located(evaluated(run((0, add("~query", 0.5)))), *references, (-1,))
    assert only_backward.culprit is None and only_backward.compared == 10


def test_code_between_two_modules_is_named_by_its_caller() -> None:
    one = culprit(run((0, add("query", 0.5)), (0, add("attended", 0.5))))
    assert (one.phase, one.module) == ("forward", "block")
    assert "input query, which the forward of block computed" in one.tensor


def test_wrong_data_are_no_fault_of_a_module() -> None:
    def swap(values: dict[str, Array]) -> None:
        values["tokens"] = values["tokens"].copy()
        values["tokens"][0, 3] += 1

    assert culprit(run((0, swap), (0, add("embedded", 0.5)))).phase == "data"


def rolled(record: RunTrace, by: int) -> RunTrace:
    """Give the embedding of each rank tokens of its own, moved by some rows."""
    ranks = []
    for one in record.ranks:
        tokens = one.values(one.trace.tensors[0].value)
        moved = np.ascontiguousarray(np.roll(tokens, by, axis=1))
        stored = TracedTensor(Values(len(one.data), moved.shape, moved.dtype.str))
        calls = list(one.trace.calls)
        calls[1] = replace(calls[1], inputs={"input_ids": len(TENSORS)})
        trace = replace(one.trace, tensors=(*one.trace.tensors, stored), calls=tuple(calls))
        ranks.append(RankRecord(trace, np.concatenate([one.data, moved.view(np.uint8)[0]])))
    return RunTrace(tuple(ranks))


def with_positions(record: RunTrace, layout: str) -> RunTrace:
    """Give the model of each rank the positions of its tokens, too."""
    ranks = []
    for number, one in enumerate(record.ranks):
        index = LAYOUTS[layout](number, len(record.ranks), ROWS)[None]
        stored = TracedTensor(Values(len(one.data), index.shape, index.dtype.str))
        calls = list(one.trace.calls)
        inputs = {**calls[0].inputs, "position_ids": len(TENSORS)}
        calls[0] = replace(calls[0], inputs=inputs)
        trace = replace(one.trace, tensors=(*one.trace.tensors, stored), calls=tuple(calls))
        ranks.append(RankRecord(trace, np.concatenate([one.data, index.view(np.uint8)[0]])))
    return RunTrace(tuple(ranks))


def test_the_errors_of_all_modules_are_mapped() -> None:
    def lose(values: dict[str, Array]) -> None:
        values["~query"] = values["~query"] + np.nan

    record = run((1, add("attended", 0.5)), (0, lose))
    errors = found(record).errors
    assert errors is not None and errors.modules == ("", "embedding", "block", "block.attention")
    assert (errors.step, errors.ranks, errors.blocks) == (1, (0, 1), tuple(range(ROWS + 1)))
    rows = {(row.module, row.phase): row for row in errors.rows}
    forward = rows["block.attention", "forward"]
    assert forward.ranks[0] == 0 and forward.ranks[1] is not None and forward.ranks[1] > 1e6
    assert [at for at, ratio in enumerate(forward.blocks) if ratio] == [6]
    assert rows["embedding", "forward"].ranks == (0, 0)
    assert rows["block.attention", "backward"].ranks == (MOST_TIMES, 0)
    assert rows["block.attention", "gradients"].blocks == ()
    assert ("embedding", "backward") not in rows  # tokens have no gradient
    assert found(run()).errors is None
    loss = found(run(reduced=0.5)).errors
    assert loss is not None
    gradients = {row.module: row.ranks for row in loss.rows if row.phase == "gradients"}
    assert gradients["block.attention"] == pytest.approx((gradients["block.attention"][0],) * 2)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_reference_with_cp_is_put_together(layout: str) -> None:
    reference, disturbed = (
        with_positions(
            run(*((at, times("query", 1 + off)) for at in (0, 1)), layout=layout), layout
        )
        for off in (0.0, 1e-15)
    )
    same = located(with_positions(one_rank(), layout), reference, disturbed, (1,))
    assert (same.culprit, same.reason) == (None, "every tensor that was compared agrees")
    assert same.compared == 10 and same.left_out == ()
    wrong = with_positions(run((1, add("attended", 0.5)), layout="zigzag"), "zigzag")
    one = located(wrong, reference, disturbed, (1,)).culprit
    assert one is not None and (one.module, one.positions) == ("block.attention", ((6, 6),))
    lost = with_positions(run(reduced=0.5), "zigzag")
    scaled = located(lost, reference, disturbed, (1,)).culprit
    assert scaled is not None and scaled.phase == "scale"


def test_rows_of_a_reference_without_positions_are_not_put_together() -> None:
    found = located(one_rank(), run(), run(), (1,))
    assert found.reason == "the positions of the ranks are in no known layout"


@pytest.mark.parametrize("by", [0, 1])
def test_tokens_that_the_model_itself_moves_are_compared(by: int) -> None:
    """An embedding that looks up wrong tokens rightly is not to blame."""
    references = (rolled(one_rank(off), 0) for off in (0.0, 1e-15))
    wrong = run((0, add("embedded", 0.5)) if by else (0, times("embedded", 1)))
    one = located(rolled(wrong, by), *references, (1,)).culprit
    assert (one is None) is (by == 0)
    assert one is None or one.tensor == "input input_ids, which the forward of the model computed"


def test_rows_in_no_known_layout_are_not_located() -> None:
    def other(values: dict[str, Array]) -> None:
        values["tokens"] = values["tokens"] + 1

    location = found(run((0, other), (1, other)))
    assert location.culprit is None and "in any known layout" in location.reason


def test_the_first_wrong_gradient_is_named_by_its_consumer() -> None:
    one = culprit(run((1, add("~query", 0.5)), (0, add("~embedded", 0.5)), scale=3.0))
    assert (one.phase, one.module) == ("backward", "block.attention")
    assert one.tensor == "gradient of input query"
    assert one.computed_at == "te.py:9"
    assert [(beside.what, beside.wrong) for beside in one.evidence] == [
        ("gradient of output", False), ("gradient of input query", True),
    ]  # fmt: skip
    largest = float(np.abs(whole()["~query"]).max())
    assert one.error == pytest.approx(0.5 / 3 / largest, rel=EXACT)


def test_the_loss_is_named_where_its_own_gradient_is_wrong() -> None:
    def lose(values: dict[str, Array]) -> None:
        values["~loss"] = values["~loss"] * np.linspace(0.5, 1.5, ROWS // 2)

    assert culprit(run((0, lose))).phase == "loss"


@pytest.mark.parametrize(("stages", "scales"), [(2, {}), (1, {(1, 0, 0): 2.0})])
def test_only_the_last_stage_says_how_the_loss_is_scaled(
    stages: int, scales: dict[tuple[int, int, int], float]
) -> None:
    """What another stage hands on has a gradient that a wrong backward has reached."""

    def at(record: RunTrace) -> RunTrace:
        sizes = (1, len(record.ranks), 1, stages)
        place = [replace(one.trace.place, sizes=sizes) for one in record.ranks]
        both = zip(record.ranks, place, strict=True)
        return RunTrace(tuple(replace(r, trace=replace(r.trace, place=p)) for r, p in both))

    runs = Runs(at(run()), at(one_rank()), at(one_rank(1e-15)), "zigzag")
    assert loss_scales(TraceComparison(runs), 1) == pytest.approx(scales)


def test_gradients_that_are_all_scaled_are_a_scale() -> None:
    one = culprit(run(reduced=0.5))
    # Before their reduction gradients are compared up to one factor, which hides it there.
    assert (one.phase, one.ranks) == ("scale", (0, 1))
    assert one.factor == "all values are multiplied by 0.5 (1/CP)"


def test_one_wrong_gradient_before_the_reduction_is_its_modules() -> None:
    record = run()
    first = record.ranks[0]
    held = [replace(one, name="block.attention.bias") for one in first.trace.parameters[:1]]
    trace = replace(
        first.trace,
        parameters=tuple(
            replace(one, value=first.trace.parameters[3].value)
            if (one.kind, one.name) == (LOCAL, held[0].name) else one
            for one in first.trace.parameters
        ),
    )  # fmt: skip
    one = culprit(RunTrace((replace(first, trace=trace), record.ranks[1])))
    assert (one.phase, one.module) == ("gradient", "block.attention")


def test_gradients_are_not_summed_where_a_rank_ended_before_its_own() -> None:
    """A rank that raises writes its trace without gradients of the step."""
    first, second = run().ranks
    early = replace(second, trace=replace(second.trace, parameters=(), ended=False))
    assert found(RunTrace((first, early))).culprit is None


@pytest.mark.parametrize(("factor", "phase"), [(1.0, ""), (2.0, "reduction")])
def test_parts_of_unknown_begin_are_put_together_in_the_order_of_ranks(
    factor: float, phase: str
) -> None:
    """As those of FSDP, which deals out the rows of each parameter to all ranks."""
    ranks, value = [], whole()["weight"]
    for record, (start, end) in zip(run().ranks, ((0, 1), (1, WIDTH)), strict=True):
        part = np.ascontiguousarray(value[start:end] * (factor if start else 1.0))
        stored = Values(len(record.data), (part.size,), part.dtype.str)
        held = TracedParameter(
            1, 0, "block.attention.weight", REDUCED, stored, summed=False, start=AFTER
        )
        trace = replace(record.trace, parameters=(held,))
        data = np.concatenate([record.data, np.frombuffer(part.tobytes(), np.uint8)])
        ranks.append(RankRecord(trace, data))
    one = found(RunTrace(tuple(ranks))).culprit
    assert (one.phase if one else "") == phase
    assert one is None or one.ranks == (1,)


@pytest.mark.parametrize(("off", "wrong"), [(1e-9, False), (8e-8, True)])
def test_what_rounding_moves_is_measured(off: float, wrong: bool) -> None:
    # The reference moves by 1e-9 when it is disturbed, and 60 times that is allowed.
    change = times("attended", 1 + off)
    location = found(run((0, change), (1, change)), disturbed=1e-9)
    assert (location.culprit is not None) is wrong


def test_what_cannot_be_aligned_is_listed() -> None:
    def reshape(values: dict[str, Array]) -> None:
        for name in ("query", "~query"):
            values[name] = values[name].reshape(2, -1)

    location = found(run((0, reshape), (1, reshape)))
    assert location.culprit is None
    texts = [text for text, _ in location.left_out]
    assert "input query of block.attention has a shape of unknown rows, [2, 12]" in texts


def test_a_trace_that_is_cut_off_is_not_compared() -> None:
    record = run((0, add("attended", 0.5)))
    cut = replace(record.ranks[0], trace=replace(record.ranks[0].trace, full=True))
    location = found(RunTrace((cut, record.ranks[1])))
    assert location.culprit is None and "larger than its limit" in location.reason


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: 2 * rows, "all values are multiplied by 2 (CP)"),
        (lambda rows: -rows, "all values are multiplied by -1 (the sign)"),
        (lambda rows: np.roll(rows, 1, axis=0), "rows are shifted by 1"),
        (lambda rows: rows[::-1], "the rows are right and in another order"),
        (lambda rows: 0 * rows, "all values are zero"),
        (lambda rows: rows + np.nan, "some values are not finite"),
        (lambda rows: rows**2, ""),
    ],
)
def test_simple_changes_are_recognised(change: Callable[[Array], Array], said: str) -> None:
    rows = np.random.default_rng(2).standard_normal((8, 3))
    assert explained(change(rows), rows, {"CP": 2, "TP": 1}) == said


def test_a_culprit_is_said_in_one_sentence() -> None:
    location = found(run((1, add("attended", 0.5))))
    said = saying.sentence(location)
    assert said.startswith(
        "block.attention is wrong in the forward in step 1, microbatch 0, on rank 1, positions 6 "
        "of the sequence: output, relative "
    )
    assert "what goes into it agrees to 0" in said
    assert saying.places(location) == "computed at te.py:7, called at site:block.attention"
    assert location.culprit is not None
    unknown = replace(location, culprit=replace(location.culprit, computed_at=""))
    assert saying.places(unknown) == "called at site:block.attention"
    assert "tensors were compared" in saying.left_out(location)
    three = (("masks", 3), ("biases", 1), ("scales", 1))
    for count, said in (
        (1, "masks"),
        (2, "masks and 1 other kind"),
        (3, "masks and 2 other kinds"),
    ):
        fewer = replace(location, left_out=three[:count])
        assert saying.left_out(fewer).endswith(f"; not compared: {said}")


@pytest.mark.parametrize(
    ("shape", "batch", "split", "read"),
    [
        ((16, 2, 3), 2, 1, None),  # two sequences, one after the other
        ((24, 3, 3), 3, 1, None),
        ((16, 3), 2, 1, (0, False, 2, 1)),
        ((16,), 2, 1, (0, False, 2, 1)),
        ((8, 2, 3), 2, 1, (0, True, 1, 1)),
        ((2, 8), 2, 1, (1, True, 1, 1)),
        ((4, 2, 3), 2, 2, (0, True, 1, 2)),
        ((16, 2, 3), 1, 1, None),
    ],
)
def test_rows_are_read_only_from_a_shape_that_has_one_reading(
    shape: tuple[int, ...], batch: int, split: int, read: tuple[object, ...] | None
) -> None:
    one = run().ranks[0]
    place = replace(one.trace.place, sizes=(split, 2, 1, 1), sequence_parallel=split > 1)
    one = replace(one, trace=replace(one.trace, place=place))
    rows = plain_rows(np.arange(8), Source(0, 0, 0, 16), batch)
    kind = row_kind(Values(0, shape, "<f8"), rows, one)
    assert (None if kind is None else astuple(kind)) == read


@pytest.mark.parametrize(("batch", "split", "rows"), [(1, 2, 4), (2, 2, 8), (2, 1, 16)])
def test_what_a_router_makes_of_its_tokens_is_read(batch: int, split: int, rows: int) -> None:
    """As many rows as a rank has of one sample can be those of a part of both samples."""
    one = run().ranks[0]
    place = replace(one.trace.place, sizes=(split, 2, 1, 1), sequence_parallel=split > 1)
    one = replace(one, trace=replace(one.trace, place=place))
    tokens = plain_rows(np.arange(8), Source(0, 0, 0, 16), batch)
    kind = row_kind(Values(0, (rows, 5), "<f8"), tokens, one, tokens=True)
    assert kind is not None and astuple(kind) == (0, False, batch, split)
    assert row_kind(Values(0, (rows + 1, 5), "<f8"), tokens, one, tokens=True) is None


def test_the_sequences_of_multi_token_prediction_are_not_taken_for_one() -> None:
    """With sequence parallelism, two parts of a sequence have as many rows as the whole."""

    names = {"block": "mtp", "block.attention": "mtp.layers.0"}

    def renamed(one: RankRecord) -> RankRecord:
        calls = (replace(c, module=names.get(c.module, c.module)) for c in one.trace.calls)
        return replace(one, trace=replace(one.trace, calls=tuple(calls)))

    def at(record: RunTrace) -> RunTrace:
        return RunTrace(tuple(map(renamed, record.ranks)))

    wrong = at(run((0, add("attended", 0.5))))
    layer = located(wrong, at(one_rank()), at(one_rank(1e-15)), (1,))
    assert layer.culprit is not None and layer.culprit.module == "mtp.layers.0"
    runs = Runs(wrong, at(one_rank()), at(one_rank(1e-15)), "zigzag")
    port = Port((1, 0, 0, "mtp", 0), "outputs", "output")
    said = TraceComparison(runs).compare(wrong.ranks[0], port)
    assert said == "holds several sequences, one after the other"


def test_a_gradient_that_no_module_computed_is_only_the_first_wrong_one() -> None:
    one = culprit(run((1, add("~attended", 0.5))))
    assert (one.phase, one.module, len(one.evidence)) == ("backward", "", 1)
    said = saying.sentence(found(run((1, add("~attended", 0.5)))))
    assert said.startswith("the backward of the model has the first wrong gradient in step 1")
    assert "; what goes into it was not compared" in said and "agrees" not in said
    other = saying.sentence(found(run((1, add("~query", 0.5)))))
    assert "is wrong in the backward" in other and "what goes into it agrees" in other


def attending_to_x(record: RunTrace) -> RunTrace:
    """Give attention what its block is given."""
    ranks = []
    for one in record.ranks:
        *others, block, attention = one.trace.calls
        calls = (*others, block, replace(attention, inputs={"query": block.inputs["x"]}))
        ranks.append(RankRecord(replace(one.trace, calls=calls), one.data))
    return RunTrace(tuple(ranks))


def test_a_tensor_that_is_right_elsewhere_is_wrong_where_it_does_not_belong() -> None:
    one = culprit(attending_to_x(run((1, add("attended", 0.5)))))
    assert (one.phase, one.module) == ("forward", "block")
    assert one.tensor.startswith("input query, which the forward of block computed")


def test_an_input_of_modules_without_gradients_is_that_of_the_outermost() -> None:
    """As with recomputed layers, whose own tensors have no gradients in the trace."""
    changes = [(number, lambda values: values.pop("~attended")) for number in range(2)]
    record = run(*changes, (1, add("~embedded", 0.5)))
    references = [attending_to_x(one_rank(off)) for off in (0.0, 1e-15)]
    one = located(attending_to_x(record), *references, (1,)).culprit
    assert one is not None
    assert (one.phase, one.module, one.tensor) == ("backward", "block", "gradient of input x")


def test_weights_that_are_gathered_late_are_not_compared() -> None:
    """With the overlapped gathering of parameters a rank has old parts when a step begins."""

    def weights(disturbed: float, *, late: bool) -> RunTrace:
        (record,) = one_rank(disturbed).ranks
        held = [one for one in record.trace.parameters if one.kind == REDUCED]
        parameters = tuple(replace(one, kind=WEIGHT) for one in held)
        trace = replace(record.trace, parameters=parameters, gathered_late=late)
        return RunTrace((replace(record, trace=trace),))

    for late in (False, True):
        same, near, other = (weights(by, late=late) for by in (0.0, 1e-7, 0.5))
        found = wrong_weights(Runs(other, same, near, ""), 1)
        assert (found is None) is late


def test_a_parameter_that_the_run_forgets_to_sum_is_wrong_only_after_the_reduction() -> None:
    """TP ranks hold parts of a gradient where the reference says so, whatever the run says."""

    def parts(*, summed: bool) -> RunTrace:
        values, ranks = whole(), []
        for number in range(2):
            one = rank(number, 2, values, {"weight": values["weight"]})
            held = tuple(replace(held, summed=summed) for held in one.trace.parameters)
            place = replace(one.trace.place, tensor=number, context=0, sizes=(2, 1, 1, 1))
            ranks.append(replace(one, trace=replace(one.trace, parameters=held, place=place)))
        return RunTrace(tuple(ranks))

    expected = parts(summed=True)
    (found,) = differences(Runs(parts(summed=False), expected, expected, ""), 1, LOCAL)
    assert not found.wrong
    assert found.ranks == (0, 1)
