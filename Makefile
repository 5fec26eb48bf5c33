# make demo: the robot demo, from a clean clone, no torch. make test: everything CI runs. make help lists the rest.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
SOURCES = $(wildcard pfkit_ext/*.pyx pfkit_ext/*.pxi pfkit_ext/cpu/*.c pfkit_ext/cpu/*.h) setup.py pyproject.toml
BUILD_NEEDS = "setuptools>=77" "cython>=3.0" "numpy>=2"
ASAN = PYTHONSAFEPATH=1 PYTHONPATH=build/sanitize/lib LD_PRELOAD="$$($(CC) -print-file-name=libasan.so) $$($(CC) -print-file-name=libubsan.so)" ASAN_OPTIONS=detect_leaks=0

.PHONY: help demo test check slow wheel sanitize aarch64 bench clean

help:
	@echo "make demo      a particle filter follows a real robot (a minute or so, build included)"
	@echo "make test      lint, types, tests; installs the CPU build of torch where there is no GPU"
	@echo "make slow      the longer checks as well"
	@echo "make wheel     a wheel in dist/, tried in a clean environment that has no compiler"
	@echo "make sanitize  the C core under AddressSanitizer and UBSan, with the test suite"
	@echo "make aarch64   the C core cross-compiled for aarch64 and compared bit for bit, in an emulator"
	@echo "make bench     the log-sum-exp benchmark"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One editable install serves every target. In continuous integration warnings in the C core are errors.
$(VENV)/.built: $(SOURCES) | $(BIN)/python
	$(BIN)/pip install -q $(BUILD_NEEDS) scipy matplotlib
	PFKIT_WERROR=$${CI:+1} $(BIN)/pip install -q --no-build-isolation --no-deps -e .
	@touch $@

$(VENV)/.tested: $(VENV)/.built
	$(BIN)/pip install -q "pytest>=8" "hypothesis>=6.100" "mpmath>=1.3" "ml_dtypes>=0.4" "ruff>=0.6" "mypy>=1.11" pandas
	sh tools/install_torch.sh $(BIN)/python
	@touch $@

demo: $(VENV)/.built
	$(BIN)/python -m apps.track_uwb

test: $(VENV)/.tested
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pfkit
	$(BIN)/python -m pytest -q --durations=15

check: test

slow: $(VENV)/.tested
	$(BIN)/python -m pytest -q -m "slow or not slow" --durations=25

wheel: $(VENV)/.built
	rm -rf dist build/wheel
	$(BIN)/pip wheel -q --no-build-isolation --no-deps -w dist .
	sh tools/try_wheel.sh $(PYTHON) dist

sanitize: $(VENV)/.tested
	rm -rf build/sanitize
	PFKIT_SANITIZE=1 $(BIN)/python setup.py -q build --build-base build/sanitize --build-lib build/sanitize/lib
	$(ASAN) $(BIN)/python -c "import pfkit_ext; assert 'sanitize' in pfkit_ext.__file__"
	PFKIT_SANITIZED=1 $(ASAN) $(BIN)/pytest -q -x -p no:cacheprovider tests/lse tests/filters

aarch64:
	@mkdir -p build
	sh tools/build_levels_check.sh aarch64-linux-gnu-gcc build/levels_check_aarch64 -static
	qemu-aarch64 build/levels_check_aarch64

bench: $(VENV)/.built
	$(BIN)/python -m apps.bench_lse

clean:
	rm -rf build dist *.egg-info pfkit_ext/*.so pfkit_ext/_cpu.c $(VENV)
