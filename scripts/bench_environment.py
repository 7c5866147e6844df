"""Hold the same dialogues in our SQL environment and in skyrl-gym's: queries a second, open files and threads.

`python scripts/bench_environment.py --episodes 10000` needs package skyrl-gym for the second line, and prints the first
alone where it is not installed. A dialogue is two queries that look, and a solution, which is run beside its gold: four
queries. The dialogues are held one after another, and with `--workers N` by N threads. The dialogues' queries differ in
a number, so that nothing is answered from what was run before but golds. Exit code 1 where rewards differ.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.sqlenv.adapters.episode import SqlTask, example_of
from jaxrl_sql.sqlenv.executor import make_executor

GOLD = "SELECT name FROM singer WHERE age > 30"
QUERIES = 4
Hold = Callable[[int], float]


def make_database(root: Path) -> Path:
    """Write a database of 1,000 rows where skyrl-gym looks for Spider's."""
    path = root / "spider" / "database" / "pop" / "pop.sqlite"
    path.parent.mkdir(parents=True)
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE singer (name TEXT, age INT)")
    connection.executemany("INSERT INTO singer VALUES (?, ?)", [(f"n{i}", i % 90) for i in range(1000)])
    connection.commit()
    connection.close()
    return path


def turns(i: int) -> list[str]:
    """Return what the policy writes in dialogue i; every third solution is wrong, every fifth lacks its thought."""
    thought = "" if i % 5 == 0 else "<think>so</think>\n"
    wrong = f" AND age < {40 + i % 7}" if i % 3 == 0 else ""
    return [
        f"{thought}<sql>SELECT count(*) FROM singer WHERE age > {i}</sql>",
        f"{thought}<sql>SELECT name FROM singer WHERE age = {i % 90} LIMIT 5 -- {i}</sql>",
        f"{thought}<solution>{GOLD}{wrong} -- {i}\n</solution>",
    ]


def ours(task: SqlTask, path: Path) -> Hold:
    """Return what holds a dialogue in our environment."""
    example = example_of({"db_path": str(path), "gold_sql": GOLD})

    def hold(i: int) -> float:
        episode = task.begin(example)
        for turn in turns(i):
            episode.step(turn)
        reward = episode.reward()
        return 0.0 if reward is None else reward

    return hold


def theirs(root: Path) -> Hold:
    """Return what holds a dialogue in skyrl-gym's environment."""
    from skyrl_gym.envs.sql.env import SQLEnv, Text2SQLEnvConfig  # noqa: PLC0415 - it need not be there

    config = Text2SQLEnvConfig(db_path=str(root))
    about = {"db_id": "pop", "data": "spider", "reward_spec": {"ground_truth": GOLD}, "max_turns": 5}

    def hold(i: int) -> float:
        environment = SQLEnv(config, about)
        for turn in turns(i):
            done = environment.step(turn)
        return float(done["reward"])

    return hold


def measure(name: str, hold: Hold, episodes: int, workers: int) -> list[float]:
    """Hold the dialogues, print a line of the table, and return the rewards."""
    began = time.perf_counter()
    with ThreadPoolExecutor(workers) as pool:
        rewards = list(pool.map(hold, range(episodes)))
    rate = episodes * QUERIES / (time.perf_counter() - began)
    files, threads = (len(os.listdir(f"/proc/self/{kind}")) for kind in ("fd", "task"))  # noqa: PTH208
    print(f"| {name} | {workers} | {episodes:,} | {rate:,.0f} | {files} | {threads} |", flush=True)
    return rewards


def main() -> int:
    """Measure both, and compare what the dialogues earned."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8])
    given = parser.parse_args()
    print("| environment | workers | dialogues | queries a second | open files after | threads after |")
    print("|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, make_executor(ExecutorConfig()) as executor:
        path = make_database(Path(folder))
        ways = {"ours": ours(SqlTask(executor), path)}
        if importlib.util.find_spec("skyrl_gym") is not None:
            ways["skyrl-gym"] = theirs(Path(folder))
        for workers in given.workers:
            earned = [measure(name, hold, given.episodes, workers) for name, hold in ways.items()]
            if differ := sum(len(set(rewards)) > 1 for rewards in zip(*earned, strict=True)):
                print(f"{differ} rewards differ")
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
