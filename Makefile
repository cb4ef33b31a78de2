# Every target makes what it needs: on a fresh machine `make demo` or `make test` is the first command.
#
#   make demo                          the main job on examples/cpu.toml
#   make test                          linters, types, import contracts, and all tests but the next two groups
#   make launches                      launch lines, steps, record and replay, with the real torchrun
#   make demo TORCH=torch==2.14.1      the same with another torch, in an environment of its own
#   make demo-absent-gpu               builds for two H200 that are not here, and verifies it (a CUDA build of torch, 7 GB)
#   make programs                      real programs and launchers, not written here: transformers, accelerate, deepspeed,
#                                      and Open MPI and Slurm where the system has them (300 MB)
#   make contract                      what is believed of torch, held against 2.11.0, 2.13.0 and 2.14.1 (12 GB)

PYTHON ?= python3
DEFAULT_TORCH := torch==2.13.0
TORCH ?= $(DEFAULT_TORCH)
CUDA_TORCH ?= torch==2.14.1
# One environment for each torch: two versions in one would mix their files.
VENV := .venv$(if $(filter $(CUDA_TORCH),$(TORCH)),-cuda,$(if $(filter-out $(DEFAULT_TORCH),$(TORCH)),-$(subst ==,-,$(TORCH))))
BIN := $(VENV)/bin
# Nothing of the machine's own may decide a test.
RUN := env -u FLEXWARM_STORE -u FLEXWARM_FORMAT -u TORCHINDUCTOR_CACHE_DIR -u TRITON_CACHE_DIR
JOBS ?= 2

# What is believed of torch and of threads in it: run for each version in an environment of its own.
CONTRACT := tests/contract tests/toolchain/test_contract_torch.py tests/guard tests/docs/test_guard_page.py \
  tests/attach tests/absent tests/main/test_lanes.py tests/main/test_hazards.py tests/main/test_steps.py tests/main/test_launch_lines.py
# Each starts several processes of torch; together they take longer than all other tests.
LAUNCHES := tests/main/test_launch_lines.py tests/main/test_replay.py tests/main/test_record.py tests/main/test_steps.py \
  tests/docs/test_launch_lines_page.py
VERSIONS ?= 2.11.0 2.13.0 2.14.1

.PHONY: help venv demo demo-absent-gpu absent-gpu test lint types contracts contract contract-one launches programs unit main bench format clean

help:
	@sed -n 's/^#   //p' Makefile

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 14))' \
	  || { echo 'Python 3.10 to 3.14 is needed; name one: make PYTHON=python3.12 ...' >&2; exit 3; }
	@$(PYTHON) -m venv $(VENV) \
	  || { echo 'Python has no venv module that works; on Debian: apt install python3-venv' >&2; exit 3; }
	$(BIN)/python -m pip install -q '$(TORCH)' numpy
	$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@

demo: venv
	@sh examples/demo.sh $(BIN)/flexwarm

demo-absent-gpu:
	@$(MAKE) --no-print-directory absent-gpu TORCH=$(CUDA_TORCH)

absent-gpu: venv
	@sh examples/absent-gpu.sh $(BIN)/flexwarm

test: lint types contracts
	$(RUN) $(BIN)/python -m pytest $(addprefix --ignore=,$(LAUNCHES)) -n $(JOBS) --dist loadgroup

launches: venv
	$(RUN) $(BIN)/python -m pytest $(LAUNCHES) -n $(JOBS) --dist loadgroup

lint: venv
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: venv
	$(BIN)/mypy

contracts: venv
	$(BIN)/lint-imports

contract:
	@for version in $(VERSIONS); do \
	  echo "== torch $$version"; $(MAKE) --no-print-directory contract-one TORCH=torch==$$version || exit 1; \
	done

# A program that was not written here, for tests/absent; of `programs` it is all that they need.
contract-one: venv
	$(BIN)/python -m pip install -q 'transformers>=4.50'
	$(RUN) $(BIN)/python -m pytest $(CONTRACT) -n $(JOBS) --dist loadgroup

programs: venv
	$(BIN)/python -m pip install -q -e '.[dev,programs]'
	$(RUN) $(BIN)/python -m pytest tests/programs

unit: venv
	$(RUN) $(BIN)/python -m pytest -m 'not torch'

main: venv
	$(RUN) $(BIN)/python -m pytest -m torch -n $(JOBS) --dist loadgroup

bench: venv
	$(RUN) $(BIN)/python benchmarks/main_job.py

format: venv
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
