"""What the processes of a run tell each other. Knows accelerate only: no rollouts, no loss."""

from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor


class AcrossProcesses:
    """Collectives of a trainer; every process must call each of them equally often."""

    accelerator: Accelerator

    def max_over_processes(self, *values: int) -> Any:
        """The largest of each value over all processes; a collective, so every process must call it."""
        if self.accelerator.num_processes > 1:
            local = torch.tensor([values], device=self.accelerator.device)
            values = tuple(self.accelerator.gather(local).amax(dim=0).tolist())
        return values[0] if len(values) == 1 else values

    def any_live(self, live: int) -> bool:
        """Whether any process still has a live rollout; every process asks once per round."""
        return self.max_over_processes(live) > 0

    def sum_over_processes(self, values: Tensor) -> Tensor:
        return self.accelerator.reduce(values, reduction="sum") if self.accelerator.num_processes > 1 else values

    def own_rows(self, gathered: Tensor, num_rows: int) -> Tensor:
        """The rows of this process in a tensor that was gathered over all."""
        start = self.accelerator.process_index * num_rows
        return gathered[start : start + num_rows]
