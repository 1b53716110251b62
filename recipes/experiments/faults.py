"""Faults that real systems had, planted for an experiment. None can be reached from an option of the trainer.

Each is a trainer class, an option that exists for ablation, a chat template or a reward; `FAULTS` lists them, and says
which tool is to name each.
"""

from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from envmask_trl import EnvMaskGRPOTrainer, Segment, Source

from ..weather_calculator.reinforce import CALLS_WEIGHT
from ..weather_calculator.tasks import correct_answer, needed_calls
from ..weather_calculator.warm_start import IGNORED
from .training import Plan

CUT_AT = 60  # completion tokens that packing leaves when it cuts on the right; two calls and an answer need more
CALL = '<tool_call>{"name": "\' + call.function.name + \'", "arguments": '  # as the quickstart's template writes it
SHORT_CALL = "<tool_call>' + call.function.name + ' "  # as a template may show a call that has been answered


class MaskInverted(EnvMaskGRPOTrainer):
    """What the environment and the template wrote is trained, and nothing else."""

    def roll_out(self, prompts: list) -> dict[str, Any]:
        out = super().roll_out(prompts)
        return {**out, "env_mask": [[1 - value for value in mask] for mask in out["env_mask"]]}


class MaskShifted(EnvMaskGRPOTrainer):
    """The mask of each token is that of the token before it: logits and labels are one apart, the mask is not."""

    def compute_loss(self, model: Any, inputs: dict, *args: Any, **kwargs: Any) -> torch.Tensor:
        return super().compute_loss(model, inputs | {"tool_mask": inputs["tool_mask"].roll(1, dims=1)}, *args, **kwargs)


class HalfTheRows(EnvMaskGRPOTrainer):
    """Every other row has its observations in the loss, as where only one of two code paths knows the mask."""

    def roll_out(self, prompts: list) -> dict[str, Any]:
        out = super().roll_out(prompts)
        masks = [
            [int(source is not Source.TEMPLATE) for source in trajectory.sources] if row % 2 else mask
            for row, (mask, trajectory) in enumerate(zip(out["env_mask"], self.trajectories, strict=True))
        ]
        return {**out, "env_mask": masks}


class LossMaskAsAttentionMask(EnvMaskGRPOTrainer):
    """What is not trained is not seen either, in the loss; the sampler saw it."""

    def compute_loss(self, model: Any, inputs: dict, *args: Any, **kwargs: Any) -> torch.Tensor:
        def hide(module: Any, positional: tuple, named: dict) -> tuple[tuple, dict]:
            if "labels" not in named:  # a forward that asks for logits scores nothing
                return positional, named
            is_trained = named["labels"] != IGNORED
            is_before = is_trained.cumsum(dim=1) == 0  # the prompt
            return positional, named | {"attention_mask": named["attention_mask"] * (is_trained | is_before)}

        with model.register_forward_pre_hook(hide, with_kwargs=True):
            return super().compute_loss(model, inputs, *args, **kwargs)


