"""The conformance matrix: each case is a small training, a place in the table and its path."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ringproof.errors import InputError
from ringproof.rehearsal.conform.models import DATA, MODELS

TOLERANCE = 2e-6  # of losses in float32, relative; see docs/conformance.md
BFLOAT16_TOLERANCE = 5e-3
MEGATRON_FSDP = (
    "--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads_params "
    "--ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion --use-distributed-optimizer"
)
TORCH_FSDP = "--use-torch-fsdp2 --ckpt-format torch_dist --no-gradient-accumulation-fusion"
OVERLAPPED = "--overlap-grad-reduce --overlap-param-gather --use-distributed-optimizer"
DYNAMIC = (
    "--dynamic-context-parallel --sequence-packing-scheduler default_dynamic_cp "
    "--max-seqlen-per-dp-cp-rank 64"
)
BALANCED = "--sequence-packing-scheduler dp_balanced --max-seqlen-per-dp-cp-rank {share}"
HYBRID = "--hybrid-context-parallel --max-seqlen-per-dp-cp-rank 64"
NO_RERUN = "--rerun-mode disabled"  # what it validates by default cannot hold hybrid CP's iterator


@dataclass(frozen=True)
class Case:
    """One training on several ranks, compared with the same training on one.

    Attributes:
        id: Its name, for people and for ``--case``.
        group: Section of the table.
        ranks: World size.
        model: Key of `MODELS`.
        data: Key of `DATA`.
        arguments: Options that the reference on one rank does not have.
        path: Attention paths that must be seen, as ``TYPE:SIZE`` or ``TYPE:SIZExSIZE``.
        both: Options that case and reference share.
        tolerance: Largest relative difference of a loss or gradient norm that counts as equal.
        evaluates: Whether losses of evaluations are compared, too.
        connections: ``CUDA_DEVICE_MAX_CONNECTIONS``: FSDP asks for another value than TP and CP.
    """

    id: str
    group: str
    ranks: int
    model: str
    data: str
    arguments: str
    path: tuple[str, ...]
    both: str = ""
    tolerance: float = TOLERANCE
    evaluates: bool = False
    connections: int = 1


def _cp(size: int, comm: str = "p2p") -> str:
    if comm == "a2a+p2p":
        return (
            f"--context-parallel-size {size} --cp-comm-type a2a+p2p "
            f"--hierarchical-context-parallel-sizes 2 {size // 2}"
        )
    return f"--context-parallel-size {size} --cp-comm-type {comm}"


def _static(
    name: str, ranks: int, size: int, comm: str = "p2p", *, model: str = "dense",
    data: str = "plain", more: str = "", both: str = "", tolerance: float = TOLERANCE,
    evaluates: bool = False,
) -> Case:  # fmt: skip
    path = f"{comm}:2x{size // 2}" if comm == "a2a+p2p" else f"{comm}:{size}"
    arguments = f"{_cp(size, comm)} {more}".strip()
    group = {"plain": "static", "per-token": "static"}.get(data, "static packed")
    return Case(name, group, ranks, model, data, arguments, (path,), both, tolerance, evaluates)


TP2 = "--tensor-model-parallel-size 2"
SP = f"{TP2} --sequence-parallel"
PP2 = "--pipeline-model-parallel-size 2"
VPP2 = f"{PP2} --num-layers-per-virtual-pipeline-stage 1"
EP2 = "--expert-model-parallel-size 2"
FULL = "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
EVAL = "--eval-interval 2"

STATIC = (
    _static("static-p2p-cp2", 2, 2),
    _static("static-p2p-cp4", 4, 4),
    _static("static-a2a-cp2", 2, 2, "a2a"),
    _static("static-all-gather-cp2", 2, 2, "all_gather"),
    _static("static-hcp-2x2", 4, 4, "a2a+p2p"),
    _static("static-p2p-gqa", 2, 2, model="gqa"),
    _static("static-hcp-gqa", 4, 4, "a2a+p2p", model="gqa"),
    _static("static-a2a-one-group", 2, 2, "a2a", model="one-group"),
    _static("static-p2p-window", 2, 2, model="window"),
    _static("static-a2a-window", 2, 2, "a2a", model="window"),
    _static("static-p2p-tp2", 4, 2, more=TP2),
    _static("static-p2p-tp2-sp", 4, 2, more=SP),
    _static("static-a2a-tp2-sp", 4, 2, "a2a", more=SP),
    _static("static-hcp-tp2-sp", 8, 4, "a2a+p2p", more=SP),
    _static("static-p2p-pp2", 4, 2, model="deep", more=PP2),
    _static("static-p2p-pp2-vpp2", 4, 2, model="deep", more=VPP2),
    _static("static-p2p-dp2", 4, 2),
    _static("static-p2p-dp2-distopt", 4, 2, more=OVERLAPPED),
    _static("static-p2p-moe-ep2", 2, 2, model="moe", more=EP2),
    _static("static-a2a-moe-ep2", 2, 2, "a2a", model="moe", more=EP2),
    _static("static-p2p-moe-aux-loss", 2, 2, model="moe-aux"),
    _static("static-p2p-mla", 2, 2, model="mla"),
    _static("static-a2a-mla", 2, 2, "a2a", model="mla"),
    _static("static-p2p-mtp", 2, 2, model="mtp"),
    _static("static-p2p-mtp-per-token", 2, 2, model="mtp", data="per-token"),
    _static("static-p2p-mamba", 2, 2, model="hybrid"),
    _static("static-a2a-mamba", 2, 2, "a2a", model="hybrid"),
    _static("static-p2p-mamba-tp2-sp", 4, 2, model="hybrid", more=SP),
    _static("static-p2p-recompute", 2, 2, more=FULL),
    _static("static-hcp-recompute", 4, 4, "a2a+p2p", more=FULL),
    _static("static-p2p-eval", 2, 2, both=EVAL, evaluates=True),
    _static("static-p2p-per-token", 4, 2, data="per-token"),
    _static("static-p2p-bf16", 2, 2, both="--bf16", tolerance=BFLOAT16_TOLERANCE),
    replace(_static("static-p2p-megatron-fsdp", 4, 2, more=MEGATRON_FSDP), connections=8),
    replace(_static("static-p2p-torch-fsdp2", 4, 2, more=TORCH_FSDP), connections=8),
    Case("static-hcp-without-sizes", "static", 4, "dense", "plain",
         "--context-parallel-size 4 --cp-comm-type a2a+p2p", ("a2a+p2p:2x2",)),
)  # fmt: skip

PACKED = (
    _static("sft-p2p-cp2", 2, 2, data="sft"),
    _static("sft-a2a-cp2", 2, 2, "a2a", data="sft"),
    _static("sft-all-gather-cp2", 2, 2, "all_gather", data="sft"),
    _static("sft-hcp-2x2", 4, 4, "a2a+p2p", data="sft"),
    _static("sft-p2p-tp2-sp", 4, 2, data="sft", more=SP),
    _static("sft-p2p-pp2", 4, 2, data="sft", model="deep", more=PP2),
    _static("sft-p2p-mamba", 2, 2, data="sft", model="hybrid"),
    *(
        _static(f"varlen-{name}", size, size, comm, data="varlen",
                more=BALANCED.format(share=128 // size))
        for name, size, comm in (
            ("p2p-cp2", 2, "p2p"), ("a2a-cp2", 2, "a2a"), ("all-gather-cp2", 2, "all_gather"),
            ("hcp-2x2", 4, "a2a+p2p"),
        )
    ),
    _static("varlen-p2p-mtp", 2, 2, data="varlen", model="mtp", more=BALANCED.format(share=64)),
    _static("varlen-p2p-mamba", 2, 2, data="varlen", model="hybrid",
            more=BALANCED.format(share=64)),
    _static("sft-mock-p2p-cp2", 2, 2, data="sft-mock", more=BALANCED.format(share=64)),
)  # fmt: skip


def _dynamic(
    name: str, ranks: int, *paths: str, model: str = "dense", data: str = "varlen",
    more: str = "", both: str = "", tolerance: float = TOLERANCE, evaluates: bool = False,
) -> Case:  # fmt: skip
    return Case(
        f"dynamic-cp-{name}", "dynamic", ranks, model, data, f"{DYNAMIC} {more}".strip(),
        paths or ("p2p:2",), both, tolerance, evaluates,
    )  # fmt: skip


DYNAMIC_CASES = (
    _dynamic("2", 2),
    _dynamic("4", 4),
    _dynamic("4-of-cp2", 4, more=_cp(2)),
    _dynamic("min2", 4, "p2p:2", "p2p:4", more="--min-dynamic-context-parallel-size 2"),
    _dynamic("a2a", 4, "a2a:2", more="--cp-comm-type a2a"),
    _dynamic("a2a-of-cp2", 4, "a2a:2", more=_cp(2, "a2a")),
    _dynamic("all-gather-of-cp2", 4, "all_gather:2", more=_cp(2, "all_gather")),
    _dynamic("hcp-2x2", 4, "a2a+p2p:2x2", more=_cp(4, "a2a+p2p")),
    _dynamic("6", 6, "p2p:2", both="--global-batch-size 12"),
    _dynamic("tp2-sp", 4, more=SP),
    _dynamic("pp2", 4, model="deep", more=PP2),
    _dynamic("pp2-vpp2", 4, model="deep", more=VPP2),
    _dynamic("pp2-vpp2-16", 4, model="deep", more=VPP2, both="--global-batch-size 16"),
    _dynamic("distopt", 4, more=OVERLAPPED),
    _dynamic("recompute", 2, more=FULL),
    _dynamic("gqa", 4, model="gqa"),
    _dynamic("mla", 2, model="mla"),
    _dynamic("moe-ep2", 4, model="moe", more=EP2),
    _dynamic("moe-aux-loss", 2, model="moe-aux"),
    _dynamic("mtp", 2, model="mtp"),
    _dynamic("mamba", 2, model="hybrid"),
    _dynamic("eval", 2, both=EVAL, evaluates=True),
    _dynamic("pad-max", 4, more="--pad-packed-seq-alignment max"),
    _dynamic("sft-mock", 2, data="sft-mock"),
    _dynamic("bf16", 2, both="--bf16", tolerance=BFLOAT16_TOLERANCE),
    replace(_dynamic("megatron-fsdp", 2, more=MEGATRON_FSDP), connections=8),
)  # fmt: skip


def _hybrid(
    name: str, ranks: int, more: str = "", model: str = "dense", both: str = "",
    evaluates: bool = False,
) -> Case:  # fmt: skip
    return Case(f"hybrid-cp-{name}", "hybrid", ranks, model, "sft",
                f"{HYBRID} {more}".strip(), ("p2p:2",), both, evaluates=evaluates)  # fmt: skip


HYBRID_CASES = (
    _hybrid("default-rerun", 2),
    _hybrid("2", 2, NO_RERUN),
    _hybrid("4", 4, NO_RERUN),
    _hybrid("4-of-cp2", 4, f"{NO_RERUN} {_cp(2)}"),
    _hybrid("tp2-sp", 4, f"{NO_RERUN} {SP}"),
    _hybrid("pp2", 4, f"{NO_RERUN} {PP2}", "deep"),
    _hybrid("moe-ep2", 2, f"{NO_RERUN} {EP2}", "moe"),
    _hybrid("mla", 2, NO_RERUN, "mla"),
    _hybrid("eval", 2, NO_RERUN, both=EVAL, evaluates=True),
)

CASES = (*STATIC, *PACKED, *DYNAMIC_CASES, *HYBRID_CASES)


def chosen(ids: Iterable[str], groups: Iterable[str] = ()) -> tuple[Case, ...]:
    """Return the cases with these ids or of these groups, in the order of the matrix.

    Args:
        ids: Identifiers of cases.
        groups: Names of groups; without ids and groups all cases are returned.

    Raises:
        InputError: There is no such case or group.
    """
    wanted, sections = list(ids), list(groups)
    for option, given, known in (
        ("--case", wanted, {case.id for case in CASES}),
        ("--group", sections, {case.group for case in CASES}),
    ):
        for name in given:
            if name not in known:
                raise InputError(option, name, "does not exist", "see ringproof conform --list")
    return tuple(
        case
        for case in CASES
        if case.id in wanted or case.group in sections or not (wanted or sections)
    )


def check_matrix() -> None:
    """Raise `ValueError` where the matrix names a model or data that does not exist."""
    for case in CASES:
        if case.model not in MODELS or case.data not in DATA:
            raise ValueError(f"{case.id} names {case.model} or {case.data}, which do not exist")
