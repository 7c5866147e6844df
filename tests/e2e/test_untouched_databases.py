"""Commands on databases in WAL mode change no file next to them, and work on read-only media.

As a program, `SET OUT URL`, it runs the commands once on the caller's mounts.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.__main__ import commands, main

ROOT = Path(__file__).parents[2]
SHOP = """
CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT NOT NULL, price REAL);
CREATE TABLE sale(id INTEGER PRIMARY KEY, item_id INT NOT NULL REFERENCES item(id), at DATE);
INSERT INTO item VALUES (1, 'nail', 1.5), (2, 'saw', 20.0), (3, 'axe', 30.5);
INSERT INTO sale VALUES (1, 1, '2020-01-01'), (2, 2, '2020-02-01'), (3, 2, '2020-03-01');
"""
SCHOOL = """
CREATE TABLE student(id INTEGER PRIMARY KEY, name TEXT, age INT);
INSERT INTO student VALUES (1, 'Ann', 20), (2, 'Bob', 21), (3, 'Cid', 22);
"""
LATE = "INSERT INTO student VALUES (4, 'Dan', 99);"
QUESTIONS = [
    ("count", "shop", "How many items are there?", "SELECT count(*) FROM item"),
    ("dear", "shop", "Which item costs more than 90?", "SELECT name FROM item WHERE price > 90"),
    ("late", "school", "Who is older than 90?", "SELECT name FROM student WHERE age > 90"),
]


def make_set(folder: Path) -> None:
    """Make a set of two WAL databases: `shop` has no log; `school` has its last row in a log without an index."""
    paths = {name: folder / f"train/databases/{name}/{name}.sqlite" for name in ("shop", "school")}
    for name, script in (("shop", SHOP), ("school", SCHOOL)):
        paths[name].parent.mkdir(parents=True)
        with closing(sqlite3.connect(paths[name])) as connection:
            connection.execute("PRAGMA journal_mode = wal")
            connection.executescript(script)
    with closing(sqlite3.connect(paths["school"])) as writer:
        writer.executescript(LATE)
        for end in ("", "-wal"):
            shutil.copy(f"{paths['school']}{end}", folder / f"late{end}")
    for end in ("", "-wal"):
        (folder / f"late{end}").rename(f"{paths['school']}{end}")
    lines = [{"id": uid, "db_id": db, "question": text, "sql": sql} for uid, db, text, sql in QUESTIONS]
    (folder / "train/questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def show_prompts(data: Path) -> None:
    """Build training and evaluation prompts of each kind, with values and within a budget."""
    from jaxrl_sql.text2sql.benchmarks import load_split
    from jaxrl_sql.text2sql.schema import RENDERERS, find_values, link, read_schema

    for example in load_split(data, "train").examples:
        schema = link(example, read_schema(example.db_path), lambda part: len(part.tables) < 2)
        # omnisql_strict needs the tables file of a published set.
        shown = [render(example, schema) for name, render in RENDERERS.items() if name != "omnisql_strict"]
        assert all("item" in text or "student" in text for text in shown)
        find_values(example, 5)


def serve_agents(path: str) -> None:
    from jaxrl_sql.config import ExecutorConfig
    from jaxrl_sql.serving.mcp import McpDatabase
    from jaxrl_sql.text2sql.env.executor import make_executor

    with make_executor(ExecutorConfig()) as executor:
        database = McpDatabase(path, None, executor, 10)
        assert "student" in database.schema(None)
        assert database.query("SELECT max(age) FROM student")["rows"] == [[99]]
        assert database.explain("SELECT 1 FROM student")["rows"]


# Commands that read no database, or read it like `show_prompts` and the executor after compiling a model.
OTHERS = {"quickstart", "train", "sft", "plan", "launch", "report", "export", "serve", "doctor", "mcp"}


def lines_of(data: Path, out: Path, url: str) -> dict[str, list[str]]:
    """Return the arguments of each command for a set."""
    train = data / "train"
    shop, school = (str(train / f"databases/{name}/{name}.sqlite") for name in ("shop", "school"))
    predictions = out / "predictions.jsonl"
    predictions.write_text("".join(json.dumps({"id": uid, "sql": sql}) + "\n" for uid, _, _, sql in QUESTIONS))
    source = ["data.source=folder", f"data.dir={data}"]
    endpoint = ["model=m", f"base_url={url}", "key_env=''", "concurrency=1"]
    return {
        "evaluate": ["--data", str(train), "--predictions", str(predictions), "--field", "sql", "--out",
                     str(out / "evaluate")],
        "ask": ["--model", "m", "--endpoint", url, "--db", school, "How many?"],
        "data synth": ["--db", shop, school, "--out", str(out / "synth"), "--n", "3"],
        "data audit": ["--train", str(train), "--eval", str(out / "synth"), "--out", str(out / "audit")],
        "data augment": [*source, f"augment.out={out}/augment", "augment.fill=empty", "augment.distractors=2"],
        "data filter": [*source, f"filter.out={out}/filter"],
        "data copy": ["--from", str(train), "--to", f"duckdb:{out}/files", "--out", f"{out}/copy",
                      "--questions", str(train)],
        "data prepare": ["--out", str(out / "prepare"), f"sources.s.dir={train}", "threads=1"],
        "distill": [*source, "recipe=arctic", f"distill.out={out}/distill",
                    *(f"distill.{setting}" for setting in endpoint)],
        "verbal": [*source, "recipe=paverl", "data.evals=[train]", "run.display=plain", f"verbal.out={out}/verbal",
                   "verbal.candidates=1", "verbal.attempts=1", "verbal.rounds=1",
                   *(f"verbal.{setting}" for setting in endpoint)],
        "view": [str(out / "run"), "--out", str(out / "view")],
    }  # fmt: skip


def run_all(data: Path, out: Path, url: str, after: Callable[[str], None]) -> None:
    """Run each command, and call `after` with its name."""
    for name, arguments in lines_of(data, out, url).items():
        assert main([*name.split(), *arguments]) == 0, name
        after(name)
    show_prompts(data)
    after("prompts")
    serve_agents(str(data / "train/databases/school/school.sqlite"))
    after("mcp")


def state(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the content and modification time of each file."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def data(tmp_path: Path, view_runs: ModuleType) -> Path:
    """Return a set, and write a run on its database next to it."""
    folder = tmp_path / "data"
    make_set(folder)
    run = view_runs.write_run(tmp_path / "out/run")
    (run / "shop.sqlite").unlink()
    (run / "shop.sqlite").symlink_to(folder / "train/databases/shop/shop.sqlite")
    return folder


def answer(chat_server: ModuleType) -> Callable[[int, dict[str, Any]], Any]:
    sql = "<think>\nso\n</think>\n<answer>\n```sql\nSELECT name FROM student WHERE age > 90\n```\n</answer>"
    return lambda _number, _body: chat_server.assistant(sql)


def check(out: Path) -> None:
    """Check that outputs contain the row of the log and a row that `augment` inserted."""
    for folder in ("augment", "synth"):
        with closing(sqlite3.connect(out / folder / "databases/school/school.sqlite")) as connection:
            assert connection.execute("SELECT count(*) FROM student WHERE age = 99").fetchone() == (1,)
    with closing(sqlite3.connect(out / "augment/databases/shop/shop.sqlite")) as connection:
        assert connection.execute("SELECT count(*) FROM item WHERE price > 90").fetchone() == (1,)
    assert json.loads((out / "evaluate/metrics.json").read_text())["accuracy"] == 1.0
    traces = (out / "distill/traces.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in traces] == ["late"]


def test_every_command_is_covered(tmp_path: Path) -> None:
    assert lines_of(tmp_path, tmp_path, "").keys() | OTHERS == commands().keys()


@pytest.mark.slow
def test_commands_change_no_file_next_to_a_database(data: Path, tmp_path: Path, chat_server: ModuleType) -> None:
    before = state(data)

    def compare(name: str) -> None:
        assert state(data) == before, name

    with chat_server.serve_script(answer(chat_server)) as (url, _):
        run_all(data, tmp_path / "out", url, compare)
    check(tmp_path / "out")


@pytest.mark.slow
def test_commands_read_databases_on_read_only_media(data: Path, tmp_path: Path, chat_server: ModuleType) -> None:
    mount = f"mount --bind '{data}' '{data}' && mount -o remount,bind,ro '{data}'"
    unshare = ["unshare", *(["-m"] if os.geteuid() == 0 else ["-r", "-m"]), "sh", "-c"]
    tried = f"{mount} && ! touch '{data}/x' 2> /dev/null"
    if not shutil.which("unshare") or subprocess.run([*unshare, tried], capture_output=True, check=False).returncode:
        pytest.skip("no read-only mount can be made here: it needs unshare, and root or user namespaces")
    with chat_server.serve_script(answer(chat_server)) as (url, _):
        program = f"exec '{sys.executable}' '{__file__}' '{data}' '{tmp_path}/out' {url}"
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        done = subprocess.run(
            [*unshare, f"{mount} && {program}"], capture_output=True, text=True, env=environment, check=False, cwd=ROOT
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "mcp is done"
    check(tmp_path / "out")


if __name__ == "__main__":
    run_all(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], lambda name: print(f"{name} is done"))
