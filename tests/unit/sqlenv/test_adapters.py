"""The same transcripts earn the same rewards, in whichever trainer's form the dialogue is held."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.sqlenv.adapters.episode import SqlTask, example_of
from jaxrl_sql.sqlenv.adapters.trl import SqlEnvironment, environment_factory, reward_function
from jaxrl_sql.sqlenv.executor import make_executor
from jaxrl_sql.types import InputError

GOLD = "SELECT name FROM singer WHERE age > 30"
T = "<think>so</think>\n"
# What the policy writes turn by turn, and what it earns.
TRANSCRIPTS = {
    "right at once": ([f"{T}<solution>{GOLD}</solution>"], 1.0),
    "right after a look": ([f"{T}<sql>SELECT age FROM singer</sql>", f"{T}<solution>{GOLD}</solution>"], 1.0),
    "wrong rows": ([f"{T}<solution>SELECT name FROM singer</solution>"], 0.0),
    "an error seen and mended": ([f"{T}<sql>SELECT nme FROM singer</sql>", f"{T}<solution>{GOLD}</solution>"], 1.0),
    "does not run": ([f"{T}<solution>SELEC name</solution>"], 0.0),
    "would change": ([f"{T}<sql>DELETE FROM singer</sql>", f"{T}<solution>{GOLD}</solution>"], 1.0),
    "no solution": ([f"{T}<sql>SELECT 1</sql>"] * 3, -1.0),
    "no thought": ([f"<solution>{GOLD}</solution>"], -1.0),
    "two solutions": ([f"{T}<solution>{GOLD}</solution><solution>{GOLD}</solution>"], -1.0),
    "nothing asked": (["Hm.", f"{T}<solution>{GOLD}</solution>"], -1.0),
}
ALL = pytest.mark.parametrize(("turns", "wanted"), TRANSCRIPTS.values(), ids=TRANSCRIPTS)


@pytest.fixture(scope="module")
def task() -> Iterator[SqlTask]:
    with make_executor(ExecutorConfig()) as executor:
        yield SqlTask(executor, turns=3)


@pytest.fixture
def row(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "pop.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE singer (name TEXT, age INT)")
        connection.executemany("INSERT INTO singer VALUES (?, ?)", [("Ann", 25), ("Bo", 52), ("Cy", 31)])
    connection.close()
    return {"db_path": str(path), "gold_sql": GOLD, "question": "Who is over 30?"}


def messages(task: SqlTask, row: dict[str, str], turns: list[str]) -> list[dict[str, str]]:
    """Return the dialogue as a chat's messages after the prompt."""
    episode = task.begin(example_of(row))
    for turn in turns:
        episode.step(turn)
    roles = {"assistant": "assistant", "environment": "user"}
    return [{"role": roles[role], "content": text} for role, text in episode.transcript]


@ALL
def test_the_episode(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    episode = task.begin(example_of(row))
    said = [episode.step(turn) for turn in turns]
    assert said[-1] is None
    assert episode.done
    assert None not in said[:-1]
    assert episode.reward() == wanted
    with pytest.raises(InputError, match="the dialogue is over"):
        episode.step("more")


@ALL
def test_trls_reward_function(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    chat = messages(task, row, turns)
    text = "".join(one["content"] for one in chat)
    columns = {name: [value] * 2 for name, value in row.items()}
    given = [chat, text]
    assert reward_function(task)(completions=given, prompts=["", ""], trainer_state=None, **columns) == [wanted] * 2


@ALL
def test_trls_environment(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    """Tool calls have no form that could be wrong: the transcripts without a thought are not theirs."""
    if not all(turn.startswith(T) and turn.count("</s") == 1 for turn in turns):
        pytest.skip("no tool call writes this")
    environment = environment_factory(task)()
    environment.reset(**row)
    for turn in turns:
        tag = "sql" if "<sql>" in turn else "solution"
        sql = turn.partition(f"<{tag}>")[2].partition("<")[0]
        (environment.query if tag == "sql" else environment.solution)(sql)
    assert environment.get_reward() == wanted
    assert environment.query("SELECT 1") == "The dialogue is over."


@ALL
def test_openenvs_environment(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    pytest.importorskip("openenv")
    from fastapi.testclient import TestClient

    from jaxrl_sql.sqlenv.adapters.openenv import make_app

    with TestClient(make_app(task, [example_of(row)])).websocket_connect("/ws") as session:
        session.send_json({"type": "reset", "data": {"seed": 0}})
        assert session.receive_json()["data"]["observation"]["text"] == "Who is over 30?"
        for turn in turns:
            session.send_json({"type": "step", "data": {"text": turn}})
            answer = session.receive_json()["data"]
        assert (answer["done"], answer["reward"]) == (True, wanted)


@ALL
def test_verifiers_environment(row: dict[str, str], turns: list[str], wanted: float, tmp_path: Path) -> None:
    pytest.importorskip("verifiers.v1")
    import json

    from jaxrl_sql.sqlenv.adapters import verifiers

    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps({"prompt": row["question"], **row}) + "\n")
    (task,) = verifiers.SqlTaskset(verifiers.SqlTasksetConfig(id="sql", questions=path))
    rewards, replies = {}, iter(turns)

    @asynccontextmanager
    async def interaction(_task: Any) -> Any:
        async def turn(_message: str = "") -> Any:
            return SimpleNamespace(terminated=False, last_reply=next(replies))

        yield SimpleNamespace(turn=turn, trace=SimpleNamespace(record_reward=rewards.__setitem__))

    environment = verifiers.SqlEnv.__new__(verifiers.SqlEnv)
    environment.config = verifiers.SqlEnvConfig(turns=3)
    asyncio.run(environment.run(task, SimpleNamespace(player=SimpleNamespace(interaction=interaction))))
    assert rewards == {"sql_reward": wanted}


def test_a_gold_that_fails_teaches_nothing(task: SqlTask, row: dict[str, str]) -> None:
    broken = row | {"gold_sql": "SELECT nothing FROM nowhere"}
    episode = task.begin(example_of(broken))
    episode.step(f"{T}<solution>SELECT 1</solution>")
    assert episode.reward() is None
    columns = {name: [value] for name, value in broken.items()}
    assert reward_function(task)(completions=["<solution>SELECT 1</solution>"], **columns) == [None]


def test_what_is_missing_is_one_line(task: SqlTask) -> None:
    with pytest.raises(InputError, match="a row has no db_path and no gold_sql; it has question"):
        SqlEnvironment(task).reset(question="How many?")
    with pytest.raises(InputError, match="call reset"):
        SqlEnvironment(task).query("SELECT 1")
    assert reward_function(task)(completions=[]) == []


def test_adapters_load_without_jax() -> None:
    code = "import sys, jaxrl_sql.sqlenv.adapters.trl; assert not {'jax', 'torch', 'trl'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
