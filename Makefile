# With Python 3.13, 3.12 or 3.11 and make, `make demo` and `make test` do everything.

# 2.14: the versions that TFF pins, on Python 3.11.
TENSORFLOW ?= 2.21
ifeq ($(TENSORFLOW),2.21)
  LOCK := requirements.txt
  VENV := .venv
  # The newest that is installed.
  PYTHON ?= $(shell for python in python3.13 python3.12 python3.11; do \
    $$python -c '' 2>/dev/null && echo $$python && exit; done; echo python3)
else ifeq ($(TENSORFLOW),2.14)
  LOCK := requirements-tf2.14.txt
  VENV := .venv-tf2.14
  PYTHON ?= python3.11
else
  $(error TENSORFLOW=$(TENSORFLOW): 2.21 or 2.14)
endif
BIN := $(VENV)/bin
# Each process of a test would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
INSTALLED := $(VENV)/.installed
# Processes for the tests: one per core.
JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
# TFF workers of `make workers`.
N ?= 2

.PHONY: help setup demo demo-short demo-online demo-guidance demo-dynamic report \
  notebooks workers index test test-all test-every test-long test-fast test-contract test-notebooks test-extras benchmark lint lock check-lock docs wheel release clean

help:
	@echo 'make demo        FedEvolve and FedEvp beside FedAvg on digits that rotate'
	@echo 'make demo-online Fed-ADE, fixed rates and no adaptation on a drifting stream'
	@echo 'make demo-guidance FedDRM guides queries about coloured digits to clients'
	@echo 'make demo-dynamic Fed-3DA sends new weights to clients whose classes drift'
	@echo 'make report      a table of a paper on embedded digits, as a page, in minutes'
	@echo 'make notebooks   the notebooks of examples/notebooks as .ipynb, in runs/notebooks'
	@echo 'make workers N=2 TFF workers on this machine, until Ctrl-C'
	@echo 'make index       index.json, the page of methods, claims and tables of results'
	@echo 'make test        the tests; the contract of algorithms of all forms'
	@echo 'make test-all    all tests: long ones, the contract of every algorithm'
	@echo 'make test-every  the contract of every algorithm; of test-all'
	@echo 'make test-long   the long tests; of test-all'
	@echo 'make test-notebooks the five notebooks, a minute each'
	@echo 'make test-extras the tests of extras that are not in the lock, installed beside it'
	@echo 'make test-fast   the tests that are not marked slow: every module, in minutes'
	@echo 'make test-contract the contract of algorithms of all forms'
	@echo 'make benchmark   ratios of speed in five processes each, into benchmarks/history.md'
	@echo 'make lint        linter, format, types, spelling, size; are lock and tables up to date?'
	@echo 'make docs        the documentation site, in site/; fails on a broken link'
	@echo 'make lock        compiles requirements.in into requirements.txt and requirements-tf2.14.txt'
	@echo 'make wheel       dist/tff_shift-*.whl'
	@echo 'make release     checks a release and writes it into dist/; publishes nothing'
	@echo 'make clean       removes the environment and all results'

setup: $(INSTALLED)

$(INSTALLED): $(LOCK) setup.sh tff_shift.pth
	@./setup.sh '$(PYTHON)' '$(VENV)' '$(LOCK)'
	@touch $@

# Its line says which file to open.
page = $(BIN)/python -m experiments.report $(1) --output_dir=$(1)-page --overwrite

demo: setup
	$(BIN)/python -m experiments.evolving \
	  --flagfile=experiments/presets/evolving/demo.flags \
	  --output_dir=runs/demo --overwrite
	$(call page,runs/demo)

demo-short: setup
	$(BIN)/python -m experiments.evolving \
	  --flagfile=experiments/presets/evolving/demo.flags \
	  --rounds=2 --seeds=0,1 --output_dir=runs/demo-short --overwrite
	$(call page,runs/demo-short)

demo-online: setup
	$(BIN)/python -m experiments.online_adaptation \
	  --flagfile=experiments/presets/online_adaptation/demo.flags \
	  --output_dir=runs/demo-online --overwrite
	$(call page,runs/demo-online)

demo-guidance: setup
	$(BIN)/python -m experiments.guidance \
	  --flagfile=experiments/presets/guidance/demo.flags \
	  --output_dir=runs/demo-guidance --overwrite
	$(call page,runs/demo-guidance)

demo-dynamic: setup
	$(BIN)/python -m experiments.dynamic_personalization \
	  --flagfile=experiments/presets/dynamic_personalization/demo.flags \
	  --output_dir=runs/demo-dynamic --overwrite
	$(call page,runs/demo-dynamic)

# What was done before is not done again.
report: setup
	$(BIN)/python -m experiments.reproduce demo/digits \
	  --reduce=num_seeds=2,num_settings=2,rounds=12 --jobs=2 --resume \
	  --output_dir=runs/report

# The extra `notebook` is not in the lock: docs/tutorials/notebooks.md.
notebooks: setup
	$(BIN)/python -m examples.notebooks.convert --output_dir=runs/notebooks

workers: setup
	@$(BIN)/python -m experiments.workers --num_workers=$(N)

