# `make train` and `make test` work on a fresh machine: they make .venv and install what they need first.
# Another interpreter: make PYTHON=python3.12 train. Where a run goes: make train OUT=results/first.

SUITABLE := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11; do \
            $$python -c '$(SUITABLE)' 2>/dev/null && echo $$python && break; done)
PRESET ?= laptop_team
NUM_EPISODES ?= 300
OUT ?= results/$(PRESET)-$(shell date +%Y-%m-%d-%H-%M-%S)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
RUN := $(CURDIR)/$(BIN)/python -m

# BenchMARL 1.5 needs an older TorchRL than the rest.
BENCHMARL_VENV ?= .venv-benchmarl
BENCHMARL := $(BENCHMARL_VENV)/bin/python

.PHONY: format lint type test slow numeric results train smoke docs docs-serve dist benchmarl

train: $(VENV)/.installed
	@set -e; out="$(OUT)"; \
	$(RUN) harl_mapush.train --preset $(PRESET) --out "$$out"; \
	$(RUN) harl_mapush.test --checkpoint "$$out" --suite team2 --team_only --num_envs $(NUM_EPISODES) --json "$$out/evaluation.json"; \
	film="$$out/video.mp4"; \
	$(RUN) harl_mapush.test --checkpoint "$$out" --suite team2 --mode viewer --record "$$film" || film="none, see above"; \
	printf '%s\n' "" "All of it is in $$out:" \
	  "  checkpoints      $$out/checkpoints" \
	  "  success rate     $$out/evaluation.json" \
	  "  video            $$film" \
	  "  curves           $(BIN)/tensorboard --logdir $$out"

smoke:
	@$(MAKE) --no-print-directory train PRESET=smoke NUM_EPISODES=20

test: lint type
	$(RUN) pytest -q -n 2

# Slow tests left to the night, whose workflow runs all: they take minutes, meet a time limit, or need a browser or a builder
# of images.
NIGHTLY := $(addprefix tests/,test_doc_commands.py test_architecture.py test_packaging.py::test_the_image \
  $(addprefix harl_mapush/,collectors/test_collectors_run.py::test_faults distributed/test_launch.py::test_a_rank_that_is_killed) \
  $(addprefix mapush/extensions/,studio/test_player_page.py sweep/test_sweep_killed.py))
slow: $(VENV)/.installed-test
	$(RUN) pytest -q -n 2 -m slow $(addprefix --deselect=,$(NIGHTLY))
	HYPOTHESIS_PROFILE=many $(RUN) pytest -q -n 0 tests/test_properties.py

# Tests of exact numbers under the kernels of other CPUs.
NUMERIC := tests/harl_mapush/learning tests/harl_mapush/runs/test_exported.py tests/mqe/controllers tests/mqe/env
numeric: $(VENV)/.installed-test
	ATEN_CPU_CAPABILITY=default $(RUN) pytest -q -n 2 $(NUMERIC)
	ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2 \
	  $(RUN) pytest -q -n 2 $(NUMERIC)

# What README and the pages of results state of shipped policies: missing, outdated and short rows are
# measured, and the tables written. It can be stopped and goes on: make results RESULTS='--match doors'.
results: $(VENV)/.installed-docs
	$(BIN)/python benchmarks/results.py $(RESULTS)
	$(BIN)/python docs/_hooks/result_pages.py

lint: $(VENV)/.installed-test
	$(RUN) ruff check .
	$(RUN) ruff format --check .

type: $(VENV)/.installed-test
	$(RUN) pyright --pythonpath $(BIN)/python

# The site of docs/: in the folder site, or on a page of this machine.
docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs build --strict

docs-serve: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(RUN) mkdocs serve

# Wheel and source distribution, in the folder dist.
dist: $(VENV)/.installed-docs
	$(PIP) build
	$(RUN) build --outdir dist

# The test of BenchMARL's client, an example.
benchmarl: $(BENCHMARL_VENV)/.installed
	$(BENCHMARL) -m pytest -q -n 0 -m slow -k benchmarl tests/mapush/extensions/torchrl

$(BENCHMARL_VENV)/.installed: constraints.txt
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; name one: make PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv $(BENCHMARL_VENV)
	$(BENCHMARL) -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BENCHMARL) -m pip install --quiet --disable-pip-version-check -c constraints.txt \
	  benchmarl 'torchrl<0.12' pytest pytest-xdist hypothesis -e .
	@touch $@

format: $(VENV)/.installed-test
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

# Each stamp stands for a finished installation, so that a second `make` starts at once.
# torch goes first: then no dependency pulls another build of it.
$(VENV)/.installed: $(VENV)/.torch pyproject.toml setup.py
	$(PIP) -e '.$(if $(shell command -v nvidia-smi),[gpu])'
	@touch $@

$(VENV)/.installed-test: $(VENV)/.torch pyproject.toml setup.py
	$(PIP) -e '.[test,gpu]'
	@touch $@ $(VENV)/.installed $(VENV)/.installed-docs

$(VENV)/.installed-docs: $(VENV)/.torch pyproject.toml setup.py
	$(PIP) -e '.[docs]'
	@touch $@

$(VENV)/.torch: constraints.txt | $(BIN)/python
	$(PIP) torch
	@touch $@

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11, 3.12 or 3.13 is needed; name one: make PYTHON=/path/to/python3.12"; exit 2; }
	$(PYTHON) -m venv $(VENV)
