# Tilescope: `make serve` and `make test` set up all they need; `make help` lists the rest.
PYTHON ?= python3
# Left out, it is 5006, or a free one where that is taken.
PORT   ?=
VENV   := .venv
BIN    := $(VENV)/bin
# With JupyterLab, which its tests drive.
EXTRAS ?= dev,jupyter
# One stamp for each choice of extras.
STAMP  := $(VENV)/.installed-$(EXTRAS)

# A file's tests share servers and browsers; tests/conftest.py puts the longest files first.
PROCESSES := --numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help setup serve test docs wheel release style lint format browser bench-dashboard bench-kernels bench-regret bench-tuning bench-foreign record changelog clean

help: ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-15s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv: install it with 'apt-get install python3-venv'"; exit 1; }
	@$(BIN)/python .ci/install.py $(EXTRAS)
	@touch $@

setup: $(STAMP) ## Create .venv with the pinned versions and install Tilescope into it

serve: setup ## Serve the dashboard on this machine alone, and print the link that opens it
	@$(BIN)/tilescope serve $(if $(PORT),--port $(PORT))

style: setup ## Check style alone
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint: style ## Check style and types
	$(BIN)/mypy

test: style ## Check style, then run every test that this machine can run
	@$(BIN)/python -c "import shutil; print('browser tests:', shutil.which('chromium') or 'skipped, no Chromium found (apt-get install chromium)')"
	$(BIN)/python -m pytest $(PROCESSES)

docs: setup ## Build the documentation and the gallery into docs/_build
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build
	$(BIN)/tilescope site docs/_build/gallery --title 'Tilescope: kernels recorded on an H200'

wheel: setup ## Build the wheel into dist, and use it outside of the checkout
	$(BIN)/python .ci/release.py

release: setup ## Walk the steps of a release (VERSION=0.2.0, once URL=https://…): version, changelog, recordings, wheel, site
	$(BIN)/python .ci/release.py $(or $(VERSION),$(error give VERSION=0.2.0)) $(URL)

browser: setup ## Run the browser tests alone
	$(BIN)/python -m pytest -m browser

bench-dashboard: setup ## Measure how quick the dashboard is here, against its budgets
	@$(BIN)/python benchmarks/dashboard.py

bench-kernels: setup ## Time the library beside its peers at sizes that no recording has, on this machine's GPU
	@$(BIN)/python benchmarks/sizes.py

bench-regret: setup ## Replay the recorded sweeps: how far the race's winner is from the best
	@$(BIN)/python benchmarks/regret.py

bench-tuning: setup ## Compare whole searches with triton.autotune's, on this machine's GPU
	@$(BIN)/python -m benchmarks.tuning

bench-foreign: setup ## Capture, compile, interpret and check kernels of Liger, FLA, Mamba and others, as far as they are installed
	@$(BIN)/python -m benchmarks.foreign

record: setup ## Record the whole catalog on this host's GPUs into profiles/recorded, then every sweep; run again, it goes on
	$(BIN)/tilescope recordings record --repetitions 20
	$(BIN)/tilescope recordings record --sweep --repetitions 20

changelog: setup ## Collect changelog.d into CHANGELOG.md (VERSION=0.2.0)
	$(BIN)/towncrier build --yes --version $(VERSION)

format: setup ## Format the code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove the environment and caches
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis
