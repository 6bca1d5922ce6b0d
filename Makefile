# `make` alone lists the targets. Every target sets up what it needs first.
PYTHON ?= $(firstword $(wildcard .venv/bin/python3) python3)
BIN := .venv/bin
PORT ?= 6006
BASE ?= main
HEAD ?= HEAD
INSTALL := $(BIN)/python -m pip install --disable-pip-version-check --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help setup setup-dev train test same-bits docs tour interop torture bench lint format tensorboard clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

# A stamp file is up to date exactly when its packages are installed.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 15) else "vit_train needs Python 3.11, 3.12, 3.13 or 3.14: make clean setup PYTHON=python3.13")'
	$(PYTHON) -m venv .venv
	$(if $(filter 1,$(CPU)),$(INSTALL) --no-deps --index-url https://download.pytorch.org/whl/cpu torch torchvision)
	$(INSTALL) --editable .
	touch $@

.venv/installed-%: .venv/installed
	$(INSTALL) --editable '.[$*]'
	touch $@

.venv/installed-interop: .venv/installed-dev

setup: .venv/installed ## create .venv and install the project (CPU=1: PyTorch without CUDA)

setup-dev: .venv/installed-dev ## add the developer tools: tests, linters, sweepers

train: setup ## train ViT-Tiny on the built-in shapes (ARGS="train.epochs=2" adds overrides)
	$(BIN)/vit-train experiment=quickstart $(ARGS)

test: setup-dev ## run the tests (ARGS="-m slow" adds pytest options)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto --maxprocesses 4 --dist worksteal $(ARGS)

same-bits: setup-dev ## run 50 commands on two commits and compare all results (BASE=main HEAD=HEAD ARGS="-k tags")
	$(BIN)/python tests/same_bits.py $(BASE) $(HEAD) $(ARGS)

tour: .venv/installed-tour ## open the notebook docs/tour.ipynb in Jupyter
	$(BIN)/jupyter lab docs/tour.ipynb $(ARGS)

docs: .venv/installed-docs ## build the site of the documents in build/site, and check its links
	$(BIN)/mkdocs build --strict

interop: .venv/installed-interop ## run the tests with other libraries: timm, torchvision, transformers, vit-pytorch, ONNX
	HF_HUB_OFFLINE=1 $(BIN)/python -m pytest -m interop $(ARGS)

torture: setup-dev ## kill training 120 times at random, then 15 minutes of odd arguments and damaged checkpoints (ARGS="--minutes 60 --kills 500")
	PYTHONPATH=tests $(BIN)/python -m torture $(ARGS)

bench: .venv/installed-peers ## time training and inference against other libraries (ARGS="vit_train timm")
	$(BIN)/python -m benchmarks $(ARGS)

lint: setup-dev ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup-dev ## rewrite the sources in the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

tensorboard: setup ## watch all runs at http://localhost:6006 (PORT=6007 for another)
	$(BIN)/tensorboard --logdir outputs --port $(PORT)

clean: ## remove the environment and every cache, keep outputs/ and data/
	rm -rf .venv build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
