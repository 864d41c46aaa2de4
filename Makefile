# Everything runs in .venv, which each target makes by itself when pyproject.toml or constraints.txt changed.
PYTHON ?= python3
PROFILE ?= quick
PORT ?= 8000
VENV ?= .venv
WORKERS ?= 2
BENCH ?= _build/benchmarks
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
PIP := $(BIN)/python -m pip install -qq -c constraints.txt

# One thread each: two notebooks or tests side by side with many threads are ten times slower.
export OMP_NUM_THREADS ?= 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help install book serve test test-all lowest lint links results bench clean constraints

help:  ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | expand -t 14

install: $(VENV)/.book  ## make the environment for the book

book: $(VENV)/.book  ## execute the notebooks and build the book (PROFILE=quick or paper)
	@$(BIN)/adadp book --profile $(PROFILE)

serve: $(VENV)/.book  ## build the book and serve it at http://localhost:8000 (PORT=...)
	@$(BIN)/adadp book --profile $(PROFILE)
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(PORT)

test: $(VENV)/.dev  ## test the package, the notebooks and the book, built strictly
	@$(PYTEST) -m "not engine and not browser"

test-all: test  ## the same, then engines, browser and Colab
	@$(PYTEST) -m "engine or browser"

lowest:  ## test the package with the oldest releases that pyproject.toml allows (PYTHON=python3.11)
	@$(PYTHON) .ci/lowest.py _build/lowest

lint: $(VENV)/.dev  ## style, types, notebooks without outputs
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/pyright --warnings --pythonpath $(BIN)/python
	@$(BIN)/nbstripout --verify --keep-id $(wildcard notebooks/*.ipynb)

links: $(VENV)/.book  ## follow the book's links to other hosts (needs the network)
	@$(BIN)/adadp book
	@$(BIN)/jupyter-book build _build/src --builder linkcheck --path-output _build/links

results: $(VENV)/.book  ## say which stored runs exist and which are missing
	@$(BIN)/adadp results status

bench: $(VENV)/.dev  ## measure speed side by side with peers (BENCH=folder of tables and pictures)
	@for name in $(filter-out __init__ common,$(basename $(notdir $(wildcard benchmarks/*.py)))); do \
	  echo "== $$name"; $(BIN)/python -W ignore -m benchmarks.$$name --out $(BENCH) || exit 1; done

constraints: $(VENV)/bin/python  ## resolve the book's stack anew and write constraints.txt
	@$(BIN)/python .ci/constraints.py

clean:  ## remove what was built (the environment stays; rm -r .venv removes that)
	rm -rf _build dist .pytest_cache .hypothesis .ruff_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' \
	  || { echo "Python 3.11 to 3.13 is needed: make PYTHON=python3.12 ..."; exit 2; }
	@$(PYTHON) -m venv $(VENV)

$(VENV)/.book: pyproject.toml constraints.txt | $(VENV)/bin/python
	@echo "Installing the book's environment into $(VENV) (a few minutes, most of it PyTorch)"
	@$(PIP) -e '.[book]'
	@touch $@

$(VENV)/.dev: $(VENV)/.book
	@echo "Installing the test tools into $(VENV)"
	@$(PIP) -e '.[book,dev]'
	@touch $@
