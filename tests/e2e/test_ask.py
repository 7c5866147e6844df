"""The `ask` command: answers, votes, follow-up questions and errors."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import re
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import anyio
import pytest

from jaxrl_sql.api import policy_spec
from jaxrl_sql.commands.ask import main, show
from jaxrl_sql.config import EvaluateConfig, load_config
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.inference.ask import Asker, Reply, choose_reply
from jaxrl_sql.models.formats.hf import load_checkpoint
from jaxrl_sql.serving.mcp import make_server, open_database
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.evals.records import QuestionAnswers
from jaxrl_sql.types import Example

CONFIGS = Path(__file__).parents[2] / "configs"
MODEL = CONFIGS / "quickstart_start"
QUICK = ["data.prompt=compact", "evaluate.sampling.max_new_tokens=48", "evaluate.max_num_seqs=16"]


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """Return a database and questions on it."""
    folder = tmp_path_factory.mktemp("data")
    generate(folder, SynthSpec(seed=5, train_dbs=2, dev_dbs=1, unseen_dbs=1, train_questions=2, dev_questions=5))
    questions = [json.loads(line) for line in (folder / "dev/questions.jsonl").read_text().splitlines()]
    db_id = questions[0]["db_id"]
    return folder / f"dev/databases/{db_id}/{db_id}.sqlite", [item["question"] for item in questions]


def command(db: Path, *more: str, model: Path = MODEL) -> list[str]:
    return ["--model", str(model), "--db", str(db), *more, *(QUICK if model.parent == CONFIGS else [])]


def test_ask_prints_sql_and_its_rows(generated: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]) -> None:
    db, questions = generated
    codes = []
    for question in questions[:3]:
        codes.append(main(command(db, question)))
        sql, _, table = capsys.readouterr().out.partition("\n\n")
        rows = rows_of(db, sql)
        assert codes[-1] == (1 if isinstance(rows, str) else 0)
        assert all(text in table for text in ([rows] if isinstance(rows, str) else map(str, sum(rows[:3], ()))))
    assert 0 in codes


def test_answer_length_is_limited_by_the_positions_of_the_model(
    generated: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, questions = generated
    assert main([*command(db, questions[0]), "evaluate.sampling.max_new_tokens=100000"]) in {0, 1}
    assert "SELECT" in capsys.readouterr().out
    shutil.copytree(MODEL, tmp_path / "model")
    config = json.loads((MODEL / "config.json").read_text())
    codes, shown = [], []
    for positions in (8192, 1):  # enough, then below the prompt
        (tmp_path / "model/config.json").write_text(json.dumps(config | {"max_position_embeddings": positions}))
        codes.append(main([*command(db, questions[0], model=tmp_path / "model"), *QUICK, "data.schema=ddl"]))
        shown.append(capsys.readouterr())
    length = int(re.search(r"the prompt has (\d+) tokens", shown[1].err)[1])  # type: ignore[index]
    assert shown[1].err == (
        f"error: the prompt has {length} tokens, the answer may have 48, and the model has 1 positions (max_positions) "
        f"for both: shorten the prompt (data.schema=compact → {compact(shown[1].err)})\n"
    )
    (tmp_path / "model/config.json").write_text(json.dumps(config | {"max_position_embeddings": length + 2}))
    assert main([*command(db, questions[0], model=tmp_path / "model"), *QUICK, "data.schema=ddl"]) == 1
    cut = capsys.readouterr().out
    assert cut.startswith(
        f"the answer is truncated after 2 tokens: the prompt has {length} tokens, the answer may have 48"
    )
    assert f"the model has {length + 2} positions" in cut
    assert compact(cut) < length


def compact(message: str) -> int:
    """Return the prompt's length with the compact schema, by a message that suggests it."""
    match = re.search(r"data\.schema=compact → (\d+)", message)
    assert match is not None, message
    return int(match[1])


def rows_of(db: Path, sql: str) -> list[tuple[object, ...]] | str:
    """Return SQLite's rows or error message."""
    with closing(sqlite3.connect(db)) as connection:
        try:
            return connection.execute(sql).fetchall()
        except sqlite3.Error as error:
            return str(error)


