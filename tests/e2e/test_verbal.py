"""Verbal RL with a real server (right, wrong, mute, busy or killed) and with a small local model."""

from __future__ import annotations

import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.commands.verbal import main
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.runtime.evaluation_metrics import EVALUATION
from jaxrl_sql.runtime.metric_row import undocumented_names

ROOT = Path(__file__).parents[2]
KEY = "sk-very-secret"
RIGHT, SAME = "SELECT x FROM t ORDER BY x", "SELECT x FROM t WHERE x > 0"
WRONG, OTHER, EMPTY = "SELECT 7 AS x FROM t", "SELECT 8 AS x FROM t", "SELECT x FROM t WHERE x > 9"

# The queries written for each question in turn, and its judge's scores of three candidates.
ANSWERS = {
    "plain": ([WRONG, RIGHT, OTHER], "<scores>0.2, 0.9, 0.1</scores>"),
    "vote": ([RIGHT, SAME, WRONG], "thinking …\n<scores>0.2, 0.3, 0.9</scores>"),
    "slow": ([WRONG, WRONG, RIGHT, WRONG, RIGHT, OTHER], "<scores>[0, 1, 0]</scores>"),
    "babble": ([WRONG, RIGHT, OTHER], "The second is best."),
    "empty": ([EMPTY], ""),
    "mute": ([None], ""),
    "refused": ([None], ""),
    "busy": ([WRONG, RIGHT, OTHER], "<scores>0, 1, 0</scores>"),
}


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("VERBAL_KEY", KEY)
    split = tmp_path / "data/dev"
    database = split / "databases/a/a.sqlite"
    database.parent.mkdir(parents=True)
    with closing(sqlite3.connect(database)) as connection:
        connection.executescript("CREATE TABLE t(x INTEGER); INSERT INTO t VALUES (1), (2);")
    questions = [{"id": name, "db_id": "a", "question": f"<{name}>", "sql": RIGHT} for name in ANSWERS]
    (split / "questions.jsonl").write_text("".join(json.dumps(request) + "\n" for request in questions))
    return [
        "recipe=paverl", "data.source=folder", f"data.dir={tmp_path}/data", "data.evals=[dev]", "run.display=plain",
        "verbal.model=m", "verbal.key_env=VERBAL_KEY", "verbal.wait_s=0.01", "verbal.retries=1",
        "verbal.concurrency=1", "verbal.candidates=3", "verbal.attempts=3", "verbal.rounds=4", "verbal.batch=3",
        "verbal.prompt_price=1e6", "verbal.completion_price=1e6", f"verbal.out={tmp_path}/out",
    ]  # fmt: skip


