"""The recipe of agent SFT runs: the measurement in a few steps, and a user's own JSONL with a user's own model."""

import json

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from envmask_trl import mask_observations
from recipes.agent_sft import measure, train
from recipes.agent_sft.tagged import FORMAT, TAGS, read_turn, tagged
from recipes.weather_calculator.demonstrations import write_demonstrations

from .launching import ROOT
from .test_sft_report import react_rows
from .tiny import tiny_model, tiny_tokenizer

OWN_DATA = ROOT / "recipes" / "agent_sft" / "own_data.yaml"


def prepare(folder, rows, **fields):
    """A model, demonstrations and the arguments of a run in `folder`."""
    tokenizer = tiny_tokenizer()
    tiny_model(tokenizer).save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    (folder / "own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    given = {
        "model_name_or_path": str(folder / "model"),
        "dataset": str(folder / "own.jsonl"),
        "output_dir": str(folder / "out"),
        "max_steps": 1,
        "per_device_train_batch_size": 2,
        "use_cpu": True,
        "bf16": False,
        "gradient_checkpointing": False,
        "save_strategy": "no",
        "report_to": "none",
        **fields,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(given))
    return train.parse(["--config", str(path)])


def test_the_measurement_counts_what_two_models_write_behind_a_call(tmp_path, capsys):
    numbers = measure.main(measure.parse(["--quick", "--output-dir", str(tmp_path)]))
    with_mask, without = numbers["results"].values()
    assert with_mask["learned_tokens"] < without["learned_tokens"]
    assert sum(share for name, share in without.items() if name.startswith("free")) == 1.0
    assert json.loads((tmp_path / "report.json").read_text()) == numbers
    assert "loop: right" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("<action>{}</action><observation>7", "observation"),
        ("<observation>7</observation>7", "observation"),
        ("<action>{}</action><action>", "another call"),
        ("<action>{}</action>\n27<|im_end|>", "an answer"),
        ("<action>{}</action><|im_end|>", "nothing"),
        ("27<|im_end|>", "no call"),
    ],
)
def test_what_stands_behind_the_first_call_is_named(text, kind):
    assert measure.behind_first_call(text) == kind


def test_a_demonstration_as_tagged_text_shows_only_the_models_turns_to_the_loss(tmp_path):
    rows = write_demonstrations(tmp_path / "rows.jsonl", tidy=40, mixed=0, seed=1)
    row = next(row for row in rows if row["calls"])
    text = tagged(row)
    out = mask_observations({key: [value] for key, value in text.items()}, tokenizer=tiny_tokenizer(), tags=FORMAT)
    learned = tiny_tokenizer().decode([label for label in out["labels"][0] if label != -100])
    assert learned.startswith("<action>") and "observation" not in learned and learned.endswith("<|im_end|>")
    assert read_turn(tiny_tokenizer(), learned[: learned.index(TAGS[1]) + len(TAGS[1])]).kind == "calls"
    assert read_turn(tiny_tokenizer(), "<action>{</action>").kind == "malformed"


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers` to `True`")  # said of every resized vocabulary
def test_own_demonstrations_train_an_own_model_with_packing_lora_and_tags_as_tokens(tmp_path, capsys):
    tags = ["Observation:", "Action:"]
    lora = {"use_peft": True, "lora_target_modules": "all-linear", "new_tokens": tags}
    train.main(*prepare(tmp_path, react_rows(4, 0), tags="react", packing=True, max_length=256, **lora))
    assert "4 of 4 rows kept" in capsys.readouterr().out
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")("Observation:")["input_ids"]) == 1


def test_the_weights_of_own_conversations_reach_the_training(tmp_path):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "<think>b</think>c"}]
    trained = []
    for weight in (0.25, 0.25, 1.0):
        train.main(*prepare(tmp_path, [{"messages": messages}] * 4, thought_weight=weight))
        trained.append(AutoModelForCausalLM.from_pretrained(tmp_path / "out").get_input_embeddings().weight)
    assert trained[0].equal(trained[1]) and not trained[0].equal(trained[2])


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        (react_rows(1, 1), {"tags": "react"}, "agent_sft: 1 of 2 rows were dropped"),
        (
            react_rows(1, 0),
            {"tags": "react", "dataset": "no.jsonl"},
            "agent_sft: dataset: there is no file 'no.jsonl'",
        ),
        (react_rows(1, 0), {"tags": "reakt"}, "agent_sft: tags is 'reakt'"),
        (react_rows(1, 0), {"model_name_or_path": None}, "agent_sft: model_name_or_path is not set"),
        (react_rows(1, 0), {"tags": "react", "packing": True, "thought_weight": 0.5}, "agent_sft: "),
        (
            react_rows(1, 0),
            {"tags": "react", "packing": True, "packing_strategy": "wrapped"},
            "agent_sft: packing_strategy is 'wrapped'",
        ),
    ],
)
def test_what_cannot_be_trained_is_one_sentence_before_training(tmp_path, capsys, rows, fields, message):
    with pytest.raises(SystemExit, match="2"):
        train.main(*prepare(tmp_path, rows, **fields))
    assert message in capsys.readouterr().err


def test_the_config_that_ships_parses_and_every_field_of_it_arrives():
    script, config, model = train.parse(["--config", str(OWN_DATA), "--bf16", "false"])
    parsed = vars(script) | vars(model) | vars(config)
    given = yaml.safe_load(OWN_DATA.read_text())
    for name in given.keys() - {"lr_scheduler_type", "save_strategy", "report_to"}:
        assert parsed[name] == given[name], name
