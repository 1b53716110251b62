"""The search recipe in a few steps, on its made-up world and on data of one's own, and the parts that can be wrong."""

import json
import random

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from envmask_trl import BM25Retriever, load_rollouts
from recipes.search_qa.__main__ import parse
from recipes.search_qa.demonstrations import IGNORED, Demonstrator
from recipes.search_qa.evaluate import found_share
from recipes.search_qa.made_up import LIMITS, make_material, run_on_made_up_world
from recipes.search_qa.own import read_questions, run_on_own_data, split
from recipes.search_qa.questions import Asker, is_held_out
from recipes.search_qa.report import table
from recipes.search_qa.world import make_world

WORLD = make_world(people=60, firms=40, towns=20, seed=0)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("search_qa")
    return folder, run_on_made_up_world(folder, seed=0, quick=True)


def test_it_ends_with_a_table_of_every_phase(finished):
    _, report = finished
    printed = table(report)
    for row in ("before SFT, sampled | 1 hop", "after SFT, greedy | 2 hops", "after GRPO, sampled | all", "| total |"):
        assert row in printed
    assert report["documents"] == 120 and report["parameters"] < 300_000


def test_it_leaves_checkpoints_an_index_rollouts_a_curve_and_a_page(finished):
    folder, _ = finished
    for name in ("sft", "model"):
        assert AutoModelForCausalLM.from_pretrained(folder / name).num_parameters() > 100_000
        assert AutoTokenizer.from_pretrained(folder / name).chat_template is None
    assert len(BM25Retriever(folder / "index").documents) == 120
    assert len(load_rollouts(folder / "rollouts")) == 2 * 64
    assert (folder / "reward.png").stat().st_size > 1000 and "<html" in (folder / "rollouts.html").read_text().lower()
    assert json.loads((folder / "report.json").read_text())["scores"]["after GRPO"]["sampled"]["1"]["questions"] == 4


def test_ones_own_model_corpus_and_questions_take_the_same_way(finished, tmp_path):
    folder, _ = finished
    (tmp_path / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in WORLD.articles))
    questions = Asker(WORLD, held_out=False).mixed({1: 4, 2: 2}, random.Random(0))
    rows = [{"question": one.text, "answer": [one.answer, "or else"]} for one in questions]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = f"--output-dir {tmp_path / 'out'} --model {folder / 'sft'} --corpus {tmp_path / 'corpus.jsonl'} "
    command += f"--questions {tmp_path / 'questions.jsonl'} --held-out 2 --questions-per-step 2 --dtype float32 "
    command += "--max-completion-length 120 --max-turn-tokens 12 --document-tokens 60 --lora-rank 2"
    report = run_on_own_data(parse(command.split()))
    assert report["scores"]["after GRPO"]["greedy"]["all"]["questions"] == 2
    assert report["scores"]["after GRPO"]["greedy"]["all"]["found"] is None  # no path is known
    assert len(load_rollouts(tmp_path / "out" / "rollouts")) == 2 * 16
    assert list((tmp_path / "out" / "model").glob("adapter_model*"))


@pytest.mark.parametrize("arguments", [["--model", "x"], ["--corpus", "x"], ["--model", "x", "--questions", "y"]])
def test_half_of_ones_own_data_is_refused(arguments):
    with pytest.raises(SystemExit):
        parse(arguments)


