# make demo: train a translator and look at it. make test: the fast tests. All reuse .venv.
PYTHON ?= python3
BIN := .venv/bin
RUN := runs/demo
PARALLEL := -n auto
# Or each of the hundreds of processes that the tests start would compile every file again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test test-all lint site bench clean

.venv/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "allyouneed needs Python 3.11 or newer; set PYTHON=python3.12 or so")'
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "installing into .venv (once, a few minutes)"
	@$(BIN)/pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/developing: .venv/installed
	@$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@

demo: .venv/installed
	@$(BIN)/python -m allyouneed.demo $(RUN)

test: .venv/developing
	$(BIN)/python -m pytest $(PARALLEL) --dist loadfile

test-all: .venv/developing
	$(BIN)/python -m pytest $(PARALLEL) --dist worksteal -m 'slow or not slow'

lint: .venv/developing
	$(BIN)/ruff check src tests bench docs notebooks
	$(BIN)/ruff format --check src tests bench docs notebooks
	$(BIN)/mypy

site: .venv/developing
	$(BIN)/mkdocs build --strict --quiet

bench: .venv/developing
	$(BIN)/python -m bench

clean:
	rm -rf .venv site build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
