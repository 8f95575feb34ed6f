"""What is copied in, what may be a static input, and when a forward waits for its backward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DeviceMesh, DTensor, Replicate, Shard, init_device_mesh

from checks.graphs.captures import equal, graph, perceptron, results, tensor
from ringproof.errors import InputError
from ringproof.reference.graphs.backend import Capture
from ringproof.reference.graphs.tape.backend import TapeBackend
from smoke.model_batches import group_of_one


def complex_rows(seed: int = 0) -> torch.Tensor:
    return torch.complex(tensor(3, 3, seed=seed), tensor(3, 3, seed=seed + 1))


@pytest.mark.parametrize(
    "view",
    [
        torch.Tensor.conj,
        lambda x: torch._neg_view(x),
        lambda x: x.t(),
        lambda x: x.flip(0),
        lambda x: x[:1].expand(3, 3),
        lambda x: x,
    ],
)
def test_a_view_of_the_static_input_is_an_argument(view: Any) -> None:
    """At the same address, and read in another way."""
    graphed = graph(lambda x: x * 1, complex_rows())
    (static,) = graphed.inputs
    expected = view(static).clone().resolve_conj()
    assert equal([graphed(view(static))], [expected])


def test_static_inputs_may_be_arguments_in_another_order() -> None:
    graphed = graph(lambda x, y: x - 2 * y, tensor(3), tensor(3, seed=1))
    first, second = (one.clone() for one in graphed.inputs)
    assert equal([graphed(graphed.inputs[1], graphed.inputs[0])], [second - 2 * first])


def test_a_gradient_that_is_a_conjugate_is_copied() -> None:
    weight = complex_rows(4).requires_grad_()
    graphed = graph(lambda x: x * weight, complex_rows(), parameters={"weight": weight})
    given, found = complex_rows(7), []
    for function in (graphed, lambda x: x * weight):
        weight.grad = None
        function(given).backward(complex_rows(9).conj())
        assert weight.grad is not None
        found.append(torch.view_as_real(weight.grad.resolve_conj()))
    assert equal(found[:1], found[1:])


def test_without_a_backward_nothing_waits_for_one() -> None:
    graphed = graph(lambda x: x.argmax(0), tensor(3, 4, grad=True))
    graphed(tensor(3, 4, grad=True))
    assert not graphed.in_flight


def test_a_result_that_nobody_holds_waits_no_more() -> None:
    graphed = graph(perceptron(), tensor(5, 4, grad=True))
    loss = graphed(tensor(5, 4)).sum()
    assert graphed.in_flight
    del loss
    assert not graphed.in_flight


def test_a_replay_that_fails_has_overwritten_what_waited() -> None:
    def function(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        return (x.exp() * 2).index_select(0, rows)

    graphed = graph(function, tensor(4, grad=True), torch.tensor([0]))
    waiting = graphed(tensor(4, seed=1, grad=True), torch.tensor([1]))
    with pytest.raises(InputError, match="index out of range"):
        graphed(tensor(4, seed=2), torch.tensor([9]))
    with pytest.raises(InputError, match="its activations are gone"):
        waiting.sum().backward()
    assert not graphed.in_flight


def test_a_hook_on_a_gradient_is_refused() -> None:
    """It would run twice: as operations of the graph, and when autograd gets the gradient."""
    module = perceptron()
    hook = module[0].weight.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(InputError, match=r"part: 0.weight has a hook on its gradient"):
        graph(module, tensor(5, 4, grad=True))
    hook.remove()
    graphed = graph(module, tensor(5, 4, grad=True))
    module[0].weight.register_hook(lambda gradient: gradient * 2)
    given, parameters = [tensor(5, 4, seed=3, grad=True)], list(module.parameters())
    assert equal(results(graphed, given, parameters), results(module, given, parameters))


def test_inputs_that_overlap_are_refused() -> None:
    """The copy of one would overwrite the other; side by side they may lie."""
    whole = tensor(6)
    graphed = graph(lambda x, y: x - y, whole[:3], whole[3:])
    assert equal([graphed(tensor(3), tensor(3, seed=1))], [tensor(3) - tensor(3, seed=1)])
    with pytest.raises(InputError, match="part: input 0 and input 1 share memory"):
        graph(lambda x, y: x - y, whole[:3], whole[2:5])


def test_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        made = tensor(3)
        with pytest.raises(InputError, match="inference_mode: what it makes can be neither"):
            graph(lambda x: x * 2, tensor(3))
    with pytest.raises(InputError, match=r"part: input 0 .* is a view or a result"):
        graph(lambda x: x * 2, made)
    graphed = graph(lambda x: x * 2, tensor(3))
    with torch.inference_mode():
        assert equal([graphed(made)], [made * 2])


def test_anomaly_detection_is_refused() -> None:
    with (
        pytest.warns(UserWarning, match="Anomaly Detection"),
        torch.autograd.detect_anomaly(),
        pytest.raises(InputError, match="detect_anomaly: it reads every gradient"),
    ):
        graph(lambda x: x * 2, tensor(3))
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        graph(lambda x: x * 2, tensor(3, grad=True))


def test_a_second_derivative_is_refused() -> None:
    """Not taken for zero: autograd would let the gradient through as a constant."""
    graphed, leaf = graph(lambda x: x.exp(), tensor(3, grad=True)), tensor(3, grad=True)
    with pytest.raises(InputError, match="part: its gradients cannot be differentiated again"):
        torch.autograd.grad(graphed(leaf).sum(), leaf, create_graph=True)
    (first,) = torch.autograd.grad(graphed(leaf).sum(), leaf)
    assert equal([first], [leaf.detach().exp()])


def test_an_argument_that_is_no_tensor_is_refused() -> None:
    given: Any = 3.0
    with pytest.raises(InputError, match=r"input 0 was captured as float64 \[3\] .*and is float"):
        graph(lambda x: x * 2, tensor(3))(given)


def test_numbers_are_filled_in_and_differentiated() -> None:
    """Bit by bit: also where the layout of a gradient decides on the order of a product's sum."""
    weight = tensor(4, 4, seed=637)

    def function(x: torch.Tensor) -> torch.Tensor:
        out = x * 1
        out[1:, 0] = 0.5
        out[x[:, 1] > 0] = -1
        out[None, ..., 2] = 3
        rotated = out @ weight
        rotated[rotated > 0] = -1
        return rotated.t().contiguous() * x.sum()

    graphed = graph(function, tensor(3, 4, grad=True))
    for seed in (2, 5):
        given = [tensor(3, 4, seed=seed, grad=True)]
        assert equal(results(graphed, given), results(function, given))


