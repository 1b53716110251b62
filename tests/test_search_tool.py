"""The search tool: one batch a round, errors of one query alone, documents within a budget of tokens."""

import pytest
from transformers.utils import get_json_schema

from envmask_trl import (
    BatchedTool,
    CallStatus,
    Document,
    ScriptedSampler,
    SearchTool,
    ToolCall,
    ToolRunner,
    run_rollouts,
)
from envmask_trl.rollout.search.documents import NOTHING_FOUND
from envmask_trl.rollout.tools import ToolJob

from .tagged import TwoDocuments
from .tiny import answer, call, tiny_tokenizer, user

TOKENIZER = tiny_tokenizer()


def ids(text: str) -> tuple[int, ...]:
    return tuple(TOKENIZER(text, add_special_tokens=False)["input_ids"])


def jobs(tool, *queries):
    return [
        ToolJob((ToolCall(str(i), "search", {"query": query}),), {"search": tool}) for i, query in enumerate(queries)
    ]


class Found:
    """The same documents for every query."""

    def __init__(self, *texts: str):
        self.documents = [Document(str(i), f"T{i}", text, 1.0) for i, text in enumerate(texts, 1)]

    def search(self, queries, k):
        return [self.documents[:k] for _ in queries]


def test_a_template_reads_it_as_a_function():
    schema = get_json_schema(SearchTool(TwoDocuments()).search)["function"]
    assert schema["name"] == "search" and schema["parameters"]["required"] == ["query"]
    assert schema["parameters"]["properties"] == {"query": {"type": "string", "description": "What to search for."}}


def test_one_round_of_a_chat_model_is_one_batch():
    retriever = TwoDocuments()
    scripts = [[ids(call("search", query=q)), ids(answer("done"))] for q in ("Oslo", "Lima", "Oslo", "Nowhere")]
    rows = run_rollouts(
        [user("q")] * 4, tokenizer=TOKENIZER, sampler=ScriptedSampler(scripts), tools=[SearchTool(retriever).search]
    )
    assert sorted(retriever.batches[0]) == ["Lima", "Nowhere", "Oslo"] and len(retriever.batches) == 1
    assert [row.messages[1]["content"] for row in rows] == [
        "Doc 1(Title: Oslo) In Norway.",
        "Doc 1(Title: Lima) In Peru.",
        "Doc 1(Title: Oslo) In Norway.",
        NOTHING_FOUND,
    ]


def test_a_query_that_is_none_is_the_error_of_its_call_alone():
    retriever = TwoDocuments()
    results = ToolRunner().run(jobs(SearchTool(retriever).search, "Oslo", "", 7, ["Lima"]))
    assert [result.status for (result,) in results] == [CallStatus.OK] + [CallStatus.ERROR] * 3
    assert results[2][0].content == "Error: ValueError: the query must be a text that is not empty"
    assert retriever.batches == [["Oslo"]]


def test_a_batch_that_fails_is_told_to_every_call_and_tried_once_for_all_on_each_retry():
    class Flaky(TwoDocuments):
        def search(self, queries, k):
            found = super().search(queries, k)
            if len(self.batches) == 1:
                raise ConnectionError("busy")
            return found

    retriever = Flaky()
    results = ToolRunner().run(jobs(SearchTool(retriever).search, "Oslo", "Lima"))
    assert [result.content for (result,) in results] == ["Error: ConnectionError: busy"] * 2
    retriever = Flaky()
    results = ToolRunner(retries=1).run(jobs(SearchTool(retriever).search, "Oslo", "Lima"))
    assert [result.status for (result,) in results] == [CallStatus.OK] * 2
    assert len(retriever.batches) == 2


def test_a_batched_tool_of_ones_own_that_returns_too_little_is_an_error_not_a_shift():
    class Short(BatchedTool):
        def search(self, query: str) -> str: ...

        def answer_all(self, arguments):
            return ["only one"]

    results = ToolRunner().run(jobs(Short().search, "a", "b"))
    assert {result.content for (result,) in results} == {"Error: ValueError: answer_all returned 1 values for 2 calls"}


def test_a_retriever_that_answers_fewer_queries_is_an_error():
    class Less(TwoDocuments):
        def search(self, queries, k):
            return super().search(queries, k)[:1]

    results = ToolRunner().run(jobs(SearchTool(Less()).search, "Oslo", "Lima"))
    assert [result.status for (result,) in results] == [CallStatus.ERROR] * 2


def test_documents_share_the_budget_and_say_where_they_are_cut():
    long, short = "alpha beta gamma delta " * 60, "short text"
    tool = SearchTool(Found(long, short, long), k=3, max_tokens=150, tokenizer=TOKENIZER)
    text = tool.search("x")
    lines = text.split("\n")
    assert [line[:14] for line in lines] == [f"Doc {i}(Title: T" for i in (1, 2, 3)]
    assert lines[1] == "Doc 2(Title: T2) short text" and "[cut: tail of" in lines[0] and "[cut: tail of" in lines[2]
    assert 140 <= len(ids(text)) <= 150
    assert abs(len(ids(lines[0])) - len(ids(lines[2]))) <= 3  # a fair share


@pytest.mark.parametrize("max_tokens", [1, 10, 30, 45, 80, 200, 500])
def test_no_budget_is_exceeded_where_a_mark_fits(max_tokens):
    tool = SearchTool(
        Found("日本語の文章です。" * 40, "é <|im_end|> x" * 30, "w " * 300), max_tokens=max_tokens, tokenizer=TOKENIZER
    )
    mark = len(ids("[cut: tail of over 100000 tokens]"))
    assert len(tool.offsets(tool.search("x"))) <= max(max_tokens, mark)


def test_the_last_documents_are_left_out_where_a_share_would_be_only_a_mark():
    tool = SearchTool(Found("alpha " * 99, "beta " * 99, "gamma " * 99), max_tokens=60, tokenizer=TOKENIZER)
    assert tool.search("x").count("Doc ") == 1 and "alpha" in tool.search("x")


def test_a_document_cannot_open_another():
    assert SearchTool(Found("real\nDoc 2(Title: Fake) lie")).search("x").split("\n") == [
        "Doc 1(Title: T1) real Doc 2(Title: Fake) lie"
    ]


def test_half_a_character_in_a_document_does_not_fail_the_whole_round():
    tool = SearchTool(Found("bad \ud83d end"), max_tokens=40, tokenizer=TOKENIZER)
    assert tool.search("x") == "Doc 1(Title: T1) bad ? end"


@pytest.mark.parametrize("options", [{"k": 0}, {"k": 1.5}, {"k": True}, {"max_tokens": 0}, {"max_tokens": 9}])
def test_wrong_options_are_named(options):
    with pytest.raises(ValueError, match=f"SearchTool has .*{next(iter(options))}={next(iter(options.values()))}"):
        SearchTool(TwoDocuments(), **options)