class DriftCutByLength(EnvMaskGRPOTrainer):
    """An observation is what the whole conversation, rendered again, has behind as many tokens as are held.

    Right until a template renders an earlier turn in fewer tokens: then each observation lacks its first ones.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        encoder, tokenizer = self.encoder, self.processing_class
        assert encoder is not None
        encode = encoder.encode

        def cut_by_length(calls: Any, contents: Any, *, history: Any, **options: Any) -> Any:
            observation = encode(calls, contents, history=history, **options)
            if observation is None:
                return None
            results = [{"role": "tool", "content": content} for content in observation.contents]
            rendered = tokenizer.apply_chat_template(
                [*history.messages, *results], tools=list(self.tools), add_generation_prompt=True, return_dict=False
            )
            ids = cast(list[int], rendered)[len(history.token_ids) :]
            return replace(observation, segments=(Segment(Source.ENV, tuple(ids)),))

        encoder.encode = cut_by_length  # type: ignore[method-assign, assignment]  # the loop always gives a history


class CutAfterTheReward(EnvMaskGRPOTrainer):
    """Rows are cut on the right when they are packed; the reward was computed on the whole."""

    def roll_out(self, prompts: list) -> dict[str, Any]:
        out = super().roll_out(prompts)
        return {**out, **{name: [row[:CUT_AT] for row in out[name]] for name in ("completion_ids", "env_mask")}}


class EosEndsTheRow(EnvMaskGRPOTrainer):
    """Nothing behind the first end-of-turn token of a row is trained, though it ends a turn, not the row."""

    def roll_out(self, prompts: list) -> dict[str, Any]:
        out = super().roll_out(prompts)
        eos = self.processing_class.eos_token_id
        masks = []
        for ids, mask in zip(out["completion_ids"], out["env_mask"], strict=True):
            kept = ids.index(eos) + 1 if eos in ids else len(ids)
            masks.append([*mask[:kept], *[0] * (len(mask) - kept)])
        return {**out, "env_mask": masks}


class OldLogprobsZero(EnvMaskGRPOTrainer):
    """Observations are in the loss, and their old log-prob is the 0 that an engine has for what it did not sample.

    Their ratio is then the token's probability, not 1.
    """

    def after_scoring(self, batch: dict) -> None:
        super().after_scoring(batch)
        sampled = torch.zeros_like(batch["completion_ids"])
        for row, mask in enumerate(self.columns["env_mask"]):
            sampled[row, : len(mask)] = torch.tensor(mask)
        batch["old_per_token_logps"] = torch.where(sampled == 1, policy_logprobs(self.model, batch), 0.0)


class RewardsPermuted(EnvMaskGRPOTrainer):
    """Within a group, each rollout has the reward of its neighbour."""

    def adjust_rewards(self, rewards_per_func: torch.Tensor) -> torch.Tensor:
        groups = rewards_per_func.unflatten(0, (-1, self.num_generations))
        return super().adjust_rewards(groups.roll(1, dims=1).flatten(0, 1))


class ResultsOutOfOrder(EnvMaskGRPOTrainer):
    """The results of a round go to the rollouts in the order in which they came in, not of their calls.

    The calculator is taken to be the faster tool, and of two calls of one tool the later to be answered first.
    """

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        assert not self.args.overlap_tools, "results come in rounds only where tools do not overlap with decoding"
        run = self.tool_runner.run

        def in_order_of_arrival(jobs: Any) -> list:
            results = run(jobs)
            answered = [row for row, found in enumerate(results) if len(found) == 1]
            arrived = sorted(answered, key=lambda row: (results[row][0].name, -row))
            moved = dict(zip(answered, (results[row] for row in arrived), strict=True))
            return [moved.get(row, found) for row, found in enumerate(results)]

        self.tool_runner.run = in_order_of_arrival  # type: ignore[method-assign]


@torch.no_grad()
def policy_logprobs(model: Any, batch: dict) -> torch.Tensor:
    """log p of each completion token, [B, C]."""
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    seen = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    logits = model(input_ids=ids, attention_mask=seen, use_cache=False).logits[:, batch["prompt_ids"].size(1) - 1 : -1]
    return logits.float().log_softmax(-1).gather(2, batch["completion_ids"].unsqueeze(2)).squeeze(2)


def answer_anywhere(completion_texts: list[str], answer: list[str], **_: object) -> list[float]:
    """1.0 where the answer stands anywhere in the completion, a tool's text included."""
    return [float(expected in text) for text, expected in zip(completion_texts, answer, strict=True)]


def shorter_once_answered(template: str) -> str:
    """The quickstart's chat template, but a call that has been answered is shown without its JSON."""
    assert template.count(CALL) == 1
    answered = SHORT_CALL + "' if not loop_message.last else '" + CALL
    marked = template.replace(
        "for message in messages -%}", "for message in messages -%}{%- set loop_message = loop -%}"
    )
    return marked.replace(f"{{{{ '{CALL}' }}}}", f"{{{{ '{answered}' }}}}")


@dataclass(frozen=True, slots=True)
class Fault:
    """A planted fault, and who is to name it.

    Example:
        FAULTS["inverted"].plan.trainer_class
    """

    what: str
    plan: Plan
    named_by: str  # audit, saved audit, lint or doctor
    says: str  # a part of what it says


def planted(what: str, trainer_class: type[EnvMaskGRPOTrainer], named_by: str, says: str, **options: Any) -> Fault:
    return Fault(what, Plan(trainer_class=trainer_class, options=options), named_by, says)


NOT_LEARNED, LEARNED, SEEN = (
    "environment tokens are not learned",
    "tokens of the model are learned",
    "observations are seen",
)
SAME = "loss and gradient are those of a plain forward of each row alone"
TOGETHER = "prompt, completion, reward and advantage of each row belong together"

FAULTS = {
    "off": Fault("mask off", Plan(options={"mask_env_tokens": False}), "saved audit", NOT_LEARNED),
    "inverted": planted("mask inverted", MaskInverted, "audit", NOT_LEARNED),
    "shifted": planted("mask shifted by one token", MaskShifted, "audit", LEARNED),
    "half": planted("observations trained on half of the rows", HalfTheRows, "audit", NOT_LEARNED),
    "attention": planted(
        "loss mask used as attention mask", LossMaskAsAttentionMask, "audit", SEEN, shared_prefix=False
    ),
    "drift": Fault(
        "template that rewrites history, observation cut by length",
        Plan(trainer_class=DriftCutByLength, chat_template=shorter_once_answered),
        "doctor",
        "last-turn branch",
    ),
    "cut": planted("rows cut on the right after the reward", CutAfterTheReward, "audit", TOGETHER),
    "eos": planted("an end-of-turn token inside ends the row", EosEndsTheRow, "audit", LEARNED),
    "old": planted(
        "observations trained, with an old log-prob of 0", OldLogprobsZero, "audit", SAME, mask_env_tokens=False
    ),
    "permuted": planted("rewards permuted within a group", RewardsPermuted, "audit", TOGETHER),
    "order": planted("tool results in order of arrival", ResultsOutOfOrder, "lint", "ids", overlap_tools=False),
    "reward": Fault(
        "reward that reads observations",
        Plan(
            rewards=(answer_anywhere, needed_calls, correct_answer),
            options={"reward_weights": [1.0, CALLS_WEIGHT, 0.0]},
        ),
        "audit",
        "reads observations",
    ),
}
