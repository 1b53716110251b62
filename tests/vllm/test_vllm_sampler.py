"""Real vLLM samples for the trainer: what it recorded is aligned, and it samples from the weights of the current step.

A tiny Qwen3 is taught on the spot to call a tool twice, with digits of its own choice, and then to answer: the rollouts
are well formed, and their log-probs still say something (a free digit costs log 10). Two training steps are run once;
the tests read what each step sampled beside the weights that it should have been sampled from. Run: `make test-vllm`.
"""

import itertools
import json
import random
import re

import pytest
import torch
from datasets import Dataset
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM, set_seed
from transformers.utils import get_json_schema
from vllm import _custom_ops
from vllm.model_executor.layers import utils as layers

from envmask_trl import EnvMaskGRPOConfig, EnvMaskGRPOTrainer
from tests.real_tokenizers import chat_template

CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
ADDED = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
PROMPT = [{"role": "user", "content": "Add two numbers, twice."}]
CALL = '<tool_call>\n{{"name": "add", "arguments": {{"a": {a}, "b": {b}}}}}\n</tool_call><|im_end|>'
OBSERVATION = "\n<|im_start|>user\n<tool_response>\n{total}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
ANSWER = "Done.<|im_end|>"
VLLM = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.2, "vllm_max_model_length": 512}
TEMPERATURE = 0.5  # the log-probs that count are those of the tempered distribution


def add(a: int, b: int) -> int:
    """
    Adds two numbers.

    Args:
        a: The first number.
        b: The second number.
    """
    return a + b


def digit_sum(completions, **_) -> list[float]:
    """A reward that differs within a group, so that every step has a gradient."""
    return [float(sum(int(digit) for digit in re.findall(r"\d", str(completion)))) for completion in completions]


def guessed_completion(rng: random.Random) -> str:
    a, b, c, d = (rng.randrange(10) for _ in range(4))
    calls = CALL.format(a=a, b=b) + OBSERVATION.format(total=a + b) + CALL.format(a=c, b=d)
    return calls + OBSERVATION.format(total=c + d) + ANSWER


def tiny_tokenizer(text: list[str]) -> PreTrainedTokenizerFast:
    """Byte-level BPE of at most 700 tokens; digits stay single, the control tokens and the template are Qwen 3's."""
    tokenizer = Tokenizer(models.BPE())
    split_digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split_digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    options = {"initial_alphabet": alphabet, "special_tokens": CONTROL, "show_progress": False}
    tokenizer.train_from_iterator(text, trainers.BpeTrainer(vocab_size=700, **options))
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in ADDED])
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    fast.chat_template = chat_template("qwen3")
    return fast


