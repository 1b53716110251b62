"""Logits that a model scales or caps in its own way: scored as it samples, not as TRL's fused LM head would have it."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from peft.utils.other import TrainableTokensWrapper
from transformers import Qwen3ForCausalLM

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer
from envmask_trl.training import own_head
from envmask_trl.training._trl import only_labelled_positions_scored
from envmask_trl.training.micro_batches import forward_cut
from envmask_trl.training.own_head import Heads, OwnHead
from envmask_trl.training.shared_prefix import forward_as_trees

from .test_shared_prefix import apart, inputs, scored, with_head
from .tiny_for_loss import micro_batch, small_model, trainer_of

ROWS = [([1, 2, 3], [10, 11, 20, 12, 19], [1, 1, 0, 1, 1]), ([1, 2, 3], [10, 13, 19], [1, 1, 1]), ([4], [24], [0])]


class Capped(Qwen3ForCausalLM):
    """Logits between -2 and 2, without a field of the config that says so."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = 2 * torch.tanh(output.logits)
        return output


def capped_model():
    model = Capped(small_model().config)
    for weight in model.parameters():
        weight.data.mul_(10)
    return with_head(model).eval()


def alone(model, temperature=1.0):
    """For each row the log-probs of its trained tokens, forwarded alone."""
    for prompt, completion, mask in ROWS:
        with torch.no_grad():
            logits = model(torch.tensor([prompt + completion])).logits[0, len(prompt) - 1 : -1] / temperature
        told = logits.log_softmax(-1).gather(1, torch.tensor(completion).unsqueeze(1)).squeeze(1)
        yield told[torch.tensor(mask) == 1]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_a_cap_on_the_logits_that_the_fused_head_does_not_know_is_not_left_out(temperature, monkeypatch, caplog):
    monkeypatch.setattr(own_head.logger, "propagate", True)
    model, arguments = capped_model(), inputs(ROWS)
    with only_labelled_positions_scored(), torch.no_grad():
        found = Heads(temperature).checked(model)
        outputs = [forward(found, **arguments).log_probs for forward in (forward_cut, forward_as_trees)]
    assert "TRL's fused LM head differs from it by up to" in caplog.text
    for output in outputs:
        for row, expected in enumerate(alone(model, temperature)):
            scores = output[row][arguments["labels"][row, 1:] != -100]
            torch.testing.assert_close(scores, expected, atol=1e-5, rtol=0)


def test_an_lm_head_without_a_weight_of_its_own_is_scored_by_the_model_itself():
    model = with_head(small_model())
    model.lm_head = torch.nn.Sequential(model.lm_head)
    with only_labelled_positions_scored(), torch.no_grad():
        found = Heads(1.0).checked(model)
        log_probs = forward_as_trees(found, **inputs(ROWS)).log_probs
    assert isinstance(found, OwnHead)
    torch.testing.assert_close(log_probs[0, 2:4], next(iter(alone(model)))[:2], atol=1e-5, rtol=0)


@pytest.mark.parametrize("bias_is_read", [False, True])
def test_trainable_tokens_of_a_tied_head_are_scored_and_trained(bias_is_read, monkeypatch):
    """With a bias to read (see `register_special_tokens`) TRL's fused head scores them, else the model's own."""
    monkeypatch.delattr(TrainableTokensWrapper, "bias", raising=False)
    if bias_is_read:
        monkeypatch.setattr(TrainableTokensWrapper, "bias", None, raising=False)
    config = small_model().config
    config.tie_word_embeddings = True
    torch.manual_seed(0)
    model = get_peft_model(
        with_head(Qwen3ForCausalLM(config)), LoraConfig(target_modules=["q_proj"], trainable_token_indices=[10, 11])
    ).eval()
    for name, weight in model.named_parameters():
        if "trainable_tokens_delta" in name:
            weight.data.add_(1.0)
    with only_labelled_positions_scored():
        found = Heads(1.0).checked(model)
        log_probs = forward_as_trees(found, **inputs(ROWS)).log_probs
        log_probs.sum().backward()
    assert isinstance(found, OwnHead) is not bias_is_read
    deltas = [weight for name, weight in model.named_parameters() if "token_adapter" in name and weight.requires_grad]
    assert deltas and all(weight.grad.any() for weight in deltas)
    torch.testing.assert_close(log_probs[0, 2:4], next(iter(alone(model)))[:2], atol=1e-5, rtol=0)


def test_its_numbers_and_gradients_are_those_of_the_fused_head_where_that_is_right():
    model = with_head(small_model())
    fused = scored(model, apart)
    own = scored(model, lambda model, **arguments: apart(OwnHead(model, 1.0), **arguments))
    torch.testing.assert_close(own[:2], fused[:2], atol=1e-5, rtol=0)
    for name, gradient in fused[2].items():
        assert (own[2][name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-7, name
    assert Heads(1.0).checked(model) is model
    nothing = OwnHead(model, 1.0)(**inputs([ROWS[-1]]))
    assert not nothing.log_probs.any() and nothing.log_probs.requires_grad


def test_the_trainer_asks_of_each_model_once(tmp_path):
    trainer = trainer_of(EnvMaskGRPOTrainer, EnvMaskGRPOConfig, tmp_path, beta=0.1, temperature=0.5)
    batch = micro_batch(ROWS, [1.0, -1.0, 0.5], ref_per_token_logps=torch.zeros(3, 5))
    trainer.prepare_windows([batch])
    for _ in range(2):
        trainer.compute_loss(trainer.model, dict(batch))
    assert list(trainer.heads.known.values()) == [trainer.model] and trainer.heads.temperature == 0.5