class Server:
    """Answers by the name in the question, stage by stage; `before` can inspect each request first."""

    def __init__(self, chat_server: ModuleType, before: Callable[[str], None] = lambda _: None) -> None:
        self.assistant, self.times, self.lock, self.before = (
            chat_server.assistant,
            Counter[str](),
            threading.Lock(),
            before,
        )

    def __call__(self, _number: int, body: dict[str, Any]) -> Any:
        (message,) = body["messages"]
        text = message["content"]
        assert "--MIN 1 MAX 2" in text, "the schema is shown as a profile"
        result = re.search(r"Question:\s+<(\w+)>", text)
        assert result
        name, is_judge = result[1], "Candidate 1:" in text
        self.before(name)
        stage = f"{name}/{'judge' if is_judge else 'candidates'}"
        with self.lock:
            self.times[stage] += 1
            time_asked = self.times[stage] - 1
        if name == "refused":
            return 400, {}, "too long"
        if name == "busy" and time_asked == 0:
            with self.lock:
                self.times[stage] += 2  # it continues with the first of the three
            return 429, {}, "slow down"
        sqls, scores = ANSWERS[name]
        if is_judge:
            assert body["temperature"] == 0.8
            return self.assistant(scores, finish_reason="length" if name == "babble" else "stop")
        sql = sqls[time_asked % len(sqls)]
        if sql == EMPTY:
            return self.assistant(f"```sql\n{sql}\n```", finish_reason="length")
        return self.assistant("I do not know." if sql is None else f"So:\n```sql\n{sql}\n```")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_best_candidate_is_chosen_and_compared(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    server = Server(chat_server)
    with chat_server.serve_script(server) as (url, seen):
        assert main([*arguments, f"verbal.base_url={url}"]) == 0
    captured = capsys.readouterr()
    predictions = {line["id"]: line["sql"] for line in lines(out / "predictions.jsonl")}
    assert list(predictions) == list(ANSWERS)
    babble = predictions.pop("babble")
    assert babble in {WRONG, RIGHT, OTHER}
    assert predictions == {
        "plain": RIGHT, "vote": WRONG, "slow": RIGHT, "empty": EMPTY, "mute": None, "refused": None, "busy": RIGHT,
    }  # fmt: skip

    records = {item["id"]: item for item in lines(out / "records.jsonl")}
    slow = records["slow"]
    assert [(candidate["sql"], candidate["copies"], candidate["score"]) for candidate in slow["candidates"]] == [
        (WRONG, 3, 0.0), (RIGHT, 2, 1.0), (OTHER, 1, 0.0),
    ]  # fmt: skip
    assert (slow["attempts"], slow["replies"], slow["unread"]) == (6, [[0, 1, 0]] * 4, 0)
    assert (slow["spent"]["requests"], server.times["slow/judge"]) == (10, 4)
    assert (records["babble"]["replies"], records["babble"]["unread"]) == ([], 8)
    assert (records["empty"]["attempts"], records["empty"]["empty"]) == (9, 9)
    assert records["babble"]["finish_reasons"] == {"candidates": {"stop": 3}, "judge": {"length": 8}}
    assert records["empty"]["finish_reasons"] == {"candidates": {"length": 9}}
    assert records["refused"]["finish_reasons"] == {"candidates": {}}
    assert (records["mute"]["attempts"], records["mute"]["without_sql"]) == (9, 9)
    assert (records["refused"]["attempts"], records["refused"]["unanswered"]) == (3, 3)
    assert records["busy"]["spent"]["requests"] == (3 + 1) + (4 + 1)

    numbers = json.loads((out / "metrics.json").read_text())
    assert undocumented_names(numbers, EVALUATION) == [], "add a row to jaxrl_sql/runtime/evaluation_metrics.py"
    right = [name for name, sql in [*predictions.items(), ("babble", babble)] if sql == RIGHT]
    assert numbers["count"] == 8
    for rule in ("bird", "ex_b", "paverl"):
        assert numbers[rule] == len(right) / 8
        assert numbers[f"first/{rule}"] == 1 / 8  # vote
        assert numbers[f"majority/{rule}"] == 1 / 8  # vote; the others are ties, or WRONG has most copies
        assert numbers[f"best/{rule}"] == 5 / 8
        assert numbers[f"gain/{rule}"] == pytest.approx((len(right) - 1) / 8)
    assert (numbers["unfinished"], numbers["skipped"], numbers["unread"]) == (0, 0, 8)
    attempts, replies = numbers["attempts"] - numbers["unanswered"], numbers["replies"] + numbers["unread"]
    assert (numbers["truncated"], numbers["truncated/judge"]) == (9 / attempts, 8 / replies)
    assert f"warning: 9 of {attempts} answers " in captured.out
    assert "are truncated at the token limit: raise verbal.max_tokens above 2,048" in captured.out
    assert f"warning: 8 of {replies} judge's replies " in captured.out
    assert "are truncated at the token limit: raise verbal.judge_max_tokens above 1,024" in captured.out
    assert numbers["requests"] == len(seen)
    assert numbers["cost"] == numbers["prompt_tokens"] + numbers["completion_tokens"] > 0
    assert "3 attempts were not answered; " in captured.err
    assert re.search(r"verbal RL +\d\d\.\d", captured.out)
    assert re.search(r"question 8/8 requests \d+ prompt tokens [\d,]+ completion tokens \d+ cost", captured.out)
    everything = captured.out + captured.err + "".join(path.read_text() for path in out.iterdir())
    assert KEY not in everything


def test_a_list_of_ids_selects_questions(arguments: list[str], chat_server: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "ids.json").write_text('[{"question_id": "busy"}, {"question_id": "plain"}]')
    listed = f"verbal.include_ids={tmp_path}/ids.json"
    with chat_server.serve_script(Server(chat_server)) as (url, _):
        assert main([*arguments, f"verbal.base_url={url}", listed]) == 0
        numbers = json.loads((tmp_path / "out/metrics.json").read_text())
        assert (numbers["count"], numbers["accuracy"], numbers["unfinished"]) == (2, 1.0, 0)


def test_a_larger_budget_resumes_to_equal_results(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, parts = tmp_path / "out", tmp_path / "parts"
    with chat_server.serve_script(Server(chat_server)) as (url, all_seen):
        assert main([*arguments, f"verbal.base_url={url}"]) == 0
    capsys.readouterr()
    with chat_server.serve_script(Server(chat_server)) as (url, seen):
        command = [*arguments, f"verbal.base_url={url}", f"verbal.out={parts}"]
        assert main([*command, "verbal.max_requests=11"]) == 0
        assert len(seen) == 11
        output = capsys.readouterr().out
        assert "8 of 8 questions are not finished, such as plain, vote, slow" in output
        assert "verbal.max_requests=11 is reached; a larger number continues" in output
        assert main([*command, "verbal.max_requests=40"]) == 0
        assert len(seen) == 40
        numbers = json.loads((parts / "metrics.json").read_text())
        assert numbers["count"] + numbers["unfinished"] == 8
        assert numbers["count"] >= 3
        assert main([*command, "verbal.max_cost=1"]) == 0
        assert len(seen) == 40, "more than the new limit was spent already"
        assert "verbal.max_cost=1.0 is reached" in capsys.readouterr().out
        assert main(command) == 0
        assert len(seen) == len(all_seen)
        assert main([*command, "verbal.key_env=NOT_SET"]) == 0, "a finished result needs no endpoint"
        file = tmp_path / "data/dev/questions.jsonl"
        before = file.read_text()
        file.write_text(before.replace("<mute>", "<loud>"))
        assert main(command) == 2
        assert (
            "mute was answered for a different text, gold or database: choose another folder" in capsys.readouterr().err
        )
        assert main([*command, "verbal.rounds=5"]) == 2
        assert "was started with verbal.rounds=4, not 5" in capsys.readouterr().err
    for name in ("predictions.jsonl", "records.jsonl", "metrics.json"):
        assert (parts / name).read_bytes() == (whole / name).read_bytes(), name
    assert len(seen) == len(all_seen), "known answers are not requested again"


@pytest.mark.parametrize("change", ["gold", "rows"])
def test_answers_to_a_changed_question_are_refused(
    change: str, arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    split = tmp_path / "data/dev"
    with chat_server.serve_script(Server(chat_server)) as (url, seen):
        command = [*arguments, f"verbal.base_url={url}", "verbal.max_requests=2"]
        assert main([*command, "data.select.limit_eval=1"]) == 0, "no question is finished"
        assert main([*command, "data.select.limit_eval=2"]) == 0, "questions may be added"
        if change == "rows":
            with closing(sqlite3.connect(split / "databases/a/a.sqlite")) as connection:
                connection.execute("INSERT INTO t VALUES (3)")
                connection.commit()
        else:
            path = split / "questions.jsonl"
            path.write_text(path.read_text().replace(RIGHT, "SELECT max(x) FROM t", 1))
        capsys.readouterr()
        assert main([*command, "verbal.max_requests=9"]) == 2
        assert len(seen) == 2
    output = capsys.readouterr().err
    assert "plain was answered for a different text, gold or database: choose another folder" in output
    assert output.count("\n") == 1


@pytest.mark.slow
def test_a_killed_run_resumes_to_equal_results(arguments: list[str], chat_server: ModuleType, tmp_path: Path) -> None:
    whole, killed = tmp_path / "out", tmp_path / "killed"
    with chat_server.serve_script(Server(chat_server)) as (url, all_seen):
        assert main([*arguments, f"verbal.base_url={url}"]) == 0

    process: list[subprocess.Popen[bytes]] = []
    counted = [0]

    def kill_at_the_twentieth(_name: str) -> None:
        counted[0] += 1
        if counted[0] == 20:
            process[0].send_signal(signal.SIGKILL)
            process[0].wait()
            raise OSError("killed")  # killed; this request is not counted

    server = Server(chat_server, kill_at_the_twentieth)

    def script(number: int, body: dict[str, Any]) -> Any:
        try:
            return server(number, body)
        except OSError:
            return 500, {}, ""

    with chat_server.serve_script(script) as (url, seen):
        command = [*arguments, f"verbal.base_url={url}", f"verbal.out={killed}"]
        run = [sys.executable, "-m", "jaxrl_sql", "verbal", *command]
        process.append(subprocess.Popen(run, stdout=subprocess.DEVNULL, env={**os.environ, "JAX_PLATFORMS": "cpu"}))
        assert process[0].wait() == -signal.SIGKILL
        assert len(seen) == 20
        assert not (killed / "predictions.jsonl").exists()
        path = killed / "answers.jsonl"
        path.write_text(path.read_text() + '{"answers": [{"id": "pl')
        assert main(command) == 0
    assert len(seen) == len(all_seen) + 1, "only the request in flight is sent again"
    for name in ("predictions.jsonl", "records.jsonl", "metrics.json"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes(), name


def test_a_dead_server_stops_the_run_and_a_failing_question_is_skipped(
    arguments: list[str], chat_server: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = {"slow"}

    def fail(name: str) -> None:
        if name in failing:
            raise OSError(name)

    server = Server(chat_server, fail)

    def script(number: int, body: dict[str, Any]) -> Any:
        try:
            return server(number, body)
        except OSError:
            return 503, {}, "down"

    with chat_server.serve_script(script) as (url, seen):
        command = [*arguments, f"verbal.base_url={url}", "verbal.retries=0"]
        assert main([*command, "verbal.batch=1"]) == 0
        assert "1 of 8 questions is not finished, such as slow" in capsys.readouterr().out
        assert [line["id"] for line in lines(tmp_path / "out/predictions.jsonl")] == [n for n in ANSWERS if n != "slow"]
        failing.clear()
        assert main(command) == 0
        assert [item["id"] for item in lines(tmp_path / "out/predictions.jsonl")] == list(ANSWERS)

        failing.update(ANSWERS)
        before = len(seen)
        assert main([*command, f"verbal.out={tmp_path}/down", "verbal.batch=8", "verbal.candidates=9"]) == 1
        assert "none of 8 answers arrived: HTTP 503 down" in capsys.readouterr().err
        assert len(seen) - before < 16, "a dead server does not get all requests"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["verbal.base_url=''"], "set model.checkpoint, or verbal.base_url"),
        (["verbal.model=''"], "name of a model"),
        (["verbal.key_env=NO_SUCH_KEY"], "NO_SUCH_KEY is not set"),
        (["data.evals=[dev,train]"], "one set at a time"),
        (["verbal.max_cost=1", "verbal.prompt_price=0", "verbal.completion_price=0"], "needs verbal.prompt_price"),
        (["verbal.token_limit=tokens"], "max_completion_tokens"),
        (["verbal.rounds=0"], "verbal.rounds=0 must be above 0"),
    ],
)
def test_invalid_settings_are_reported_in_one_line(
    overrides: list[str], message: str, arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "verbal.base_url=http://127.0.0.1:9", *overrides]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.nightly
def test_a_local_model_chooses_among_its_candidates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shipped model writes SQL without scores: its choice among the executable answers is random."""
    monkeypatch.chdir(ROOT)
    data = tmp_path / "data"
    generate(data, SynthSpec(seed=2, train_dbs=1, dev_dbs=1, unseen_dbs=1, train_questions=2, dev_questions=8))
    command = [
        "recipe=paverl", "data.source=folder", f"data.dir={data}", "data.evals=[dev]", "data.prompt=tagged",
        "model.checkpoint=configs/recipes_start", "rollout.max_num_seqs=16", "run.display=plain", "verbal.candidates=3",
        "verbal.attempts=2", "verbal.rounds=2", "verbal.max_tokens=64", "verbal.judge_max_tokens=8", "verbal.batch=6",
        "verbal.temperature=1",
    ]  # fmt: skip
    out, again = tmp_path / "out", tmp_path / "again"
    assert main([*command, f"verbal.out={out}"]) == 0
    records = lines(out / "records.jsonl")
    numbers = json.loads((out / "metrics.json").read_text())
    assert len(records) == numbers["count"] == 8
    judged = [record for record in records if len(record["candidates"]) > 1]
    assert judged
    assert all(item["unread"] == 2 + 2 for item in judged)
    assert all(entry["spent"]["requests"] == entry["attempts"] + entry["unread"] for entry in records)
    assert numbers["bird"] > 0
    assert numbers["best/bird"] >= max(numbers["bird"], numbers["first/bird"], numbers["majority/bird"])
    assert numbers["requests"] == sum(element["spent"]["requests"] for element in records)
    assert "cost" not in numbers

    # The model has 2,048 positions or fewer: an answer must fit after its prompt.
    assert (
        main([*command, "verbal.max_tokens=100000", "data.select.limit_eval=1", f"verbal.out={tmp_path / 'long'}"]) == 0
    )
    assert lines(tmp_path / "long" / "records.jsonl")[0]["unanswered"] == 0

    # The rounds of the first batch without the last, as a kill leaves them.
    journal = (out / "answers.jsonl").read_text().splitlines(keepends=True)
    again.mkdir()
    (again / "answers.jsonl").write_text("".join(journal[:3]) + journal[3][:40])
    assert main([*command, f"verbal.out={again}"]) == 0
    for name in ("predictions.jsonl", "records.jsonl", "metrics.json"):
        assert (again / name).read_bytes() == (out / name).read_bytes(), name
    capsys.readouterr()
