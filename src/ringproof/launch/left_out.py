"""Which of upstream's options decide a program's path, and which a rehearsal leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

FILES = "What depends on files and hosts: checkpoints that are loaded and saved, and caches."
WATCHING = "Nothing of the path: logging, timing and profiling."
ENDING = "What depends on when and how a run stops, and on manual garbage collection."
DATA = "What depends on real data: tokens, lengths of documents, blends and splits."


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def _table(*groups: tuple[str, str]) -> Mapping[str, str]:
    return MappingProxyType({name: why for why, names in groups for name in names.split()})


#: Options that are left out, with what that hides. Their values need not be known.
DROPPED = _table(
    (
        FILES,
        """--load-main-params-from-ckpt --persistent-save-interval --dist-ckpt-workers
        --async-ckpt-cpu-priority --async-ckpt-io-priority --async-ckpt-use-cpu-shm
        --ckpt-fully-parallel-load-exchange-algo --ckpt-fully-parallel-load-process-group
        --ckpt-fully-parallel-save-process-group --disable-ckpt-load-validate-sharding-integrity
        --no-ckpt-load-validate-sharding-integrity --no-strict-fsdp-dtensor-load
        --disable-strict-fsdp-dtensor-load --disable-use-tokenizer-model-from-checkpoint-args
        --result-rejected-tracker-filename --save-params-interval --save-activations-interval
        --save-dgrads-interval --save-wgrads-interval --save-tokens-per-expert-interval
        --save --load --pretrained-checkpoint --finetune --no-save-optim --no-save-rng
        --no-load-optim --no-load-rng --save-interval --save-retain-interval
        --dist-ckpt-format --use-dist-ckpt --auto-detect-ckpt-format --async-save
        --use-persistent-ckpt-worker --ckpt-fully-parallel-load --ckpt-fully-parallel-save
        --no-ckpt-fully-parallel-save --ckpt-assume-constant-structure --dist-ckpt-strictness
        --dist-ckpt-optim-fully-reshardable --dist-ckpt-save-pre-mcore-014
        --distrib-optim-fully-reshardable-mem-efficient --use-checkpoint-args
        --use-mp-args-from-checkpoint-args --no-use-tokenizer-model-from-checkpoint-args
        --use-checkpoint-opt-param-scheduler --use-checkpoint-opt_param-scheduler
        --override-opt-param-scheduler --override-opt_param-scheduler --exit-on-missing-checkpoint
        --non-persistent-ckpt-type --non-persistent-save-interval --non-persistent-global-ckpt-dir
        --non-persistent-local-ckpt-dir --non-persistent-local-ckpt-algo --ckpt-step
        --ckpt-convert-format --ckpt-convert-save --ckpt-convert-update-legacy-dist-opt-format
        --replication --replication-jump --replication-factor --verify-integrity
        --language-model-checkpoint --data-cache-path
        --ckpt-load-validate-sharding-integrity

        --log-progress --enable-ft-package --calc-ft-timeouts --one-logger-async
        --app-tag-run-name --app-tag-run-version --enable-one-logger --no-one-logger
        --one-logger-project --one-logger-run-name""",
    ),
    (
        WATCHING,
        """--config-logger-dir --dump-param-to-param-group-map --flight-recorder-dump-path
        --disable-log-loss-scale-to-tensorboard --log-moe-overload-factor
        --run-workload-inspector-server --tensorboard-dir --tensorboard-log-interval
        --tensorboard-queue-size
        --log-timers-to-tensorboard --no-log-loss-scale-to-tensorboard
        --log-validation-ppl-to-tensorboard --log-memory-to-tensorboard
        --log-world-size-to-tensorboard

        --wandb-project --wandb-entity --wandb-exp-name --wandb-save-dir
        --logging-level --log-throughput --log-params-norm --log-num-zeros-in-grad
        --log-memory-interval --log-energy --log-straggler --disable-straggler-on-startup
        --straggler-ctrlr-port --straggler-minmax-count --timing-log-level --timing-log-option
        --profile --profile-step-start --profile-step-end --profile-ranks --use-pytorch-profiler
        --record-memory-history --memory-snapshot-path
        --pytorch-profiler-collect-shapes --pytorch-profiler-collect-callstack
        --pytorch-profiler-collect-chakra --nvtx-ranges --barrier-with-L1-time
        --no-barrier-with-level-1-timing --log-device-memory-used
        --moe-per-layer-logging
        --check-weight-hash-across-dp-replicas-interval --log-max-attention-logit""",
    ),
    (
        ENDING,
        """--disable-manual-gc-eval --no-manual-gc-eval --exit-signal-handler-for-training
        --exit-duration-in-mins --exit-interval --exit-signal --exit-signal-handler
        --exit-signal-handler-for-dataloader --manual-gc-eval --manual-gc --manual-gc-interval
        --distributed-timeout-minutes --distributed-timeout-seconds-after-init
        --empty-unused-memory-level
        --error-injection-rate --error-injection-type --inprocess-restart
        --adlr-autoresume --adlr-autoresume-interval""",
    ),
    (
        DATA,
        """--dataloader-defer-npy-index-mmap --tokenizer-hf-no-include-special-tokens
        --tokenizer-hf-no-use-fast --no-tokenizer-sentencepiece-ignore-extra-whitespaces
        --disable-tokenizer-sentencepiece-ignore-extra-whitespaces --data-path --data-args-path
        --train-data-path --valid-data-path --test-data-path
        --per-split-data-args-path --per-dataset-sequences-path --mock-data --vocab-file
        --merge-file --tokenizer-model --tokenizer-type
        --tokenizer-metadata --tokenizer-sentencepiece-legacy --tokenizer-hf-use-fast
        --tokenizer-hf-include-special-tokens --tokenizer-special-tokens
        --trust-remote-code --tiktoken-pattern --tiktoken-num-special-tokens
        --tiktoken-special-tokens --sft-tokenizer-prompt-format --null-tokenizer-eod-id
        --null-tokenizer-pad-id --vocab-size --vocab-extra-ids --no-mmap-bin-files
        --object-storage-cache-path --num-workers --num-dataset-builder-threads
         --dataloader-fast-cache-load
        --mid-level-dataset-surplus --full-validation --multiple-validation-sets
        --varlen-mock-dataset-config-json --sft-mock-dataset-config-json""",
    ),
)

#: Options of reduced precision, which a rehearsal on CPUs leaves out.
QUANTIZED = _words(
    """
    --disable-fp8-wgrad --keep-fp8-transpose-cache --fp8-output-proj --fp8-format --fp8-recipe
    --fp8-margin --fp8-interval --fp8-amax-history-len
    --fp8-amax-compute-algo --no-fp8-wgrad --fp8-param-gather --fp8-param
    --fp8-dot-product-attention --fp8-multi-head-attention --first-last-layers-bf16
    --num-layers-at-start-in-bf16 --num-layers-at-end-in-bf16 --fp4-format --fp4-recipe
    --fp4-param --fp4-param-gather --fp8-quantizer-factory --fp4-quantizer-factory
    --reuse-grad-buf-for-mxfp8-param-ag --te-precision-config-file --kitchen-config-file
    --kitchen-recipe-number --moe-router-padding-for-fp8 --moe-router-padding-for-quantization
    """
)

#: Options that only bfloat16 or float16 training takes, besides the dtype itself.
HALF = _words(
    """
    --bf16 --fp16 --grad-reduce-in-bf16 --loss-scale --initial-loss-scale --min-loss-scale
    --loss-scale-window --hysteresis --fp32-residual-connection --fp16-lm-cross-entropy
    --accumulate-allreduce-grads-in-fp32 --main-grads-dtype --main-params-dtype --exp-avg-dtype
    --exp-avg-sq-dtype --use-precision-aware-optimizer --megatron-fsdp-grad-comm-dtype
    --megatron-fsdp-main-grads-dtype --megatron-fsdp-main-params-dtype
    """
)

#: Prefixes of variables that decide the path and are handed on.
ENVIRONMENT = (
    "NVTE_",
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "MEGATRON_",
    "MCORE_",
    "NCCL_ALGO",
    "CUBLAS_WORKSPACE_CONFIG",
)

#: Options that need what a machine without GPUs does not have.
HARDWARE = _words(
    """
    --tp-comm-overlap --tp-comm-overlap-cfg --tp-comm-bootstrap-backend --disable-tp-comm-overlap-ag
    --disable-tp-comm-overlap-rs --tp-comm-overlap-rs-dgrad --disable-tp-comm-bulk-dgrad
    --disable-tp-comm-bulk-wgrad --use-sharp --sharp-enabled-group --nccl-ub --use-nccl-ub
    --disable-symmetric-registration --fsdp-manual-registration --high-priority-stream-groups
    --nccl-communicator-config-path --local-rank
    """
)
