"""Two tasks of picking colours in which few picks matter. Knows environments: no model, no training.

<user>waste red</user><assistant> green<end> <tool>2</tool><assistant> red<end>                  done, a step was wasted
<user>decisive red</user><assistant> blue<end> <tool>2</tool> ... <assistant> red<end> ...      only the third counts
"""

from datasets import Dataset

COLOURS = ("red", "green", "blue", "white", "black", "pink")
NAMED = COLOURS[:2]  # those that a prompt asks for
STEPS = 4
DECISIVE_STEP = 3
TASKS = ("waste", "decisive")


class Picking:
    """An episode of either task, which names its state and scores the steps.

    waste: it is done when the named colour is picked, and after four picks; other picks are harmless, and wasted.
    decisive: there are four picks, and only the third must be of the named colour.

    Example:
        env = Picking(); env.reset(task="waste", named="red"); env.pick("blue"); env.pick("red")
        env.get_turn_rewards() == [0.0, 1.0]; env.get_reward() == 1.0; not env.succeeded
    """

    def reset(self, *, task: str, named: str, **others: object) -> None:
        self.task, self.named = task, named
        self.scores: list[float] = []
        self.done = False

    def pick(self, colour: str) -> str:
        """Pick a colour.

        Args:
            colour: Its name.
        """
        right = colour == self.named
        self.scores.append(float(right and (self.task == "waste" or len(self.scores) == DECISIVE_STEP - 1)))
        self.done = len(self.scores) == STEPS or (self.task == "waste" and right)
        return str(len(self.scores) + 1)

    def get_turn_rewards(self) -> list[float]:
        return self.scores

    def get_reward(self) -> float:
        return sum(self.scores)

    def state_key(self) -> str:
        return f"{self.named} {len(self.scores)} {sum(self.scores)}"

    @property
    def succeeded(self) -> bool:
        """Without a wasted step; or with the right decisive one."""
        return self.get_reward() == 1.0 and (self.task == "decisive" or len(self.scores) == 1)


def questions(task: str, *, rounds: int) -> Dataset:
    """The same two prompts, one for each named colour, in each of `rounds` training steps."""
    rows = [
        {"prompt": [{"role": "user", "content": f"{task} {named}"}], "task": task, "named": named} for named in NAMED
    ]
    return Dataset.from_list(rows * rounds)
