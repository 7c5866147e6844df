"""Supervised examples: one answer, or a dialogue with a loss on the assistant's turns."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxrl_sql.text2sql.files.traces import load_traces, with_traces
from jaxrl_sql.text2sql.prompts.styles import PromptStyle, compact_style
from jaxrl_sql.training.batching.sft_batches import RowOrder, SftCompletion, make_sft_batch
from jaxrl_sql.types import Example, InputError, Response

END = 0


class Letters:
    """Each character is a token, so that ids are readable."""

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        assert not add_special_tokens
        return [ord(character) for character in text]


@pytest.fixture
def example(tmp_path: Path) -> Example:
    path = tmp_path / "a.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1);")
    return Example("1", "a", str(path), "what", "SELECT x FROM t")


def style_with_answer(answer: Callable[[Example], Response]) -> PromptStyle:
    return compact_style()._replace(answer=answer)


def supervised_answer(example: Example, response: Response) -> SftCompletion:
    form = style_with_answer(lambda _: response)
    return make_sft_batch([example], [form], Letters(), END, 400, 400).answers[0]


def decoded(answer: SftCompletion, learned: bool) -> str:
    remaining = (
        token for token, is_learned in zip(answer.token_ids, answer.loss_mask, strict=True) if is_learned == learned
    )
    return "".join("$" if token == END else chr(token) for token in remaining)


def test_whole_text_and_its_end_token_are_learned(example: Example) -> None:
    answer = supervised_answer(example, " SELECT x FROM t")
    assert decoded(answer, learned=True) == " SELECT x FROM t$"
    assert decoded(answer, learned=False) == "Q: what\nSQL:"
    assert answer.sql_tokens == {ord(character) for character in " SELECT x FROM t"}


def test_masks_dialogue_observations_are_not_learned(example: Example) -> None:
    dialogue = (
        ("assistant", "<sql>SELECT 1</sql>"),
        ("environment", "<observation>1</observation>"),
        ("assistant", "<solution>SELECT x</solution>"),
    )
    answer = supervised_answer(example, dialogue)
    assert decoded(answer, learned=True) == "<sql>SELECT 1</sql><solution>SELECT x</solution>$"
    assert decoded(answer, learned=False) == "Q: what\nSQL:<observation>1</observation>"
    assert answer.token_ids[-1] == END
    assert answer.token_ids.count(END) == 1


def test_oversized_examples_are_skipped_with_a_reason(example: Example) -> None:
    form = style_with_answer(lambda item: " " + item.gold_sql)
    long = Example("2", "a", example.db_path, "what", "SELECT x FROM t WHERE x = 'long'")
    result = make_sft_batch([example, long], [form], Letters(), END, 400, 40)
    assert result.skipped == (("2", "question and answer over 40 tokens"),)
    assert len(result.answers) == 1
    lengths = r"none of 1 examples fits: prompts have at least \d+ tokens \(data.max_prompt_tokens=5\), and a question "
    with pytest.raises(InputError, match=lengths):
        make_sft_batch([example], [form], Letters(), END, 5, 400)


def test_each_form_has_its_epoch_and_every_example_one_form_per_epoch(example: Example) -> None:
    examples = [dataclasses.replace(example, uid=str(i)) for i in range(40)]
    message = ("one", "two", "three")
    forms = [style_with_answer(lambda _, word=word: word) for word in message]
    result = make_sft_batch(examples, forms, Letters(), END, 400, 400)
    order = RowOrder(result, questions=4, databases=2, seed=0, row_width=lambda _schema, _answer: 32)
    shown: list[dict[str, str]] = []
    for epoch in range(6):
        batches = [order.batch(i) for i in range(order.num_batches(epoch), order.num_batches(epoch + 1))]
        items = [i for rows in batches for row in rows for i in row]
        assert sorted(examples[i // 3].uid for i in items) == sorted(entry.uid for entry in examples)
        shown.append({examples[i // 3].uid: message[i % 3] for i in items})
    for item in examples:
        assert {shown[epoch][item.uid] for epoch in range(3)} == set(message)
    assert shown[:3] == shown[3:]
    assert len(set(shown[0].values())) == 3, "a form is missing from the epoch"


def test_traces_replace_golds_and_may_be_several(example: Example, tmp_path: Path) -> None:
    path = tmp_path / "traces.jsonl"
    traces = [
        {"id": "1", "reasoning": " a thought ", "sql": "SELECT 1"},
        {"id": 1, "reasoning": "b", "sql": "SELECT 2"},
    ]
    path.write_text("\n".join(map(json.dumps, traces)), encoding="utf-8")
    other = dataclasses.replace(example, uid="2")
    first, second, third = with_traces([example, other], load_traces(path))
    assert (first.uid, first.reasoning, first.target_sql) == ("1", "a thought", "SELECT 1")
    assert (second.uid, second.reasoning, second.target_sql) == ("1#2", "b", "SELECT 2")
    assert first.gold_sql == second.gold_sql == example.gold_sql
    assert third == other
    path.write_text('{"id": "1", "reasoning": "b"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"traces.jsonl:1: a trace needs"):
        load_traces(path)
    path.write_text('{"id": "1", "sql": "SELECT 1", "finish_reason": "length"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"traces.jsonl:1: finish_reason=length reports a truncated trace"):
        load_traces(path)
