"""Outcomes that do not depend on their SQL are missing values: never trusted, never rewarded, retried once."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.datagen.prepare.choose import read_rates
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.env.ports import ScoreRow
from jaxrl_sql.text2sql.env.verdicts import execute_all
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.summary import summarize, validation_metrics
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.evals.vote import ballots, choose
from jaxrl_sql.text2sql.question_sets.filters import by_pass_rate, usable_golds
from jaxrl_sql.text2sql.rewards.extract import ParsedResponse
from jaxrl_sql.text2sql.rewards.score import ScoredResponse, collect, submit_texts
from jaxrl_sql.training.collect import ScoredGroup, group_metrics
from jaxrl_sql.types import Example, InputError, Prompt, Reward, Trajectory, Turn

AWAY = "postgresql://reader:hidden@127.0.0.1:1/shop"


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    with Executor(threads=1) as executor:
        yield executor


def read(text: Any) -> ParsedResponse:
    return ParsedResponse(text, well_formed=True)


def pay_form(_reading: ParsedResponse, row: ScoreRow) -> Reward:
    return Reward(1.0 + row.value("bird"), {"correct": row.value("bird"), "format": 1.0})


@pytest.mark.parametrize(
    ("status", "stop", "is_trusted"),
    [
        ("ok", "", True),
        ("syntax_error", "", True),
        ("crashed", "", True),
        ("timeout", "vm_steps", True),
        ("timeout", "wall", False),
        ("timeout", "cpu", False),
        ("cancelled", "cancelled", False),
        ("cancelled", "", False),
        ("db_error", "", False),
        ("crashed", "killed", False),
        ("too_large", "memory", False),
        ("too_large", "", True),
        ("ok", "db_error", False),
    ],
)
def test_only_outcomes_that_depend_on_the_text_are_trusted(status: str, stop: str, is_trusted: bool) -> None:
    assert ScoredResponse(Reward(0.0), "SELECT 1", status, "ok", stop).trusted is is_trusted


def test_db_error_earns_nothing_and_is_excluded_from_metrics(executor: Executor, tmp_path: Path) -> None:
    """The gold is a table, so it exists although the database is missing."""
    table = ((("a",), ((1,),)),)
    example = Example("q", "db", str(tmp_path / "missing.sqlite"), "?", "", gold_tables=table)
    (lost,) = collect(submit_texts(executor, [example], ["SELECT 1"], read), pay_form)
    assert (lost.status, lost.gold_status, lost.trusted) == ("db_error", "ok", False)
    assert lost.reward == Reward(0.0, {"correct": 0.0, "format": 0.0})
    right = lost._replace(status="ok", reward=Reward(2.0, {"correct": 1.0, "format": 1.0}))
    turns = (Turn("assistant", (5,), text="a"),)
    trajectories = [Trajectory(Prompt("q", (1,), ""), i, turns, "stop") for i in range(2)]
    group = ScoredGroup(example, trajectories, ["a", "b"], [right, lost])
    numbers = group_metrics([group])
    assert group.weights == [1.0, 0.0]
    assert (numbers["reward/mean"], numbers["reward/correct"], numbers["reward/untrusted"]) == (2.0, 1.0, 0.5)
    assert (numbers["reward/std_within_group"], numbers["status/db_error"]) == (0.0, 0.5)


def test_evaluation_excludes_predictions_without_a_verdict(executor: Executor, tmp_path: Path) -> None:
    table = ((("a",), ((1,),)),)
    with closing(sqlite3.connect(tmp_path / "there.sqlite")) as connection:
        connection.executescript("CREATE TABLE t(a)")
    examples = [
        Example(name, name, str(tmp_path / f"{name}.sqlite"), "?", "", gold_tables=table) for name in ("there", "gone")
    ]
    verdicts = score_predictions(executor, examples, ["SELECT 1", "SELECT 1"])
    assert [(verdict.status, dict(verdict.scores), verdict.is_judged) for verdict in verdicts] == [
        ("ok", {"bird": 1.0}, True),
        ("db_error", {}, False),
    ]
    numbers = summarize(examples, verdicts).metrics()
    assert (numbers["accuracy"], numbers["unjudged"]) == (1.0, 1.0)
    numbers = validation_metrics(examples, verdicts)
    assert (numbers["accuracy"], numbers["count"], numbers["unjudged"]) == (1.0, 1.0, 1.0)


def test_question_without_verdicts_has_no_rate() -> None:
    examples = [Example(str(i), "db", "db.sqlite", "?", "SELECT 1") for i in range(2)]
    remaining, dropped = by_pass_rate(examples, {"0": (1, 2), "1": (0, 0)}, 0.0, 1.0)
    assert [example.uid for example in remaining] == ["0"]
    assert [(question.uid, question.reason) for question in dropped] == [("1", "no verdict on its answers")]


@pytest.mark.parametrize("consumer", ["rewards", "evaluation", "golds", "vote"])
def test_unreachable_server_stops_the_command(executor: Executor, consumer: str) -> None:
    example = Example("q", "shop", AWAY, "?", "SELECT 1")

    def consume() -> Sequence[Any]:
        if consumer == "rewards":
            return collect(submit_texts(executor, [example], ["SELECT 1"], read), pay_form)
        if consumer == "evaluation":
            return score_predictions(executor, [example], ["SELECT 1"])
        if consumer == "golds":
            return usable_golds(executor, [example])
        return choose(ballots(executor, [example], [["SELECT 1"]])[0])

    with pytest.raises(
        InputError, match=r"the server cannot be reached: postgresql://reader@127\.0\.0\.1:1/shop"
    ) as raised:
        consume()
    assert "hidden" not in str(raised.value)


@pytest.mark.servers
@pytest.mark.parametrize("engine", ["postgresql", "mariadb"])
def test_refused_role_is_not_reported_as_an_unreachable_server(
    executor: Executor, server_database: Callable[[str, str], Any], engine: str
) -> None:
    database = server_database(engine, "SELECT 1;")
    with pytest.raises(InputError, match=r"^the role is refused: .* can do more than read: ") as raised:
        execute_all(executor, [(database.owner, "SELECT 1")])
    assert "Start it" not in str(raised.value)


def test_evaluation_without_any_verdict_is_an_error() -> None:
    example = Example("q", "shop", AWAY, "?", "SELECT 1")
    with pytest.raises(InputError, match="no answer has a verdict"):
        validation_metrics([example], [Verdict("q", "SELECT 1", "db_error")])


def test_rate_without_verdicts_is_not_used(tmp_path: Path) -> None:
    """The later line of the id is valid: `data filter` writes it after it has sampled the question again."""
    rates = [("1", 0, 0), ("2", 0, 1), ("2", 3, 4)]
    lines = [{"id": uid, "right": right, "of": of} for uid, right, of in rates]
    (tmp_path / "rates.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_rates(tmp_path / "rates.jsonl") == {"2": (3, 4)}


def test_verdict_is_judged_unless_the_run_was_stopped() -> None:
    assert Verdict("q", "SELECT 1", "crashed").is_judged
    assert not Verdict("q", "SELECT 1", "crashed", stop="killed").is_judged
