# `make` alone lists the targets. Every target sets up what it needs first.
PYTHON ?= python3
BIN := .venv/bin
PORT ?= 6006

.DEFAULT_GOAL := help
.PHONY: help setup train test torture lint format typecheck tensorboard clean

help: ## list the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# The stamp is newer than its prerequisites exactly when the installed environment is current.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "vit_train needs Python 3.11 or newer: make PYTHON=python3.12")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

setup: .venv/installed ## create .venv and install the project into it

train: setup ## train ViT-Tiny on the built-in shapes (ARGS="train.epochs=2" adds overrides)
	$(BIN)/vit-train experiment=quickstart $(ARGS)

test: setup ## run the tests (ARGS="-m slow" adds pytest options)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile $(ARGS)

torture: setup ## kill training 140 times at random, then 15 minutes of hostile input (ARGS="--minutes 60 --kills 500")
	PYTHONPATH=tests $(BIN)/python -m torture $(ARGS)

lint: setup ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

typecheck: setup ## check the types alone
	$(BIN)/mypy

tensorboard: setup ## watch all runs at http://localhost:$(PORT)
	$(BIN)/tensorboard --logdir outputs --port $(PORT)

clean: ## remove the environment and every cache, keep outputs/ and data/
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