def test_a_graph_inside_of_a_capture_is_refused() -> None:
    """Of a replay and of a capture: torch lets a GPU do neither while it captures."""
    inner, pool = graph(lambda x: x * 3, tensor(5, 4)), TapeBackend().new_pool()
    with pytest.raises(
        InputError, match=r"part, forward: it is inside of a capture at graphs/test_a"
    ):
        graph(lambda x: inner(x) * 2, tensor(5, 4), pool=pool)
    capture = Capture(name="inner", function=lambda x: x * 2, inputs=(tensor(3),))

    def captures(x: torch.Tensor) -> torch.Tensor:
        TapeBackend().capture([capture])
        return x * 2

    with pytest.raises(InputError, match=r"inner: it is inside of a capture at graphs/test_arg"):
        graph(captures, tensor(3), pool=pool, warm_up=0)
    assert not [block for block in pool if block.born is not None]
    assert equal([inner(tensor(5, 4))], [tensor(5, 4) * 3])


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    with group_of_one():
        yield init_device_mesh("cpu", (1,))


def test_distributed_tensors_inside(mesh: DeviceMesh) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        whole = DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()])
        return (whole * 2 + whole.exp()).to_local()

    graphed = graph(function, tensor(4, 4, grad=True))
    names = {one.function.name() for one in graphed._segments[0].operations}
    assert names >= {"aten::mul.Tensor", "aten::exp", "aten::add.Tensor"}
    given = [tensor(4, 4, seed=1, grad=True)]
    assert equal(results(graphed, given), results(function, given))


def test_distributed_tensors_do_not_cross(mesh: DeviceMesh) -> None:
    wrapped = DTensor.from_local(tensor(4), mesh, [Replicate()])
    with pytest.raises(InputError, match=r"part: input 0 is a .*, whose parts"):
        graph(lambda x: x * 2, wrapped)
    with pytest.raises(InputError, match=r"part: weight is a .*, whose parts"):
        graph(lambda x: x * 2, tensor(4), parameters={"weight": nn.Parameter(wrapped)})
    with pytest.raises(InputError, match="part: a graph returns plain tensors only"):
        graph(lambda x: DTensor.from_local(x, mesh, [Replicate()]), tensor(4))
