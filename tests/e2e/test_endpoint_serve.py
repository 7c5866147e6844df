"""Commands that use an endpoint work with our own server, which serves a small model trained on scripted answers.

Each command is first answered by a script. A small model then memorises these dialogues. Served by `jaxrl-sql
serve`, it must lead the same command to the same result. Messages, turns, token limits and ends of answers are
then handled by the server.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxrl_sql.batch import pad_tokens
from jaxrl_sql.commands.ask import main as ask
from jaxrl_sql.commands.distill import main as distill
from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.commands.verbal import main as verbal
from jaxrl_sql.models import forward, load_checkpoint, load_tokenizer, save_checkpoint

pytestmark = pytest.mark.nightly

START = Path(__file__).parents[2] / "configs/quickstart_start"
Dialogue = tuple[list[dict[str, str]], str]
GOLD, WRONG = "SELECT name FROM singer WHERE age > 30", "SELECT name FROM singer"
FIRST, SECOND = f"```sql\n{GOLD}\n```", f"```sql\n{WRONG}\n```"
TEMPLATE = "{% block user %}\n{{ schema }}\nQuestion: {{ question }}\n{% endblock %}\n"
LIMITS = ["executor.vm_steps=100000", "executor.timeout_ms=60000"]

# The answers to a question, turn by turn; a list has equivalent answers.
T = "<think>so</think>\n"
TURNS: dict[str, list[list[str]]] = {
    "Who is old?": [[f"{T}<sql>SELECT age FROM singer</sql>"], [f"{T}<solution>{GOLD}</solution>"]],
    "Who is over 30?": [[f"{T}<sql>SELECT nme FROM singer</sql>"], [f"{T}<solution>{WRONG}</solution>"]],
    "Whose age is high?": [[f"{T}<answer>\n```sql\n{GOLD}\n```\n</answer>"]],
    "Name the young.": [[f"{T}<answer>\n```sql\n{WRONG}\n```\n</answer>"]],
    "Which singers are aged?": [[SECOND, FIRST]],
}


class Script:
    """Answers by question and turn, cycling through several answers. Judges prefer GOLD."""

    def __init__(self, chat_server: ModuleType) -> None:
        self.assistant, self.dialogues, self.asked = chat_server.assistant, list[Dialogue](), 0

    def __call__(self, _number: int, body: dict[str, Any]) -> Any:
        messages = body["messages"]
        first = messages[0]["content"]
        if "Candidate 1:" in first:
            answers = ["<scores>1, 0</scores>" if first.index(FIRST) < first.index(SECOND) else "<scores>0, 1</scores>"]
            mirrored = first.replace(FIRST, "\0").replace(SECOND, FIRST).replace("\0", SECOND)
            self.dialogues.append(
                ([messages[0] | {"content": mirrored}], f"<scores>{answers[0][11:-9][::-1]}</scores>")
            )
        else:
            turns = next(turns for question, turns in TURNS.items() if question in first)
            answers = turns[sum(message["role"] == "assistant" for message in messages)]
        self.dialogues += [(messages, answer) for answer in answers]
        self.asked += 1
        return self.assistant(answers[self.asked % len(answers)])


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a database, one question set per command, and a short template."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "short.jinja").write_text(TEMPLATE)
    questions = list(TURNS)
    for split, requests in (("turns", questions[:2]), ("train", questions[2:4]), ("dev", questions[4:])):
        database = folder / "data" / split / "databases/pop/pop.sqlite"
        database.parent.mkdir(parents=True)
        with closing(sqlite3.connect(database)) as connection, connection:
            connection.execute("CREATE TABLE singer (name TEXT, age INT)")
            connection.executemany("INSERT INTO singer VALUES (?, ?)", [("Ann", 25), ("Bo", 52), ("Cy", 31)])
        lines = [{"id": request, "db_id": "pop", "question": request, "sql": GOLD} for request in requests]
        (folder / "data" / split / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def commands(root: Path, out: Path, url: str) -> dict[str, Callable[[], int]]:
    """Return the commands that use an endpoint, each with its own folder."""
    data, short = root / "data", f"data.chat.template={root / 'short.jinja'}"
    result = [short, f"data.dir={data}", "data.source=folder", "data.train=train", "data.evals=[dev]", *LIMITS]
    result += ["run.display=plain", "--endpoint", url]
    turns = [
        short,
        "--recipe",
        "skyrl_sql",
        "evaluate.sampling.turns=3",
        "evaluate.sampling.max_new_tokens=96",
        "--endpoint",
        url,
    ]
    database = data / "turns/databases/pop/pop.sqlite"
    arguments = {
        "evaluate": ["--data", str(data / "turns"), f"--out={out / 'evaluate'}", "evaluate.model=taught", *LIMITS],
        "ask": ["--model", "taught", "--db", str(database), "Who is old?"],
        "distill": ["recipe=arctic", "distill.model=taught", "distill.temperature=0", "distill.max_tokens=96"],
        "verbal": ["recipe=paverl", "verbal.model=taught", "verbal.candidates=2", "verbal.rounds=3"],
    }
    arguments["distill"] += [f"distill.out={out / 'distill'}"]
    arguments["verbal"] += ["verbal.temperature=0.7", "verbal.judge_temperature=0.2", "verbal.max_tokens=96"]
    arguments["verbal"] += ["verbal.judge_max_tokens=48", f"verbal.out={out / 'verbal'}"]
    mains = {
        "evaluate": (evaluate, turns),
        "ask": (ask, turns),
        "distill": (distill, result),
        "verbal": (verbal, result),
    }
    return {name: partial(main, [*arguments[name], *more]) for name, (main, more) in mains.items()}


def agent(root: Path, url: str) -> str:
    """Return the SQL that an agent gets from the `ask` tool, which uses the endpoint."""
    import mcp

    options = ["--db", str(root / "data/turns/databases/pop/pop.sqlite"), "--model", "taught", "--endpoint", url]
    options += ["--recipe", "skyrl_sql", "evaluate.sampling.turns=3", f"data.chat.template={root / 'short.jinja'}"]
    server = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "jaxrl_sql", "mcp", *options, "evaluate.sampling.max_new_tokens=96"],
        env={**os.environ},
    )

    async def ask() -> str:
        async with mcp.Client(server) as client:
            reply: Any = await client.call_tool("ask", {"question": "Who is old?"})
            assert not reply.is_error, reply
            return str(json.loads(reply.content[0].text)["sql"])

    return anyio.run(ask)


def results(out: Path, output: str) -> dict[str, Any]:
    """Return the results of the commands, without values that depend on sampling."""
    records = {line["id"]: line for line in lines(out / "evaluate/records.jsonl")}
    traces = [(item["id"], item["reasoning"], item["sql"]) for item in lines(out / "distill/traces.jsonl")]
    return {
        "answers": {name: record["answer"] for name, record in records.items()},
        "status": {name: record["status"] for name, record in records.items()},
        "accuracy": json.loads((out / "evaluate/metrics.json").read_text())["accuracy"],
        "asked": output.splitlines()[0],
        "traces": traces,
        "rejected": {entry["id"]: entry["reason"] for entry in lines(out / "distill/rejected.jsonl")},
        "chosen": {element["id"]: element["sql"] for element in lines(out / "verbal/predictions.jsonl")},
    }


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run(root: Path, out: Path, url: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the commands and return their results."""
    output = ""
    for name, command in commands(root, out, url).items():
        assert command() == 0, name
        output = capsys.readouterr().out if name == "ask" else output
        capsys.readouterr()
    return results(out, output) | {"agent": agent(root, url)}


