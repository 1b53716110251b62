"""Fine-tune an agent on demonstrations, and see what the observation mask is for.

    python -m recipes.agent_sft                                              # the measurement; minutes on a CPU
    python -m recipes.agent_sft --config recipes/agent_sft/own_data.yaml     # your JSONL and your model

The measurement trains one small model twice on the same demonstrations of the weather and calculator task, with and
without the mask, and counts how often each writes an observation itself; see `measure`. Your own data: see `train`.
"""

import sys

from . import measure, train

if __name__ == "__main__":
    arguments = sys.argv[1:]
    if any(argument.split("=")[0] in ("--config", "--dataset") for argument in arguments):
        train.main(*train.parse(arguments))
    else:
        measure.main(measure.parse(arguments))
