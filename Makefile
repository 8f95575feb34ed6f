# Two commands do all set-up on a fresh clone: `make prove` (the main job) and `make test`.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.up-to-date

.PHONY: prove test test-slow lint evidence benchmark docs clean

# Prove what the cards say. QUICK=1 leaves the slow proofs out.
prove: $(STAMP)
	$(BIN)/ringproof prove $(if $(QUICK),--quick)

# Lint, types, checks in one process each, smoke tests on many ranks: what runs every time.
test: lint
	$(BIN)/python -m pytest checks src -n 2 --doctest-modules
	$(BIN)/python -m pytest smoke -m "not slow" -n 2 --dist loadfile

# The tests on many ranks for which `make test` has no time.
test-slow: $(STAMP)
	$(BIN)/python -m pytest smoke -m slow

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Prove everything and keep the records under evidence/.
evidence: $(STAMP)
	$(BIN)/ringproof prove --record evidence

benchmark: $(STAMP)
	$(BIN)/python benchmarks/ring_attention.py --json build/ring_attention.json

docs: $(STAMP)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	$(BIN)/mkdocs build --strict

clean:
	rm -rf $(VENV) build dist site

# The stamp is written last, so a broken installation is tried again.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[reference,dev]'
	touch $(STAMP)
