"""Forwarding a micro-batch as trees: the numbers of forwarding its rows apart, from fewer tokens."""

from dataclasses import replace

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import MistralConfig, MistralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from trl.trainer.utils import add_fused_lm_head

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer
from envmask_trl.training import shared_prefix
from envmask_trl.training._trl import only_labelled_positions_scored
from envmask_trl.training.micro_batches import forward_cut
from envmask_trl.training.shared_prefix import Packed, TreeForward, forward_as_trees, tree_forward
from envmask_trl.training.tree_attention import Bundle

from .tiny_for_loss import EOS, LOSS_TYPES, VOCABULARY, masked_loss_and_gradients, micro_batch, small_model, trainer_of

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8]
ROWS = [  # two groups: an equal pair, a fork in the middle and one at the end, a row inside another, one without loss
    (PROMPT, [10, 11, 20, 21, 12, 19], [1, 1, 0, 0, 1, 1]),
    (PROMPT, [10, 11, 20, 21, 12, 19], [1, 1, 0, 0, 1, 1]),
    (PROMPT, [10, 11, 20, 22, 12, 13, 19], [1, 1, 0, 0, 1, 1, 1]),
    (PROMPT, [10, 11, 20, 21, 12, 14], [1, 1, 0, 0, 1, 1]),
    ([9, 2, 3], [15, 16, 17], [1, 1, 1]),
    ([9, 2, 3], [15, 16, 17, 23, 24, 18, 19], [1, 1, 1, 0, 0, 1, 1]),
    ([9, 2, 3], [24], [0]),
]
ADVANTAGES = [1.0, -0.5, 0.25, 2.0, -1.0, 0.75, 3.0]


def inputs(rows=ROWS):
    """What TRL's log-prob hook hands to the model, with labels where a token is trained."""
    batch = micro_batch(rows, [0.0] * len(rows))
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
    attention_mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
    trained = torch.cat([torch.zeros_like(batch["prompt_ids"]), batch["tool_mask"] * batch["completion_mask"]], dim=1)
    labels = ids.masked_fill(trained == 0, -100)
    return {"input_ids": ids, "attention_mask": attention_mask, "labels": labels, "fused_lm_head": True}


def scored(model, forward, rows=ROWS):
    """Log-probs and entropies [B, T-1], and the gradients of a weighted sum of both."""
    model.zero_grad()
    with only_labelled_positions_scored():
        output = forward(model, **inputs(rows))
        weights = torch.linspace(0.5, 1.5, output.log_probs.numel()).view(output.log_probs.shape)
        (output.log_probs * weights + 0.1 * output.entropy).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return output.log_probs.detach(), output.entropy.detach(), gradients


def apart(model, **arguments):
    return model(**arguments)


def with_head(model):
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    return model


def assert_same(model, *, atol=1e-5, rtol=1e-5):
    expected, found = scored(model, apart), scored(model, forward_as_trees)
    torch.testing.assert_close(found[0], expected[0], atol=atol, rtol=0)
    torch.testing.assert_close(found[1], expected[1], atol=atol, rtol=0)
    assert expected[2] and set(found[2]) == set(expected[2])
    for name, gradient in expected[2].items():
        assert (found[2][name] - gradient).norm() <= rtol * gradient.norm() + 1e-7, name


def test_logprobs_entropies_and_gradients_are_those_of_the_rows_apart():
    assert_same(with_head(small_model()))


def test_an_adapter_with_gradient_checkpointing():
    model = get_peft_model(with_head(small_model()), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.enable_input_require_grads()
    assert_same(model.train())


def test_a_mixture_of_experts():
    torch.manual_seed(0)
    config = Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
        head_dim=8, intermediate_size=32, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2,
    )  # fmt: skip
    assert_same(with_head(Qwen3MoeForCausalLM(config)))


