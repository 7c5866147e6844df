"""Distillation with a real teacher server (right, wrong, slow or failing) and SQL that is executed."""

from __future__ import annotations

import json
import re
import resource
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.commands.distill import main
from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.inference.distillation import judge
from jaxrl_sql.inference.training_set import load_split_questions
from jaxrl_sql.runtime.endpoint import EndpointAnswer
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.files.traces import load_traces
from jaxrl_sql.text2sql.recipes import find_recipe

SMALL = Path(__file__).parents[1] / "small.yaml"

KEY = "sk-very-secret"
GOLD = "SELECT x FROM t ORDER BY x"


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("TEACHER_KEY", KEY)
    split = tmp_path / "data/train"
    database = split / "databases/a/a.sqlite"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("CREATE TABLE t(x); INSERT INTO t VALUES (1), (2);")
    names = ("right", "beside", "wrong", "mute", "fails", "busy", "down", "slow", "late")
    questions = [{"id": name, "db_id": "a", "question": f"<{name}>", "sql": GOLD} for name in names]
    questions.append({"id": "bad gold", "db_id": "a", "question": "<bad>", "sql": "SELECT y FROM t"})
    (split / "questions.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    return [
        "data.source=folder", f"data.dir={tmp_path}/data", "recipe=arctic", f"distill.out={tmp_path}/out",
        "distill.model=teacher", "distill.key_env=TEACHER_KEY", "distill.wait_s=0.01", "distill.retries=2",
        "distill.timeout_s=5", "distill.concurrency=3", "distill.samples=2",
    ]  # fmt: skip


class Teacher:
    """Answers by the name in the question, and counts requests per name."""

    def __init__(self, chat_server: ModuleType) -> None:
        self.assistant, self.times, self.lock, self.is_well = (
            chat_server.assistant,
            Counter[str](),
            threading.Lock(),
            False,
        )
        self.is_slow_again = threading.Event()

    def __call__(self, _number: int, body: dict[str, Any]) -> Any:
        (message,) = body["messages"]
        assert "CREATE TABLE" in message["content"]
        result = re.search(r"Question:\s+<(\w+)>", message["content"])
        assert result
        name = result[1]
        with self.lock:
            self.times[name] += 1
            time_asked = self.times[name]
        if self.is_well:
            name = "right"
        if name == "down" or (name == "busy" and time_asked == 1):
            return (500 if name == "down" else 429), {}, f"no {KEY}"
        if name == "slow":
            if time_asked > 1:
                self.is_slow_again.set()
            self.is_slow_again.wait(120)  # the first request ends when its client has sent the next
        sql = {"wrong": "SELECT 7", "fails": "SELECT z FROM t"}.get(name, "SELECT x FROM t")
        if name == "late" and time_asked == 1:
            sql = "SELECT 8"
        if name == "mute":
            return self.assistant("I do not know.")
        if name == "beside":
            return self.assistant(f"<answer>\n```sql\n{sql}\n```\n</answer>", reasoning_content="thought beside")
        return self.assistant(f"<think>\nthought of {name}\n</think>\n<answer>\n```sql\n{sql}\n```\n</answer>")


