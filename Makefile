# Both targets set up all they need: python3 with venv and pip is enough.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test lint types imports docs unit bench serve-bench coco70 format clean

demo: $(VENV)/.installed ## the whole job on data that ships with scikit-learn, with a report
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
	$(BIN)/pytest -n auto

bench: $(VENV)/.installed-dev ## speed, side by side
	$(BIN)/python benchmarks/speed.py

serve-bench: $(VENV)/.installed-dev ## the service under load and bad input
	$(BIN)/python benchmarks/service.py

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
	$(BIN)/pip install --quiet --editable '.[parquet,vision,report]'
	touch $@

$(VENV)/.installed-dev: $(VENV)/.venv pyproject.toml
	$(BIN)/pip install --quiet --editable '.[all]' --group dev
	touch $@
