"""Synthetic logs of failing runs: what each rank of a launcher would print, line by line.

Messages are those of upstream, which the cards quote; frames are made up, apart from the functions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

RANKS = 8
GROUP = "DYNAMIC_DP_CP_GROUP_4"


@dataclass(frozen=True)
class Case:
    """An exception and what the index should say: the symptom, and its first statement."""

    symptom: str
    statement: str
    error: str
    message: str
    functions: tuple[str, ...] = ("train_step",)
    code: str = "call(value)"


DYNAMIC, GRAPHS, LEVELS = (
    "dynamic-context-parallel/",
    "dynamic-cp-cuda-graphs/",
    "hierarchical-context-parallel/",
)
NOT_SET = "--max-seqlen-per-dp-cp-rank must be set when --pad-packed-seq-alignment is enabled."
TWO = "CP implementation a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]!"
SIZES = (
    "The size of tensor a (128) must match the size of tensor b (256) at non-singleton dimension 0"
)
ILLEGAL = "CUDA error: an illegal memory access was encountered"
NAN = "Rank 3, node n, device 3, iteration 5: Unexpected result nan (message='found NaN in local'"

# fmt: off
CASES = (
    Case("alias-buffer", DYNAMIC + "hybrid-alias", "AssertionError",
         "Packed sequence buffer size (512) must be >= single sequence max length (4096)"),
    Case("batch-schema", DYNAMIC + "main-loses-the-size", "IndexError", "tuple index out of range",
         ("get_batch_on_this_tp_rank",), "length = batch['tokens'].shape[1]"),
    Case("backward-arguments", DYNAMIC + "backward-type-error", "TypeError",
         "backward_step() takes 4 positional arguments but 5 were given"),
    Case("rerun-iterator", DYNAMIC + "iterator-not-rerun", "AssertionError",
         "data iterator is not wrapped with RerunDataIterator"),
    Case("no-stream", DYNAMIC + "no-stream", "AttributeError",
         "'NoneType' object has no attribute 'wait_event'"),
    Case("no-group-of-one", DYNAMIC + "size-one-lookup", "KeyError", "1",
         ("get_hybrid_data_context_parallel_groups",)),
    Case("no-group-of-size", DYNAMIC + "non-power-of-two-domain", "KeyError", "4",
         ("get_dynamic_data_context_parallel_groups",)),
    Case("list-assignment", DYNAMIC + "inverted-emptiness-check", "IndexError",
         "list assignment index out of range", ("next_hdp_group", "fill_empty_gpus")),
    Case("packer-index", DYNAMIC + "odd-smallest-size", "IndexError", "list index out of range",
         ("next_hdp_group_packing_aware",)),
    Case("scheduler-index", DYNAMIC + "non-power-of-two-domain", "IndexError",
         "list index out of range", ("next_hdp_group",)),
    Case("smallest-size", DYNAMIC + "odd-smallest-size", "ValueError",
         "min_cp_size=3 is not a valid group size for DPxCP size 8; expected one of [1, 2, 4, 8]"),
    Case("smallest-size", DYNAMIC + "odd-smallest-size", "ValueError",
         "model.min_dynamic_context_parallel_size must be a power of two in [1, dp * cp = 8]"),
    Case("odd-domain", DYNAMIC + "power-of-two-domain", "ValueError",
         "Dynamic context parallel requires an even number of ranks"),
    Case("capacity", DYNAMIC + "fits-the-domain", "ValueError",
         "Bin capacity too small: 4 ranks x max_seqlen_per_dp_cp_rank 64 = 256 tokens"),
    Case("averaged", DYNAMIC + "gradients-averaged", "ValueError",
         "Sequence packing requires ddp.average_in_collective=False."),
    Case("unpacked-samples", DYNAMIC + "packed-data-set", "ValueError",
         "The configured dataset does not produce the unpacked per-sample dicts of a scheduler"),
    Case("padding-multiple", DYNAMIC + "sequence-padding", "ValueError",
         "dataset.sequence_padding_multiple=4 is not a multiple of the 16 that CP THD slicing "
         "requires for this parallel layout."),
    Case("decentralized-dynamic", DYNAMIC + "bridge-trains", "ValueError",
         "model.dynamic_context_parallel requires dist.use_decentralized_pg=False: groups"),
    Case("pipeline-refused", DYNAMIC + "pipeline-on-dev-only", "AssertionError",
         "Hybrid context parallelism not supported with pipeline parallelism"),
    Case("fsdp-refused", DYNAMIC + "no-fsdp", "AssertionError",
         "Dynamic context parallelism not supported with Megatron FSDP"),
    Case("loader-refused", DYNAMIC + "single-loader", "AssertionError",
         "Dynamic context parallelism only supported with single dataloader type"),
    Case("loss-refused", DYNAMIC + "per-token-loss", "AssertionError",
         "Dynamic context parallelism must be used with --calculate-per-token-loss"),
    Case("latent-attention", DYNAMIC + "mla-on-dev-only", "AssertionError",
         "hybrid_context_parallel is not supported with MLA yet and is planned for future."),
    Case("dispatcher", DYNAMIC + "moe-dispatcher", "AssertionError",
         "sequence_packing only supports moe_token_dispatcher_type in ('alltoall', 'flex')"),
    Case("old-engine", DYNAMIC + "te-2-9", "ValueError",
         "SFT sequence packing requires Transformer Engine >= 2.9.0 but got 2.8.0"),
    Case("packing-batch", DYNAMIC + "hybrid-alias", "AssertionError",
         "micro-batch-size must be 1 for packing"),
    Case("levels-refused", LEVELS + "no-window-bias-sink", "AssertionError",
         "alibi bias type is not supported with hierarchical CP implementation yet!"),
    Case("heads-refused", LEVELS + "heads-pure-a2a", "AssertionError",
         "The number of attention heads needs to be divisible by CP size!"),
    Case("dsv4-partition", DYNAMIC + "dsv4-partition", "ValueError",
         "DSv4 Hybrid with context parallelism requires cp_partition_mode='contiguous'."),
    Case("sequence-too-long", DYNAMIC + "oversized-sequence", "AssertionError",
         "There should be at least one group existing, cannot reditribute, "),
    Case("sequence-too-long", DYNAMIC + "oversized-sequence", "ValueError",
         "Sequence length 9000 requires CP size 16, but only 8 DPxCP ranks are available"),
    Case("too-few-sequences", DYNAMIC + "vpp-too-few-sequences", "AssertionError",
         "align_sample_id_groups: no tail microbatch has enough ids to split"),
    Case("no-budget", DYNAMIC + "missing-budget", "TypeError",
         "unsupported operand type(s) for /: 'int' and 'NoneType'", ("gpus_needed",)),
    Case("alignment-budget", DYNAMIC + "alignment-needs-a-budget", "ValueError", NOT_SET),
    Case("budget-named", DYNAMIC + "budget-set", "ValueError",
         "max_seqlen_per_dp_cp_rank must be a positive integer when dynamic_context_parallel is "
         "enabled"),
    Case("verl-megatron", DYNAMIC + "works-for-training", "RuntimeError",
         "Dynamic CP requires a Megatron-Core build containing NVIDIA/Megatron-LM#5154"),
    Case("verl-assignment", DYNAMIC + "misaligned-group", "RuntimeError",
         "Megatron-Core Dynamic CP returned an empty rank assignment"),
    Case("no-lengths", DYNAMIC + "no-lengths", "KeyError", "'cu_seqlens'", ("_unpack_batch",)),
    Case("mixed-lengths", DYNAMIC + "no-lengths", "AssertionError",
         "_unpack_batch: sample 0 must carry exactly one of 'padded_seq_len' or 'cu_seqlens'"),
    Case("evaluation", DYNAMIC + "evaluation-not-wrapped", "IndexError", "list index out of range",
         ("evaluate", "hybrid_context_parallel_forward_backward")),
    Case("no-sample", DYNAMIC + "evaluation-not-wrapped", "AssertionError",
         "no sample to consume: 0"),
    Case("one-group-for-two", DYNAMIC + "hierarchical-type", "AssertionError", TWO),
    Case("no-thd-levels", LEVELS + "packed-sequences", "AssertionError",
         "thd format is not supported with hierarchical CP implementation yet!"),
    Case("one-group-local-size", DYNAMIC + "size-one-cut", "AssertionError",
         "local_cp_size must be == 1 if provided without cp_group"),
    Case("thd-alignment", DYNAMIC + "graphs-capture-static-size", "ValueError",
         "THD CUDA Graph requires --pad-packed-seq-alignment to be set."),
    Case("mamba-heads", DYNAMIC + "mamba-late-failure", "AssertionError",
         "nheads must be evenly divisible by tp_size * cp_size"),
    Case("tp-iterator", DYNAMIC + "iterator-of-another-tp-rank", "AssertionError",
         "Only TP rank 0 should have data_iterator"),
    Case("exact-int", DYNAMIC + "exact-int-type", "AssertionError", "",
         ("get_batch_on_this_rank_for_sequence_packing",)),
    Case("static-padding", DYNAMIC + "padding-to-static-size", "RuntimeError",
         "shape '[1, 8, -1]' is invalid for input of size 4100", ("get_batch_on_this_cp_rank",)),
    Case("rope-index", DYNAMIC + "rope-static-group", "IndexError",
         "index 300 is out of bounds for dimension 0 with size 256", ("apply_rotary_pos_emb",)),
    Case("replay-shape", GRAPHS + "rope-table-length", "RuntimeError", SIZES,
         ("_apply_rotary_pos_emb_bshd",)),
    Case("released-engine", GRAPHS + "released-engine", "ImportError",
         "cannot import name 'set_cp_p2p_transport_group' from 'transformer_engine.pytorch'"),
    Case("tensor-inputs", GRAPHS + "release-first-replay", "AssertionError",
         "CUDA graph accepts only Tensor inputs."),
    Case("local-graphs", GRAPHS + "release-local-graphs", "AssertionError",
         "Cudagraphs recieved an arg of type <class 'ProcessGroup'> which is not supported."),
    Case("dead-refusal", GRAPHS + "dead-refusal", "AttributeError",
         "'Namespace' object has no attribute 'enable_cuda_graph'"),
    Case("no-graphs", DYNAMIC + "no-cuda-graphs", "AssertionError",
         "Dynamic context parallelism not supported with CUDA Graph"),
    Case("layer-graphs-only", GRAPHS + "layer-graphs-only", "ValueError",
         "Dynamic CP supports only layer-wise TE CUDA graphs."),
    Case("graph-slots", GRAPHS + "dynamic-slots", "ValueError",
         "Dynamic CP CUDA graphs require dynamic microbatch slots."),
    Case("delayed-wgrad", GRAPHS + "no-delayed-wgrad", "ValueError",
         "Dynamic CP graphs do not support delayed wgrad or EP overlap."),
    Case("batch-size-schedule", GRAPHS + "no-batch-size-schedule", "ValueError",
         "Dynamic CP CUDA graphs do not support step_batch_size_schedule."),
    Case("graph-sizes", GRAPHS + "powers-of-two", "ValueError",
         "Dynamic CP graph sizes must be powers of two with min <= max."),
    Case("too-many-sequences", GRAPHS + "no-eager-fallback", "AssertionError",
         "Actual num_seqs (70) exceeds thd_max_packed_sequences (64)"),
    Case("virtual-stages", GRAPHS + "virtual-stages-5618", "AttributeError",
         "'TransformerConfig' object has no attribute '_cuda_graph_capture_dynamic_cp'"),
    Case("too-many-microbatches", GRAPHS + "too-many-microbatches", "ValueError",
         "num_micro_batches=9 exceeds captured CUDA graph graph_slots=8."),
    Case("group-identity", GRAPHS + "group-identity", "RuntimeError",
         "Dynamic-CP CUDA graph replay received a process group that does not match "
         "local_cp_size=4."),
    Case("missing-entry", GRAPHS + "missing-entry", "RuntimeError",
         "No layer CUDA graph bank entry for local_cp_size=1; available sizes are [2, 4]."),
    Case("sync-in-capture", GRAPHS + "sync-in-capture", "RuntimeError",
         "CUDA error: operation not permitted when stream is capturing"),
    Case("hooks", GRAPHS + "hooks-at-capture", "RuntimeError",
         "Modules must not have hooks registered at the time they are passed. However, "),
    Case("generator", GRAPHS + "random-numbers", "RuntimeError",
         "Attempt to increase offset for a CUDA generator not in capture mode."),
    Case("capture-memory", GRAPHS + "slots-explode", "torch.OutOfMemoryError",
         "CUDA out of memory. Tried to allocate 2 GiB.", ("make_graphed_callables",)),
    Case("graph-fields", GRAPHS + "option-names", "TypeError",
         "TransformerConfig.__init__() got an unexpected keyword argument 'cuda_graph_modules'"),
    Case("decentralized", LEVELS + "decentralized-groups", "NotImplementedError",
         "Decentralized process groups (use_decentralized_pg=True) do not support "
         "hierarchical_context_parallel_sizes."),
    Case("sizes-missing", LEVELS + "sizes-required", "AssertionError",
         "--hierarchical-context-parallel-sizes must be set when a2a+p2p is used in cp comm"),
    Case("product", LEVELS + "empty-assertion", "AssertionError", "", ("validate_args",),
         "assert size == prod(args.hierarchical_context_parallel_sizes)"),
    Case("per-layer-list", LEVELS + "per-layer-list", "IndexError", "list index out of range",
         ("build_layer", "__init__"), "kind = config.cp_comm_type[self.layer_number]"),
    Case("kv-heads", LEVELS + "too-few-kv-heads", "RuntimeError",
         "shape '[2, 4, -1]' is invalid for input of size 6", ("flash_attn_a2a_communicate",)),
    Case("nested-override", LEVELS + "nested-override", "omegaconf.errors.OverridesError",
         "Could not override 'model.context_parallel_size'"),
    Case("no-backend", DYNAMIC + "flash-ruled-out", "ValueError",
         "No dot product attention backend is available for the provided inputs."),
    Case("max-connections", "", "RuntimeError",
         "Using async gradient all reduce requires setting the environment variable "
         "CUDA_DEVICE_MAX_CONNECTIONS to 1"),
    Case("illegal-access", DYNAMIC + "rope-static-group", "torch.AcceleratorError", ILLEGAL),
    Case("out-of-memory", "", "torch.OutOfMemoryError", "CUDA out of memory. Tried 2 GiB."),
    Case("nccl-memory", "", "torch.distributed.DistBackendError",
         "NCCL error in: NCCLUtils.cpp:77, ncclUnhandledCudaError: Call to CUDA function failed. "
         "Cuda failure 2 'out of memory'"),
    Case("device-assert", "", "RuntimeError", "CUDA error: device-side assert triggered"),
    Case("device-error", "", "RuntimeError", "CUDA error: misaligned address"),
    Case("nan-result", DYNAMIC + "rope-static-group", "RuntimeError", NAN),
)
# fmt: on


def traceback(case: Case) -> list[str]:
    """The traceback of a case."""
    frames = [
        line
        for number, name in enumerate(case.functions, 10)
        for line in (f'  File "/opt/code/{name}.py", line {number}, in {name}', f"    {case.code}")
    ]
    said = f"{case.error}: {case.message}" if case.message else case.error
    return ["Traceback (most recent call last):", *frames, said]


def progress(first: int, last: int) -> list[str]:
    """Lines of training progress as Megatron-LM prints them."""
    return [
        f" [2026-11-02 12:00:{step % 60:02}] iteration {step:8d}/     100 | consumed samples: 8 | "
        f"elapsed time per iteration (ms): 12.0 | lm loss: 1.2E+01 | grad norm: 1.000 | "
        f"number of skipped iterations:   0 | number of nan iterations:   0 |"
        for step in range(first, last + 1)
    ]


def watchdog(rank: int, operation: str = "ALLREDUCE", group: str = GROUP, number: int = 12) -> str:
    """The timeout of a rank, as PyTorch's NCCL backend prints it."""
    return (
        f"[rank{rank}]:[E1102 12:10:{rank:02}.123456789 ProcessGroupNCCL.cpp:629] "
        f"[PG ID 4 PG GUID 9({group}) Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum={number}, OpType={operation}, NumelIn=1, NumelOut=1, "
        f"Timeout(ms)=600000) ran for 600012 milliseconds before timing out."
    )


