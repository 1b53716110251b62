# Every target installs what it needs into .venv; PYTHON is the interpreter to make it with (3.11 or newer).
PYTHON ?= python3
VENV := .venv
RUN := $(VENV)/bin/python
SEED ?= 0

.PHONY: quickstart test check smoke bench test-vllm clean

quickstart: $(VENV)/installed  ## train a tool agent from nothing, with a report in runs/quickstart
	$(RUN) -m recipes.weather_calculator.quickstart --output-dir runs/quickstart --seed $(SEED)

test: $(VENV)/installed  ## all tests but those of vLLM
	$(RUN) -m pytest -q -n 2 --dist loadfile

check: $(VENV)/installed  ## lint and types
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy

smoke: $(VENV)/installed  ## pretraining, SFT, DPO, GRPO with one turn, tools and search, a few steps each
	$(RUN) -m recipes.smoke

bench: $(VENV)/installed  ## against TRL's own loop: a table, JSON and a plot in runs/benchmarks
	$(RUN) -m recipes.benchmarks

test-vllm:  ## the vLLM sampler against a real vLLM on the CPU, in an environment of its own (several GB)
	bash tests/vllm/install.sh
	. tests/vllm/env.sh && .venv-vllm/bin/python -m pytest tests/vllm -q

$(VENV)/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) .venv-vllm runs
