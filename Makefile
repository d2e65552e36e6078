# Needs only make and Python 3.11 or later: .venv is made on first use, and again when pyproject.toml changes.
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CASES ?= ../shared/cases
CAPTURES ?= ../shared/captures
ifneq ($(wildcard $(CAPTURES)),)
export KVWATCH_CAPTURES := $(abspath $(CAPTURES))
endif

.PHONY: help demo test lint bench render pictures evaluate cases

help:
	@echo "make demo      an engine in trouble, kvwatch and its page on this machine, without a GPU"
	@echo "make test      lint, rendered files up to date, tests"
	@echo "make lint      ruff, mypy, import directions"
	@echo "make render    write alerts, dashboards, runbook and tables anew"
	@echo "make pictures  the README's pictures, taken anew from the demo with Chromium and Prometheus"
	@echo "make bench     what kvwatch costs"
	@echo "make cases     the acceptance cases in CASES=$(CASES)"
	@echo "make evaluate  verdicts against the recordings in CAPTURES=$(CAPTURES) and RECORDINGS=FOLDERS"

$(INSTALLED): pyproject.toml
	@for python in $(PYTHON) python3.11 python3 python3.12 python3.13 ""; do \
	  "$$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: no Python 3.11 or later with venv on PATH; install one (Debian: apt-get install python3-venv) or name it: make PYTHON=..." >&2; \
	  exit 1; \
	fi; \
	echo "$(VENV): made with $$python; installing into it takes about a minute"; \
	"$$python" -m venv $(VENV) && $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[events,render,dev]'
	@touch $@

demo: $(INSTALLED)
	$(BIN)/kvwatch demo

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: lint
	if $(BIN)/kvwatch render --help >/dev/null 2>&1; then $(BIN)/kvwatch render --check; fi
	$(BIN)/pytest

render: $(INSTALLED)
	$(BIN)/kvwatch render

pictures: $(INSTALLED)
	$(BIN)/python -m tests.picture docs

bench: $(INSTALLED)
	$(BIN)/python -m tests.bench

cases: $(INSTALLED)
	$(BIN)/python $(CASES)/run_cases.py --kvwatch "$(CURDIR)/$(BIN)/python -m kvwatch"

evaluate: $(INSTALLED)
	$(BIN)/python tests/evaluate.py $(wildcard $(CAPTURES)) $(RECORDINGS)
	$(BIN)/python tests/evaluate_events.py $(wildcard $(CAPTURES)) $(RECORDINGS)
