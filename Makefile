# Both targets set up all they need: python3 with venv and pip is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# With LOCKED=1, the exact versions of constraints.txt are installed.
LOCKED ?=
CONSTRAINED := $(if $(LOCKED),--constraint constraints.txt)

.PHONY: demo test lint types imports docs unit lesser claims bench serve-bench fuzz notebook lock coco70 format clean

demo: $(VENV)/.installed ## a model, what it was shown and the verdicts, in a minute, with a report
	$(BIN)/nescio demo --output build/demo --force

test: lint types imports docs unit ## everything CI runs

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-dev
	$(BIN)/mypy

imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	$(BIN)/zensical build --strict --clean

unit: $(VENV)/.installed-dev
	$(BIN)/pytest -n auto --dist loadfile

# Where results are computed in floating point, and so depend on the processor.
NUMERIC := $(addprefix tests/,scores calibration choosing detectors metrics outputs explain monitor networks \
  runners export/test_fused.py training/test_tuning.py)
# NumPy's names of the features that it uses where the processor has them.
FEATURES := from numpy._core._multiarray_umath import __cpu_dispatch__ as names; print
ALL_FEATURES = $$($(BIN)/python -c '$(FEATURES)(*names)')
WIDE_FEATURES = $$($(BIN)/python -c '$(FEATURES)(*(n for n in names if "512" in n or n == "X86_V4"))')
# scikit-learn's checks are about the interface: once is enough.
AGAIN := $(BIN)/pytest -n auto --dist loadfile -m "not slow" -k "not scikit_learns_own_checks" $(NUMERIC)

lesser: $(VENV)/.installed-dev ## the numeric tests again, as a processor without AVX runs them
	NPY_DISABLE_CPU_FEATURES="$(ALL_FEATURES)" ATEN_CPU_CAPABILITY=default \
	  ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem $(AGAIN)
	@# Without AVX-512, the unit tests have run this way already; OpenBLAS has the same for Zen.
	if grep -qs avx512 /proc/cpuinfo; then \
	  NPY_DISABLE_CPU_FEATURES="$(WIDE_FEATURES)" ATEN_CPU_CAPABILITY=avx2 \
	  ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell $(AGAIN); fi

claims: $(VENV)/.installed-dev ## what is claimed of the default, from the committed results
	$(BIN)/python benchmarks/claims.py

bench: $(VENV)/.installed-dev build/peers ## speed, side by side with peers; writes the page
	$(BIN)/python benchmarks/speed --save

build/peers: $(VENV)/.installed-dev pyproject.toml ## what is compared with; not a part of nescio
	rm -rf $@
	$(BIN)/pip install --quiet --no-deps --group bench --target $@

serve-bench: $(VENV)/.installed-dev ## the service under load and bad input
	$(BIN)/python benchmarks/service.py

fuzz: $(VENV)/.installed-dev ## damaged inputs for every reader, ten minutes; run it again to continue
	$(BIN)/python benchmarks/fuzz.py --minutes 10

notebook: $(VENV)/.installed-dev ## run the notebook of the documentation, and write its outputs into the page
	$(BIN)/python tools/notebook.py

lock: $(VENV)/.installed-dev ## the exact versions and the licences of what is installed
	$(BIN)/python tools/dependencies.py

coco70: $(VENV)/.installed-dev ## the paper's experiment on real images, where ../shared/data is
	$(BIN)/nescio bench coco70 --data ../shared/data --output build/bench

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build dist site

$(VENV)/.venv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'
	touch $@

$(VENV)/.installed: $(VENV)/.venv pyproject.toml
	$(BIN)/pip install --quiet $(CONSTRAINED) --editable '.[parquet,vision,report]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.venv pyproject.toml
	$(BIN)/pip install --quiet $(CONSTRAINED) --editable '.[all]' --group dev
	touch $@
