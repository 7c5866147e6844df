"""Values named by a question: matches, their position in a prompt, and the cached index."""

import importlib.util
import sqlite3
import subprocess
import sys
import unicodedata
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.config import ChatConfig, DataConfig, RetrievalConfig
from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.schema import Schema, find_values, omnisql, profile, read_schema, read_values, retrieve
from jaxrl_sql.types import Example, InputError, Prompt

pytestmark = pytest.mark.skipif(importlib.util.find_spec("bm25s") is None, reason="the package bm25s is not installed")

SCRIPT = """
CREATE TABLE hero(id INTEGER PRIMARY KEY, name TEXT, eye TEXT, code TEXT, age INT, note TEXT);
CREATE TABLE city("the name" TEXT, land TEXT);
INSERT INTO hero VALUES
  (1, '3-D Man', 'brown', 'A-0017', 40, 'Likes blue things and everything that can be said in so many words'),
  (2, 'Super Strength', 'blue', 'B-1', 50, NULL), (3, 'Blue Beetle', 'Blue', 'C-22', 7, ''),
  (4, 'Ann', 'F', 'Z', 1, '!');
INSERT INTO city VALUES ('New  York', 'USA'), ('São Paulo', 'Brazil'), ('O''Hare', 'USA');
"""


def make(folder: Path, script: str = SCRIPT) -> str:
    path = folder / "d.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(script)
    return str(path)


def make_example(path: str, question: str, evidence: str = "") -> Example:
    return Example("q", "d", path, question, "SELECT 1", evidence)


CASES = [
    ("List the powers of 3-D Man.", [("hero", "name", "3-D Man")]),
    ("who has super strength?", [("hero", "name", "Super Strength")]),
    ("Who has the strength?", []),  # half of a value is no match
    ("Whose eyes are blue?", [("hero", "eye", "Blue"), ("hero", "eye", "blue")]),
    ("the Blue Beetles", [("hero", "name", "Blue Beetle"), ("hero", "eye", "Blue"), ("hero", "eye", "blue")]),
    ("The one with code a-0017", [("hero", "code", "A-0017")]),
    ("Who is from SÃO PAULO in Brazil?", [("city", "the name", "São Paulo"), ("city", "land", "Brazil")]),
    ("flights from o'hare", [("city", "the name", "O'Hare")]),
    ("Is she F or Z?", [("hero", "code", "Z"), ("hero", "eye", "F")]),
    ("female", []),  # a single letter matches only as a word
    ("the annual sum", []),  # nor is the start of a word
    ("the annual sum of Ann", [("hero", "name", "Ann")]),
    ("Who has a subluexation?", []),
    ("Anns and Brazilian things", [("hero", "name", "Ann")]),
    ("new york", [("city", "the name", "New  York")]),
    ("", []),
    ("?!", []),
]  # fmt: skip


@pytest.mark.parametrize(("question", "result"), CASES)
def test_values_named_by_the_question_are_found(
    tmp_path: Path, question: str, result: list[tuple[str, str, str]]
) -> None:
    got = find_values(make_example(make(tmp_path), question), 20)
    assert sorted(got) == sorted(result)
    assert [len(value) for *_, value in got] == sorted((len(value) for *_, value in got), reverse=True)


CAFE = "Café São João"
FORMS = [
    (CAFE, CAFE), (CAFE, unicodedata.normalize("NFD", CAFE)), ("O’Brien", "O'Brien"), ("Oʼbrien", "O'BRIEN"),
    ("Coca‑Cola", "Coca-Cola"), ("Spider–Man", "Spider-Man"), ("−40 °C", "-40 °C"), ("ＡＢＣ商事", "ABC商事"),
    ("МОСКВА", "Москва"), ("ΟΔΥΣΣΕΥΣ", "Οδυσσευς"), ("Hauptstraße", "HAUPTSTRASSE"), ("ﬁnance", "finance"),
    ("New\u00a0York", "New York"), ("co\u00adop\u200berate", "cooperate"), ("“Best” buy", '"Best" buy'),
    ("ｶﾌｪ東京", "カフェ東京"), ("서울특별시", unicodedata.normalize("NFD", "서울특별시")), ("İstanbul", "i̇stanbul"),
    ("Việt Nam", unicodedata.normalize("NFD", "VIỆT NAM")), ("①番", "1番"), ("12‴ pipe", "12''' pipe"),
    ("x⁻ ion", "x- ion"),
]  # fmt: skip


@pytest.mark.parametrize(("item", "other"), FORMS)
def test_value_in_another_unicode_form_is_found_and_shown_unchanged(tmp_path: Path, item: str, other: str) -> None:
    for number, (cell, question) in enumerate([(item, other), (other, item)]):
        (tmp_path / str(number)).mkdir()
        path = make(tmp_path / str(number), "CREATE TABLE t(v TEXT); INSERT INTO t VALUES ('another value')")
        with closing(sqlite3.connect(path)) as connection, connection:
            connection.execute("INSERT INTO t VALUES (?)", (cell,))
        assert find_values(make_example(path, f"How many sold at {question}?"), 5) == (("t", "v", cell),)
        assert find_values(make_example(path, "How many sold at 7?"), 5) == ()


