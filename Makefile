# Two commands do everything on a fresh machine with Python 3.11 and make: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup demo test test-slow test-hf-versions test-lowest check docs pictures release bench mutants ship clean

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

# Every lower bound of pyproject.toml, in an environment of its own.
test-lowest: setup
	$(BIN)/python release/lowest.py .lowest

test-slow: setup
	$(BIN)/python -m pytest -m slow

# Generation, saving and training under older versions of transformers, each in an environment of its own: the first of
# the range that pyproject.toml states, and one between. The newest is in .venv.
HF_VERSIONS := 5.0.0 5.10.4
test-hf-versions: $(HF_VERSIONS:%=test-hf-%)

test-hf-%: .venv-hf/%/.complete
	.venv-hf/$*/bin/python -m pytest -m 'not slow' tests/hf/test_generate.py tests/hf/test_saving.py

.venv-hf/%/.complete: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-hf/$*
	grep -viE '^(transformers|tokenizers|huggingface_hub)==' constraints.txt > .venv-hf/$*/constraints.txt
	.venv-hf/$*/bin/python -m pip install --quiet --disable-pip-version-check --constraint .venv-hf/$*/constraints.txt \
		--editable '.[train]' accelerate beartype hypothesis pytest pytest-xdist transformers==$*
	@touch $@

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/basedpyright

# The site, in docs/_build/html. Its tutorials are run; a warning or a link that leads nowhere is an error.
docs: setup
	rm -rf docs/_build    # pages that are no longer made would stay, with links of before
	$(BIN)/python -m sphinx -E -q -W --keep-going -j 2 -b html -d docs/_build/doctrees docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

# The pictures of the site and the README, from what the scan does.
pictures: setup
	$(BIN)/python docs/pictures/draw.py

# What would be uploaded: built, looked into, installed where nothing else is, and used.
release: setup
	$(BIN)/python release/check.py

bench: setup
	$(BIN)/python benchmarks/scan.py
	$(BIN)/python benchmarks/train.py
	$(BIN)/python benchmarks/decode.py
	$(BIN)/python benchmarks/zoo.py
	$(BIN)/python benchmarks/streams.py
	$(BIN)/python benchmarks/huggingface.py
	$(BIN)/python -m benchmarks.faults

# What the tests notice of small changes planted in the source, in about half an hour on two quiet cores.
mutants: setup
	$(BIN)/python benchmarks/mutants.py

# A finished run becomes a model that comes with the package: make ship RUN=runs/s5 NAME=s5 TITLE='what it is'
ship: setup
	$(BIN)/python -m scannable.weights.ship "$(RUN)" "$(NAME)" "$(TITLE)"

clean:
	rm -rf .venv .venv-hf .lowest .pytest_cache .ruff_cache .hypothesis demo benchmarks/out docs/_build dist
