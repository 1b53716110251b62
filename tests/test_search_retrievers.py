"""The embedded retrievers: words of any script, indexes on disk, rows read one at a time."""

import json
import subprocess
import sys
import zlib

import numpy as np
import pytest

from envmask_trl import BM25Retriever, DenseRetriever
from envmask_trl.rollout.search import bm25, dense
from envmask_trl.rollout.search.corpus import read_corpus
from envmask_trl.rollout.search.words import split_words

ROWS = [
    {"id": "a", "title": "Oslo", "text": "Oslo is the capital of Norway, on the Oslofjord."},
    {"id": "b", "title": "Bergen", "text": "Bergen is a city in Norway."},
    {"id": "c", "title": "東京都", "text": "東京都は日本の首都であり、人口が最も多い。"},
    {"id": "d", "title": "京都市", "text": "京都市は京都府の市である。"},
    {"id": "e", "title": "दिल्ली", "text": "दिल्ली भारत की राजधानी है।"},
    {"id": "f", "title": "", "text": "!!! ???"},
]


def hashing_encoder(texts: list[str]) -> np.ndarray:
    """Character trigrams hashed into 256 numbers: a real encoder, made on the spot."""
    vectors = np.zeros((len(texts), 256))
    for row, text in enumerate(texts):
        for start in range(len(text) - 2):
            vectors[row, zlib.crc32(text[start : start + 3].lower().encode()) % 256] += 1
    return vectors


def ids(found):
    return [[document.id for document in documents] for documents in found]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Oslo's Größe, 42!", ["oslo", "s", "grösse", "42"]),
        ("東京都へ", ["東京", "京都", "都へ"]),
        ("在ABC大学", ["在", "abc", "大学"]),
        ("ラーメン", ["ラー", "ーメ", "メン"]),
        ("दिल्ली भारत", ["दिल्ली", "भारत"]),
        ("ＡＢＣ", ["abc"]),
        ("서울 도시", ["서울", "도시"]),
        ("กรุงเทพ", ["กร", "รุ", "ุง", "งเ", "เท", "ทพ"]),
        (" .,;", []),
    ],
)
def test_words_of_any_script(text, words):
    assert split_words(text) == words


def test_bm25_finds_by_words_in_every_script_and_nothing_for_strange_words(tmp_path):
    retriever = BM25Retriever.build(ROWS, tmp_path)
    found = retriever.search(["capital of Norway", "日本の首都", "京都", "भारत राजधानी", "qwertz", "", "..."], k=2)
    assert [one[:1] for one in ids(found)] == [["a"], ["c"], ["d"], ["e"], [], [], []]
    assert ids(found)[0] == ["a", "b"] and found[0][0].score > found[0][1].score > 0
    assert found[0][0].title == "Oslo" and found[0][0].text == ROWS[0]["text"]
    assert len(retriever.search(["Norway"], k=99)[0]) == 2  # a document without a word of the query is not found


def test_an_index_on_disk_is_memory_mapped_and_finds_the_same(tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS) + "\n", encoding="utf-8")
    built = BM25Retriever.build(path, tmp_path / "index")
    opened = BM25Retriever(tmp_path / "index")
    assert isinstance(opened.scores.scores["data"], np.memmap) and isinstance(opened.documents.rows, np.memmap)
    assert opened.search(["Oslo", "京都"], 3) == built.search(["Oslo", "京都"], 3)


def test_equal_scores_come_in_the_order_of_the_corpus(tmp_path):
    retriever = BM25Retriever.build([{"text": "same words"} for _ in range(20)], tmp_path)
    assert ids(retriever.search(["same"], 20)) == [[str(i) for i in range(20)]]


def test_rows_are_read_one_at_a_time(tmp_path):
    alive = []

    class Row(dict):
        def __del__(self):
            alive.remove(self["id"])

    def rows():
        for number in range(50):
            alive.append(number)
            yield Row(id=number, title="", text=f"word{number}")
            assert len(alive) <= 3

    assert ids(BM25Retriever.build(rows(), tmp_path).search(["word17"], 1)) == [["17"]]


@pytest.mark.parametrize(
    ("line", "said"),
    [("{", "line 2: not JSON"), ('{"title": "x"}', r"line 2: found fields \['title'\]"), ("[1]", "line 2: found list")],
)
def test_a_wrong_row_is_named_with_its_line(tmp_path, line, said):
    path = tmp_path / "corpus.jsonl"
    path.write_text('{"text": "fine"}\n' + line + "\n")
    with pytest.raises(ValueError, match=said):
        list(read_corpus(path))


@pytest.mark.parametrize("retriever", [BM25Retriever, DenseRetriever])
def test_an_empty_corpus_and_a_folder_without_an_index_are_named(tmp_path, retriever):
    options = {} if retriever is BM25Retriever else {"encode": hashing_encoder}
    with pytest.raises(ValueError, match="the corpus has no documents"):
        retriever.build([], tmp_path, **options)
    with pytest.raises(ValueError, match="index; write one with"):
        retriever(tmp_path, **options)


def built_in(folder, rows=ROWS):
    return BM25Retriever.build(rows, folder), DenseRetriever.build(rows, folder, encode=hashing_encoder)


@pytest.mark.parametrize("kind", [0, 1], ids=["bm25", "dense"])
def test_an_index_that_is_built_again_takes_nothing_from_under_a_reader(tmp_path, kind):
    reader = built_in(tmp_path, [{"text": f"alpha {i} beta"} for i in range(200)])[kind]
    built_in(tmp_path)
    assert reader.search(["alpha 199 beta"], 1)[0][0].text == "alpha 199 beta"  # not a SIGBUS