@pytest.mark.slow
def test_candidates_are_printed_with_their_votes(
    generated: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    db, questions = generated
    for question in questions:  # the first question with an executable answer among six
        code = main(command(db, question, "--n", "6", "--explain"))
        shown = capsys.readouterr().out
        assert "candidates" in shown
        if code == 0:
            break
        assert shown.splitlines()[-1] == "vote: none of 6 answers executed"
    header = next(line for line in shown.splitlines() if "votes" in line and "SQL" in line)
    body = shown.splitlines()[shown.splitlines().index(header) + 2 :]
    rows = [line.split() for line in body[: body.index(next(line for line in body if not line.strip()))]]
    counted = [row for row in rows if len(row) > 4 and row[1].isdigit()]
    assert sum(int(row[1]) for row in counted) <= 6
    votes = [float(row[0]) for row in counted]
    assert votes[0] == max(votes)
    assert shown.splitlines()[-1].startswith(f"vote: {votes[0]:g} of 6 answers for this result, ")


def reply_of(sqls: list[str | None], db: Path, vote: str, reasons: tuple[str, ...] = (), limit: str = "") -> Reply:
    example = Example("q", "d", str(db), "How many?", "")
    answered = QuestionAnswers(tuple(sqls), tuple(sql or "" for sql in sqls), finish_reasons=reasons)
    config = load_config(EvaluateConfig, None, [f"evaluate.vote={vote}", "evaluate.sampling.max_new_tokens=7"])
    with make_executor(config.executor) as executor:
        return choose_reply(executor, example, answered, config.evaluate, limit)


@pytest.mark.parametrize(
    ("sqls", "votes", "report"),
    [
        (
            ["SELECT 1"] * 3 + ["SELECT 2", None],
            (3, 1),
            "3 of 5 answers for this result, 1 for the next, a margin of 2",
        ),
        (
            ["SELECT 2", "SELECT 1", "SELECT 1+0"],
            (2, 1),
            "2 of 3 answers for this result, 1 for the next, a margin of 1",
        ),
        (["SELECT 1", "SELECT 1"], (2,), "2 of 2 answers for this result, no other result"),
        (["SELECT nothing", None], (), "none of 2 answers executed"),
    ],
)
def test_a_vote_is_reported_with_its_margin(
    sqls: list[str | None], votes: tuple[float, ...], report: str, generated: tuple[Path, list[str]]
) -> None:
    reply = reply_of(sqls, generated[0], "result")
    assert (reply.answers, reply.votes) == (len(sqls), votes)
    assert reply.margin == (votes[0] - votes[1] if len(votes) > 1 else sum(votes))
    stream = io.StringIO()
    show(reply, False, stream)
    assert stream.getvalue().splitlines()[-1] == f"vote: {report}"


def test_a_soft_vote_has_a_margin_between_results(generated: tuple[Path, list[str]]) -> None:
    reply = reply_of(["SELECT 1", "SELECT 1", "SELECT 1", "SELECT 2"], generated[0], "soft")
    assert len(reply.votes) == 2
    assert reply.margin == pytest.approx(2.0), "two other results are similar, and none resembles the last"


CUT = "truncated at the token limit: raise evaluate.sampling.max_new_tokens above 7"


@pytest.mark.parametrize(
    ("reasons", "limit", "note"),
    [
        (("stop",), "", ""),
        (("length",), "", f"the answer is {CUT}"),
        (
            ("length",),
            "no positions",
            "the answer is truncated: no positions",
        ),
        (("content_filter",), "", "the answer is truncated by the server's content filter"),
        (("stop", "length", "length"), "", f"2 of 3 answers are {CUT}"),
        (("length", "stop", "length"), "", f"the answer is {CUT}"),
    ],
)
def test_a_truncated_answer_is_reported(
    reasons: tuple[str, ...], limit: str, note: str, generated: tuple[Path, list[str]]
) -> None:
    reply = reply_of(["SELECT 1"] * len(reasons), generated[0], "result", reasons, limit)
    assert (reply.finish_reason, reply.note) == (reasons[0], note)
    shown = io.StringIO()
    show(reply, False, shown)
    assert ("\n".join(shown.getvalue().splitlines()).count(note) == 1) == bool(note)
    assert any(text in shown.getvalue() for text in ("cut", "truncated")) == bool(note)


def test_a_truncated_answer_that_fails_is_shown_as_cut_and_not_as_an_error(generated: tuple[Path, list[str]]) -> None:
    example = Example("q", "d", str(generated[0]), "How many?", "")
    answered = QuestionAnswers(("SELECT 1 +",), ("SELECT 1 +",), tokens=7, finish_reasons=("length",))
    config = load_config(EvaluateConfig, None, ["evaluate.sampling.max_new_tokens=7"])
    with make_executor(config.executor) as executor:
        reply = choose_reply(executor, example, answered, config.evaluate)
    shown = io.StringIO()
    assert show(reply, False, shown) == 1
    note = "the answer is truncated after 7 tokens: raise evaluate.sampling.max_new_tokens above 7"
    assert shown.getvalue() == f"{note}\n\nSELECT 1 +\n\n"


def test_a_single_answer_has_no_vote(generated: tuple[Path, list[str]]) -> None:
    shown = io.StringIO()
    show(reply_of(["SELECT 1"], generated[0], "result"), False, shown)
    assert "vote" not in shown.getvalue()


def test_the_prompt_supports_line_editing(tmp_path: Path) -> None:
    """On a terminal: arrow keys, completion of database names, history, and Ctrl-D."""
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.execute("CREATE TABLE customers(id INTEGER, city TEXT)")
    code = (
        "import sys; from pathlib import Path; from jaxrl_sql.commands.ask import question_reader\n"
        "read = question_reader(Path('shop.sqlite'))\n"
        "print('read', [read() for _ in range(3)])"
    )
    here, there = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=there, stdout=there, stderr=there, cwd=tmp_path,
        env=os.environ | {"PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"},
    )  # fmt: skip
    os.close(there)
    output = b""
    begun = b"question:\x1b[9D\x1b[10C"  # an empty line with its cursor
    for shown, typed in (
        (begun, b"Hw many custom\t"), (b"ers", b"\x1b[H\x1b[Co\r"), (begun, b"\x1b[A?\r"), (begun, b"\x04"),
    ):  # fmt: skip
        while shown not in output:
            output += os.read(here, 4096)
        os.write(here, typed)
        output = output.partition(shown)[2]
    with contextlib.suppress(OSError):  # Linux's end of a terminal
        while more := os.read(here, 4096):
            output += more
    os.close(here)
    assert process.wait(300) == 0
    assert "read ['How many customers', 'How many customers?', '']" in output.decode()


