# Two commands for a fresh machine: `make demo` and `make test`. Everything is installed into .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
PIP     = $(BIN)/pip --disable-pip-version-check --quiet
WORKERS ?= 2
CORE    = $(addprefix tests/,accounting clipping correlated mechanisms sampling tradeoff training transforms test_ledger.py test_nnx.py)
THREADS ?= 1

.DEFAULT_GOAL := help
.PHONY: docs help demo test test-rest test-docs test-slow test-minimum coverage test-accelerators bench-accelerators bench-accounting bench-clipping bench-training bench-correlated bench-sweeps bench-language lint format wheel clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "gdpjax needs Python 3.11 or newer; run: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.experiments: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing gdpjax and what the experiments need into $(VENV) (a few minutes the first time)"
	$(PIP) install -c constraints.txt -e '.[experiments]'
	@touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing gdpjax and what the tests need into $(VENV) (a few minutes the first time)"
	$(PIP) install -c constraints.txt -e '.[test]'
	@touch $@

$(VENV)/.benchmarks: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing gdpjax and the libraries it is measured beside into $(VENV) (a few minutes the first time)"
	$(PIP) install -c constraints.txt -e '.[benchmarks]'
	@touch $@

$(VENV)/.benchmarks-clipping: $(BIN)/python pyproject.toml constraints.txt
	@echo "Installing gdpjax, torch and the libraries it is measured beside into $(VENV) (a few minutes the first time)"
	$(PIP) install -c constraints.txt -e '.[benchmarks-clipping]'
	@touch $@

$(VENV)/.dev: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(VENV)/.experiments ## train privately on embedded data, print the privacy table, save a figure
	$(BIN)/python -m experiments demo

test: $(VENV)/.test ## the default suite, five minutes on two idle cores
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal

test-rest: $(VENV)/.test ## the tests of tests/data/slow.txt, which the default suite leaves out; twenty minutes
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal @tests/data/slow.txt

test-docs: $(VENV)/.test ## the code of every page of the documentation, those that take long included
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal tests/test_readme.py tests/test_docs.py tests/test_notebook.py

test-slow: $(VENV)/.test ## all tests, those of the benchmarks included, compiled as users compile; hours
	$(BIN)/python -m pytest --optimized -n $(WORKERS) tests gdpjax experiments

test-minimum: $(VENV)/.test ## the core suite with the oldest versions that pyproject.toml admits, installed over this environment
	$(PIP) install $$(sed -n '/^dependencies/,/^]/s/.*"\(.*\)>=\(.*\)".*/\1==\2/p' pyproject.toml)
	rm $(VENV)/.test
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) $(CORE)

coverage: $(VENV)/.dev ## the default suite, and which lines of gdpjax it runs (build/coverage)
	$(BIN)/python -m pytest -m "not slow" -n $(WORKERS) --dist worksteal --cov=gdpjax --cov-report=html:build/coverage --cov-report=term:skip-covered

$(VENV)/.libtpu: $(BIN)/python constraints.txt
	$(PIP) install -c constraints.txt --no-deps --target $(VENV)/libtpu libtpu
	@touch $@

test-accelerators: $(VENV)/.test $(VENV)/.libtpu ## compile for a TPU that is not there, and compare counts; REMAKE=1 writes the file
	$(BIN)/python -m benchmarks.bench_accelerators --libtpu $(VENV)/libtpu --check tests/data/accelerators.json \
	  $(if $(REMAKE),--remake)

bench-accelerators: RESULT ?= benchmarks/results/accelerators.json
bench-accelerators: $(BIN)/python $(VENV)/.libtpu ## compile everything for a TPU and an H100 that are not there, an hour; 6 GB of wheels
	test -x $(VENV)-cuda/bin/python || $(PYTHON) -m venv $(VENV)-cuda
	$(VENV)-cuda/bin/pip --disable-pip-version-check --quiet install -c constraints.txt -e '.[experiments,accelerators]'
	$(VENV)-cuda/bin/python -m benchmarks.bench_accelerators --libtpu $(VENV)/libtpu --output $(RESULT)

bench-accounting: RESULT ?= benchmarks/results/accounting_cpu.json
bench-accounting: $(VENV)/.benchmarks ## time the accountants beside other libraries, about ten minutes on an idle core
	$(BIN)/python -m benchmarks.bench_accounting --output $(RESULT)

bench-clipping: RESULT ?= benchmarks/results/clipping_cpu.json
bench-clipping: $(VENV)/.benchmarks-clipping ## time clipped gradients beside other libraries, an hour on idle cores
	$(BIN)/python -m benchmarks.bench_clipping --threads $(THREADS) --output $(RESULT)

bench-training: RESULT ?= benchmarks/results/training_cpu.json
bench-training: $(VENV)/.benchmarks-clipping ## time private training beside other libraries, half an hour on idle cores
	$(BIN)/python -m benchmarks.bench_training --threads $(THREADS) --output $(RESULT)

bench-correlated: RESULT ?= benchmarks/results/correlated_cpu.json
bench-correlated: $(VENV)/.benchmarks-clipping ## time correlated noise and its optimisers, ten minutes on an idle core
	$(BIN)/python -m benchmarks.bench_correlated --output $(RESULT)

bench-sweeps: RESULT ?= benchmarks/results/sweeps_cpu.json
bench-sweeps: THREADS = 2
bench-sweeps: $(VENV)/.test ## time 32 trainings in one program beside one by one, about two minutes on two idle cores
	$(BIN)/python -m benchmarks.bench_sweeps --threads $(THREADS) --output $(RESULT)

bench-language: PRESET ?= tiny
bench-language: RESULT ?= benchmarks/results/language_$(PRESET).json
bench-language: $(VENV)/.experiments $(VENV)/.benchmarks-clipping ## time private steps of language models; PRESET=small for a larger one
	$(BIN)/python -m benchmarks.bench_language --preset $(PRESET) --threads $(THREADS) --output $(RESULT)

lint: $(VENV)/.dev ## ruff and pyright
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(VENV)/.dev ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.docs: $(BIN)/python pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs ## build the documentation site into build/site, refusing warnings
	$(BIN)/mkdocs build --strict --site-dir build/site

wheel: $(VENV)/.dev ## build sdist and wheel, install into an empty environment and use it there
	rm -rf dist build/empty
	$(BIN)/python -m build --outdir dist
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip --disable-pip-version-check --quiet install -c constraints.txt dist/*.whl
	cd build/empty && bin/python -I -c "import gdpjax; print(gdpjax.__version__, gdpjax.__file__)"
	cd build/empty && bin/gdpjax account --noise-multiplier 1.3 --max-examples 60000 --expected-batch-size 256 --epochs 15 --delta 1e-5

clean: ## remove the environment and everything built
	rm -rf $(VENV) $(VENV)-cuda dist build .cache .pytest_cache .ruff_cache .hypothesis
