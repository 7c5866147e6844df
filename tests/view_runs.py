"""Run folders for the tests of `jaxrl-sql view`: a database, and rollouts with hostile texts."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from jaxrl_sql.runtime.rollouts import RolloutWriter, pack_ids, pack_logprobs

HOSTILE = '</script><script>window.harmed=1</script><img src=x onerror="window.harmed=1"> \u2028\'"` ${1} <!-- {{7*7}}'
"""A text that runs in a page without escaping of markup, scripts or templates."""

TOKENS = ["SELECT", " 1", "<b>", "\n"]


def make_database(folder: Path) -> Path:
    path = folder / "shop.sqlite"
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, price REAL)")
        rows = [(1, "cup", 2.5), (2, "pot", 9.0), (3, "cup", 3.5), (4, HOSTILE, 1.0)]
        connection.executemany("INSERT INTO item VALUES(?, ?, ?)", rows)
    return path


def answer(sql: str | None, reward: float, status: str = "ok", turns: Sequence[Any] | None = None) -> dict[str, Any]:
    answer_turns = turns or [["assistant", f"I think so. {sql}", pack_ids([0, 1, 2]), pack_logprobs([-0.1, -2.0, 0.0])]]
    return {
        "turns": list(answer_turns), "sql": sql, "status": status, "gold_status": "ok", "stop": "", "reward": reward,
        "parts": {"correct": reward, "format": 1.0}, "weight": 1.0, "finish_reason": "stop",
    }  # fmt: skip


def group(step: int, uid: str, answers: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    result = {
        "step": step, "phase": "grpo", "chosen": None, "uid": uid, "db_id": "shop", "db_path": "",
        "question": f"Which items, {uid}?", "gold": "SELECT name FROM item", "difficulty": "easy",
        "answers": list(answers),
    }  # fmt: skip
    return {**result, **more}


def dialogue(sql: str) -> list[list[Any]]:
    return [
        ["assistant", "let me look <sql>SELECT 1</sql>", pack_ids([0, 1]), pack_logprobs([-0.2, -0.3])],
        ["environment", f"<observation>{HOSTILE}</observation>"],
        ["assistant", sql, pack_ids([1, 3]), pack_logprobs([-0.01, float("nan")])],
    ]


def write_run(folder: Path, steps: Iterable[int] = (1, 2), keep: int = 1000) -> Path:
    """Write a run of two questions per step, with an evaluation of two questions before and after."""
    folder.mkdir(parents=True, exist_ok=True)
    path = str(make_database(folder))
    (folder / "config.yaml").write_text("recipe: arctic\nseed: 3\nexecutor: {threads: 1}\n")
    evaluate(folder, path, 0, {"e1": ("SELECT name FROM item", 1.0), "e2": ("SELECT 1", 0.0)}, keep)
    for step in steps:
        add_step(folder, step, keep)
    evaluate(folder, path, 9, {"e1": (HOSTILE, 0.0), "e2": ("SELECT name FROM item", 1.0)}, keep)
    return folder


def add_step(folder: Path, step: int, keep: int = 1000) -> None:
    path = str(folder / "shop.sqlite")
    writer = RolloutWriter(folder, keep)
    bad = "SELECT name FROM item LIMIT 0"
    right, wrong = answer("SELECT name FROM item", 1.0), answer(bad, 0.0, turns=dialogue(bad))
    constant = "SELECT 'cup' UNION SELECT 'pot' UNION SELECT " + "'" + HOSTILE.replace("'", "''") + "'"
    groups = [
        group(step, f"q{step}", [right, wrong], db_path=path, chosen=0),
        group(step, HOSTILE, [answer(constant, 1.0), answer(HOSTILE, 0.0, "syntax_error"), answer(None, 0.0, "no_sql")],
              db_path=path, question=HOSTILE, evidence=HOSTILE, difficulty="hard"),
    ]  # fmt: skip
    writer.write_tokens(TOKENS)
    writer.write("train", groups)
    writer.write("train", [{"step": step, "rollout_step": step, "part": 0, "advantages": [[0.5, -0.5]]}])
    with (folder / "metrics.jsonl").open("a") as file:
        row = {"step": step, "phase": "grpo", "reward/mean": step / 10, "status/ok": 0.75, "policy/entropy": 0.3}
        file.write(json.dumps(row) + "\n")


def evaluate(folder: Path, path: str, step: int, sqls: dict[str, tuple[str, float]], keep: int = 1000) -> None:
    writer = RolloutWriter(folder, keep)
    rows = [
        group(step, uid, [answer(sql, score, turns=[["assistant", sql]])], phase="eval/dev", rule="bird", db_path=path)
        for uid, (sql, score) in sqls.items()
    ]
    writer.write("eval", rows)
    share = sum(score for _, score in sqls.values()) / len(sqls)
    with (folder / "metrics.jsonl").open("a") as file:
        numbers = {"eval/dev/accuracy": share, "eval/dev/count": float(len(sqls)), "eval/dev/valid": 1.0}
        file.write(json.dumps({"step": step, "phase": "eval", **numbers}) + "\n")


def record(uid: str, sql: str, score: float, **more: Any) -> dict[str, Any]:
    """Return a line of an evaluation's records."""
    table = {"columns": ["name"], "rows": [["cup"], [HOSTILE]], "row_count": 2}
    result = {
        "id": uid, "db_id": "shop", "question": HOSTILE, "evidence": "", "prompt": "CREATE TABLE item", "answer": sql,
        "sql": sql, "gold_sql": "SELECT name FROM item", "own": "bird", "status": "ok", "gold_status": "ok",
        "scores": {"bird": score, "refined": 0.0}, "reasons": ["duplicates"], "stop": "", "pred_ms": 1.0,
        "gold_ms": 1.0, "finish_reason": "stop", "suite_gold_status": "", "pred_rows": 2, "gold_rows": 2,
        "results": {"prediction": table, "gold": {**table, "rows": [["pot"], [HOSTILE]]}},
    }  # fmt: skip
    return {**result, **more}


def write_evaluation(folder: Path, scores: dict[str, float]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    lines = [record(uid, f"SELECT name FROM item -- {score}", score) for uid, score in scores.items()]
    (folder / "records.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    numbers = {"accuracy": 0.5, "dev/bird": 0.5, "dev/bird/low": 0.2, "dev/bird/high": 0.8}
    (folder / "metrics.json").write_text(json.dumps(numbers))
    return folder
