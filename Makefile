# Two commands do everything on a fresh machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow check bench mutants ship clean

setup: .venv/.complete

# The stamp comes last, so an interrupted installation is taken up again.
.venv/.complete: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[all]'
	@touch $@

demo: setup
	$(BIN)/scannable demo

test: setup
	$(BIN)/python -m pytest -m 'not slow'

test-slow: setup
	$(BIN)/python -m pytest -m slow

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

bench: setup
	$(BIN)/python benchmarks/scan.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/zoo.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python -m benchmarks.faults

# What the tests notice of small changes planted in the source, in less than half an hour on two cores.
mutants: setup
	$(BIN)/python benchmarks/mutants.py

# A finished run becomes a model that comes with the package: make ship RUN=runs/s5 NAME=s5 TITLE='what it is'
ship: setup
	$(BIN)/python -m scannable.weights.ship "$(RUN)" "$(NAME)" "$(TITLE)"

clean:
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis demo benchmarks/out