@pytest.mark.parametrize("recipe", ["arctic", "sql_r1", "think2sql"])
def test_a_thought_opened_by_the_server_prompt_is_kept(arguments: list[str], recipe: str) -> None:
    config = load_config(TrainConfig, SMALL, [*arguments[:2], f"recipe={recipe}"])
    (example, *_) = load_split_questions(config.data, "train", 0, None).examples
    result = find_recipe(recipe)
    answer = EndpointAnswer(f"\nthose of t\n</think>\n<answer>\n```sql\n{GOLD}\n```\n</answer>", finish_reason="stop")
    with make_executor(config.executor) as executor:
        record = judge(executor, result, result.endpoint_style(config.data), example, answer)
    assert (record["verdict"], record["reasoning"], record["sql"]) == ("right", "those of t", GOLD)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_right_answers_are_kept_and_the_rest_counted(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, out = Teacher(chat_server), tmp_path / "out"
    with chat_server.serve_script(teacher) as (url, seen):
        command = [*arguments, f"distill.base_url={url}"]
        assert main(command) == 0
        traces = lines(out / "traces.jsonl")
        assert [trace["id"] for trace in traces] == ["right", "beside", "busy", "slow", "late"]
        assert [item["reasoning"] for item in traces[:3]] == ["thought of right", "thought beside", "thought of busy"]
        assert {(entry["sql"], entry["model"]) for entry in traces} == {("SELECT x FROM t", "teacher")}
        assert set(load_traces(out / "traces.jsonl")) == {element["id"] for element in traces}
        rejected = {line["id"]: line["reason"] for line in lines(out / "rejected.jsonl")}
        assert rejected == {
            "wrong": "wrong", "mute": "no_sql", "fails": "schema_error", "down": "failed",
            "bad gold": "gold fails: schema_error",
        }  # fmt: skip
        assert dict(teacher.times) == {
            "right": 1, "beside": 1, "wrong": 2, "mute": 2, "fails": 2, "busy": 2, "down": 3, "slow": 2, "late": 2,
        }  # fmt: skip
        counts = json.loads((out / "counts.json").read_text())
        assert (counts["traces"], counts["rejected"], counts["requests"]) == (5, 5, len(seen))
        assert {request["key"] for request in seen} == {f"Bearer {KEY}"}

        teacher.times.clear()
        teacher.is_well = True
        assert main(command) == 0
        assert dict(teacher.times) == {"down": 1}, "a second run only requests missing answers"
        assert [trace["id"] for trace in lines(out / "traces.jsonl")][-1] == "late"
        assert "down" in {trace["id"] for trace in lines(out / "traces.jsonl")}
        assert main([*command, "executor.vm_steps=1000"]) == 2
    captured = capsys.readouterr()
    everything = captured.out + captured.err + "".join(path.read_text() for path in out.iterdir())
    assert KEY not in everything
    assert "was started with executor.vm_steps=300000000, not 1000" in captured.err


def test_truncated_right_answers_are_not_kept(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A truncated wrong answer stays wrong and is counted."""
    out, reasons = tmp_path / "out", {"right": "length", "beside": "content_filter", "wrong": "length"}
    teacher = Teacher(chat_server)
    teacher.is_well = True

    def script(number: int, body: dict[str, Any]) -> Any:
        name = re.findall(r"Question:\s+<(\w+)>", body["messages"][0]["content"])[0]
        status, headers, message = teacher(number, body)
        if name == "wrong":
            message["content"] = message["content"].replace("SELECT x", "SELECT 7")
        return status, headers, message | {"finish_reason": reasons.get(name, "stop")}

    with chat_server.serve_script(script) as (url, _seen):
        assert main([*arguments, f"distill.base_url={url}"]) == 0
    traces, rejected = lines(out / "traces.jsonl"), lines(out / "rejected.jsonl")
    assert {trace["id"] for trace in traces} == {"mute", "fails", "busy", "down", "slow", "late"}
    assert {trace["finish_reason"] for trace in traces} == {"stop"}
    assert {line["id"]: line["reason"] for line in rejected if line["id"] in reasons} == {
        "right": "truncated", "beside": "truncated", "wrong": "wrong",
    }  # fmt: skip
    assert [answer["finish_reason"] for line in rejected for answer in line.get("answers", ())] == [
        "length", "length", "content_filter", "content_filter", "length", "length",
    ]  # fmt: skip
    counts = json.loads((out / "counts.json").read_text())
    assert (counts["truncated"], counts["answers: truncated"], counts["answers: wrong"]) == (4, 4, 2)
    warning = "warning: 4 of 12 answers (33.3%) are truncated at the token limit: raise distill.max_tokens above 4,096"
    assert warning in capsys.readouterr().out


def test_spending_is_reported_and_limited_across_runs(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, out = Teacher(chat_server), tmp_path / "out"
    teacher.is_well = True
    with chat_server.serve_script(teacher) as (url, seen):
        command = [
            *arguments, f"distill.base_url={url}", "distill.concurrency=1", "distill.prompt_price=0",
            "distill.completion_price=1e6", "distill.token_limit=max_completion_tokens",
        ]  # fmt: skip
        assert main([*command, "distill.max_cost=1"]) == 0
        first = len(seen)
        assert main([*command, "distill.max_cost=1"]) == 0
        assert first == len(seen) == 1, "the first answer exceeds the budget"
        assert "distill.max_cost=1.0 is reached; a larger number continues" in capsys.readouterr().out
        assert main(command) == 0
    records = lines(out / "answers.jsonl")[1:]
    counts = json.loads((out / "counts.json").read_text())
    assert counts["requests"] == len(seen) == len(records) == 9
    assert counts["cost"] == counts["completion_tokens"] == sum(record["completion_tokens"] for record in records) > 9
    assert counts["prompt_tokens"] == sum(len(entry["messages"][0]["content"].split()) for entry in seen)
    assert {item["max_completion_tokens"] for item in seen} == {4096}
    assert "question 9/9 requests 9 prompt tokens" in capsys.readouterr().out


def test_token_budget_holds_across_runs(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, out = Teacher(chat_server), tmp_path / "out"
    teacher.is_well = True
    with chat_server.serve_script(teacher) as (url, seen):
        command = [*arguments, f"distill.base_url={url}"]
        assert main([*command, "distill.max_requests=4"]) == 0
        assert len(seen) == len(lines(out / "traces.jsonl")) == 4
        assert "a larger number continues" in capsys.readouterr().out
        assert main([*command, "distill.max_requests=4"]) == 0
        assert len(seen) == 4
        assert main([*command, "distill.max_requests=6"]) == 0
        assert len(seen) == 6
        assert main(command) == 0
        assert len(seen) == 9
    assert [line["reason"] for line in lines(out / "rejected.jsonl")] == ["gold fails: schema_error"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["distill.key_env=NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["distill.base_url="], "distill.base_url"),
        (["distill.model="], "distill.model"),
        (["distill.wanted=3"], "must be at most distill.samples"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(
    overrides: list[str], message: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "distill.base_url=http://127.0.0.1:9", *overrides]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_rejected_key_stops_the_command(
    arguments: list[str], chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server.serve_script(lambda _, __: (401, {}, "who are you?")) as (url, seen):
        assert main([*arguments, f"distill.base_url={url}"]) == 2
    assert len(seen) <= 3
    assert "HTTP 401 who are you?" in capsys.readouterr().err


def test_a_failing_teacher_is_reported_with_its_reason(
    arguments: list[str], chat_server: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with chat_server.serve_script(lambda _, __: (500, {}, "out of order")) as (url, _):
        assert main([*arguments, f"distill.base_url={url}", "distill.retries=0"]) == 1
    output = capsys.readouterr().err
    assert re.search(r"not answered: 9, of which 9 because of: .*out of order", output), output


def test_a_full_disk_is_reported_and_the_command_resumes(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, out = Teacher(chat_server), tmp_path / "out"
    teacher.is_well = True
    with chat_server.serve_script(teacher) as (url, seen):
        command = [*arguments, f"distill.base_url={url}", "distill.concurrency=1"]
        _, hard = before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
        try:
            assert main(command) == 1
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        output = capsys.readouterr().err
        assert output == f"error: {out}/answers.jsonl cannot be written: File too large; repeat the command to resume\n"
        remaining = (out / "answers.jsonl").read_text().count("\n") - 1
        assert remaining > 0
        lost = len(seen) - remaining
        assert main(command) == 0
        assert len(seen) - lost == 9, "stored answers are not requested again"


def test_only_changed_questions_are_requested_again(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    teacher, split = Teacher(chat_server), tmp_path / "data/train"
    teacher.is_well = True
    questions = lines(split / "questions.jsonl")

    def asks(url: str, count: int) -> list[str]:
        teacher.times.clear()
        (split / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
        assert main([*arguments, f"distill.base_url={url}"]) == 0
        counts = json.loads((tmp_path / "out/counts.json").read_text())
        assert (counts["traces"], counts["answers: right"]) == (count, count), "old answers are not counted"
        return sorted(teacher.times)

    with chat_server.serve_script(teacher) as (url, _):
        assert len(asks(url, 9)) == 9
        questions[0]["question"] = "<other>"
        questions[1]["sql"] = "SELECT x FROM t"
        questions.append({**questions[2], "id": "new", "question": "<new>"})
        capsys.readouterr()
        assert asks(url, 10) == ["beside", "new", "other"]
        changed = "asked again: 2 questions whose text, gold or database has changed\n"
        assert capsys.readouterr().err == changed
        assert asks(url, 10) == []
        assert "asked again" not in capsys.readouterr().err
        with closing(sqlite3.connect(split / "databases/a/a.sqlite")) as connection:
            connection.execute("INSERT INTO t VALUES (3)")
            connection.commit()
        assert len(asks(url, 10)) == 10
