# make demo     sets up and tunes a virtual board      make test      sets up and runs the tests
# make lint     ruff and mypy alone                    make format    lets ruff lay the code out
# make bench    the two benches: recorded joules and decisions         make wheel    builds dist/*.whl
# make deb      builds dist/*.deb, amd64 and arm64, from wheels that pip downloads: DEB_ARCHS=arm64 for one; make sdist
# make bench-search     the samplers against each other on recorded grids: BENCH_ARGS="FOLDER --samplers joule,descent"
# make bench-search-retune   what a retune gains from what is known: BENCH_ARGS="FOLDER --seeds 10"
# make bench-search-virtual   whole jobs on the virtual board: what share of the attainable saving each sampler keeps
# make bench-idle   what an idle daemon costs; as root BENCH_ARGS="--seconds 600 --jtop" runs jtop beside it
# make bench-scrape what a scrape takes, and whether 100,000 of them leave anything behind
# make bench-meter  what reading the rails at 5 Hz costs; as root BENCH_ARGS=--jtop runs jtop beside it
# make bench-power-cut  cuts a VM's power forty times (root; qemu, debootstrap): BENCH_ARGS="--cuts 40 --check"
# PYTHON=python3.12 make test                          another interpreter, in a venv of its own

PYTHON ?= python3
PYTEST_ARGS ?=
BENCH_ARGS ?=
DEB_ARCHS ?= amd64 arm64

VENV := $(if $(filter python3,$(PYTHON)),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
READY := $(VENV)/ready
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
DEMO := --virtual agx-orin-64gb --state-dir build/demo

.PHONY: demo test lint format bench bench-recorded bench-search bench-search-retune bench-search-virtual bench-decisions bench-control bench-idle bench-scrape bench-meter bench-runner bench-soak bench-power-cut wheel sdist deb clean setup
.DELETE_ON_ERROR:

setup: $(READY)

# The build backend comes from constraints.txt too, hence no build isolation.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || \
	  { echo "jouled needs Python 3.10 or newer; '$(PYTHON)' is not. Name another: make PYTHON=python3.12 …" >&2; exit 1; }
	@echo "setting up $(VENV) (once; again only when pyproject.toml or constraints.txt change)"
	@$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV) || \
	  { echo "No venv could be made. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(PIP) install -c constraints.txt hatchling editables
	@$(PIP) install -c constraints.txt --no-build-isolation -e '.[test,build]'
	@touch $@

demo: $(READY)
	@rm -rf build/demo && mkdir -p build/demo
	@echo "A virtual Jetson AGX Orin 64GB runs a detector. Which power mode costs the least energy per inference,"
	@echo "at no more than 1.2 times the latency of the board's own mode?"
	@echo
	$(BIN)/jouled tune $(DEMO) --latency-bound-ratio 1.2
	@echo
	$(BIN)/jouled verify $(DEMO)
	@echo
	@echo "What to type next:"
	@echo "  $(BIN)/jouled modes $(DEMO)      the power modes that it chose from"
	@echo "  $(BIN)/jouled rollback $(DEMO)   back to the board's own mode"
	@echo "  $(BIN)/jouled tune --help        other bounds, workloads, searches"

test: $(READY)
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-recorded bench-decisions

bench-recorded: $(READY)
	$(BIN)/python bench/recorded.py $(BENCH_ARGS)

bench-search: $(READY)
	$(BIN)/python -m bench.search $(BENCH_ARGS)

bench-search-retune: $(READY)
	$(BIN)/python -m bench.search_retune $(BENCH_ARGS)

bench-search-virtual: $(READY)
	$(BIN)/python -m bench.search_virtual $(BENCH_ARGS)

bench-decisions: $(READY)
	$(BIN)/python bench/decisions.py $(BENCH_ARGS)

bench-control: $(READY)
	$(BIN)/python bench/control.py $(BENCH_ARGS)

bench-idle: $(READY)
	$(BIN)/python -m bench.idle $(BENCH_ARGS)

bench-scrape: $(READY)
	$(BIN)/python -m bench.scrape $(BENCH_ARGS)

bench-meter: $(READY)
	$(BIN)/python -m bench.meter $(BENCH_ARGS)

bench-runner: $(READY)
	$(BIN)/python bench/runner_overhead.py $(BENCH_ARGS)

bench-soak: $(READY)
	$(BIN)/python bench/soak.py $(BENCH_ARGS)

bench-power-cut: $(READY)
	$(BIN)/python -m bench.power_cut $(BENCH_ARGS)

wheel: $(READY)
	@rm -rf dist
	$(BIN)/python -m pip --disable-pip-version-check --quiet wheel --no-deps --no-build-isolation -w dist .
	@ls dist

sdist: $(READY)
	@$(BIN)/python -m hatchling build -t sdist -d dist

deb: $(READY)
	@for arch in $(DEB_ARCHS); do PYTHON=$(CURDIR)/$(BIN)/python units/deb/build $$arch dist || exit 1; done

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find daemon tuner tests bench -name __pycache__ -prune -exec rm -rf {} +
