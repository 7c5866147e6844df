"""Measure `jaxrl-sql view` on a run of 100,000 answers: its size, and how fast Chromium opens and filters it.

Answers are made up, as long as those of small reasoning models, over a thousand generated questions. Times are of
Chromium with a fresh profile, from disk: until the first page is drawn, until the index and the texts are there, and of
each filter from the key to the drawn list. `--quick` makes a hundredth of them.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import shutil
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

from jaxrl_sql.report.groups import open_source
from jaxrl_sql.runtime.rollouts import RolloutWriter, pack_ids, pack_logprobs
from jaxrl_sql.sqlenv.executor import Executor
from jaxrl_sql.view.folder import View
from jaxrl_sql.view.judging import Judge

QUESTIONS, GROUP, TOKENS, VOCABULARY = 1000, 8, 300, 4096
WORDS = "list show all the names of items whose price is above and that were sold in every city since then".split()
FILTERS = {
    "status": "status=schema_error",
    "database": "db=shop_7",
    "steps and hardness": "from=100&to=200&hardness=hard",
    "no signal": "only=nosignal",
    "suspicious": "only=suspicious",
    "flipped": "only=flipped",
    "text in questions and SQL": "text=price+%3E+37",
    "text that is nowhere": "text=nowhere+at+all",
}


def main() -> int:
    """Make the run, look at it, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=100_000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--keep", type=Path, help="leave the run and its folder here, or use those that are")
    given = parser.parse_args()
    answers = given.answers // 100 if given.quick else given.answers
    with tempfile.TemporaryDirectory() as scratch:
        run = given.keep or Path(scratch, "run")
        if not (run / "view" / "index.html").exists():
            make_run(run, answers)
            write_view(run)
        print(f"{platform.machine()}, Python {platform.python_version()}; {answers:,} answers in groups of {GROUP}")
        print(f"the run's pieces: {size_of(run / 'rollouts') / 1e6:,.1f} MB")
        print(f"the folder: {size_of(run / 'view') / 1e6:,.1f} MB")
        measure(run / "view" / "index.html", given.repeat)
    return 0


def write_view(run: Path) -> None:
    """Write the folder as the command does, and print how long that took."""
    began = time.perf_counter()
    with Executor() as executor:
        judge = Judge(executor, 20_000, 60.0)
        View([open_source(run)], run / "view", judge).update()
    took = time.perf_counter() - began
    print(f"written in {took:,.1f} s, of which {judge.seconds:,.1f} s judging")
    print(f"{judge.judged:,} of {judge.asked:,} distinct answers judged")


def make_run(folder: Path, answers: int) -> None:
    """Write a run of so many answers, and two evaluations of a thousand questions."""
    rng = random.Random(0)
    shutil.rmtree(folder / "rollouts", ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    databases = [make_database(folder / f"shop_{i}.sqlite", rng) for i in range(10)]
    questions = [make_question(i, databases, rng) for i in range(QUESTIONS)]
    writer = RolloutWriter(folder, 10 * answers)
    writer.write_tokens([f" {rng.choice(WORDS)}{i}" for i in range(VOCABULARY)])
    groups = answers // GROUP
    for at in range(2):
        asked = {"step": at * groups, "phase": "eval/dev"}
        rows = [{**one, **asked, "answers": [make_answer(one, rng)]} for one in questions]
        writer.write("eval", rows)
    with (folder / "metrics.jsonl").open("w") as file:
        for step in range(1, groups // 16 + 1):
            rows = [{**rng.choice(questions), "step": step, "phase": "grpo", "chosen": None} for _ in range(16)]
            writer.write("train", [one | {"answers": [make_answer(one, rng) for _ in range(GROUP)]} for one in rows])
            file.write(
                json.dumps({"step": step, "phase": "grpo", "reward/mean": rng.random(), "status/ok": 0.8}) + "\n"
            )


def make_database(path: Path, rng: random.Random) -> Path:
    """Write a table of a hundred rows."""
    path.unlink(missing_ok=True)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE item(id INTEGER PRIMARY KEY, name TEXT, city TEXT, price REAL)")
        rows = [(i, rng.choice(WORDS), rng.choice(WORDS), rng.randrange(100)) for i in range(100)]
        connection.executemany("INSERT INTO item VALUES(?, ?, ?, ?)", rows)
    return path


def make_question(number: int, databases: list[Path], rng: random.Random) -> dict[str, Any]:
    """Return a question's part of a record."""
    path = databases[number % len(databases)]
    return {
        "uid": f"q{number}", "db_id": path.stem, "db_path": str(path), "question": " ".join(rng.choices(WORDS, k=14)),
        "gold": f"SELECT name FROM item WHERE price > {number % 97}",
        "difficulty": rng.choice(["easy", "medium", "hard"]),
    }  # fmt: skip


def make_answer(question: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return an answer: right, wrong, or with a column that is not there."""
    gold = question["gold"]
    sql, status, reward = rng.choice([
        (gold, "ok", 1.0), (f"{gold} AND id <> {rng.randrange(100)}", "ok", 0.0),
        (gold.replace("name", "DISTINCT name"), "ok", 1.0), (gold.replace("price", "cost"), "schema_error", 0.0),
    ])  # fmt: skip
    text = f"{' '.join(rng.choices(WORDS, k=TOKENS - 40))} <answer>{sql}</answer>"
    tokens = rng.choices(range(VOCABULARY), k=TOKENS)
    logprobs = [round(-abs(rng.gauss(0, 0.4)), 3) if rng.random() < 0.5 else -0.0 for _ in tokens]
    return {
        "turns": [["assistant", text, pack_ids(tokens), pack_logprobs(logprobs)]],
        "sql": sql, "status": status, "gold_status": "ok", "stop": "",
        "reward": reward, "parts": {"correct": reward}, "weight": 1.0, "finish": "stop", "advantage": reward - 0.5,
    }  # fmt: skip


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def measure(page_file: Path, repeat: int) -> None:
    """Open the page and filter, so many times, and print medians and the worst."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - what makes the run needs no browser

    opening: dict[str, list[float]] = {"first page": [], "index": [], "texts": [], "first list": []}
    filtering: dict[str, list[float]] = {name: [] for name in FILTERS}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        print(f"Chromium {browser.version}")
        for _ in range(repeat):
            context = browser.new_context()
            page = context.new_page()
            page.goto(page_file.as_uri())
            while not page.evaluate("JX.textsMs"):  # the page's policy lets nothing wait inside of it
                page.wait_for_timeout(20)
            found = page.evaluate("[JX.headMs, JX.indexMs, JX.textsMs]")
            for name, value in zip(("first page", "index", "texts"), found, strict=True):
                opening[name].append(value)
            opening["first list"].append(goto(page, ""))
            for name, query in FILTERS.items():
                filtering[name].append(goto(page, query))
            context.close()
        browser.close()
    for title, found_times in (("opened, ms", opening), ("filtered, ms", filtering)):
        print(f"{title}: median, worst of {repeat}")
        for name, times in found_times.items():
            print(f"  {name:28} {statistics.median(times):7.0f} {max(times):7.0f}")


def goto(page: Any, query: str) -> float:
    """Filter by a query and return the milliseconds until the list is drawn."""
    return float(
        page.evaluate(
            """async (query) => {
            const began = performance.now();
            location.hash = `#/groups?${query}`;
            await new Promise((done) => addEventListener("hashchange", done, { once: true }));
            await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
            return performance.now() - began;
        }""",
            query,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
