# The two commands to know: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OURS := packages/contract packages/wafer packages/framework packages/controlplane packages/localcluster \
        services/api services/compiler-worker services/runner-worker client
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install demo test check clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/ -/'

install: $(STAMP)  ## make .venv and install everything, pinned by constraints.txt

$(STAMP): constraints.txt requirements-dev.txt $(addsuffix /pyproject.toml,$(OURS))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt \
		-r requirements-dev.txt $(addprefix -e ,$(OURS))
	touch $@

check: install   ## static checks: ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy packages/*/src services/*/src client/src
	$(BIN)/lint-imports

test: install    ## the whole test suite
	$(BIN)/python -m pytest

clean:           ## remove what install and the demo made
	rm -rf $(VENV) .demo
