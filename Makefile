# The two commands to know: `make demo` and `make test`. `make help` lists the rest.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OURS := packages/contract packages/wafer packages/framework packages/controlplane packages/localcluster \
        services/api services/compiler-worker services/runner-worker client
STAMP := $(VENV)/.installed
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help install demo test check soak bench calibrate article clean

help:            ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*##/ -/'

install: $(STAMP)  ## make .venv and install everything, pinned by constraints.txt

$(STAMP): constraints.txt requirements-dev.txt $(addsuffix /pyproject.toml,$(OURS))
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) -c constraints.txt -r requirements-dev.txt
	$(PIP) -c constraints.txt --no-build-isolation $(addprefix -e ,$(OURS))
	touch $@

demo: install    ## train examples/mnist through a whole cluster, then stop it
	$(BIN)/python tools/demo.py

check: install   ## static checks: ruff, mypy, import-linter
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy packages/*/src services/*/src client/src
	$(BIN)/lint-imports

test: install    ## the whole test suite
	$(BIN)/python -m pytest

soak: install    ## kill a process that saves checkpoints 200 times
	CHECKPOINT_KILLS=200 $(BIN)/python -m pytest tests/integration/framework/test_kill.py

bench: install   ## ratios against what a user would use instead, in one run
	$(BIN)/python tests/bench/bench_training.py
	$(BIN)/python tests/bench/bench_steps.py
	$(BIN)/python tests/bench/bench_loader.py
	$(BIN)/python tests/bench/bench_compile.py
	$(BIN)/python tests/bench/bench_precision.py
	$(BIN)/python tests/bench/bench_streaming.py

calibrate: install ## fit the cost model to published rates, write its constants; CAPTURE=--capture traces the models anew
	$(BIN)/python -m tools.calibrate $(CAPTURE)

# The article's script needs torchvision, which needs a torch of its own: an environment of about 5.5 GB.
ARTICLE_VENV := .venv-article
ARTICLE_PIP = $(ARTICLE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
              -c $(ARTICLE_VENV)/constraints.txt
article: install ## run the article's script both ways: make article SCRIPT=path DATA=folder-of-idx-files
	@test -n "$(SCRIPT)" -a -n "$(DATA)" || { echo "usage: make article SCRIPT=path DATA=folder-of-idx-files"; exit 2; }
	test -x $(ARTICLE_VENV)/bin/python || $(PYTHON) -m venv $(ARTICLE_VENV)
	grep -v '^torch==' constraints.txt > $(ARTICLE_VENV)/constraints.txt
	$(ARTICLE_PIP) torch==2.14.1 torchvision==0.29.1 hatchling editables
	$(ARTICLE_PIP) --no-build-isolation -e packages/contract -e packages/wafer -e packages/framework
	$(BIN)/python tools/article.py --script "$(SCRIPT)" --data "$(DATA)" --user-python $(ARTICLE_VENV)/bin/python

clean:           ## remove what install and the demo made
	rm -rf $(VENV) .demo