def test_longest_value_is_counted_without_its_marks(tmp_path: Path) -> None:
    longest, longer = "Nguyễn Thị " * 3 + "Nguyễn", "Nguyễn Thị " * 3 + "Nguyễn Thị"
    assert (len(longest), len(longer)) == (39, 43)
    path = make(tmp_path, "CREATE TABLE t(v TEXT)")
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executemany(
            "INSERT INTO t VALUES (?)", [(unicodedata.normalize("NFD", cell),) for cell in (longest, longer)]
        )
    assert find_values(make_example(path, longer), 5) == (("t", "v", unicodedata.normalize("NFD", longest)),)


def test_evidence_is_searched_too_and_the_best_matches_are_kept(tmp_path: Path) -> None:
    path = make(tmp_path)
    assert find_values(make_example(path, "How many?", "from Brazil"), 20) == (("city", "land", "Brazil"),)
    assert find_values(make_example(path, "Blue Beetle of Brazil"), 1) == (("hero", "name", "Blue Beetle"),)


def test_database_without_texts_has_no_matches(tmp_path: Path) -> None:
    assert (
        find_values(make_example(make(tmp_path, "CREATE TABLE t(a INT); INSERT INTO t VALUES (7)"), "What is 7?"), 20)
        == ()
    )


def test_matched_share_must_exceed_0_85() -> None:
    text = "x" * 3 + "abcdefghijklmnopq"  # 17 of 20 are 0.85
    assert retrieve._matched_share(text, "abcdefghijklmnopq") == 0
    assert retrieve._matched_share(text, "xabcdefghijklmnopq") == 18 / 20
    assert [length for length in range(1, 41) if (retrieve._min_shared_characters(length) - 1) / length > 0.85] == []
    assert [length for length in range(1, 41) if retrieve._min_shared_characters(length) / length <= 0.85] == []


@pytest.mark.parametrize(
    ("text", "question", "shown"),
    [
        ("rli", "which airlines fly?", False), ("cat", "how many cats?", True), ("bus", "the buses", True),
        ("africa", "african countries", True), ("europe", "european makers", True), ("asia", "asian ones", True),
        ("male", "the female ones", False), ("rain", "it rained", False), ("cat", "the category", False),
        ("42", "room 421", False), ("42", "room 42.", True), ("o'hare", "to o'hare's gate", True),
        ("(b)", "x(b)y", True), ("france", "the french", False), ("cat", "the category of a cat", True),
        ("airlines", "an airline", True), ("airlines", "hairlines", False), ("é", "café", False),
        ("北京市", "在北京市有多少", True), ("東京都", "は東京都です", True),  # scripts that do not separate words
    ],
)  # fmt: skip
def test_value_inside_a_longer_word_is_no_match(text: str, question: str, shown: bool) -> None:
    assert (retrieve._matched_share(text, question) > 0) == shown


WORDS = ("blue", "bluest", "sea", "a", "42", "north-sea", "Land", "é", "island")


def full_scan(texts: Sequence[str], question: str) -> set[int]:
    """Return the texts with a sufficient share in a question, by a full scan; short words match only as words."""
    question_text = retrieve.fold(question)
    tokens = {token for word in retrieve._WORD.findall(question_text) for token in retrieve.TOKEN_PATTERN.findall(word)}
    return {
        i
        for i, text in enumerate(texts)
        if retrieve._matched_share(retrieve.fold(text), question_text)
        and any(token in tokens for token in retrieve.TOKEN_PATTERN.findall(retrieve.fold(text)))
    }


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map(" ".join), min_size=1, max_size=40, unique=True
    ),
    st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join),
)
def test_index_finds_the_matches_of_a_full_scan(texts: list[str], question: str) -> None:
    index = retrieve.make_index([("t", "c")], [texts])
    result = {value for *_, value in index.search(question, 1000)}
    wanted = {texts[i] for i in full_scan(texts, question)}
    assert result <= wanted
    # Runs of words find ten values each, or all values if fewer can match. A short word at the end of a match may be
    # part of a longer word in the question, and then does not count.
    if len(texts) <= 10:
        assert {text for text in wanted if all(len(word) > 2 for word in retrieve._WORD.findall(text))} <= result


def test_cached_index_finds_the_same_without_bm25s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path)
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path / "cache"))
    first = retrieve.open_index(path)
    retrieve._recent.clear()
    monkeypatch.setattr(retrieve, "_import_bm25s", lambda: pytest.fail("made again"))
    again = retrieve.open_index(path)
    assert again is not first
    for item, other in zip(first, again, strict=True):
        assert np.array_equal(item, other) if isinstance(item, np.ndarray) else item == other
    assert retrieve.open_index(path) is again