def test_wrong_questions_are_named(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text('{"question": "q", "answer": "a"}\n{"question": "q"}\n')
    with pytest.raises(ValueError, match=r"line 2: found \['question'\], expected `question`, a text, and `answer`"):
        read_questions(path)
    for line, found in (("{", "not JSON"), ("[1]", "found list")):
        path.write_text(f"{line}\n")
        with pytest.raises(ValueError, match=f"line 1: {found}"):
            read_questions(path)
    with pytest.raises(ValueError, match="10 questions, 8 of them held out, leave 0 for steps of 4"):
        split([{}] * 10, 8, 4)


def test_the_path_of_a_question_leads_to_its_answer():
    asker, rng = Asker(WORLD, held_out=False), random.Random(0)
    texts = {row["title"]: row["text"] for row in WORLD.articles}
    for hops in (1, 2):
        for _ in range(40):
            question = asker.ask(hops, rng)
            assert question.hops == hops and question.path[0] in question.text and question.answer not in question.text
            assert question.answer in texts[question.path[-1]]
            assert hops == 1 or question.path[1] in texts[question.path[0]]


def test_the_same_seed_makes_the_same_world_and_names_are_cut_alike_everywhere(tmp_path):
    assert (
        make_world(people=60, firms=40, towns=20, seed=0) == WORLD != make_world(people=60, firms=40, towns=20, seed=1)
    )
    size = {"people": 60, "firms": 40, "towns": 20, "tidy": 1, "mixed": 1, "grpo": 1, "held_out": 2}
    made = make_material(size, output_dir=tmp_path, seed=0)
    tokenizer = made.tokenizer
    person = next(name for name in WORLD.facts if "born" in WORLD.facts[name])
    pieces = [tokenizer.decode(i) for i in tokenizer(f" {person}", add_special_tokens=False)["input_ids"]]
    assert len(pieces) == 3 and [len(piece) for piece in pieces[1:]] == [4, 3]
    ids = tokenizer(f"<search> {person}</search>", add_special_tokens=False)["input_ids"]
    assert [tokenizer.decode(i) for i in ids] == ["<search>", *pieces, "</search>"]
    for ids, labels in made.lesson:  # what is learned is what a model would have written, tags included
        text = tokenizer.decode([token for token, label in zip(ids, labels, strict=True) if label != IGNORED])
        assert text.endswith("</answer>") and "Doc" not in text and "<information>" not in text
    assert LIMITS.max_turn_tokens is not None


def test_no_demonstration_and_no_training_question_is_about_a_held_out_subject():
    demonstrator = Demonstrator(WORLD, seed=0)
    lesson = demonstrator.lesson(tidy=60, mixed=200)
    asked = [prompt for prompt, _ in lesson] + [
        Asker(WORLD, held_out=False).ask(1, random.Random(i)).text for i in range(50)
    ]
    held_out = [name for name in WORLD.facts if is_held_out(name)]
    assert 5 < len(held_out) < 60
    assert not [name for name in held_out for prompt in asked if f"{name} " in prompt or f"{name}?" in prompt]
    assert any(len(turns) == 1 for _, turns in lesson[60:]) and all(len(turns) > 1 for _, turns in lesson[:60])


def test_an_article_counts_as_found_by_its_title_alone():
    class Played:
        tool_results = (type("Result", (), {"content": "Doc 1(Title: Tolham) Anna Korvin is its mayor."}),)

    assert found_share(Played, ["Tolham", "Anna Korvin"]) == 0.5


@pytest.mark.parametrize(
    ("lines", "further", "sentence"),
    [
        ("not json", [], "line 1: not JSON"),
        ('{"question": "Who?"}', [], "line 1: found ['question'], expected `question`, a text, and `answer`"),
        ('{"question": ["Who?"], "answer": "Ann"}', [], "line 1: found ['answer', 'question'], expected `question`"),
        ('{"question": "Who?", "answer": {"a": 1}}', [], "line 1: found ['answer', 'question'], expected `question`"),
        ('{"question": "Who?", "answer": 0}', [], "1 questions, 200 of them held out, leave 0 for steps of 8"),
        (None, [], "No such file"),
        ('{"question": "Who?", "answer": "Ann"}\n' * 3, ["--url", "localhost"], "HTTPRetriever has url='localhost'"),
        (
            '{"question": "Who?", "answer": "Ann"}\n' * 3,
            ["--corpus", "{folder}/corpus"],
            "line 2: found fields",
        ),
        ('{"question": "Who?", "answer": "Ann"}\n' * 3, ["--corpus", "{folder}/none"], "No such file or directory"),
    ],
)
def test_wrong_data_end_the_recipe_in_one_sentence_and_with_status_2(lines, further, sentence, tmp_path, capsys):
    (tmp_path / "corpus").write_text('{"text": "Ann."}\n{"title": "Bob"}\n')
    questions = tmp_path / "questions.jsonl"
    if lines is not None:
        questions.write_text(lines)
    source = [part.format(folder=tmp_path) for part in further] or ["--url", "http://127.0.0.1:9/retrieve"]
    few = ["--held-out", "1", "--questions-per-step", "1"] if further else []
    options = ["--model", "nobody/nothing", "--questions", str(questions), "--output-dir", str(tmp_path), *source, *few]
    with pytest.raises(SystemExit) as ended:
        run_on_own_data(parse(options))
    said = capsys.readouterr().err
    assert ended.value.code == 2 and said.startswith("search_qa: ") and sentence in said and said.count("\n") == 1
