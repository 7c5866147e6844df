"""Each Python example of the pages runs in a test: here, or in the test that `RUN` names."""

from __future__ import annotations

import importlib.util
import json
import re
import sqlite3
import textwrap
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest

import jaxrl_sql
from jaxrl_sql.commands.export import main as export
from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.text2sql.adapters.episode import SqlTask, example_of
from jaxrl_sql.text2sql.benchmarks import load_folder
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.rewards.score import Answer
from jaxrl_sql.types import Example, Reward
from sqlexec_rs import Executor, Limits
from sqlexec_rs.servers import Server

ROOT = Path(__file__).parents[2]
START = ROOT / "configs" / "quickstart_start"
PAGES = ["README.md", "CONTRIBUTING.md", "AGENTS.md", "sqlexec_rs/README.md"]
PAGES += [path.relative_to(ROOT).as_posix() for part in ("docs", "skills") for path in ROOT.glob(f"{part}/**/*.md")]
HERE, ADAPTERS = "tests/docs/test_python_examples.py", "tests/unit/text2sql/adapters/test_adapters.py"
# The examples of each page in order, and the test that runs each.
RUN = {
    "README.md": ["tests/e2e/test_api.py"],
    "docs/explanation/recipes.md": [HERE],
    "docs/howto/other_trainers.md": [ADAPTERS, ADAPTERS, ADAPTERS, ADAPTERS],
    "docs/howto/reward.md": [HERE],
    "docs/howto/trl_environment.md": [HERE, HERE],
    "docs/howto/weights.md": [HERE],
    "docs/reference/executor_servers.md": [HERE, HERE],
    "docs/reference/rules.md": [HERE],
    "skills/read-a-run/SKILL.md": [HERE],
    "sqlexec_rs/README.md": [HERE],
}
TABLE = "CREATE TABLE item(name TEXT, price INTEGER); INSERT INTO item VALUES ('nail', 2), ('saw', 1500);"


def examples_of(page: str) -> list[str]:
    """Return the Python examples of a page, without doctests (pycon)."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [
        textwrap.dedent(result[2])
        for result in re.finditer(r"^( *)```python\n(.*?)^\1```$", text, re.MULTILINE | re.DOTALL)
    ]


def run(page: str, number: int, names: dict[str, Any], without: Sequence[str] = ()) -> dict[str, Any]:
    """Run an example of a page with some names and without some of its texts, and return all names afterwards."""
    text = examples_of(page)[number]
    for part in without:
        assert part in text
        text = text.replace(part, "")
    exec(compile(text, page, "exec"), names)  # noqa: S102 - a page of this project
    return names


def make_shop(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "CREATE TABLE product(name TEXT, price REAL); INSERT INTO product VALUES ('saw', 15.5), ('nail', 0.02);"
        )


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return generated questions, 4 of them in `dev`."""
    where = tmp_path_factory.mktemp("data")
    generate(where, SynthSpec(seed=5, train_dbs=1, dev_dbs=1, unseen_dbs=1, train_questions=4, dev_questions=4))
    return where


def test_each_example_is_run_by_a_test() -> None:
    assert {page: len(result) for page in PAGES if (result := examples_of(page))} == {
        page: len(tests) for page, tests in RUN.items()
    }
    for page, tests in RUN.items():
        for test in set(tests):
            assert Path(page).name in (ROOT / test).read_text(encoding="utf-8"), f"{test} does not name {page}"


def test_predictions_are_scored(folder: Path, data: Path) -> None:
    (folder / "data").mkdir()
    (folder / "data" / "spider_dev").symlink_to(data / "dev")
    sqls = [example.gold_sql for example in load_folder(data / "dev").examples]
    numbers = run("docs/reference/rules.md", 0, {"sqls": [*sqls[1:], None]})["numbers"]
    assert numbers["count"] == len(sqls)
    assert numbers["accuracy"] < 1
    assert run("docs/reference/rules.md", 0, {"sqls": sqls})["numbers"]["accuracy"] == 1.0


def test_a_model_is_loaded_and_saved(folder: Path) -> None:
    (folder / "Qwen2.5-0.5B").symlink_to(START)
    assert export([str(START), "--gguf", "f16", "--out", "exported"]) == 0
    (written,) = (folder / "exported").glob("*.gguf")
    written.rename("gemma-3-270m-Q4_K_M.gguf")
    run("docs/howto/weights.md", 0, {})
    assert (folder / "out" / "model.safetensors").is_file()