def test_memory_is_limited_by_the_size_of_indices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = []
    for number in range(3):
        (tmp_path / str(number)).mkdir()
        paths.append(make(tmp_path / str(number)))
    retrieve._recent.clear()
    monkeypatch.setattr(retrieve, "_MEMORY_BYTES", 2 * retrieve.open_index(paths[0]).nbytes)
    for path in (*paths, paths[1]):
        retrieve.open_index(path)
    assert [version.path for version in retrieve._recent] == [str(Path(paths[i]).resolve()) for i in (2, 1)]


def test_faulty_database_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no database file"):
        find_values(make_example(str(tmp_path / "none.sqlite"), "x"), 5)


def test_retrieval_loads_no_jax(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom jaxrl_sql.text2sql.schema.retrieve import open_index\n"
        f"assert open_index({make(tmp_path)!r}).search('blue', 3)\n"
        "assert 'bm25s' in sys.modules and 'jax' not in sys.modules and 'jaxlib' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_missing_package_error_names_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bm25s", None)
    with pytest.raises(
        InputError, match=r"data\.retrieval\.top_k, data\.shots and data\.schema_budget need the package bm25s"
    ):
        find_values(make_example(make(tmp_path), "blue"), 5)


def test_matched_values_precede_other_examples_of_a_column(tmp_path: Path) -> None:
    path = make(tmp_path)
    matched = (("hero", "eye", "F"), ("hero", "eye", "it's\nso"), ("hero", "eye", "x"), ("city", "land", "Brazil"))
    schema = Schema(read_schema(path).tables, matched)
    text = omnisql(schema, read_values(path))
    assert """    eye TEXT, -- example: ['F', "it's so", 'x']\n""" in text
    assert "    land TEXT -- example: ['Brazil', 'USA']\n" in text
    text = profile(schema, read_values(path))
    assert "    eye TEXT, --Example F, it's so, x\n" in text
    assert "    land TEXT --Example Brazil, USA\n" in text
    assert "    age INT, --MIN 1 MAX 50\n" in text


class Characters:
    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return list(map(ord, text))

    def apply_chat_template(self, messages: list[dict[str, str]], **_: object) -> str:
        return "".join(message["content"] for message in messages)


def count_shared(prompts: Sequence[Prompt]) -> int:
    """Return the length of two prompts' common prefix in characters."""
    first, second = (prompt.text for prompt in prompts)
    return next(i for i, (item, other) in enumerate(zip(first, second, strict=False)) if item != other)


def test_prompts_show_values_among_examples_or_before_the_question(tmp_path: Path) -> None:
    path = make(tmp_path)
    examples = [
        make_example(path, "Who has blue eyes and comes from Brazil?"),
        replace(make_example(path, "How many?"), uid="r"),
    ]
    lengths = {}
    for matched in ("examples", "question"):
        for schema in ("recipe", "ddl"):
            data = DataConfig(
                prompt="chat",
                chat=ChatConfig(template="generic"),
                schema=schema,
                retrieval=RetrievalConfig(top_k=20, placement=matched),
            )
            result = make_prompts(examples, RECIPES["arctic"].style_for(data), Characters(), 10_000).prompts
            off = RECIPES["arctic"].style_for(replace(data, retrieval=RetrievalConfig(top_k=0)))
            plain = make_prompts(examples, off, Characters(), 10_000).prompts
            assert result[1] == plain[1]  # a question without matches has an unchanged prompt
            lengths[matched, schema] = count_shared(result) - count_shared(plain)
            line = (
                "Values in the database: city.land = 'Brazil'; hero.eye = 'Blue'; hero.eye = 'blue'\n"
                "Question: Who has blue"
            )
            assert (line in result[0].text) == ((matched, schema) != ("examples", "recipe"))
            assert ("land TEXT -- example: ['Brazil', 'USA']" in result[0].text) == (
                (matched, schema) == ("examples", "recipe")
            )
    # Before the question, the whole schema is still shared, and the text after it differs at once.
    before = -len("Question: ")
    assert lengths["question", "recipe"] == lengths["question", "ddl"] == lengths["examples", "ddl"] == before
    assert lengths["examples", "recipe"] < -100


@pytest.mark.data
@pytest.mark.parametrize(("name", "least"), [("spider_dev", 0.9), ("bird_superhero", 0.99)])
def test_recall_of_the_golds_literals(real_data: Path, name: str, least: float) -> None:
    num_found = num_values = 0
    for example in load_split(real_data, name).examples:
        index = retrieve.open_index(example.db_path)
        known = {index.text(i).casefold() for i in range(len(index.owner))}
        shown = {value.casefold() for *_, value in find_values(example, 20)}
        wanted = [text.casefold() for text in example.gold_sql.replace('"', "'").split("'")[1::2]]
        num_values += sum(text in known for text in wanted)
        num_found += sum(text in shown for text in wanted if text in known)
    assert num_values > 100
    assert num_found / num_values >= least
