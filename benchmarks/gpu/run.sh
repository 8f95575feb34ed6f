#!/usr/bin/env bash
# Run what needs a GPU, part by part, and leave the output of each part in a file.
#
#   bash benchmarks/gpu/run.sh [PART...]      all parts without arguments; PARTS below lists them
#
# Paths are relative to the checkout.
#
# PYTHON  the Python to use, with torch, pytest, numpy and what pyproject.toml names (python3)
# WHEELS  a folder of wheels that this Python lacks; they are installed into a temporary folder,
#         without a network (none)
# OUT     where the output goes (build/gpu)
# LIMIT   seconds that one part may take (3600)
# STEPS   steps of each training (20)
# DEVICE  cpu: the same commands over gloo and on the tape. This shows that they run (gpu)
set -uo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3} OUT=${OUT:-build/gpu} LIMIT=${LIMIT:-3600} STEPS=${STEPS:-20}
PARTS=(machine captures communication attention training graphs benchmark sanitizer smoke proofs)
export PYTHONPATH=$PWD/src:$PWD${PYTHONPATH:+:$PYTHONPATH} OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1
if [ "${DEVICE:-gpu}" = cpu ]; then
  ranks=(--backend gloo) alone=(--backend gloo) capture=tape bench=(--device cpu)
else
  ranks=(--backend nccl --share-gpus) alone=(--backend nccl) capture=cuda bench=()
fi

ringproof() { "$PYTHON" -m ringproof "$@"; }
tests() { "$PYTHON" -m pytest -v -rs -p no:cacheprovider "$@"; }

# The card, its driver and the versions that the other parts ran with.
machine() {
  command -v nvidia-smi >/dev/null && nvidia-smi
  "$PYTHON" -c 'import sys, torch
print("Python", sys.version.split()[0], "torch", torch.__version__, "CUDA", torch.version.cuda)
if torch.cuda.is_available():
    print(torch.cuda.get_device_name(), "x", torch.cuda.device_count(), "NCCL", torch.cuda.nccl.version())'
}

# One process: replays against eager runs, pools, and what a capture refuses.
captures() { tests checks/graphs/test_cuda.py; }

# NCCL between ranks that share the GPUs; and ranks that die or hang.
communication() {
  tests smoke/test_shared_gpu.py smoke/test_cluster.py -k "shared or gpu or nccl or gloo"
}

# CP attention against a dense float64 reference.
attention() {
  local failed=0 comm dtype levels
  rm -f "$OUT"/attention-*.json # what an earlier run left is not a result of this one
  for comm in p2p all_gather a2a a2a+p2p; do
    levels=(--ranks 4)
    [ "$comm" = a2a+p2p ] && levels=(--hcp 2,2)
    for dtype in float64 bfloat16; do
      ringproof parity attention --comm "$comm" "${levels[@]}" --lengths 48,5,77,126 \
        --kv-heads 4 --dtype "$dtype" "${ranks[@]}" --json "$OUT/attention-$comm-$dtype.json" ||
        failed=1
    done
  done
  TORCH_CPP_LOG_LEVEL=INFO ringproof parity attention --comm a2a+p2p --hcp 2,2 \
    "${ranks[@]}" --rank-log "$OUT/nccl.log" && ringproof logs groups "$OUT/nccl.log" || failed=1
  return $failed
}

# Dynamic CP with groups of 1, 2 and 4 ranks: a bank of graphs against the same packs without.
training() {
  local failed=0 preset way scope
  rm -f "$OUT"/*-{static,bank}.json{,l}
  export CUBLAS_WORKSPACE_CONFIG=:4096:8 # else its bits depend on the stream, and graphs have another
  for preset in qwen3-tiny moonlight-tiny; do
    scope=layer
    [ $preset = moonlight-tiny ] && scope=attn # the dispatch of its experts cannot be captured
    for way in static bank; do
      ringproof train --preset "$preset" --cp 4 --force-cp 4,1,2 --steps "$STEPS" \
        --data synthetic:mean=48 --global-batch 8 --max-length 128 --max-tokens-per-rank 128 \
        --graphs "$way" $([ $way = bank ] && echo --graph-backend $capture --graph-scope $scope) \
        "${ranks[@]}" \
        --timeout 900 --log "$OUT/$preset-$way.jsonl" --json "$OUT/$preset-$way.json" || failed=1
    done
    ringproof logs parity "$OUT/$preset-static.jsonl" "$OUT/$preset-bank.jsonl" --tol 0 ||
      failed=1
  done
  return $failed
}

# Graphs with communication in them, and trainings by a bank, on ranks that share the GPUs.
graphs() {
  tests smoke/test_graph_capture.py smoke/test_graph_bank.py -k "gpu or cuda" -m "not slow"
}

# What a replay gains and costs: benchmarks/graphs/results/cuda.json.
benchmark() { "$PYTHON" -m benchmarks.graphs.cuda "${bench[@]}"; }

# The variables are torchrun's: the one rank is then the process that the sanitizer follows.
sanitizer() {
  local tool=()
  if command -v compute-sanitizer >/dev/null; then
    # NCCL asks the driver for kernels of other GPUs, which is an error of the API and harmless.
    tool=(compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 1)
  else
    echo "compute-sanitizer is not installed: the two steps run without it"
  fi
  RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29511 \
    "${tool[@]}" "$PYTHON" -m ringproof train "${alone[@]}" --graphs bank --graph-backend $capture \
    --steps 2 --data synthetic:mean=32 --global-batch 4 --max-length 64 --max-tokens-per-rank 64 \
    --timeout 900
}

# Upstream's own programs, where there are four GPUs and Transformer Engine; skipped otherwise.
smoke() {
  ringproof upstream fetch || echo "upstream's code could not be fetched: what is here is used"
  tests -p ringproof.prove.recorder --ringproof-cache "$HOME/.cache/ringproof" \
    smoke/test_smoke_command.py::test_a_feature_passes_on_gpus
}

# What the cards say, with this machine's records.
proofs() { ringproof prove --record evidence; }

if [ "${1:-}" = --part ]; then
  "$2"
  exit
fi
for part in "$@"; do
  [[ " ${PARTS[*]} " = *" $part "* ]] || {
    echo "error: $part: is no part; use any of: ${PARTS[*]}" >&2
    exit 2
  }
done
if [ "${DEVICE:-gpu}" != cpu ]; then
  "$PYTHON" -c 'import torch; raise SystemExit(not torch.cuda.is_available())' || {
    echo "error: PYTHON: $PYTHON sees no GPU; use one whose torch does, or DEVICE=cpu" >&2
    exit 2
  }
fi
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
export PYTHON OUT LIMIT STEPS
if [ -n "${WHEELS:-}" ]; then
  site=$(mktemp -d)
  trap 'rm -rf "$site"' EXIT
  "$PYTHON" -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --target "$site" \
    "$WHEELS"/*.whl || exit
  export PYTHONPATH=$PYTHONPATH:$site
fi
failed=0
: >"$OUT/summary.txt"
for part in "${@:-${PARTS[@]}}"; do
  began=$SECONDS
  echo "== $part"
  timeout -k 20 "$LIMIT" bash benchmarks/gpu/run.sh --part "$part" 2>&1 | tee "$OUT/$part.txt"
  status=${PIPESTATUS[0]}
  [ "$status" = 0 ] || failed=1
  echo "$part: status $status, $((SECONDS - began)) s" | tee -a "$OUT/summary.txt"
done
echo "== summary"
cat "$OUT/summary.txt"
exit $failed
