# Two commands do all the set-up: `make perf` (the main job) and `make test`. Both print what they do and can be
# started again at any time: what is there already is not made twice.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Extra arguments for pip when the rig is installed, e.g. PIP_ARGS="--extra-index-url URL" for CPU wheels of torch.
PIP_ARGS ?=

.PHONY: help perf test twins check rig rigs cluster browser lint types workflows docs format wheel clean

help:
	@echo "make rig     environment and the real SGLang on the CPU, and nothing else (both below do it first)"
	@echo "make perf    the main job: environment, real SGLang on the CPU, a baseline if there is none, verdicts"
	@echo "make test    all tests, those on the real CPU engine included"
	@echo "make twins   every procedure of the R1 suite at small scale on the real CPU engine, ten minutes"
	@echo "make rigs    an older SGLang (0.5.9) beside it, for the tests of a version bump"
	@echo "make cluster a real sshd, Slurm, podman and mpiexec for the tests (Debian, root): nothing is started"
	@echo "make browser a headless browser for the tests of the HTML page (Debian, root)"
	@echo "make check   ruff, mypy --strict, zizmor, check-jsonschema"
	@echo "make format  ruff format and its fixes"
	@echo "make docs    the reference from the code, and the pages as HTML in build/docs"
	@echo "make wheel   sdist and wheel into dist/"
	@echo "make clean   remove build products and the environment (not the rig, not baselines, not results)"

$(STAMP): pyproject.toml
	@echo "== virtual environment in $(VENV), with the plugin and the development tools"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	@touch $@

rig: $(STAMP)
	@echo "== the CPU rig: the real SGLang, a tiny model, a data set"
	$(BIN)/r1perf rig install $(foreach arg,$(PIP_ARGS),--pip-arg $(arg))
	$(BIN)/r1perf model make --weights
	$(BIN)/r1perf dataset make

rigs: rig
	@echo "== an older SGLang beside it"
	$(BIN)/r1perf rig install --sglang-version 0.5.9 $(foreach arg,$(PIP_ARGS),--pip-arg $(arg))

browser:
	@echo "== a browser for the tests of the HTML page (Debian, root)"
	command -v chromium >/dev/null || { apt-get update -q && apt-get install -q -y --no-install-recommends chromium fonts-dejavu-core; }

cluster:
	@echo "== what the tests of several nodes need"
	bash tests/cluster/install.sh

perf: rig
	@echo "== a baseline of this machine, if there is none yet"
	@baseline=$$($(BIN)/r1perf baseline path --platform cpu --topology tp1) && \
	if test -f "$$baseline"; then echo "there is one: $$baseline"; \
	else $(BIN)/pytest "perf_tests/test_cpu.py::test_tp1" --perf-platform cpu --perf-update-new; fi
	@echo "== the main job"
	$(BIN)/pytest -m perf --topology tp1 --perf-platform cpu

test: rig
	@echo "== tests on a stand-in for SGLang, three at a time"
	R1PERF_REQUIRE_RIG=1 $(BIN)/pytest tests -n 3 --ignore tests/rig --ignore tests/cluster
	@echo "== tests on the real SGLang, and of several nodes, one at a time"
	R1PERF_REQUIRE_RIG=1 $(BIN)/pytest tests/rig tests/cluster

twins: rig
	@echo "== the R1 suite's scaled twins on the real SGLang, ten minutes"
	R1PERF_TWINS=1 R1PERF_REQUIRE_RIG=1 $(BIN)/pytest tests/rig/test_suite.py tests/rig/test_deployment.py tests/rig/test_serve.py \
		tests/rig/test_main_job.py::test_an_antipattern_of_the_cpu_loses

check: lint types workflows

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	MYPYPATH=scripts/h200 $(BIN)/mypy scripts/h200
	MYPYPATH=scripts $(BIN)/mypy scripts/outcome.py scripts/new_release.py

workflows: $(STAMP)
	$(BIN)/zizmor --offline --no-progress --persona pedantic --strict-collection .github
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	$(BIN)/python docs/generate.py
	$(BIN)/python -m sphinx -q -W --keep-going -n docs build/docs

wheel: $(STAMP)
	$(BIN)/python -m build

clean:
	rm -rf build dist $(VENV) .mypy_cache .ruff_cache .pytest_cache
