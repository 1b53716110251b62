"""How much faster than TRL's own loop, with the same numbers: see `python -m recipes.benchmarks --help`."""