def taught_model(tokenizer: PreTrainedTokenizerFast, prompt: str, *, steps: int) -> Qwen3ForCausalLM:
    """A 0.1 M Qwen3 that has seen `steps` batches of guessed completions. Heads of 32: vLLM's smallest on a CPU."""
    prompt_length = len(tokenizer(prompt).input_ids)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "max_position_embeddings": 1024}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32}
    ends = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "bos_token_id": None}
    model = Qwen3ForCausalLM(Qwen3Config(vocab_size=len(tokenizer), **sizes, **heads, **ends))
    rng = random.Random(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.05, total_iters=steps)
    for _ in range(steps):
        batch = tokenizer([prompt + guessed_completion(rng) for _ in range(4)], return_tensors="pt", padding=True)
        labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
        labels[:, :prompt_length] = -100
        model(**batch, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model


class RecordingTrainer(EnvMaskGRPOTrainer):
    """Keeps, for every generation, the weights at that moment and what came back."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.generations: list[tuple[dict, dict]] = []

    def _generate_and_score_completions(self, inputs):
        weights = {
            name: value.clone() for name, value in self.accelerator.unwrap_model(self.model).state_dict().items()
        }
        output = super()._generate_and_score_completions(inputs)
        self.generations.append((weights, output))
        return output


def keep_weights_writable() -> None:
    """On some processors vLLM 0.31 packs the weight of a layer and drops it: none can be synced into it afterwards."""
    _custom_ops._supports_onednn = False
    layers.check_cpu_sgl_kernel = lambda n, k, dtype: False


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> RecordingTrainer:
    """Two GRPO steps of four rollouts, sampled by vLLM in this process, with a step size that moves every weight."""
    keep_weights_writable()
    set_seed(0)
    folder, rng = tmp_path_factory.mktemp("tiny"), random.Random(1)
    schema = json.dumps(get_json_schema(add))
    tokenizer = tiny_tokenizer([guessed_completion(rng) for _ in range(50)] + [chat_template("qwen3"), schema] * 20)
    prompt = tokenizer.apply_chat_template(PROMPT, tools=[add], add_generation_prompt=True, tokenize=False)
    taught_model(tokenizer, prompt, steps=120).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    args = EnvMaskGRPOConfig(
        output_dir=str(folder / "out"),
        **VLLM,
        per_device_train_batch_size=4,
        num_generations=4,
        temperature=TEMPERATURE,
        max_completion_length=160,
        max_tool_calling_iterations=3,
        max_steps=2,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        bf16=False,
        use_cpu=True,
        save_strategy="no",
        report_to=[],
    )
    trainer = RecordingTrainer(
        model=str(folder / "model"),
        processing_class=tokenizer,
        reward_funcs=digit_sum,
        tools=[add],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": PROMPT}] * 4),
    )
    trainer.train()
    return trainer


def own_logprobs(trainer: RecordingTrainer, weights: dict, output: dict) -> torch.Tensor:
    """[B, C]: the completion's log-probs by a plain forward pass under `weights`."""
    model = Qwen3ForCausalLM(trainer.model.config).eval()
    model.load_state_dict(weights)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], dim=1)
    mask = torch.cat([output["prompt_mask"], output["completion_mask"]], dim=1)
    with torch.no_grad():
        logits = model(input_ids=ids, attention_mask=mask).logits[:, :-1]
    logprobs = (logits / TEMPERATURE).log_softmax(-1)
    return logprobs.gather(2, ids[:, 1:, None])[:, -output["completion_ids"].shape[1] :, 0]


def mean_difference(trainer: RecordingTrainer, weights: dict, output: dict) -> float:
    """Mean over the model's own tokens of |recorded log-prob - log-prob under `weights`|."""
    sampled = (output["tool_mask"] * output["completion_mask"]).bool()
    difference = own_logprobs(trainer, weights, output) - output["sampling_per_token_logps"]
    return difference[sampled].abs().mean().item()


def test_two_tool_turns_keep_ids_mask_and_logprobs_aligned(trained):
    _, output = trained.generations[0]
    assert output["completion_ids"].shape == output["tool_mask"].shape == output["sampling_per_token_logps"].shape

    lengths = output["completion_mask"].sum(1)
    for ids, mask, length in zip(output["completion_ids"], output["tool_mask"], lengths, strict=True):
        pairs = zip(mask[:length].tolist(), ids[:length].tolist(), strict=True)
        runs = [(kept, [token for _, token in run]) for kept, run in itertools.groupby(pairs, key=lambda pair: pair[0])]
        written = [(kept, trained.processing_class.decode(tokens)) for kept, tokens in runs]
        digits = [[int(digit) for digit in re.findall(r'": (\d)', text)] for _, text in written]

        assert written == [
            (1, CALL.format(a=digits[0][0], b=digits[0][1])),
            (0, OBSERVATION.format(total=sum(digits[0]))),
            (1, CALL.format(a=digits[2][0], b=digits[2][1])),
            (0, OBSERVATION.format(total=sum(digits[2]))),
            (1, ANSWER),
        ]


def test_only_the_models_own_tokens_have_logprobs(trained):
    _, output = trained.generations[0]
    sampled = (output["tool_mask"] * output["completion_mask"]).bool()

    assert (output["sampling_per_token_logps"][~sampled] == 0).all()
    # Four free digits a rollout, each about log 10 = 2.3; all else is nearly certain.
    surprising = (output["sampling_per_token_logps"][sampled] < -1.0).sum().item()
    assert 4 * 3 <= surprising <= 4 * 8


def test_recorded_logprobs_are_the_training_models_own(trained):
    weights, output = trained.generations[0]

    assert mean_difference(trained, weights, output) < 0.01  # measured: 0.001


def test_the_next_step_samples_from_the_updated_weights(trained):
    (old_weights, _), (new_weights, output) = trained.generations

    # Measured: 0.007 and 0.65. vLLM computes in bfloat16, and the large step left the new weights coarse.
    assert mean_difference(trained, new_weights, output) < 0.03
    assert mean_difference(trained, old_weights, output) > 0.3
