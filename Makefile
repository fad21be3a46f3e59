# Both targets set up all they need: python3 with venv and pip is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
# With LOCKED=1, the exact versions of constraints.txt are installed.
LOCKED ?=
CONSTRAINED := $(if $(LOCKED),--constraint constraints.txt)

# Every process of the tests would compile our modules again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types imports docs docs-version screenshots unit lesser lesser-sse lesser-avx2 claims bench \
  serve-bench fuzz notebook lock package lowest coco70 format clean

demo: $(VENV)/.installed ## a model, what it was shown and the verdicts, in a minute, with a report
	$(BIN)/nescio demo --output build/demo --force

test: lint types imports docs ## everything CI runs
	$(MAKE) unit

lint: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

# Of scripts, only what a rename in the library can break: names, arguments and imports.
LENIENT := --config-file= --cache-dir=.mypy_cache/scripts --check-untyped-defs --ignore-missing-imports \
  $(addprefix --disable-error-code=,arg-type assignment dict-item index list-item misc operator union-attr)

types: $(VENV)/.installed-dev
	$(BIN)/mypy
	$(BIN)/mypy $(LENIENT) benchmarks tools

imports: $(VENV)/.installed-dev
	$(BIN)/lint-imports

docs: $(VENV)/.installed-dev
	$(BIN)/zensical build --strict --clean

docs-version: $(VENV)/.installed-dev ## the documentation of this version in build/docs, with a menu of versions
	$(BIN)/python tools/docs_version.py build/docs

screenshots: $(VENV)/.installed-dev build/demo/report.html ## the pictures of the documentation; needs Chromium
	$(BIN)/python tools/figures.py build/demo

build/demo/report.html: | $(VENV)/.installed-dev
	$(BIN)/nescio demo --output build/demo --force

unit: $(VENV)/.installed-dev build/openapi-python-client $(if $(shell command -v npm),build/onnxruntime-web build/openapi-typescript) \
  $(if $(shell command -v java),build/spark) $(if $(filter Windows_NT,$(OS)),,build/airflow)
	@# In our order: xdist would begin with the files of most tests, and end with the longest.
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

# Where results are computed in floating point, and so depend on the processor. Files that trace
# graphs or read tables do not: onnxruntime does not heed the variables below.
NUMERIC := $(addprefix tests/,test_scores.py test_scores_torch.py calibration choosing detectors metrics test_explain.py \
  monitor models lab/networks lab/test_extraction.py lab/test_perturbation.py outputs/test_outputs.py \
  export/test_detector_head.py)
# NumPy's names of the features that it uses where the processor has them.
FEATURES := from numpy._core._multiarray_umath import __cpu_dispatch__ as names; print
ALL_FEATURES = $$($(BIN)/python -c '$(FEATURES)(*names)')
WIDE_FEATURES = $$($(BIN)/python -c '$(FEATURES)(*(n for n in names if "512" in n or n == "X86_V4"))')
# One process each, side by side. scikit-learn's checks are about the interface: once is enough.
AGAIN := $(BIN)/pytest -q -p no:xdist -p no:cacheprovider -m "not slow" -k "not scikit_learns_own_checks" \
  $(NUMERIC)

lesser: $(VENV)/.installed-dev ## the numeric tests again, as a processor without AVX(-512) runs them
	$(MAKE) --jobs 2 --output-sync=target lesser-sse lesser-avx2

lesser-sse: $(VENV)/.installed-dev
	NPY_DISABLE_CPU_FEATURES="$(ALL_FEATURES)" ATEN_CPU_CAPABILITY=default \
	  ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Nehalem $(AGAIN)

lesser-avx2: $(VENV)/.installed-dev
	@# Without AVX-512, the unit tests have run this way already; OpenBLAS has the same for Zen.
	if grep -qs avx512 /proc/cpuinfo; then \
	  NPY_DISABLE_CPU_FEATURES="$(WIDE_FEATURES)" ATEN_CPU_CAPABILITY=avx2 \
	  ONEDNN_MAX_CPU_ISA=AVX2 OPENBLAS_CORETYPE=Haswell $(AGAIN); fi

claims: $(VENV)/.installed-dev ## what is claimed of the default, from the committed results
	$(BIN)/python benchmarks/detection/claims.py

bench: $(VENV)/.installed-dev build/peers ## speed, side by side with peers; writes the page
	$(BIN)/python benchmarks/speed --save

