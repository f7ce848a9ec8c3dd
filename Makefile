# Everything a developer needs; each target does its own set-up on a fresh Debian 12/13 or Ubuntu 24.04.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
READY := .venv/.ready
# or every command and every process behind a mount would compile all of gpufs
unexport PYTHONDONTWRITEBYTECODE
# Most tests wait most of the time, so there are more at once than there are processors.
TOGETHER := -n 4 --maxschedchunk 1

.PHONY: help setup lint test demo train bench soak clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(READY) ## Debian packages where missing (root or sudo), then .venv with the pinned versions

$(READY): pyproject.toml tests/constraints.txt .ci/setup
	.ci/setup
	touch $@

lint: setup ## style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint ## lint, then all tests, four at once, and then those that measure; needs /dev/fuse
	@if [ -r /dev/fuse ] && [ -w /dev/fuse ]; then \
	    failed=0; \
	    $(BIN)/python -m pytest $(TOGETHER) -m "not alone" || failed=$$?; \
	    $(BIN)/python -m pytest -m alone || failed=$$?; \
	    exit $$failed; \
	else \
	    $(BIN)/python -m pytest $(TOGETHER) -m "not fuse"; \
	    echo "make test: FAILED: /dev/fuse cannot be opened here, so the tests that mount did not run" >&2; \
	    echo "  load the module (modprobe fuse); in a container: --device /dev/fuse --cap-add SYS_ADMIN" >&2; \
	    exit 1; \
	fi

demo: setup ## a local S3 server, a sample data set, mounted, read cold and warm, verified
	$(BIN)/python -m tests.demo

train: setup ## two epochs of PyTorch's DataLoader over 3,800 real images (needs npm; installs torch)
	$(BIN)/python -c "import torch" 2>/dev/null || $(BIN)/pip install -q torch==2.13.0 numpy
	mkdir -p build/images
	test -d build/images/package || (cd build/images && npm pack --silent emoji-datasource-google && tar xzf *.tgz)
	$(BIN)/python -W "ignore:This DataLoader" -m tests.train build/images/package

bench: setup ## measure this checkout
	$(BIN)/python -m tests.bench

soak: setup ## the long tests
	$(BIN)/python -m tests.soak
	$(BIN)/python -m tests.soak_crashes

clean: ## remove .venv and everything made by the tools
	rm -rf .venv build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