def teach(folder: Path, dialogues: Sequence[Dialogue]) -> None:
    """Write a two-layer model that has memorised the reply to the messages of each dialogue."""
    config, params = load_checkpoint(START)
    config = dataclasses.replace(config, n_layers=2)
    params = {**params, "layers": jax.tree.map(lambda weight: weight[:2], params["layers"])}
    tokenizer = load_tokenizer(START)
    pairs = [
        (
            tokenizer.encode(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)),
            [*tokenizer.encode(text), tokenizer.eos_token_id],
        )
        for messages, text in dialogues
    ]
    pairs.sort(key=lambda pair: len(pair[0]))
    # The judge's long prompts are separate, so that the others are not padded to them.
    batches = [lesson(part) for part in (pairs[:-2], pairs[-2:])]

    def loss(params: Any) -> tuple[jax.Array, jax.Array]:
        missed = []
        for tokens, lengths, at in batches:
            logits, wanted = forward(params, config, tokens, lengths)[at], tokens[at[0], at[1] + 1]
            missed.append(optax.softmax_cross_entropy_with_integer_labels(logits, wanted))
        whole = jnp.concatenate(missed)
        return whole.mean(), (whole > UNSURE).sum()

    optimizer = optax.adam(2e-3)

    @jax.jit
    def step(params: Any, state: Any) -> tuple[Any, Any, tuple[jax.Array, jax.Array]]:
        result, gradient = jax.value_and_grad(loss, has_aux=True)(params)
        change, state = optimizer.update(gradient, state)
        return optax.apply_updates(params, change), state, result

    state = optimizer.init(params)
    for _ in range(400):
        better, state, (value, unsure) = step(params, state)
        if unsure <= 2:  # where two answers to one question diverge
            break
        params = better
    else:
        pytest.fail(f"the model did not learn the dialogues: {value}, {unsure} tokens are not sure")
    save_checkpoint(folder, config, params, tokenizer, source=START)


def lesson(pairs: Sequence[tuple[list[int], list[int]]]) -> tuple[jax.Array, jax.Array, tuple[np.ndarray, np.ndarray]]:
    """Return prompts and answers as tokens [N,T] with lengths [N], and the positions of the learned predictions."""
    rows = [(*prompt, *answer) for prompt, answer in pairs]
    tokens, lengths = pad_tokens(rows, max(map(len, rows)))
    at = [(i, t) for i, (prompt, _) in enumerate(pairs) for t in range(len(prompt) - 1, len(rows[i]) - 1)]
    return jnp.asarray(tokens), jnp.asarray(lengths), tuple(np.array(at).T)


UNSURE = 0.2  # a token with a probability under 82 %


@contextmanager
def serving(model: Path) -> Iterator[str]:
    """Run the server and yield its address."""
    command = [sys.executable, "-m", "jaxrl_sql", "serve", "--model", str(model), "--port", "0", "--name", "taught"]
    with subprocess.Popen([*command, "evaluate.max_num_seqs=4"], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert "/v1: loading; " in process.stdout.readline()
            line = process.stdout.readline()
            assert " serves taught" in line
            yield line.split()[0]
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(300)


def test_commands_give_equal_results_with_our_server(
    root: Path,
    tmp_path: Path,
    chat_server: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    script = Script(chat_server)
    with chat_server.serve_script(script) as (url, _):
        expected = run(root, tmp_path / "script", url, capsys)
    assert expected["chosen"] == {"Which singers are aged?": GOLD}
    assert [role for role, _ in expected["answers"]["Who is old?"]] == ["assistant", "environment", "assistant"]
    assert expected["accuracy"] == 0.5
    assert expected["asked"] == expected["agent"] == GOLD
    teach(tmp_path / "taught", list({json.dumps(dialogue): dialogue for dialogue in script.dialogues}.values()))
    with serving(tmp_path / "taught") as url:
        assert run(root, tmp_path / "served", url, capsys) == expected
