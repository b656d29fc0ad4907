# Every target sets up what it needs in .venv first. `make` alone prints the targets.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
PY := .venv/bin/python
READY := .venv/.ready
CORES ?= auto

.DEFAULT_GOAL := help
.PHONY: help quickstart smollm2 calibrate bench gpu-check test test-slow test-sglang lint wheel clean
.PHONY: bench-kernels bench-engine bench-replay bench-loadgen bench-sim bench-harness

help:  ## print this
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

quickstart: $(READY)  ## four offload systems on a small model, to the first figure (about 2 minutes on 2 cores)
	$(PY) -m harness experiment=quickstart

smollm2: $(READY)  ## real weights on real text: full KV beside HiSparse, the same text
	$(PY) -m harness experiment=smollm2_quest

calibrate: $(READY)  ## time the native engine's terms on this machine, for engine=simulated_native (4 minutes)
	$(PY) -m harness.calibrate

bench:  ## print the benchmarks: bench-kernels, bench-engine, bench-replay, bench-loadgen, bench-sim, bench-harness
	@grep -hE '^bench-[a-z]+:.*#: ' $(MAKEFILE_LIST) | sed -E 's/:.*#: /\t/' | expand -t 16

bench-kernels: $(READY)  #: the kernels beside the torch reference and plain memcpy (about 2 minutes)
	$(PY) -m hisparse_kernels.bench

bench-engine: $(READY)  #: where a decode step's time goes, and what resolve costs (about 4 minutes)
	$(PY) -m harness.fetch smollm2_135m
	$(PY) -m harness.engine.bench

bench-replay: $(READY)  #: replay of selection streams, policy by policy, beside libcachesim (about 2 minutes)
	$(PY) -m workloads.replay.bench --figure6

bench-loadgen: $(READY)  #: our load generator beside SGLang's, guidellm and aiperf (about 15 minutes; installs 8 GB first)
	$(PY) -m harness.loadgen.bench

bench-sim: $(READY) build/vidur/.ready  #: simulated requests per second: figure 8, a day of 12,000, beside vidur
	$(PY) -m harness.simulation.bench --vidur build/vidur/bin/python

build/vidur/.ready:
	$(PYTHON) -m venv build/vidur
	build/vidur/bin/python -m pip install --quiet --disable-pip-version-check vidur==0.0.26
	touch $@

bench-harness: $(READY)  #: what the harness adds to a point: 1,000 points against a stub server (2 minutes)
	$(PY) -m harness.sweep_bench

gpu-check: $(READY)  ## everything that needs a GPU, in one run (under 6 minutes); writes build/gpu_check.json
	$(PY) -m harness.engine.gpu_check

test: $(READY)  ## the fast tests, on all cores; those that time a wire alone, afterwards
	OMP_NUM_THREADS=1 $(PY) -m pytest -n $(CORES) --dist loadfile --ignore tests/loadgen
	$(PY) -m pytest tests/loadgen

test-slow: $(READY)  ## whole sweeps, Ctrl-C, the wheel, the report in a browser
	$(PY) -m pytest -m slow

test-sglang: $(READY)  ## against a real SGLang 0.5.23 on the CPU (installs it first: 4 minutes, 2.6 GB)
	$(PY) tests/sglang/install.py build/sglang || echo "SGLang could not be installed here: its tests are skipped"
	$(PY) -m pytest -m sglang tests/sglang -rs

lint: $(READY)  ## ruff and mypy
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

wheel: $(READY)  ## build dist/*.whl
	$(PY) -m hatchling build -t wheel

clean:  ## remove .venv, caches and built files, not results
	rm -rf .venv dist build .pytest_cache .ruff_cache .mypy_cache .hypothesis

$(READY): requirements.txt pyproject.toml
	@test -n "$(PYTHON)" || { echo "python3.11 is not installed: install it, or run make PYTHON=/path/to/python3"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "$(PYTHON) is older than 3.11: run make PYTHON=/path/to/python3.11"; exit 2; }
	@echo "setting up .venv (about 3 minutes the first time)"
	$(PYTHON) -m venv .venv
	$(PY) -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $(READY)
