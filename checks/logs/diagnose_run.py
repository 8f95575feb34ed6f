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
    """An exception and the symptom that the index should find in it.

    Attributes:
        dynamic: Whether the run uses Dynamic CP and CUDA graphs.
    """

    symptom: str
    error: str
    message: str
    functions: tuple[str, ...] = ("train_step",)
    code: str = "call(value)"
    dynamic: bool = True

    @property
    def setup(self) -> list[str]:
        """Lines of the configuration of such a run."""
        return SETUP if self.dynamic else []

    @property
    def group(self) -> str:
        """Group in which the other ranks of such a run wait."""
        return GROUP if self.dynamic else "DATA_PARALLEL_GROUP"


SETUP = [
    "  dynamic_context_parallel ........................ True",
    "  cuda_graph_impl ................................. transformer_engine",
]


def general(
    symptom: str,
    error: str,
    message: str,
    functions: tuple[str, ...] = ("train_step",),
    code: str = "call(value)",
) -> Case:
    """Return a case of a run with static CP and without graphs."""
    return Case(symptom, error, message, functions, code, dynamic=False)


# fmt: off
CASES = (
    Case("alias-buffer", "AssertionError",
         "Packed sequence buffer size (512) must be >= single sequence max length (4096)"),
    Case("batch-schema", "IndexError", "tuple index out of range", ("get_batch_on_this_tp_rank",),
         "length = batch['tokens'].shape[1]"),
    Case("backward-arguments", "TypeError",
         "backward_step() takes 4 positional arguments but 5 were given"),
    Case("rerun-iterator", "AssertionError", "data iterator is not wrapped with RerunDataIterator"),
    Case("no-stream", "AttributeError", "'NoneType' object has no attribute 'wait_event'"),
    Case("no-group-of-one", "KeyError", "1", ("get_hybrid_data_context_parallel_groups",)),
    Case("no-group-of-size", "KeyError", "4", ("get_dynamic_data_context_parallel_groups",)),
    Case("list-assignment", "IndexError", "list assignment index out of range",
         ("next_hdp_group", "fill_empty_gpus")),
    Case("packer-index", "IndexError", "list index out of range",
         ("next_hdp_group_packing_aware",)),
    Case("scheduler-index", "IndexError", "list index out of range", ("next_hdp_group",)),
    Case("smallest-size", "ValueError",
         "min_cp_size=3 is not a valid group size for DPxCP size 8; expected one of [1, 2, 4, 8]"),
    Case("smallest-size", "ValueError",
         "model.min_dynamic_context_parallel_size must be a power of two in [1, dp * cp = 8]"),
    Case("odd-domain", "ValueError", "Dynamic context parallel requires an even number of ranks"),
    Case("capacity", "ValueError",
         "Bin capacity too small: 4 ranks x max_seqlen_per_dp_cp_rank 64 = 256 tokens"),
    Case("averaged", "ValueError", "Sequence packing requires ddp.average_in_collective=False."),
    Case("unpacked-samples", "ValueError",
         "The configured dataset does not produce the unpacked per-sample dicts of a scheduler"),
    Case("padding-multiple", "ValueError",
         "dataset.sequence_padding_multiple=4 is not a multiple of the 16 that CP THD slicing "
         "requires for this parallel layout."),
    Case("decentralized-dynamic", "ValueError",
         "model.dynamic_context_parallel requires dist.use_decentralized_pg=False: groups"),
    Case("pipeline-refused", "AssertionError",
         "Hybrid context parallelism not supported with pipeline parallelism"),
    Case("fsdp-refused", "AssertionError",
         "Dynamic context parallelism not supported with Megatron FSDP"),
    Case("loader-refused", "AssertionError",
         "Dynamic context parallelism only supported with single dataloader type"),
    Case("loss-refused", "AssertionError",
         "Dynamic context parallelism must be used with --calculate-per-token-loss"),
    Case("latent-attention", "AssertionError",
         "hybrid_context_parallel is not supported with MLA yet and is planned for future."),
    Case("dispatcher", "AssertionError",
         "sequence_packing only supports moe_token_dispatcher_type in ('alltoall', 'flex')"),
    Case("old-engine", "ValueError",
         "SFT sequence packing requires Transformer Engine >= 2.9.0 but got 2.8.0"),
    Case("packing-batch", "AssertionError", "micro-batch-size must be 1 for packing"),
    Case("levels-refused", "AssertionError",
         "alibi bias type is not supported with hierarchical CP implementation yet!"),
    Case("heads-refused", "AssertionError",
         "The number of attention heads needs to be divisible by CP size!"),
    Case("dsv4-partition", "ValueError",
         "DSv4 Hybrid with context parallelism requires cp_partition_mode='contiguous'."),
    Case("sequence-too-long", "AssertionError",
         "There should be at least one group existing, cannot reditribute, "),
    Case("sequence-too-long", "ValueError",
         "Sequence length 9000 requires CP size 16, but only 8 DPxCP ranks are available"),
    Case("too-few-sequences", "AssertionError",
         "align_sample_id_groups: no tail microbatch has enough ids to split"),
    Case("no-budget", "TypeError", "unsupported operand type(s) for /: 'int' and 'NoneType'",
         ("gpus_needed",)),
    Case("alignment-budget", "ValueError",
         "--max-seqlen-per-dp-cp-rank must be set when --pad-packed-seq-alignment is enabled."),
    Case("budget-named", "ValueError",
         "max_seqlen_per_dp_cp_rank must be a positive integer when dynamic_context_parallel is "
         "enabled"),
    Case("verl-megatron", "RuntimeError",
         "Dynamic CP requires a Megatron-Core build containing NVIDIA/Megatron-LM#5154"),
    Case("verl-assignment", "RuntimeError",
         "Megatron-Core Dynamic CP returned an empty rank assignment"),
    Case("no-lengths", "KeyError", "'cu_seqlens'", ("_unpack_batch",)),
    Case("mixed-lengths", "AssertionError",
         "_unpack_batch: sample 0 must carry exactly one of 'padded_seq_len' or 'cu_seqlens'"),
    Case("evaluation", "IndexError", "list index out of range",
         ("evaluate", "hybrid_context_parallel_forward_backward")),
    Case("no-sample", "AssertionError", "no sample to consume: 0"),
    Case("one-group-for-two", "AssertionError",
         "CP implementation a2a+p2p requires cp_group = [a2a_cp_group, p2p_cp_group]!"),
    Case("no-thd-levels", "AssertionError",
         "thd format is not supported with hierarchical CP implementation yet!"),
    Case("one-group-local-size", "AssertionError",
         "local_cp_size must be == 1 if provided without cp_group"),
    Case("thd-alignment", "ValueError",
         "THD CUDA Graph requires --pad-packed-seq-alignment to be set."),
    Case("mamba-heads", "AssertionError", "nheads must be evenly divisible by tp_size * cp_size"),
    Case("tp-iterator", "AssertionError", "Only TP rank 0 should have data_iterator"),
    Case("exact-int", "AssertionError", "", ("get_batch_on_this_rank_for_sequence_packing",)),
    Case("static-padding", "RuntimeError", "shape '[1, 8, -1]' is invalid for input of size 4100",
         ("get_batch_on_this_cp_rank",)),
    Case("rope-index", "IndexError", "index 300 is out of bounds for dimension 0 with size 256",
         ("apply_rotary_pos_emb",)),
    Case("replay-shape", "RuntimeError",
         "The size of tensor a (128) must match the size of tensor b (256) at non-singleton "
         "dimension 0", ("_apply_rotary_pos_emb_bshd",)),
    Case("released-engine", "ImportError",
         "cannot import name 'set_cp_p2p_transport_group' from 'transformer_engine.pytorch'"),
    Case("tensor-inputs", "AssertionError", "CUDA graph accepts only Tensor inputs."),
    Case("local-graphs", "AssertionError",
         "Cudagraphs recieved an arg of type <class 'ProcessGroup'> which is not supported."),
    Case("dead-refusal", "AttributeError",
         "'Namespace' object has no attribute 'enable_cuda_graph'"),
    Case("no-graphs", "AssertionError",
         "Dynamic context parallelism not supported with CUDA Graph"),
    Case("layer-graphs-only", "ValueError", "Dynamic CP supports only layer-wise TE CUDA graphs."),
    Case("graph-slots", "ValueError", "Dynamic CP CUDA graphs require dynamic microbatch slots."),
    Case("delayed-wgrad", "ValueError",
         "Dynamic CP graphs do not support delayed wgrad or EP overlap."),
    Case("batch-size-schedule", "ValueError",
         "Dynamic CP CUDA graphs do not support step_batch_size_schedule."),
    Case("graph-sizes", "ValueError",
         "Dynamic CP graph sizes must be powers of two with min <= max."),
    Case("too-many-sequences", "AssertionError",
         "Actual num_seqs (70) exceeds thd_max_packed_sequences (64)"),
    Case("virtual-stages", "AttributeError",
         "'TransformerConfig' object has no attribute '_cuda_graph_capture_dynamic_cp'"),
    Case("too-many-microbatches", "ValueError",
         "num_micro_batches=9 exceeds captured CUDA graph graph_slots=8."),
    Case("group-identity", "RuntimeError",
         "Dynamic-CP CUDA graph replay received a process group that does not match "
         "local_cp_size=4."),
    Case("missing-entry", "RuntimeError",
         "No layer CUDA graph bank entry for local_cp_size=1; available sizes are [2, 4]."),
    Case("sync-in-capture", "RuntimeError",
         "CUDA error: operation not permitted when stream is capturing"),
    Case("hooks", "RuntimeError",
         "Modules must not have hooks registered at the time they are passed. However, "),
    Case("generator", "RuntimeError",
         "Attempt to increase offset for a CUDA generator not in capture mode."),
    Case("capture-memory", "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 2 GiB.",
         ("make_graphed_callables",)),
    Case("graph-fields", "TypeError",
         "TransformerConfig.__init__() got an unexpected keyword argument 'cuda_graph_modules'"),
    Case("decentralized", "NotImplementedError",
         "Decentralized process groups (use_decentralized_pg=True) do not support "
         "hierarchical_context_parallel_sizes."),
    Case("sizes-missing", "AssertionError",
         "--hierarchical-context-parallel-sizes must be set when a2a+p2p is used in cp comm"),
    Case("product", "AssertionError", "", ("validate_args",),
         "assert size == prod(args.hierarchical_context_parallel_sizes)"),
    Case("per-layer-list", "IndexError", "list index out of range", ("build_layer", "__init__"),
         "kind = config.cp_comm_type[self.layer_number]"),
    Case("kv-heads", "RuntimeError", "shape '[2, 4, -1]' is invalid for input of size 6",
         ("flash_attn_a2a_communicate",)),
    Case("nested-override", "omegaconf.errors.OverridesError",
         "Could not override 'model.context_parallel_size'"),
    Case("no-backend", "ValueError",
         "No dot product attention backend is available for the provided inputs."),
    Case("max-connections", "RuntimeError",
         "Using async gradient all reduce requires setting the environment variable "
         "CUDA_DEVICE_MAX_CONNECTIONS to 1"),
    Case("illegal-access", "torch.AcceleratorError",
         "CUDA error: an illegal memory access was encountered"),
    Case("out-of-memory", "torch.OutOfMemoryError", "CUDA out of memory. Tried 2 GiB."),
    Case("nccl-memory", "torch.distributed.DistBackendError",
         "NCCL error in: NCCLUtils.cpp:77, ncclUnhandledCudaError: Call to CUDA function failed. "
         "Cuda failure 2 'out of memory'"),
    Case("device-assert", "RuntimeError", "CUDA error: device-side assert triggered"),
    Case("device-error", "RuntimeError", "CUDA error: misaligned address"),
    Case("nan-result", "RuntimeError",
         "Rank 3, node n, device 3, iteration 5: Unexpected result nan (message='found NaN in "
         "local'"),
    general("packing-micro-batch", "AssertionError", "micro-batch-size must be 1 for packing"),
    general("empty-data", "AssertionError", "no sample to consume: 0"),
    general("mamba-heads-static", "AssertionError",
            "nheads must be evenly divisible by tp_size * cp_size"),
    general("packed-generic-cut", "IndexError", "tuple index out of range",
            ("data_step", "get_batch_on_this_cp_rank"), "val.shape[seq_dim] // (2 * cp_size),"),
    general("cp-length", "RuntimeError", "shape '[1, 8, 100]' is invalid for input of size 805",
            ("evaluate", "get_batch_on_this_cp_rank"), "val = val.view("),
    general("odd-shard", "AssertionError",
            "Sequence length per GPU needs to be divisible by 2!", ("forward",)),
    *(
        general("finetuning-loss", "AssertionError", f"When finetuning with CP>1, {text}")
        for text in ("calculate_per_token_loss must be True", "average_in_collective must be False")
    ),
    general("packed-members", "AssertionError",
            "sub-sequence 3 is not a multiple of 2 * cp_size = 8"),
    general("empty-shard", "RuntimeError",
            "The expanded size of the tensor (4) must match the existing size (1) at "
            "non-singleton dimension 0.  Target sizes: [4].  Tensor sizes: [1]",
            ("forward", "preprocess_packed_seqs")),
    general("packed-mask", "IndexError",
            "Dimension out of range (expected to be in range of [-1, 0], but got 1)",
            ("get_batch", "_partition_packed_batch_for_cp")),
    general("packed-micro-batch", "RuntimeError",
            "a Tensor with 2 elements cannot be converted to Scalar",
            ("evaluate", "get_packed_seq_params"), "end = cu_seqlens_argmin.item()"),
    general("dsv4-boundary", "RuntimeError",
            "DSv4 THD CP path requires boundary_hidden and boundary_kv from the exchange"),
    general("no-gradient", "AssertionError", "", ("zero_grad_buffer", "reset"),
            "assert len(self.per_param_grad_ready_counts) == len(self.params)"),
    general("cudnn-combination", "RuntimeError",
            "/opt/te/common/fused_attn/fused_attn.cpp:467 in function nvte_fused_attn_fwd: Invalid "
            "combination of data type and sequence length for fused attention. "),
    general("cudnn-execution", "RuntimeError",
            "/opt/te/x.cu:890 in function operator(): cuDNN Error: execute failed with code: "
            "CUDNN_STATUS_EXECUTION_FAILED, and message: err 700.", ("backward", "fused_attn_bwd")),
    general("cudnn-support", "RuntimeError",
            "cuDNN Error: [cudnn_frontend] Error: No valid execution plans built. "
            "CUDNN_STATUS_NOT_SUPPORTED"),
    general("cudnn-failed", "RuntimeError", "cuDNN error: CUDNN_STATUS_NOT_INITIALIZED"),
    general("failed-capture", "torch.AcceleratorError",
            "CUDA error: operation not permitted on an event last recorded in a capturing stream",
            ("__call__", "_maybe_dtoh_and_synchronize")),
    *(
        general("capture-refused", "torch.AcceleratorError", f"CUDA error: {text}")
        for text in (
            "operation not permitted when stream is capturing",
            "operation failed due to a previous error during capture",
            "capturing stream has unjoined work",
            "dependency created on uncaptured work in another stream",
            "operation would make the legacy stream depend on a capturing blocking stream",
            "operation not permitted on an event last recorded in a capturing stream",
        )
    ),
    general("hooks-in-graph", "RuntimeError",
            "Modules must not have hooks registered at the time they are passed. However, "),
    general("generator-in-graph", "RuntimeError",
            "Attempt to increase offset for a CUDA generator not in capture mode."),
    general("graph-arguments", "AssertionError", "CUDA graph accepts only Tensor inputs."),
    general("graph-memory", "torch.OutOfMemoryError", "CUDA out of memory. Tried to allocate 1 GiB",
            ("create_cudagraphs", "make_graphed_callables")),
    general("no-attention-backend", "ValueError",
            "No dot product attention backend is available for the provided inputs."),
    general("illegal-memory-access", "torch.AcceleratorError",
            "CUDA error: an illegal memory access was encountered"),
    general("hardware", "torch.AcceleratorError",
            "CUDA error: uncorrectable ECC error encountered"),
    general("host-memory", "ray.exceptions.OutOfMemoryError",
            "Task was killed due to the node running low on memory."),
    general("host-memory", "OSError", "[Errno 12] Cannot allocate memory"),
    general("shared-memory", "RuntimeError",
            "unable to open shared memory object </torch_7_1> in read-write mode"),
    *(
        general("many-connections", "AssertionError", text)
        for text in (
            "FSDP requires CUDA_DEVICE_MAX_CONNECTIONS > 1 or unset.",
            "FSDP always requires CUDA_DEVICE_MAX_CONNECTIONS value large than one",
        )
    ),
    general("cut-file", "EOFError", "Ran out of input", ("load",)),
    general("disk-full", "OSError", "[Errno 28] No space left on device"),
    general("loader-killed", "RuntimeError",
            "DataLoader worker (pid 77) is killed by signal: Killed. "),
    general("duplicate-gpu", "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:33, invalid usage (run with NCCL_DEBUG=WARN for details)\n"
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\n"
            "Last error:\nDuplicate GPU detected : rank 3 and rank 2 both on CUDA device 1b000"),
    general("nccl-memory", "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:33, internal error - please report this issue\n"
            "ncclInternalError: Internal check failed.\nLast error:\n"
            "Failed to CUDA calloc async 1920 bytes"),
    general("nccl-usage", "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:33, invalid argument\nncclInvalidArgument: Invalid value"),
    general("nccl-system", "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:33, unhandled system error\nncclSystemError: System call failed"),
    general("nccl-internal", "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:33, internal error\nncclInternalError: Internal check failed."),
    general("nccl-registration", "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:33, unhandled system error\nLast error:\n"
            "Call to ibv_reg_mr_iova2 failed with error Invalid argument"),
    general("nccl-network", "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:33, unhandled system error\nNET/IB: Got completion "
            "from peer 10.0.0.1<4> with status=IBV_WC_RETRY_EXC_ERR(12)"),
    general("nccl-connect", "torch.distributed.DistBackendError",
            "NCCL error in: x.cpp:33, unhandled system error\nLast error:\n"
            "socketStartConnect: Connect to 10.0.0.1<4> failed : No route to host"),
    general("cpu-collective", "RuntimeError", "No backend type associated with device type cpu"),
    general("launch-failure", "torch.AcceleratorError", "CUDA error: unspecified launch failure"),
    general("cublas-support", "RuntimeError",
            "/te/gemm/cublaslt_gemm.cu:419 in function cublas_gemm: Assertion failed: status != "
            "CUBLAS_STATUS_NOT_SUPPORTED. Unable to find suitable cuBLAS GEMM algorithm"),
    general("cut-file", "safetensors_rust.SafetensorError",
            "Error while deserializing header: MetadataIncompleteBuffer"),
    general("open-files", "OSError", "[Errno 24] Too many open files"),
    general("deepep-timeout", "RuntimeError", "DeepEP error: timeout (dispatch CPU)"),
    general("compile-tools", "RuntimeError", "Failed to find C compiler. Please specify via CC"),
    general("compile-failed", "torch._dynamo.exc.BackendCompilerFailed",
            "backend='inductor' raised:"),
    general("gloo-connect", "RuntimeError",
            "Gloo connectFullMesh failed with [../gloo/transport/tcp/pair.cc:144] no error"),
    general("cudnn-libraries", "RuntimeError",
            "cuDNN Error: CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"),
    general("write-failed", "RuntimeError",
            "[enforce fail at inline_container.cc:603] . unexpected pos 18880 vs 18774"),
    general("checkpoint-shape", "megatron.core.dist_checkpointing.core.CheckpointingException",
            "Global shape mismatch for loaded ((4, 68)) and expected ((4, 72)) tensor"),
    general("no-kernel", "torch.AcceleratorError",
            "CUDA error: no kernel image is available for execution on the device"),
    general("missing-package", "ModuleNotFoundError", "No module named 'transformer_engine'"),
    general("config-refused", "omegaconf.errors.ConfigAttributeError", "Key 'cp' is not in struct"),
    general("config-refused", "ruamel.yaml.parser.ParserError", "while parsing a block mapping"),
    general("field-refused", "pydantic_core._pydantic_core.ValidationError",
            "1 validation error for Settings"),
    general("service", "requests.exceptions.ConnectionError",
            "('Connection aborted.', ConnectionResetError(104, 'Connection reset by peer'))"),
    general("unused-arguments", "ValueError",
            "Some specified arguments are not used by the HfArgumentParser: ['--cp', '2']"),
    general("model-files", "OSError", "Can't load tokenizer for 'own/model'."),
    general("checkpoint", "megatron.core.dist_checkpointing.core.CheckpointingException",
            "Object shard of a file not found"),
    general("state-dict", "RuntimeError", "Error(s) in loading state_dict for GPTModel:"),
    general("shapes", "RuntimeError",
            "mat1 and mat2 shapes cannot be multiplied (4096x2048 and 4096x1024)"),
    general("collectives-mismatch", "RuntimeError",
            "Detected mismatch between collectives on ranks. Rank 0 is running collective: A"),
    general("address-in-use", "torch.distributed.DistNetworkError",
            "The server socket has failed to listen. port: 29500, code: -98, name: EADDRINUSE"),
    general("not-joined", "torch.distributed.DistStoreError",
            "Timed out after 601 seconds waiting for clients. 63/64 clients joined."),
    general("nan-found", "RuntimeError",
            "Rank 3, node n, device 3, iteration 5: Unexpected result nan (message='found NaN in"),
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
    return ["Traceback (most recent call last):", *frames, *said.split("\n")]


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
    last = [*progress(1, 3), *case.setup]
    lines = {other: last if other == RANKS - 1 else [] for other in range(RANKS)}
    lines[rank] += traceback(case)
    for other in range(RANKS):
        if other != rank:
            lines[other] += lost_peer() if other % 2 else [watchdog(other, group=case.group)]
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