def test_piped_questions_end_at_an_empty_line(
    generated: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, questions = generated
    opened: list[object] = []
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{questions[0]}\n{'why ' * 300}\n{questions[1]}\n\n{questions[2]}\n"))
    monkeypatch.setattr("jaxrl_sql.inference.policy_client.load_checkpoint", _count(opened))
    assert main(command(db, "data.max_prompt_tokens=320")) == 0
    shown = capsys.readouterr()
    assert shown.out.count("SELECT") >= 2
    assert shown.err.count("error: ") == 1
    prompt = r"error: the prompt has (\S+) tokens, and the limit is data\.max_prompt_tokens=320: "
    match = re.search(prompt + r"data\.max_prompt_tokens=(\S+) → fits", shown.err)
    assert match is not None, shown.err
    assert int(match[1].replace(",", "")) == int(match[2]) > 320
    assert len(opened) == 1, "the model is loaded once"


def test_questions_with_invalid_utf_8_are_accepted(
    generated: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    db, questions = generated
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"Caf\xe9: {questions[0]}\n".encode("latin-1"))))
    assert main(command(db, "--evidence", "caf\udce9")) == 0
    assert capsys.readouterr().out.count("SELECT") == 1


def _count(calls: list[object]) -> object:
    def load(*arguments: object, **named: object) -> object:
        calls.append(arguments)
        return load_checkpoint(*arguments, **named)  # type: ignore[arg-type]

    return load