build/peers: $(VENV)/.installed-dev pyproject.toml ## what is compared with; not a part of nescio
	rm -rf $@
	$(BIN)/pip install --quiet --no-deps --group bench --target $@

ORT_WEB := 1.30.0
ORT_FILES := ort.wasm.bundle.min.mjs ort-wasm-simd-threaded.wasm

build/onnxruntime-web: ## what deploy/browser runs with, for its test; not a part of nescio
	@mkdir -p $@.part
	@npm pack --silent --fetch-retries=0 --fetch-timeout=60000 --pack-destination $@.part onnxruntime-web@$(ORT_WEB) >/dev/null && \
	  tar -xzf $@.part/onnxruntime-web-$(ORT_WEB).tgz -C $@.part --strip-components 2 \
	    $(addprefix package/dist/,$(ORT_FILES)) && rm $@.part/*.tgz && mv $@.part $@ || \
	  { rm -rf $@.part; echo "no onnxruntime-web: the test of deploy/browser is skipped" >&2; }

# Generators of clients, for the tests of the OpenAPI document. The one in Python wants an older typer.
build/openapi-python-client: | $(VENV)/.installed-dev
	@$(BIN)/pip install --quiet --no-deps --target $@.part openapi-python-client==0.29.1 && mv $@.part $@ || \
	  { rm -rf $@.part; echo "no openapi-python-client: the test of a client in Python is skipped" >&2; }

build/openapi-typescript:
	@npm install --silent --no-audit --no-fund --fetch-retries=0 --fetch-timeout=60000 --prefix $@.part \
	  openapi-typescript@7.13.0 openapi-fetch@0.17.0 typescript@5.9.3 && mv $@.part $@ || \
	  { rm -rf $@.part; echo "no openapi-typescript: the test of a client in TypeScript is skipped" >&2; }

AIRFLOW := apache-airflow-core==3.3.2 apache-airflow-providers-standard==1.21.0
SPARK := pyspark==4.3.0

build/airflow: ## what runs the recipe for Airflow, for its test: an environment of its own
	@$(PYTHON) -m venv $@ && $@/bin/pip install --quiet $(AIRFLOW) || \
	  { rm -rf $@; echo "no Airflow: the test of its recipe is skipped" >&2; }

build/spark: | $(VENV)/.installed-dev ## what runs the recipe for Spark, for its test
	@$(BIN)/pip install --quiet --target $@.part $(SPARK) && mv $@.part $@ || \
	  { rm -rf $@.part; echo "no Spark: the test of its recipe is skipped" >&2; }

serve-bench: $(VENV)/.installed-dev ## the service under load and bad input
	$(BIN)/python benchmarks/robustness/service.py

fuzz: $(VENV)/.installed-dev ## damaged inputs for every reader, ten minutes
	$(BIN)/python benchmarks/robustness/fuzz.py --minutes 10 --inputs 10_000_000

notebook: $(VENV)/.installed-dev ## run the notebook of the documentation, and write its outputs into the page
	$(BIN)/python tools/notebook.py

lock: $(VENV)/.installed-dev ## the exact versions and the licences of what is installed
	$(BIN)/python tools/dependencies.py

package: $(VENV)/.installed-dev ## the wheel and the sdist, tried in an empty environment; the image's steps
	$(BIN)/python tools/package

# Without torch, whose lowest version is a large download.
LOWEST := files,report,serve,onnx
LOWEST_TESTS := $(addprefix tests/,_io test_scores.py calibration detectors metrics outputs test_explain.py monitor service)

lowest: ## the core tests, with the lowest versions that pyproject.toml allows
	rm -rf build/lowest
	$(PYTHON) -m venv build/lowest
	build/lowest/bin/pip install --quiet 'pip>=25.1' uv
	build/lowest/bin/uv pip install --quiet --python build/lowest --resolution lowest-direct --editable '.[$(LOWEST)]'
	build/lowest/bin/pip install --quiet --group test
	@# Old versions warn of what newer ones of their dependencies have changed.
	build/lowest/bin/pytest -n auto --dist loadfile -m "not slow" -o filterwarnings=default $(LOWEST_TESTS)

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
	$(BIN)/pip install --quiet $(CONSTRAINED) --editable '.[files,torch,report]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.venv pyproject.toml
	$(BIN)/pip install --quiet $(CONSTRAINED) --editable '.[all]' --group dev
	touch $@
