"""Packed rows do not see each other, or packing is refused; tags become tokens that start where their pieces were."""

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, get_peft_model
from transformers import MambaConfig, MambaForCausalLM, Qwen3ForCausalLM
from trl import SFTConfig, SFTTrainer

from envmask_trl import check_packing, mask_dataset, register_special_tokens

from .test_sft_report import config
from .test_sft_tags import REACT, SEARCH, masked
from .tiny import tiny_model, tiny_tokenizer

ROWS = [{"prompt": "Q: ", "completion": REACT}, {"prompt": "What? ", "completion": REACT.replace("7", "12")}] * 2


def attending(implementation):
    model = tiny_model(tiny_tokenizer())
    model.set_attn_implementation(implementation)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in name:
                weight.mul_(10)  # so that what is attended to matters
    return model


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_log_probs_of_a_packed_row_are_those_of_the_row_alone(tmp_path, implementation):
    """Rows neither see each other nor go on with each other's positions, on the batch that TRL's trainer makes."""
    tokenizer, model = tiny_tokenizer(), attending(implementation)
    rows, _ = mask_dataset(Dataset.from_list(ROWS), tokenizer, tags="react")
    packed_config = config(tmp_path, packing=True, max_length=1024, gradient_checkpointing=False)
    check_packing(model, packed_config)
    trainer = SFTTrainer(model, packed_config, train_dataset=rows, processing_class=tokenizer)
    batch = next(iter(trainer.get_train_dataloader()))
    starts = (batch["position_ids"][0] == 0).nonzero().flatten().tolist()
    assert len(starts) == len(rows) and batch["input_ids"].shape[0] == 1
    labels = batch.pop("labels")[0]
    packed = model.eval()(**batch, use_cache=False).logits[0].log_softmax(-1)
    for start, end in zip(starts, [*starts[1:], len(labels)], strict=True):
        alone = model(batch["input_ids"][:, start:end]).logits[0].log_softmax(-1)
        torch.testing.assert_close(packed[start:end], alone, rtol=1e-4, atol=1e-4)
    seen = sorted(labels[start:end].tolist() for start, end in zip(starts, [*starts[1:], len(labels)], strict=True))
    assert seen == sorted(rows["labels"])
    loss = trainer.compute_loss(trainer.model, {**batch, "labels": labels[None]})
    loss.backward()
    assert torch.isfinite(loss) and all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_a_model_whose_packed_rows_see_each_other_is_refused_in_one_sentence():
    mamba = MambaForCausalLM(
        MambaConfig(vocab_size=300, hidden_size=16, state_size=4, num_hidden_layers=1, use_cache=False)
    )
    with pytest.raises(ValueError, match="MambaForCausalLM as it was loaded lets packed rows see each other"):
        check_packing(mamba, SFTConfig(packing=True, use_cpu=True, bf16=False))


class Blind(Qwen3ForCausalLM):
    """Attention that knows nothing of positions that start again."""

    def forward(self, *args, position_ids=None, **kwargs):
        return super().forward(*args, **kwargs)


def test_attention_that_ignores_where_rows_begin_is_refused():
    model = attending("sdpa")
    model.__class__ = Blind
    with pytest.raises(ValueError, match="Blind as it was loaded lets packed rows see each other"):
        check_packing(model, SFTConfig(packing=True, use_cpu=True, bf16=False))


def test_rows_joined_and_cut_anywhere_are_refused_and_no_packing_is_not_asked(tmp_path):
    with pytest.raises(ValueError, match="packing_strategy is 'wrapped'"):
        check_packing(attending("sdpa"), config(tmp_path, packing=True, packing_strategy="wrapped"))
    check_packing(torch.nn.Linear(1, 1), config(tmp_path))


@pytest.mark.parametrize("tied", [True, False])
def test_a_tag_becomes_one_token_that_starts_as_the_mean_of_its_pieces(tied):
    tokenizer, model = tiny_tokenizer(), tiny_model(tiny_tokenizer())
    if not tied:
        model.config.tie_word_embeddings = False
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone() + 1)
    pieces = tokenizer("<information>")["input_ids"]
    tables = [model.get_input_embeddings, model.get_output_embeddings]
    means = [table().weight[pieces].mean(0) for table in tables]
    before = tokenizer("a <b> c")["input_ids"]
    lora = LoraConfig(target_modules=["q_proj"])
    (first, second) = register_special_tokens(tokenizer, model, ["<information>", "</information>"], peft_config=lora)
    assert len(pieces) > 1 and tokenizer("<information>")["input_ids"] == [first]
    for table, mean in zip(tables, means, strict=True):
        torch.testing.assert_close(table().weight[first], mean)
        assert table().weight.shape[0] == len(tokenizer)
    tables = ["embed_tokens"] if tied else ["embed_tokens", "lm_head"]
    assert lora.trainable_token_indices == {name: [first, second] for name in tables}
    assert tokenizer("a <b> c")["input_ids"] == before
    assert tokenizer.decode([first], skip_special_tokens=True) == "<information>"
    assert register_special_tokens(tokenizer, model, ["<information>"]) == [first]


def test_lora_trains_the_rows_of_the_tags_and_no_others():
    tokenizer, model = tiny_tokenizer(), tiny_model(tiny_tokenizer())
    lora = LoraConfig(target_modules=["q_proj"])
    ids = register_special_tokens(tokenizer, model, ["<search>", "</search>"], peft_config=lora)
    before = model.get_input_embeddings().weight.detach().clone()
    peft_model = get_peft_model(model, lora)
    optimizer = torch.optim.SGD([p for p in peft_model.parameters() if p.requires_grad], lr=1.0)
    tokens = torch.tensor([tokenizer("a<search>b</search>c")["input_ids"]])
    peft_model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    after = peft_model.merge_and_unload().get_input_embeddings().weight
    changed = (after != before).any(dim=1).nonzero().flatten().tolist()
    assert changed == sorted(ids)


def test_a_vocabulary_with_room_keeps_its_size():
    tokenizer, model = tiny_tokenizer(), tiny_model(tiny_tokenizer())
    model.resize_token_embeddings(512, mean_resizing=False)
    register_special_tokens(tokenizer, model, ["<search>"])
    assert model.get_input_embeddings().num_embeddings == 512


def test_registered_tags_are_the_cure_where_a_token_spans_the_boundary():
    from .real_tokenizers import load

    tokenizer = load("qwen3")
    text = SEARCH.replace("</information>\n\n", "</information>.</think>")
    with pytest.raises(ValueError, match="one token holds"):
        masked(text, "search_r1", tokenizer, encoding="whole")
    register_special_tokens(tokenizer, None, ["<information>", "</information>", "<search>", "</search>"])
    assert masked(text, "search_r1", tokenizer, encoding="whole")[1][2] == (
        False,
        "\n\n<information>Norway</information>",
    )


def test_a_tag_with_white_space_around_it_is_refused():
    with pytest.raises(ValueError, match="the tag is ' <a>'"):
        register_special_tokens(tiny_tokenizer(), None, [" <a>"])
