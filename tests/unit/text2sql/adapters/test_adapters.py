"""Equal transcripts earn equal rewards in the dialogue format of every trainer."""

from __future__ import annotations

import json
import os
import re
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.text2sql.adapters.episode import SqlTask, example_of
from jaxrl_sql.text2sql.adapters.trl import DatabaseTools, environment_factory, reward_function
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.types import InputError

GOLD = "SELECT name FROM singer WHERE age > 30"
T = "<think>so</think>\n"
# The policy's turns, and their reward.
TRANSCRIPTS = {
    "right at once": ([f"{T}<solution>{GOLD}</solution>"], 1.0),
    "right after a query": ([f"{T}<sql>SELECT age FROM singer</sql>", f"{T}<solution>{GOLD}</solution>"], 1.0),
    "wrong rows": ([f"{T}<solution>SELECT name FROM singer</solution>"], 0.0),
    "an error and its correction": ([f"{T}<sql>SELECT nme FROM singer</sql>", f"{T}<solution>{GOLD}</solution>"], 1.0),
    "does not run": ([f"{T}<solution>SELEC name</solution>"], 0.0),
    "a write": ([f"{T}<sql>DELETE FROM singer</sql>", f"{T}<solution>{GOLD}</solution>"], 1.0),
    "no solution": ([f"{T}<sql>SELECT 1</sql>"] * 3, -1.0),
    "no thought": ([f"<solution>{GOLD}</solution>"], -1.0),
    "two solutions": ([f"{T}<solution>{GOLD}</solution><solution>{GOLD}</solution>"], -1.0),
    "no query": (["Hm.", f"{T}<solution>{GOLD}</solution>"], -1.0),
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
    """Return the dialogue as chat messages after the prompt."""
    episode = task.begin(example_of(row))
    for turn in turns:
        episode.step(turn)
    roles = {"assistant": "assistant", "environment": "user"}
    return [{"role": roles[role], "content": text} for role, text in episode.transcript]


@ALL
def test_episode_reward(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    episode = task.begin(example_of(row))
    observations = [episode.step(turn) for turn in turns]
    assert observations[-1] is None
    assert episode.done
    assert None not in observations[:-1]
    assert episode.reward() == wanted
    with pytest.raises(InputError, match="the dialogue is over"):
        episode.step("more")


@ALL
def test_trl_reward_function(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    chat = messages(task, row, turns)
    text = "".join(item["content"] for item in chat)
    columns = {name: [value] * 2 for name, value in row.items()}
    arguments = [chat, text]
    assert reward_function(task)(completions=arguments, prompts=["", ""], trainer_state=None, **columns) == [wanted] * 2


@ALL
def test_trl_environment(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    """Tool calls cannot have an invalid form, so transcripts without a thought are skipped."""
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


RIGHT = f"{T}<solution>{GOLD}</solution>"
SOLVED = {"role": "assistant", "content": RIGHT}


def call(name: str, sql: str, *, is_text: bool = True) -> dict[str, Any]:
    """Return a message that calls a tool, with arguments as JSON text or as a mapping."""
    arguments = json.dumps({"sql": sql}) if is_text else {"sql": sql}
    call = {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


TOOL = {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "1"}]}
PROMPT = [{"role": "user", "content": "Who is over 30?"}]
# Messages of a completion, the prompt, and the reward.
MESSAGES: dict[str, tuple[Any, Any, float]] = {
    "a text": (RIGHT, "", 1.0),
    "a text after an opened thought": (RIGHT.removeprefix("<think>"), "Answer. <think>\n", 1.0),
    "content as text": ([SOLVED], PROMPT, 1.0),
    "content in parts": ([{**SOLVED, "content": [{"type": "text", "text": RIGHT}]}], PROMPT, 1.0),
    "two parts and an image": (
        [{**SOLVED, "content": [{"type": "text", "text": T}, {"type": "image"}, {"text": RIGHT.removeprefix(T)}]}],
        PROMPT,
        1.0,
    ),
    "parts that are texts": ([{**SOLVED, "content": [T, RIGHT.removeprefix(T)]}], PROMPT, 1.0),
    "a single part": ([{**SOLVED, "content": {"type": "text", "text": RIGHT}}], PROMPT, 1.0),
    "no content": ([{**SOLVED, "content": None}], PROMPT, -1.0),
    "no content key": ([{"role": "assistant"}], PROMPT, -1.0),
    "no messages": ([], PROMPT, -1.0),
    "a call, then a text": ([call("query", "SELECT 1"), TOOL, SOLVED], PROMPT, 1.0),
    "two calls at once": ([call("query", "SELECT 1"), TOOL, TOOL, SOLVED], PROMPT, 1.0),
    "only a call": ([call("query", GOLD), TOOL], PROMPT, -1.0),
    "a call that solves": ([call("query", "SELECT 1"), TOOL, call("solution", GOLD)], PROMPT, 1.0),
    "a call that solves, as a mapping": ([call("solution", GOLD, is_text=False)], PROMPT, 1.0),
    "a call that solves wrongly": ([call("solution", "SELECT 1"), TOOL], PROMPT, 0.0),
    "a call without arguments": ([{**SOLVED, "tool_calls": [{"function": {}}]}, TOOL, SOLVED], PROMPT, 1.0),
    "a call by text without its thought": ([{**SOLVED, "content": RIGHT.removeprefix(T)}], PROMPT, -1.0),
    "a separate thought": ([{**SOLVED, "content": RIGHT.removeprefix(T), "reasoning_content": "so"}], PROMPT, 1.0),
    "a separate thought, other key": ([{**SOLVED, "content": RIGHT.removeprefix(T), "thinking": "so"}], PROMPT, 1.0),
    "a thought that the template opened": ([{**SOLVED, "content": RIGHT.removeprefix("<think>")}], PROMPT, 1.0),
    "a thought without an opening tag": ([{**SOLVED, "content": RIGHT.removeprefix("<think>")}], "", -1.0),
    "a turn prefilled by the prompt": (
        [{**SOLVED, "content": RIGHT.removeprefix("<think>")}],
        [*PROMPT, {"role": "assistant", "content": [{"type": "text", "text": "<think>"}]}],
        1.0,
    ),
    "a prefilled turn repeated by the completion": (
        [SOLVED], [*PROMPT, {"role": "assistant", "content": "<think>"}], 1.0
    ),
}  # fmt: skip


@pytest.mark.parametrize(("completion", "prompt", "wanted"), MESSAGES.values(), ids=MESSAGES)
def test_trl_reward_function_accepts_every_message_form(
    task: SqlTask, row: dict[str, str], completion: Any, prompt: Any, wanted: float
) -> None:
    columns = {name: [value] for name, value in row.items()}
    assert reward_function(task)(completions=[completion], prompts=[prompt], **columns) == [wanted]


@pytest.mark.parametrize("completion", [7, [RIGHT], [{**SOLVED, "content": 7}], [{**SOLVED, "tool_calls": [7]}]])
def test_completions_of_another_type_are_refused(task: SqlTask, row: dict[str, str], completion: Any) -> None:
    columns = {name: [value] for name, value in row.items()}
    with pytest.raises(InputError, match=r"must be .* not (int|list)"):
        reward_function(task)(completions=[completion], **columns)


@pytest.mark.parametrize("arguments", ["[" * 200_000, "{", '["sql"]', '{"sql": 7}'])
def test_arguments_without_sql_earn_nothing(task: SqlTask, row: dict[str, str], arguments: str) -> None:
    call = {"type": "function", "function": {"name": "solution", "arguments": arguments}}
    completion = [{"role": "assistant", "content": None, "tool_calls": [call]}]
    assert reward_function(task)(completions=[completion], **{name: [value] for name, value in row.items()}) == [0.0]


@pytest.mark.parametrize("content", [[{"type": "text", "text": RIGHT}], [T, RIGHT.removeprefix(T)]])
def test_episode_accepts_content_in_parts(task: SqlTask, row: dict[str, str], content: Any) -> None:
    episode = task.begin(example_of(row))
    assert "No query and no solution" in (episode.step(None) or "")
    episode = task.begin(example_of(row))
    assert episode.step(content) is None
    assert episode.reward() == 1.0


def test_columns_may_be_arrays_and_paths(task: SqlTask, row: dict[str, str]) -> None:
    columns: dict[str, Any] = {name: np.array([value] * 2) for name, value in row.items()}
    assert reward_function(task)(completions=[RIGHT, RIGHT], **columns) == [1.0, 1.0]
    columns |= {"db_path": [Path(row["db_path"])] * 2, "trainer_state": object(), "log_metric": print}
    assert reward_function(task)(completions=[RIGHT, RIGHT], **columns) == [1.0, 1.0]
    with pytest.raises(InputError, match="must be texts, not str and int"):
        reward_function(task)(completions=[RIGHT], **columns | {"db_path": [row["db_path"]], "gold_sql": [7]})


TAGS = ("</solution>", "<solution>", "</sql>", "<sql>", "</think>", "<observation>", "</answer>", "```", "it''s")
HOLDING_TAGS = [f"{GOLD} AND '{tag}' <> ''" for tag in TAGS]
HOLDING_TAGS += [f'SELECT name AS "<think>" FROM ({GOLD})', f"{GOLD} /* </solution> it's <sql> */"]


@pytest.mark.parametrize("sql", HOLDING_TAGS)
def test_sql_may_contain_the_dialogues_tags(task: SqlTask, row: dict[str, str], sql: str) -> None:
    """Test a tool's argument and a text: a tag in a literal, a quoted name or a comment is text."""
    environment = environment_factory(task)()
    environment.reset(**row)
    assert "Cy" in environment.query(sql)
    assert environment.solution(sql) == "The dialogue is over."
    assert environment.get_reward() == 1.0
    episode = task.begin(example_of(row))
    assert "Cy" in (episode.step(f"{T}<sql>{sql}</sql>") or "")
    assert episode.step(f"{T}<solution>{sql}</solution>") is None
    assert episode.reward() == 1.0
    assert episode.score_dialogue().sql == sql


@pytest.mark.parametrize("sql", [None, 7, ["SELECT 1"], {"sql": "SELECT 1"}])
def test_tool_argument_of_another_type_is_no_sql(task: SqlTask, row: dict[str, str], sql: Any) -> None:
    environment = environment_factory(task)()
    environment.reset(**row)
    assert "no_sql" in environment.query(sql)
    environment.solution(sql)
    assert environment.get_reward() == 0.0


def examples() -> list[str]:
    """Return the code of the page's last section, for trainers without an adapter."""
    page = Path(__file__).parents[4].joinpath("docs/howto/other_trainers.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page.partition("## skyrl-gym and verl")[2], flags=re.DOTALL)


@ALL
def test_documented_verl_function(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    names: dict[str, Any] = {"task": task, "example_of": example_of}
    exec(examples()[1], names)  # noqa: S102 - the page's own code
    text = "".join(message["content"] for message in messages(task, row, turns))
    arguments = {
        "data_source": "spider",
        "solution_str": text,
        "ground_truth": row["gold_sql"],
    }  # called like verl's reward managers do
    assert names["compute_score"](**arguments, extra_info={"db_path": row["db_path"]}) == wanted


@pytest.mark.trainers
@ALL
def test_documented_skyrl_gym_environment(task: SqlTask, row: dict[str, str], turns: list[str], wanted: float) -> None:
    names: dict[str, Any] = {"example_of": example_of}
    exec(examples()[0], names)  # noqa: S102 - the page's own code
    environment = names["SQLEnv"](SimpleNamespace(task=task), {"extra_info": row})
    for turn in turns:
        output = environment.step(turn)
    assert (output["done"], output["reward"]) == (True, wanted)


def example_with(word: str) -> str:
    """Return the page's example that contains a word."""
    page = Path(__file__).parents[4].joinpath("docs/howto/other_trainers.md").read_text(encoding="utf-8")
    (text,) = (item for item in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if word in item)
    return str(text)


@pytest.mark.trainers
def test_documented_openenv_application_runs(task: SqlTask, row: dict[str, str]) -> None:
    served: list[Any] = []
    uvicorn = SimpleNamespace(run=lambda app, **options: served.append((app, options)))
    exec(example_with("make_app"), {"uvicorn": uvicorn, "task": task, "examples": [example_of(row)]})  # noqa: S102
    ((app, options),) = served
    assert callable(app)
    assert options == {"host": "127.0.0.1", "port": 8000}


@pytest.mark.trainers
def test_documented_verifiers_names_exist() -> None:
    names: dict[str, Any] = {}
    exec(example_with("SqlTaskset"), names)  # noqa: S102 - the page's own code
    assert all(names[name] for name in names["__all__"])


@pytest.mark.trainers
def test_openenv_client_connects_to_our_server(task: SqlTask, row: dict[str, str]) -> None:
    """Use OpenEnv's client, a socket, and a server run by uvicorn: one session holds all dialogues."""
    import uvicorn
    from openenv.core.generic_client import GenericEnvClient

    from jaxrl_sql.text2sql.adapters.openenv import make_app

    settings = uvicorn.Config(make_app(task, [example_of(row)]), port=0, log_level="warning")
    server = uvicorn.Server(settings)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            address = f"http://127.0.0.1:{listener.getsockname()[1]}"
            with GenericEnvClient(base_url=address).sync() as session:
                for turns, wanted in TRANSCRIPTS.values():
                    assert session.reset(seed=0).observation["text"] == "Who is over 30?"
                    for turn in turns:
                        answer = session.step({"text": turn})
                    assert (answer.done, answer.reward) == (True, wanted)
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.trainers
def test_verifiers_runner_runs_the_dialogues(row: dict[str, str], tmp_path: Path, chat_server: ModuleType) -> None:
    """Run `vf-eval`, whose chat program is the player, with a server that answers by the question."""
    (tmp_path / "sql_env.py").write_text(
        "from jaxrl_sql.text2sql.adapters.verifiers import SqlEnv, SqlTaskset\n__all__ = ['SqlEnv', 'SqlTaskset']\n"
    )
    questions = tmp_path / "questions.jsonl"
    questions.write_text("".join(json.dumps({**row, "prompt": f"<{name}>"}) + "\n" for name in TRANSCRIPTS))

    def script(_number: int, body: dict[str, Any]) -> Any:
        messages = body["messages"]
        turns, _ = TRANSCRIPTS[messages[0]["content"].strip("<>")]
        return chat_server.assistant(turns[sum(item["role"] == "assistant" for item in messages)])

    programs = Path(sys.executable).parent
    path = {"PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": f"{Path.cwd()}:{tmp_path}"}
    with chat_server.serve_script(script) as (url, _):
        command = (
            f"{programs}/vf-eval sql-env --env.taskset.questions {questions} --env.turns 3 --no-rich --no-push -m m"
        )
        command += f" --env.player.harness.id null --env.player.runtime.type subprocess --client.base-url {url}"
        command += f" --client.api-key-var NO_KEY -o {tmp_path / 'out'} --run.name all --run.dir all"
        done = subprocess.run(
            command.split(), env=os.environ | path, capture_output=True, text=True, check=False, cwd=tmp_path
        )
    assert done.returncode == 0, done.stderr
    episodes = map(json.loads, (tmp_path / "out/all/traces.jsonl").read_text().splitlines())
    earned = {trace["task"]["data"]["prompt"]: trace["rewards"] for episode in episodes for trace in episode["traces"]}
    assert {name: rewards["sql_reward"]["score"] for name, rewards in earned.items()} == {
        f"<{name}>": wanted for name, (_, wanted) in TRANSCRIPTS.items()
    }


def test_failing_gold_is_not_learned_from(task: SqlTask, row: dict[str, str]) -> None:
    broken = row | {"gold_sql": "SELECT nothing FROM nowhere"}
    episode = task.begin(example_of(broken))
    episode.step(f"{T}<solution>SELECT 1</solution>")
    assert episode.reward() is None
    columns = {name: [value] for name, value in broken.items()}
    assert reward_function(task)(completions=["<solution>SELECT 1</solution>"], **columns) == [None]


def test_missing_column_is_reported_in_one_line(task: SqlTask) -> None:
    with pytest.raises(InputError, match="a row has no db_path and no gold_sql; it has question"):
        DatabaseTools(task).reset(question="How many?")
    with pytest.raises(InputError, match="call reset"):
        DatabaseTools(task).query("SELECT 1")
    assert reward_function(task)(completions=[]) == []


def test_adapters_load_without_jax() -> None:
    code = "import sys, jaxrl_sql.text2sql.adapters.trl; assert not {'jax', 'torch', 'trl'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