def lost_peer() -> list[str]:
    """The exception of a rank whose peer has gone."""
    frames = ['  File "/opt/code/wait.py", line 3, in wait', "    work.wait()"]
    text = "torch.distributed.DistBackendError: NCCL error: ncclRemoteError: remote process exited"
    return ["Traceback (most recent call last):", *frames, text]


def files(folder: Path, case: Case, layout: str, rank: int = 3) -> list[str]:
    """Write the logs of a run in which one rank fails and the others wait or lose their peer."""
    lines = {other: progress(1, 3) if other == RANKS - 1 else [] for other in range(RANKS)}
    lines[rank] += traceback(case)
    for other in range(RANKS):
        if other != rank:
            lines[other] += lost_peer() if other % 2 else [watchdog(other)]
    return write(folder, lines, layout)


def write(folder: Path, lines: dict[int, list[str]], layout: str) -> list[str]:
    """Write each rank's lines: to a file each, or mixed with the prefix of a launcher."""
    if layout == "files":
        for rank, own in lines.items():
            (folder / f"rank_{rank}.log").write_text("\n".join(own) + "\n")
        return [str(folder / f"rank_{rank}.log") for rank in lines]
    prefix = {"torch": "[rank{}]: ", "srun": "{}: ", "stamped": "2026-11-02 12:09:01 [rank{}]: "}
    path = folder / "run.log"
    path.write_text("\n".join(mixed(lines, prefix[layout])) + "\n")
    return [str(path)]


def mixed(lines: dict[int, list[str]], prefix: str) -> Sequence[str]:
    """Take a line of each rank in turn, the last rank first."""
    deepest = max(map(len, lines.values()))
    return [
        own[index] if own[index].startswith("[rank") else prefix.format(rank) + own[index]
        for index in range(deepest)
        for rank, own in sorted(lines.items(), reverse=True)
        if index < len(own)
    ]