# Command lines read the index instead of importing algorithms and models. The
# page of methods, docs/reference/methods.md, is of the same files.
# The page of claims and the tables of results/ are of the archives in results/raw.
index: setup
	$(BIN)/python -m tff_shift.command_line.write_index
	$(BIN)/python -m experiments.papers.write_methods
	$(BIN)/python -m experiments.papers.claims
	$(BIN)/python -m experiments.papers.result_tables

PYTEST := $(BIN)/python -m pytest
USUAL := not long and not every_algorithm and not notebook
IN_PROCESSES := -n $(JOBS) --dist worksteal

# Each part has a process of its own, so that no process grows with all tests
# and none waits for the last test of another. The longest parts come first.
BINARIES := tests/end_to_end
ALGORITHMS := tests/algorithms
SINGLE := algorithms data end_to_end execution learning models scenarios simulation
PARTS := 'tests/data tests/execution' '$(SINGLE:%=--ignore=tests/%)' \
  '$(ALGORITHMS)/fe*_test.py' '$(ALGORITHMS)/[a-e]*_test.py' tests/learning \
  '$(ALGORITHMS)/f[!e]*_test.py $(ALGORITHMS)/[g-z]*_test.py' tests/models/keras \
  'tests/models --ignore=tests/models/keras' 'tests/simulation tests/scenarios' \
  '$(BINARIES)/[p-s]*_test.py' '$(BINARIES)/[a-dt-z]*_test.py' $(BINARIES)/saving \
  '$(BINARIES)/[e-l]*_test.py' '$(BINARIES)/[m-o]*_test.py $(ALGORITHMS)/parts'

# A part that fails does not keep the others from running. What a part prints is
# printed when it ends.
test: setup
	@printf '%s\0' $(PARTS) | xargs -0 -P $(JOBS) -I {} sh -c \
	  'printed=$$($(PYTEST) -m "$(USUAL)" {} 2>&1); status=$$?; \
	  printf "%s\n" "$$printed"; exit $$status'

test-all: test test-every test-long

test-every: setup
	$(PYTEST) $(IN_PROCESSES) -m 'every_algorithm and not long' $(ALGORITHMS)
	$(PYTEST) $(IN_PROCESSES) -m 'every_algorithm and not long' --ignore=$(ALGORITHMS)

test-long: setup
	$(PYTEST) $(IN_PROCESSES) -m long $(BINARIES)
	$(PYTEST) $(IN_PROCESSES) -m long --ignore=$(BINARIES)

test-notebooks: setup
	$(PYTEST) -m notebook

# Beside the lock, in an environment of its own, which sees that of the lock.
test-extras: setup
	$(BIN)/python -m venv $(VENV)-extras
	cd $(VENV)-extras/lib/python*/site-packages && echo "import site; \
	  site.addsitedir('$$(echo $(CURDIR)/$(VENV)/lib/python*/site-packages)')" > lock.pth
	$(VENV)-extras/bin/pip install --quiet --constraint $(LOCK) wandb ipykernel nbclient skops
	$(VENV)-extras/bin/python -m pytest tests/reporting/wandb_test.py tests/notebooks_test.py \
	  tests/data/transformers_test.py tests/end_to_end/own_tables_test.py \
	  -k 'wandb or jupyter or transformer'

test-fast: setup
	$(PYTEST) $(IN_PROCESSES) -m 'not slow and $(USUAL)'

test-contract: setup
	$(PYTEST) $(IN_PROCESSES) -m '$(USUAL)' $(ALGORITHMS)/contract_test.py

# Not a test: it needs an idle machine for some twenty minutes.
benchmark: setup
	$(BIN)/python -m benchmarks.history

lint: setup check-lock
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell .
	$(BIN)/mypy
	$(BIN)/python -m experiments.papers.write_methods --check
	$(BIN)/python -m experiments.papers.claims --check
	$(BIN)/python -m experiments.papers.result_tables --check
	$(BIN)/python -m benchmarks.size --check

docs: setup
	# Not --quiet: warnings that are not shown are not counted, and break nothing.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

# The overrides lift what TFF pins: $(call compile,LOCK,OVERRIDES,OPTIONS).
compile = $(BIN)/uv pip compile --quiet --no-config --no-header \
  --python-version 3.11 \
  --override $(2) requirements.in --output-file $(1) $(3)
compile-new = $(call compile,$(1),overrides.txt,--universal $(2))
compile-old = $(call compile,$(1),overrides-tf2.14.txt,$(2))

lock: setup
	$(call compile-new,requirements.txt,--upgrade)
	$(call compile-old,requirements-tf2.14.txt,--upgrade)

# Compiling on top of a lock keeps its versions: it only changes where
# requirements.in or the overrides ask for something else.
check-lock: setup
	@cp requirements.txt $(VENV)/new.txt
	@cp requirements-tf2.14.txt $(VENV)/old.txt
	@$(call compile-new,$(VENV)/new.txt)
	@$(call compile-old,$(VENV)/old.txt)
	@cmp -s requirements.txt $(VENV)/new.txt && \
	  cmp -s requirements-tf2.14.txt $(VENV)/old.txt || \
	  { echo 'the locks are not up to date: run make lock' >&2; exit 1; }

# What lies in build/ from before would go in.
wheel: setup
	rm -rf build dist
	$(BIN)/python -m pip wheel --quiet --no-deps --no-build-isolation \
	  --wheel-dir dist .
	@rm -rf build

release:
	@./.ci/release

clean:
	rm -rf .venv .venv-tf2.14 runs build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
