# Three commands for a fresh machine with Python 3.11, pip, make and git; each sets up .venv by itself.
#   make reproduce [PAPER=slug] [PROFILE=cpu|gpu|smoke]    run what is stale, then judge every claim
#   make test                                              lint, types, tests
#   make serve                                             Prefect server, worker and MLflow on 127.0.0.1, until Ctrl-C

PYTHON ?= python3.11
PROFILE ?= cpu
PAPER ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
IN_PROFILE := $(if $(filter cpu,$(PROFILE)),,--cd $(PROFILE))

export PATH := $(CURDIR)/$(BIN):$(PATH)
export PYTHONPATH := $(CURDIR)
export DVC_NO_ANALYTICS := 1
export DO_NOT_TRACK := 1
export MLFLOW_DISABLE_TELEMETRY := true
export PREFECT_SERVER_ANALYTICS_ENABLED := false
export PREFECT_HOME ?= $(CURDIR)/.prefect
export PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS := 180

.PHONY: help setup reproduce test lint serve docs bench lock clean

help:
	@sed -n '1,4s/^# \{0,1\}//p' Makefile

setup: $(STAMP)

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not here; install Python 3.11 or say PYTHON=/path/to/python3.11"; exit 1; }
	@echo "setting up $(VENV) from requirements.lock (a few minutes the first time)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(STAMP)

reproduce: $(STAMP)
ifeq ($(PROFILE),smoke)
	@papers sync --profile smoke
endif
	@papers status --profile $(PROFILE) $(PAPER)
	@$(if $(PAPER),dvc $(IN_PROFILE) repro $(PAPER)-results,dvc $(IN_PROFILE) repro --keep-going); status=$$?; \
	  dvc $(IN_PROFILE) repro --force --single-item scorecard || status=1; \
	  papers track --profile $(PROFILE) || status=1; \
	  echo "scorecard: $(if $(filter cpu,$(PROFILE)),,$(PROFILE)/)report/index.html (open it in a browser); runs in MLflow: make serve"; \
	  exit $$status

lint: $(STAMP)
	@ruff check . && ruff format --check . && mypy && papers sync --check

test: lint
	@pytest -n 2
	@echo "all checks passed; next: make reproduce"

serve: $(STAMP)
	@papers serve

docs: $(STAMP)
	@mkdocs build --strict --quiet && echo "open site/index.html"

# All measurements, or one: make bench OF=engine
bench: $(STAMP)
	@for name in $(or $(OF),$(basename $(notdir $(wildcard benchmarks/[a-z]*.py)))); do \
	  echo "== $$name"; python -m benchmarks.$$name || exit 1; done

# Resolve pyproject.toml afresh (CPU build of torch) and write what pip chose, public versions only.
lock:
	@rm -rf build/lock && $(PYTHON) -m venv build/lock
	@build/lock/bin/pip install --quiet 'torch==2.13.0' && build/lock/bin/pip install --quiet -e '.[tables,offline-rl,rl,routing,gaussian-process,language-models,single-cell,docs,dev]'
	@build/lock/bin/pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/+cpu$$//' > requirements.lock
	@echo "wrote requirements.lock; next: papers sync, make test"

clean:
	@rm -rf site build .pytest_cache .mypy_cache .ruff_cache smoke