@pytest.mark.slow
def test_ask_uses_the_dialogue_settings_of_the_run(
    generated: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, questions = generated
    shutil.copytree(CONFIGS / "recipes_start", tmp_path / "run/model")
    (tmp_path / "run/config.yaml").write_text(
        "recipe: skyrl_sql\ndata: {prompt: tagged, max_prompt_tokens: 320}\n"
        "sampling: {turns: 3, max_new_tokens: 96, max_total_tokens: 320}\n"
        "validation: {sampling: {max_new_tokens: 96}, max_num_seqs: 16}\n"
    )
    for question in questions[:3]:
        assert main(command(db, question, "--explain", model=tmp_path / "run")) in (0, 1)
    shown = capsys.readouterr().out
    assert "<observation>" in shown
    assert "<solution>" in shown


def test_mcp_ask_tool_answers_a_question(generated: tuple[Path, list[str]]) -> None:
    db, questions = generated
    config = load_config(EvaluateConfig, None, [f"model.checkpoint={MODEL}", *QUICK])

    async def call() -> list[tuple[bool, str]]:
        import mcp

        replies = []
        with open_database(str(db), config.executor) as database:
            asker = Asker(policy_spec(config), config.evaluate, config.executor)
            async with mcp.Client(make_server(database, asker)) as client:
                for question in (questions[0], " "):
                    reply: Any = await client.call_tool("ask", {"question": question})
                    replies.append((bool(reply.is_error), reply.content[0].text))
            asker.close()
        return replies

    (is_error, text), empty = anyio.run(call)
    assert "SELECT" in text
    assert is_error or set(json.loads(text)) == {"sql", "finish_reason", "note", "columns", "rows", "is_cut"}
    assert empty[0]
    assert "the question is empty" in empty[1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ([" "], "the question is empty"),
        (["How many?", "And why?"], "expected one question"),
        (
            ["How many?", "evaluate.sampling.turns=3", "evaluate.sampling.max_total_tokens=99", "data.prompt=tagged"],
            "answers in one turn",
        ),
        (["How many?", "--recipe", "artic"], "the nearest is arctic"),
        (["How many?", "--n", "0"], "evaluate.samples=0 must be above 0"),
        (["How many?", "evaluate.sample=3"], "the nearest is evaluate.samples"),
    ],
)
def test_invalid_arguments_are_reported_in_one_line(
    arguments: list[str], error: str, generated: tuple[Path, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command(generated[0]), *arguments]) == 2
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: ")
    assert stderr.count("\n") == 1
    assert error in stderr