def test_under_bfloat16_autocast_the_numbers_agree_as_far_as_bfloat16_goes():
    model = with_head(small_model())
    with torch.autocast("cpu", torch.bfloat16):
        assert_same(model, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_loss_and_gradients_of_the_trainer_are_the_same_with_and_without_trees(loss_type, tmp_path):
    level = {"importance_sampling_level": "sequence"} if loss_type == "luspo" else {}
    trainer = trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, loss_type=loss_type, **level)
    trees, results = trainer.tree_forward, []
    assert isinstance(trees, TreeForward)
    for trainer.tree_forward in (None, trees):
        torch.manual_seed(0)
        old = -3.4 + 0.2 * torch.randn(len(ROWS), 7)
        results.append(masked_loss_and_gradients(trainer, micro_batch(ROWS, ADVANTAGES, old_per_token_logps=old)))
    (expected, their), (found, our) = results
    assert found == pytest.approx(expected, abs=1e-6) and expected != 0.0
    for name, gradient in their.items():
        assert (our[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7, name


def test_what_is_common_is_forwarded_once_and_nothing_behind_the_last_scored_token():
    model, shapes = with_head(small_model()), []
    model.model.register_forward_pre_hook(lambda m, a, k: shapes.append(k["input_ids"].shape), with_kwargs=True)
    with only_labelled_positions_scored():
        forward_as_trees(model, **inputs(ROWS[:4]))
    # prompt 8; 10 11 20 21 12 once for the equal rows; the fork after 20: 20 22 12 13; the fork at the last token: 12
    assert shapes == [(1, 8 + 5 + 4 + 1)]
    with only_labelled_positions_scored():
        forward_as_trees(model, **inputs([(PROMPT, [10, 11, 20, 21, 22], [1, 1, 0, 0, 0])]))
    assert shapes[1] == (1, 9), "11 is predicted from 10; the observation predicts nothing"


def test_a_token_of_a_sibling_is_not_seen():
    model = with_head(small_model())
    changed = [ROWS[0], (PROMPT, [10, 18, 25, 25, 18, 19], ROWS[1][2]), *ROWS[2:]]
    before, after = (scored(model, forward_as_trees, rows)[0] for rows in (ROWS, changed))
    torch.testing.assert_close(after[[0, 2, 3, 4, 5]], before[[0, 2, 3, 4, 5]], atol=1e-6, rtol=0)
    assert (after[1] - before[1]).abs().max() > 1e-3


def test_a_batch_without_a_scored_token_gives_zero_with_a_graph():
    model = with_head(small_model())
    log_probs, _, gradients = scored(model, forward_as_trees, [ROWS[-1], ROWS[-1]])
    assert not log_probs.any() and gradients and not any(gradient.any() for gradient in gradients.values())


def seeing_all(bundle):
    """A branch sees what comes after its tokens."""
    return replace(bundle, visible=None if bundle.visible is None else torch.ones_like(bundle.visible))


def test_the_first_micro_batch_is_compared_and_a_difference_turns_trees_off_aloud(monkeypatch, caplog):
    bundle_of = Bundle.of
    monkeypatch.setattr(Bundle, "of", lambda *args: seeing_all(bundle_of(*args)))
    model, forward = with_head(small_model()), TreeForward()
    monkeypatch.setattr(shared_prefix.logger, "propagate", True)
    log_probs = scored(model, forward)[0]
    assert forward.agrees is False and "shared_prefix is off: on the first micro-batch" in caplog.text
    assert torch.equal(log_probs, scored(model, forward_cut)[0])


def test_dropout_in_training_mode_does_not_count_as_a_difference():
    model = get_peft_model(with_head(small_model()), LoraConfig(target_modules="all-linear", lora_dropout=0.5))
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight)
    forward = TreeForward()
    scored(model.train(), forward)
    assert forward.agrees and model.training


def test_a_reference_model_with_another_attention_is_compared_too(monkeypatch, caplog):
    monkeypatch.setattr(shared_prefix.logger, "propagate", True)
    policy, reference, forward = with_head(small_model()), with_head(small_model()), TreeForward()
    reference.set_attn_implementation("eager")
    assert scored(policy, forward) and forward.agrees
    assert torch.equal(scored(reference, forward)[0], scored(reference, forward_cut)[0])
    assert "shared_prefix is off" in caplog.text


def test_half_precision_rounds_single_tokens_and_a_mistake_moves_a_row():
    apart, mask = torch.zeros(2, 40, dtype=torch.bfloat16), torch.ones(2, 40, dtype=torch.bool)
    rounded, moved = apart.clone(), apart.clone()
    rounded[0, 3] = 0.3
    moved[0] = 0.1
    assert shared_prefix.same_logprobs(apart, rounded, mask) and not shared_prefix.same_logprobs(apart, moved, mask)
    assert not shared_prefix.same_logprobs(apart.float(), rounded.float(), mask)


def test_an_auxiliary_loss_keeps_the_rows_apart():
    calls = []
    TreeForward()(lambda **arguments: calls.append(set(arguments)) or {}, **inputs(), output_router_logits=True)
    assert calls == [{"input_ids", "attention_mask", "labels", "fused_lm_head", "output_router_logits"}]


@pytest.mark.parametrize("reason", ["sliding", "flash", "eager"])
def test_a_model_that_takes_no_tree_is_named(reason, monkeypatch, caplog):
    monkeypatch.setattr(shared_prefix.logger, "propagate", True)
    if reason == "sliding":
        model = MistralForCausalLM(
            MistralConfig(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, vocab_size=9)
        )
    else:
        model = small_model()
        model.config._attn_implementation = {"flash": "flash_attention_2", "eager": "eager"}[reason]
    assert tree_forward(model, wanted=True) is None
    said = {
        "sliding": "DynamicSlidingWindowLayer",
        "flash": "flash_attention_2 takes no",
        "eager": "eager takes no tree",
    }
    assert said[reason] in caplog.text
    assert tree_forward(model, wanted=False) is None


def test_every_scored_token_has_its_place():
    arguments = inputs()
    packed = Packed.of(arguments["input_ids"], arguments["attention_mask"], arguments["labels"])
    rows, positions = packed.scored
    assert torch.equal(packed.labels.flatten()[packed.places], arguments["labels"][rows, positions + 1])
    assert len(rows) == sum(sum(mask) for _, _, mask in ROWS) and EOS in packed.labels
