"""Blocks of text in a prompt reach the model as one text, whatever its template makes of lists."""

import pytest

from envmask_trl import ScriptedSampler, StopReason, run_rollouts
from envmask_trl.rollout.message_text import with_texts

from .test_trainer_environments import Counter2
from .tiny import CHAT_TEMPLATE, answer, tiny_tokenizer, user
from .trained_scripts import make_trainer

OPENED = "<|im_start|>assistant\n"


def blocks(*texts):
    return [{"type": "text", "text": text} for text in texts]


def prints_only_strings():
    """As Qwen3's template, which leaves out a list."""
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE.replace(
        "(message.content or '')", "(message.content if message.content is string else '')"
    )
    assert tokenizer.chat_template != CHAT_TEMPLATE
    return tokenizer


def test_blocks_are_joined_and_all_else_stays():
    prompt = [{"role": "system", "content": "Brief."}, {"role": "user", "content": blocks("6 ", "* 7?"), "name": "a"}]
    before = repr(prompt)
    assert with_texts(prompt) == [prompt[0], {"role": "user", "content": "6 * 7?", "name": "a"}]
    assert repr(prompt) == before and with_texts("6 * 7?") == "6 * 7?"
    assert with_texts([{"role": "assistant", "content": None}]) == [{"role": "assistant", "content": None}]


@pytest.mark.parametrize(
    "content", [[{"type": "image", "text": None}], ["6"], {"temp": 7}, [{"type": "text", "text": 7}], 7]
)
def test_what_is_no_text_is_refused_with_its_role(content):
    with pytest.raises(ValueError, match=r"a message of the role 'user' holds .*, expected a text or blocks such as"):
        with_texts([{"role": "user", "content": content}])


def test_rollouts_see_the_text_of_blocks_in_a_prompt():
    tokenizer = prints_only_strings()
    sampler = ScriptedSampler([[tokenizer(answer("42"))["input_ids"]]])
    (row,) = run_rollouts([user(blocks("6 ", "* 7?"))], tokenizer=tokenizer, sampler=sampler)
    assert tokenizer.decode(list(row.prompt_ids)) == f"<|im_start|>user\n6 * 7?<|im_end|>\n{OPENED}"
    assert row.prompt == user("6 * 7?")


@pytest.mark.filterwarnings("ignore:You are using 'environment_factory':UserWarning")
@pytest.mark.parametrize("content", ["row", blocks("row")])
@pytest.mark.parametrize("observation", [" Count.", blocks(" Count.")])
def test_a_trainer_shows_the_text_of_blocks_in_prompts_and_observations(content, observation, tmp_path):
    class Opens(Counter2):
        def reset(self, **row):
            super().reset(**row)
            return observation

    options = {"tools": None, "environment_factory": Opens, "tokenizer": prints_only_strings()}
    trainer = make_trainer(tmp_path, None, [[answer("3")]] * 4, prompts=[user(content)] * 4, **options)
    trainer.train()
    for row in trainer.trajectories:
        shown = trainer.processing_class.decode(list(row.prompt_ids))
        assert (
            shown.endswith(f"<|im_start|>user\nrow Count.<|im_end|>\n{OPENED}")
            and row.stop_reason is StopReason.ANSWERED
        )


def test_a_trainer_without_environments_shows_them_too_and_names_the_row_of_an_image(tmp_path):
    prompts, options = [user(blocks("row"))] * 4, {"tools": None, "tokenizer": prints_only_strings()}
    trainer = make_trainer(
        tmp_path, lambda completions, **_: [0.0] * 4, [[answer("3")]] * 4, prompts=prompts, **options
    )
    trainer.train()
    shown = trainer.processing_class.decode(list(trainer.trajectories[0].prompt_ids))
    assert shown == f"<|im_start|>user\nrow<|im_end|>\n{OPENED}"
    prompts[2] = user([*blocks("row"), {"type": "image", "text": None}])
    with pytest.raises(ValueError, match=r"train_dataset has in row 2 a prompt that cannot be shown: .*images are not"):
        make_trainer(tmp_path, lambda completions, **_: [0.0] * 4, prompts=prompts, **options)