def test_a_build_that_fails_leaves_the_index_that_was_there(tmp_path):
    built_in(tmp_path)
    for build in (BM25Retriever.build, lambda rows, folder: DenseRetriever.build(rows, folder, encode=hashing_encoder)):
        with pytest.raises(ValueError, match=r"found fields \['no'\]"):
            build([{"text": "Oslo Oslo"}, {"no": 1}], tmp_path)
    assert ids(BM25Retriever(tmp_path).search(["capital of Norway"], 1)) == [["a"]]
    assert not list(tmp_path.glob(".new-*"))


def test_an_index_of_other_documents_is_refused_and_one_that_moved_is_not(tmp_path):
    built_in(tmp_path / "both")
    (tmp_path / "both").rename(tmp_path / "moved")
    assert ids(BM25Retriever(tmp_path / "moved").search(["Bergen"], 1)) == [["b"]]
    assert ids(DenseRetriever(tmp_path / "moved", encode=hashing_encoder).search(["Bergen"], 1)) == [["b"]]
    BM25Retriever.build(list(reversed(ROWS)), tmp_path / "moved")  # as many documents, of as many bytes
    with pytest.raises(ValueError, match=r"the vectors index in .* is of other documents"):
        DenseRetriever(tmp_path / "moved", encode=hashing_encoder)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("documents.jsonl", r"have \d+ bytes, expected \d+; build the index again"),
        ("offsets.npy", "the documents in .* cannot be read"),
        ("bm25/vocab.index.json", "the BM25 index in .* cannot be read"),
        ("bm25/data.csc.index.npy", "the BM25 index in .* cannot be read"),
        ("vectors.faiss", "the dense index in .* cannot be read"),
    ],
)
def test_an_index_that_was_cut_is_refused_when_it_is_opened(tmp_path, name, said):
    built_in(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[: len(whole) // 2])
    is_dense = name == "vectors.faiss"
    with pytest.raises(ValueError, match=said):
        DenseRetriever(tmp_path, encode=hashing_encoder) if is_dense else BM25Retriever(tmp_path)


def test_half_a_character_in_a_row_does_not_end_the_build(tmp_path):
    (found,) = BM25Retriever.build([{"text": "good"}, {"text": "bad \ud83d end"}], tmp_path).search(["end"], 1)
    assert found[0].text == "bad ? end"


def test_dense_finds_the_nearest_and_is_opened_again(tmp_path):
    built = DenseRetriever.build(ROWS, tmp_path, encode=hashing_encoder, batch_size=2)
    assert ids(built.search(["the city Bergen in Norway", "京都市は京都府"], 1)) == [["b"], ["d"]]
    opened = DenseRetriever(tmp_path, encode=hashing_encoder)
    assert opened.search(["Oslo"], 99) == built.search(["Oslo"], 99) and len(opened.search(["Oslo"], 99)[0]) == len(
        ROWS
    )
    best = opened.search([f"{ROWS[1]['title']}\n{ROWS[1]['text']}"], 1)[0][0]
    assert best.id == "b" and best.score == pytest.approx(1.0, abs=1e-5)
    assert opened.search([], 3) == []


def test_dense_prefixes_reach_the_encoder(tmp_path):
    seen = []

    def encode(texts):
        seen.extend(texts)
        return hashing_encoder(texts)

    DenseRetriever.build(ROWS[:1], tmp_path, encode=encode, query_prefix="query: ", document_prefix="passage: ").search(
        ["Oslo"], 1
    )
    assert seen == ["passage: Oslo\n" + ROWS[0]["text"], "query: Oslo"]


def test_an_encoder_of_another_size_or_shape_is_named(tmp_path):
    DenseRetriever.build(ROWS, tmp_path, encode=hashing_encoder)
    with pytest.raises(ValueError, match="gives vectors of 3 numbers but the index has 256"):
        DenseRetriever(tmp_path, encode=lambda texts: np.ones((len(texts), 3))).search(["x"], 1)
    with pytest.raises(ValueError, match=r"shape \(256,\) for 1 texts"):
        DenseRetriever(tmp_path, encode=lambda texts: hashing_encoder(texts)[0]).search(["x"], 1)
    for wrong in (np.nan, np.inf):
        with pytest.raises(ValueError, match="vectors for 1 texts that hold no finite numbers"):
            DenseRetriever(tmp_path, encode=lambda texts, x=wrong: np.full((len(texts), 256), x)).search(["x"], 1)
    with pytest.raises(ValueError, match="must be trained"):
        DenseRetriever.build(ROWS, tmp_path, encode=hashing_encoder, factory="IVF2,Flat")


@pytest.mark.parametrize(
    ("load", "package", "remedy"),
    [(bm25.load_bm25s, "bm25s", r"envmask_trl\[search\]"), (dense.load_faiss, "faiss", r"envmask_trl\[dense\]")],
)
def test_a_missing_package_is_named_with_its_remedy(monkeypatch, load, package, remedy):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"pip install '{remedy}'"):
        load()


def test_the_library_imports_neither_index():
    code = "import sys, envmask_trl; envmask_trl.BM25Retriever, envmask_trl.DenseRetriever, envmask_trl.SearchTool;"
    code += "assert not {'bm25s', 'faiss'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
