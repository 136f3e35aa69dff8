# make demo    environment + the notebooks of gpt-tiny, headless, and a summary
# make lab     JupyterLab on the notebooks
# make test    everything, in 10 to 20 minutes; make check: format, lint, types and the fast tests; make soak: at length
# make gpu     what only a GPU can show, in under 40 minutes
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests run in so many processes, each file in one of them. Slow tests wait for processes of their own half of the
# time: on two cores, three workers need 1,330 s where two need 1,673 s.
WORKERS ?= 3
# Set in many containers; then every process that a test starts compiles the package again.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder
# Python compiles what it imports; pip would compile all of it, a minute of one core.
PIP    := $(BIN)/python -m pip install --no-compile --disable-pip-version-check -q -c constraints.txt
# The fast tests in two halves that take equally long. Only the second one loads torch.
FAST := $(BIN)/python -m pytest -q -m "not slow"
TORCH_TESTS := $(addprefix tests/,checkpoint config corpus dataset docs evaluation exchange gpu guards inference \
	jobs/calibration jobs/request model parallel parity pretrained train)

.PHONY: demo lab labextension test check format map docs pictures site bench parity faults soak gpu clean

demo: $(VENV)/.installed
	@$(BIN)/nbtrain demo

lab: $(VENV)/.installed
	@$(BIN)/nbtrain lab

# The JupyterLab front end, built anew from nbtrain/lab/labextension and nbtrain/lab/ui by the environment that is
# there; needs node 20 and npm's registry. What it builds is committed.
labextension: | $(BIN)/python
	@$(BIN)/python -m nbtrain.lab.labextension.build

test: $(VENV)/.installed-test
	$(PYTEST) -q $(PYTEST_ARGS)

check: $(VENV)/.installed-test
	$(BIN)/ruff format --check nbtrain tests
	$(BIN)/ruff check nbtrain tests notebooks
	@# Two halves, each collected once: workers of pytest-xdist would each collect all tests, 8 s. mypy, which takes
	@# a minute of one core the first time, and the half with torch report after the other half.
	@types=$$(mktemp); half=$$(mktemp); trap 'kill $$mypy $$torch 2>/dev/null; exit 130' INT TERM; \
	$(BIN)/mypy >$$types 2>&1 & mypy=$$!; \
	$(FAST) $(TORCH_TESTS) >$$half 2>&1 & torch=$$!; \
	$(FAST) $(TORCH_TESTS:%=--ignore=%); failed=$$?; \
	wait $$torch || failed=1; wait $$mypy || failed=1; \
	cat $$half $$types; rm -f $$half $$types; exit $$failed

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix nbtrain tests notebooks
	$(BIN)/ruff format nbtrain tests
	$(BIN)/nbstripout notebooks/*.ipynb

# The pictures of README, docs and notebooks, taken in Chromium from real runs: docs/pictures/.
pictures: $(VENV)/.installed-test
	$(BIN)/python -m tests.pictures $(PICTURES_ARGS)

# Every module of a folder with the first sentence of its docstring.
FOLDER ?= nbtrain
map:
	@$(PYTHON) -m tests.map $(FOLDER)

docs: $(VENV)/.installed-test
	$(BIN)/python -m nbtrain.cli.reference.pages
	$(BIN)/python -m tests.gpu --page

# Documentation and executed notebooks as static pages: build/site/html/index.html. In seconds: it runs no notebook.
# SITE_ARGS="--run 02_plan" runs one first, SITE_ARGS=--run all; the copies stay in build/notebooks.
site: $(VENV)/.installed-test
	$(BIN)/python -m tests.site $(SITE_ARGS)

bench: $(VENV)/.installed-test
	$(BIN)/python tests/benchmarks/train_cpu.py

# Every layout against one process, interrupted and reshaped: docs/evidence/parity.md. Goes on where it was stopped.
parity: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.parity.matrix $(PARITY_ARGS)

# What is too long for `make test`, part by part; goes on where it was stopped: docs/evidence/soak.md.
soak: $(VENV)/.installed-test
	$(BIN)/python -m tests.soak $(SOAK_ARGS)

# What only a GPU can show, step by step; goes on where it was stopped: docs/evidence/gpu.md. Needs no network: without the
# environment it takes $(PYTHON), and GPU_ARGS="--wheels DIR" gives it the packages that are missing.
gpu:
	$(if $(wildcard $(BIN)/python),$(BIN)/python,$(PYTHON)) -m tests.gpu $(GPU_ARGS)

# Each fault suffered by a real run: docs/evidence/faults-local.md, quoted on docs/errors.md. Some need root.
faults: $(VENV)/.installed-test
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.jobs.faults_table $(FAULTS_ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .mypy_cache

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# torch goes in first, alone and pinned: deepspeed's build looks for it, and no later resolution may replace it.
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) torch
	$(PIP) -e '.[data]'
	@$(BIN)/nbtrain doctor || true
	@touch $@

$(VENV)/.installed-test: $(VENV)/.installed
	$(PIP) -e '.[test]'
	@# Megatron's own reader and indices, to compare with; its dependencies are not needed for that.
	$(PIP) --no-deps megatron-core || echo 'megatron-core cannot be had: its tests are skipped'
	@touch $@
