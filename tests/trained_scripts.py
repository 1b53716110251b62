"""A trainer that plays scripted turns. Knows the reward only as a function that it is given."""

from datasets import Dataset

from envmask_trl import (
    EnvMaskGRPOConfig,
    EnvMaskGRPOTrainer,
    ScriptedSampler,
)

from .tiny import add, answer, call, tiny_model, tiny_tokenizer, user

CALL_AND_ANSWER = [call("add", a=1, b=2), answer("3")]


GOLD = "4"


class EveryTime(ScriptedSampler):
    """Plays a row's script from the start whenever its context does not continue the one before."""

    def __init__(self, scripts):
        super().__init__(scripts)
        self.last = {}

    def sample(self, contexts, max_new_tokens):
        for context in contexts:
            before = self.last.get(context.id, ())
            if len(context.token_ids) <= len(before) or context.token_ids[: len(before)] != before:
                self.turns_played[context.id] = 0
            self.last[context.id] = context.token_ids
        return super().sample(contexts, max_new_tokens)


def make_trainer(tmp_path, reward, scripts=None, *, rows=4, config=EnvMaskGRPOConfig, prompts=None, **options):
    tokenizer = options.pop("tokenizer", None) or tiny_tokenizer()
    prompts = prompts or [user(f"row {n}") for n in range(rows)]
    constructor = {"tools": [add]} | {
        k: options.pop(k) for k in ("tools", "environment_factory", "rollout_func", "parser") if k in options
    }
    defaults = {
        "output_dir": str(tmp_path),
        "per_device_train_batch_size": 4,
        "num_generations": 4,
        "max_completion_length": 160,
        "max_steps": 1,
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "loss_type": "grpo",
    }
    trainer = EnvMaskGRPOTrainer(
        tiny_model(tokenizer),
        reward,
        config(**{**defaults, **options}),
        Dataset.from_dict({"prompt": prompts, "gold": [GOLD] * len(prompts)}),
        processing_class=tokenizer,
        **constructor,
    )
    if scripts is not None:
        ids = [[tokenizer(turn, add_special_tokens=False)["input_ids"] for turn in script] for script in scripts]
        trainer.sampler = EveryTime(ids)
    return trainer


def logged(trainer) -> dict:
    return trainer.state.log_history[0]
