# Two commands to know: `make demo` and `make test`. Both set up what they need in .venv; only python3.11+ and pip are assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c .ci/constraints.txt
QUICK := not ray and not cloud and not kill and not browser and not learn and not big
DEMO ?= out/demo

.PHONY: help demo test test-full check format bench sample-data docs clean

help:  ## Show the targets.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# Four layers of packages; each is installed once, again when the project file changes.
$(VENV)/.installed: pyproject.toml .ci/constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -e .
	touch $@

$(VENV)/.installed-sb3: $(VENV)/.installed
	$(PIP) -e '.[sb3]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed-sb3
	$(PIP) -e '.[dev]'
	touch $@

$(VENV)/.installed-full: $(VENV)/.installed-dev
	$(PIP) -e '.[dev,ray]'
	touch $@

demo: $(VENV)/.installed-sb3  ## Record an expert, convert, clone it, play the clone: under a minute.
	@PATH="$(abspath $(BIN)):$$PATH" sh sample_data/demo.sh $(DEMO)

test: $(VENV)/.installed-dev  ## Run the tests that pip alone can serve.
	$(BIN)/python -m pytest -q -n 2 -m "$(QUICK)"

test-full: $(VENV)/.installed-full  ## Run the rest: against RLlib itself, kills, learning.
	$(BIN)/python -m pytest -q -m "ray" --require-markers ray
	$(BIN)/python -m pytest -q -m "(kill or learn or big) and not ray" --require-markers kill,learn

check: $(VENV)/.installed-dev  ## Check format, lint, types and import rules.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## Format the code and mend what the linter can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-full  ## Measure against rivals in one run; rewrite docs/benchmarks.md.
	$(BIN)/python -m benchmarks.run

sample-data: $(VENV)/.installed-sb3  ## Train the experts in sample_data/ again; RECORDING=folder copies RLlib's recording again.
	$(BIN)/python sample_data/train_experts.py
	$(if $(RECORDING),$(BIN)/python sample_data/copy_recording.py $(RECORDING))

docs: $(VENV)/.installed-dev  ## Write the pages that are generated from the code.
	$(BIN)/python -m offline_cli.cli.reference > docs/cli.md
	$(BIN)/python -m offline_cli.cli.reference config > docs/config.md
	$(BIN)/python -m offline_cli.report.pipelines > docs/connectors.svg

clean:  ## Remove what the targets made.
	rm -rf $(VENV) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
