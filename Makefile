# `make` alone prints what there is.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
SHELL := /bin/bash

# Any CPython 3.11 or 3.12; the first of these that is one, unless PYTHON is given.
PYTHON ?= $(shell for p in python3 python3.12 python3.11; do \
  $$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null \
  && { echo $$p; break; }; done)

VENV := .venv
PY := $(VENV)/bin/python
STAMP := $(VENV)/installed
TARGET ?= sglang==0.5.16
SECONDS_MAX ?= 60

# Importing torch takes many times longer without cached bytecode.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(CURDIR)/$(VENV)/pycache

.NOTPARALLEL:
.PHONY: help env test quality soak served fuzz gpu lint types clean

help:  ## Print this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

env: $(STAMP)  ## Make .venv and install ringfold into it (nothing is fetched while it is current)

# The stamp holds a digest of what decides the environment, so that touching a file changes nothing.
NEEDS := $(shell { $(PYTHON) -VV; cat pyproject.toml constraints.txt; } | sha256sum | cut -c1-12)
DIGEST := $(NEEDS) $(CURDIR)
ifneq ($(DIGEST),$(shell cat $(STAMP) 2>/dev/null))
.PHONY: $(STAMP)
endif

# What pip fetched stays in the user's cache, so that the next checkout needs no network.
CACHE := $(or $(RINGFOLD_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ringfold)
HOUSE := $(CACHE)/wheelhouse/$(NEEDS)
FROM_HOUSE := --quiet --no-index --find-links $(HOUSE) --constraint constraints.txt

$(HOUSE):
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or 3.12 found; name one: make PYTHON=/path/to/python3.12" >&2; exit 1; }
	@echo "Fetching the versions of constraints.txt into $(HOUSE): a few minutes the first time."
	rm -rf $(HOUSE).part
	$(PYTHON) -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); extras = p["project"]["optional-dependencies"]; print(*p["build-system"]["requires"], *p["project"]["dependencies"], *(r for e in ("kernels", "plots", "dev") for r in extras[e] if not r.startswith("ringfold[")), sep="\n")' \
	  | $(PYTHON) -m pip download --quiet --dest $(HOUSE).part --constraint constraints.txt --requirement /dev/stdin
	mv $(HOUSE).part $(HOUSE)

$(STAMP): | $(HOUSE)
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(PY) -m pip install $(FROM_HOUSE) setuptools
	$(PY) -m pip install $(FROM_HOUSE) --no-build-isolation --editable '.[kernels,dev]'
	@echo $(DIGEST) > $@

# Two processes of one thread each; a file's tests stay together, for what they share. Files come in
# the order of tests/conftest.py, the longest first: xdist's own, by number of tests, ends with them.
PYTEST := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 $(PY) -m pytest -q -n 2 --dist loadfile \
  --no-loadscope-reorder

# Tests that drive SGLang's kernels are skipped, and say so, where the wheel cannot be had.
test: env  ## Run the tests: first the quick ones, then the slow ones
	-$(VENV)/bin/ringfold targets add $(TARGET)
	$(PYTEST) -m "not slow"
	$(PYTEST) -m slow

quality: env  ## Hunt every planted bug, from a seed that is drawn and printed
	$(PY) -m pytest -q tests/quality --all-planted

SOAK_SEED := $(shell date +%s)
SOAK_WINDOWS ?= 50000
SOUND ?= snapshots ring fold-every-commit compact open-loop linear-cache decode-ring
soak: env  ## Walk a million row-windows of each sound machine from 20 seeds (an hour each)
	for dialect in $(SOUND); do for seed in {1..20}; do \
	  $(VENV)/bin/ringfold fuzz sim@$$dialect --seed $$(( ($(SOAK_SEED) + seed) % 2**32 )) \
	  --max-windows $(SOAK_WINDOWS) --run-dir runs/soak-$(SOAK_SEED)-$$dialect-$$seed || exit; done; done

BUSY := --requests 1500 --tokens 60 --running 256 --prompt 12 --chunk 8 --samples 2 --turns 3 \
  --gap 0.2 --aborts 0.1 --cached 20 --context 18000 --adaptive --acceptance 0.7 --geometry 1,2,16,8
BUSY_1 := --ring 16 --window 4 --conv-dtype float32
BUSY_0 := --ring 8 --window 2 --conv-dtype bfloat16
served: env  ## Walk a million row-windows of each sound machine in 14 workloads (minutes each)
	for dialect in $(SOUND); do \
	  folder=runs/served-$(SOAK_SEED)/$$dialect; mkdir -p $$folder; \
	  for i in {1..14}; do \
	    if (( i % 2 )); then shape="$(BUSY_1)"; else shape="$(BUSY_0)"; fi; \
	    $(VENV)/bin/ringfold simulate --trace $$folder/$$i.json --dialect $$dialect \
	      --seed $$(( ($(SOAK_SEED) + i) % 2**32 )) $$shape $(BUSY) || exit; \
	  done; \
	  $(VENV)/bin/ringfold replay $$folder --target sim@$$dialect || exit; \
	done

fuzz: env  ## Fetch SGLang's released kernels and fuzz them on the CPU for 60 seconds
	$(VENV)/bin/ringfold targets add $(TARGET)
	$(VENV)/bin/ringfold fuzz $(TARGET) --device cpu --max-time $(SECONDS_MAX)

gpu: env  ## Measure, test and fuzz our kernels on a GPU, in ten minutes (docs/results/README.md)
	for v in 16 23; do $(VENV)/bin/ringfold targets add sglang==0.5.$$v || exit; done
	PYTHON=$(PY) docs/results/gpu.sh runs/gpu

lint: env  ## Check style with ruff
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: env  ## Check types with mypy --strict
	$(PY) -m mypy

clean:  ## Remove the environment and everything made in the checkout (the user's cache stays)
	rm -rf $(VENV) build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .benchmarks .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