@pytest.mark.parametrize("named_by", ["run", "config", "override"])
def test_database_of_the_configuration_or_of_the_run_needs_no_option(
    named_by: str, generated: tuple[Path, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, (question, *_) = generated
    run, config = tmp_path / "run", tmp_path / "shop.yaml"
    shutil.copytree(MODEL, run / "model")
    other = tmp_path / "other.sqlite"
    other.touch()
    (run / "config.yaml").write_text(f"data: {{prompt: compact, database: '{db if named_by == 'run' else other}'}}\n")
    config.write_text(f"data: {{database: '{db if named_by == 'config' else other}'}}\n")
    options = {"run": [], "config": ["--config", str(config)], "override": [f"data.database={db}"]}[named_by]
    assert main(["--model", str(run), question, *options, *QUICK]) in {0, 1}
    expected = capsys.readouterr().out
    assert main(command(db, question, model=run) + QUICK) in {0, 1}
    assert capsys.readouterr().out == expected
    assert "SELECT" in expected


def test_an_invalid_database_or_model_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(command(tmp_path / "none.sqlite", "How many?")) == 2
    assert "none.sqlite: no such file" in capsys.readouterr().err
    text = tmp_path / "text.sqlite"
    text.write_text("no database" * 99)
    assert main(command(text, "How many?")) == 2
    with closing(sqlite3.connect(tmp_path / "empty.sqlite")) as connection:
        connection.execute("VACUUM")
    assert main(command(tmp_path / "empty.sqlite", "How many?")) == 2
    assert main(command(tmp_path / "empty.sqlite", "How many?", model=tmp_path / "nowhere")) == 2
    output = capsys.readouterr().err
    assert output.count("error: ") == 3
    assert "no tables" in output


def test_an_endpoint_answers(
    generated: tuple[Path, list[str]],
    chat_server: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    db, questions = generated
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with chat_server.serve_script(lambda _n, _body: chat_server.assistant("```sql\nSELECT 41 + 1\n```")) as (
        url,
        requests,
    ):
        assert main(["--endpoint", url, "--model", "m", "--db", str(db), questions[0]]) == 0
    assert capsys.readouterr().out.startswith("SELECT 41 + 1\n")
    assert [(item["model"], item["key"]) for item in requests] == [("m", None)]
    assert questions[0] in requests[0]["messages"][-1]["content"]


@pytest.mark.parametrize(
    ("message", "has_setting"),
    [
        ("max_tokens is at most 24 here, not 1024", True),
        ("'max_tokens' or 'max_completion_tokens' is too large: 1024. The maximum is 24", True),
        ("max_tokens is unsupported", False),
    ],
)
def test_a_refused_token_limit_names_its_setting(
    message: str,
    has_setting: bool,
    generated: tuple[Path, list[str]],
    chat_server: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    db, questions = generated
    body = json.dumps({"error": {"message": message}})
    with chat_server.serve_script(lambda _n, _body: (400, {}, body)) as (url, _requests):
        assert main(["--endpoint", url, "--model", "m", "--db", str(db), questions[0]]) == 2
    advice = ": lower evaluate.sampling.max_new_tokens" if has_setting else ""
    assert capsys.readouterr().err == f"error: not answered: HTTP 400 {message}{advice}\n"


def test_an_endpoint_is_asked_as_in_the_configuration_without_its_checkpoint(
    generated: tuple[Path, list[str]], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    db, questions = generated
    file = tmp_path / "run.yaml"
    file.write_text(
        "data: {prompt: tagged}\nmodel: {checkpoint: no/such}\nvalidation: {sampling: {max_new_tokens: 24}}\n"
    )
    with chat_server.serve_script(lambda _n, _body: chat_server.assistant("```sql\nSELECT 41\n```")) as (url, requests):
        command = ["--endpoint", url, "--model", "m", "--config", str(file), "--db", str(db), questions[0]]
        assert main(command) == 0
    assert [item["max_tokens"] for item in requests] == [24]
    assert "an endpoint gets chats, not the prompts of data.prompt=tagged" in capsys.readouterr().err


def test_a_truncated_endpoint_answer_is_reported_by_ask_and_by_mcp(
    generated: tuple[Path, list[str]], chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    db, questions = generated
    texts = iter(["```sql\nSELECT 41\n```", "```sql\nSELECT 41\n```", "I think", "```sql\nSELECT 41 +\n```"])

    def script(_number: int, _body: dict[str, Any]) -> Any:
        return chat_server.assistant(next(texts), finish_reason="length")

    async def call(config: EvaluateConfig) -> list[str]:
        import mcp

        with open_database(str(db), config.executor) as database:
            asker = Asker(policy_spec(config), config.evaluate, config.executor)
            async with mcp.Client(make_server(database, asker)) as client:
                replies: list[Any] = [await client.call_tool("ask", {"question": questions[0]}) for _ in range(3)]
            asker.close()
        return [reply.content[0].text for reply in replies]

    with chat_server.serve_script(script) as (url, _requests):
        overrides = [
            f"evaluate.base_url={url}",
            "evaluate.model=m",
            "evaluate.key_env=''",
            "evaluate.sampling.max_new_tokens=7",
        ]
        assert main(["--endpoint", url, "--model", "m", "--db", str(db), questions[0], *overrides]) == 0
        answered, *failed = anyio.run(call, load_config(EvaluateConfig, None, [*overrides, "data.prompt=chat"]))
    cut = CUT.replace("at the token limit", "after 4 tokens")  # the server's count
    assert f"the answer is {cut}" in capsys.readouterr().out
    reply = json.loads(answered)
    assert (reply["sql"], reply["finish_reason"], reply["note"]) == ("SELECT 41", "length", f"the answer is {cut}")
    assert all(
        "truncated after" in text and "raise evaluate.sampling.max_new_tokens above 7" in text for text in failed
    )