def test_a_recipe_scores_responses(data: Path) -> None:
    examples = load_folder(data / "dev").examples[:2]
    responses = [f"<think>so</think>\n<answer>\n```sql\n{examples[0].gold_sql}\n```\n</answer>", "no query"]
    with make_executor(ExecutorConfig()) as executor:
        names = {"executor": executor, "examples": examples, "responses": responses}
        right, wrong = run("docs/explanation/recipes.md", 0, names)["rewards"]
    assert right.total > wrong.total


def test_an_environment_runs_a_dialogue_and_exports_to_trl(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "pop.sqlite")) as connection:
        connection.execute("CREATE TABLE singer(name TEXT)")
    names = run("docs/howto/trl_environment.md", 0, {})
    assert names["observation"] is not None
    trainers: list[dict[str, Any]] = []
    names["GRPOTrainer"] = lambda *_, **options: trainers.append(options)
    run("docs/howto/trl_environment.md", 1, names)
    assert [*trainers[0], *trainers[1]] == ["environment_factory", "reward_funcs"]
    task: SqlTask = names["task"]
    columns = {"db_path": ["pop.sqlite"], "gold_sql": ["SELECT count(*) FROM singer"]}
    text = "<think>so</think><solution>SELECT count(*) FROM singer</solution>"
    assert trainers[1]["reward_funcs"](prompts=["?"], completions=[text], **columns) == [1.0]
    example = example_of({"db_path": "pop.sqlite", "gold_sql": "SELECT 1"})
    assert task.score(example, text).reward.total == 0.0
    task.executor.close()


def test_a_reward_function_is_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[dict[str, Any]] = []
    monkeypatch.setattr(jaxrl_sql, "train", lambda *_, **options: passed.append(options))
    run("docs/howto/reward.md", 0, {})
    answer = Answer("x" * 100, "SELECT 1", Example("q", "", "", "", "SELECT 1"), "ok", Reward(1.0, {}))
    assert passed[0]["reward"](answer) == pytest.approx(0.9)


def test_a_duckdb_file_is_queried(folder: Path) -> None:
    with duckdb.connect("shop.db") as connection:
        connection.execute(TABLE)
    seen: list[Any] = []
    with Executor(threads=1) as executor:
        run("docs/reference/executor_servers.md", 0, {"ex": Recorded(executor, seen), "Limits": Limits})
    assert [(out.status, out.rows) for out in seen] == [("ok", [("nail",), ("saw",)])]


class Recorded:
    """An executor that records its outcomes; `urls` maps beginnings of a page's URLs to URLs here."""

    def __init__(self, executor: Executor, seen: list[Any], urls: dict[str, str] | None = None) -> None:
        self.executor, self.seen, self.urls = executor, seen, urls or {}

    def execute(self, database: str, sql: str, **options: Any) -> Any:
        url = self.urls.get(database.partition("//")[0], database)
        self.seen.append(self.executor.execute(url, sql, **options))


def test_servers_are_queried(server_database: Callable[[str, str], Server]) -> None:
    urls = [server_database(engine, TABLE).reader for engine in ("postgresql", "mariadb")]
    seen: list[Any] = []
    with Executor(threads=1) as executor:
        page_urls = dict(zip(("postgresql:", "mysql:"), urls, strict=True))
        run("docs/reference/executor_servers.md", 1, {"ex": Recorded(executor, seen, page_urls), "Limits": Limits})
    assert [(out.status, sorted(out.rows)) for out in seen] == [("ok", [("nail",), ("saw",)])] * 2


def test_metrics_of_a_run_are_read(folder: Path) -> None:
    (folder / "runs" / "first").mkdir(parents=True)
    rows = [{"step": 0, "phase": "eval", "eval/dev/accuracy": 0.5}, {"step": 1, "phase": "grpo"}]
    (folder / "runs" / "first" / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert run("skills/read-a-run/SKILL.md", 0, {})["rows"] == rows


def test_executor_page_example_runs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_shop(folder / "shop.sqlite")
    golds = ["SELECT name FROM product", "SELECT price FROM product"]
    names = {"predicted": golds, "golds": golds, "paths": ["shop.sqlite"] * 2}
    uses = {"pandas": "out.to_pandas(), ", "polars": "out.to_polars(), ", "pyarrow": ", pyarrow.table(out)"}
    absent = [text for package, text in uses.items() if importlib.util.find_spec(package) is None]
    if uses["pyarrow"] not in absent:
        names["pyarrow"] = importlib.import_module("pyarrow")
    names = run("sqlexec_rs/README.md", 0, names, without=absent)
    assert names["arrays"]["bird"].tolist() == [1, 1]
    assert capsys.readouterr().out == "schema_error: no such column: nmae. Did you mean product.name?\n"
