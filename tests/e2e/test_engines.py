"""Questions on PostgreSQL, MariaDB and DuckDB: scoring, training and inference in their own dialects."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from jaxrl_sql.commands.ask import main as ask
from jaxrl_sql.commands.copy import main as copy
from jaxrl_sql.commands.evaluate import main as evaluate
from jaxrl_sql.commands.synth import main as synth
from jaxrl_sql.commands.train import main as train
from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.report.groups import list_chunks, open_result_folder, read_chunk
from jaxrl_sql.report.view.judging import Judge, judge_requests
from jaxrl_sql.text2sql.benchmarks import load_benchmark, plain_record
from jaxrl_sql.text2sql.env.address import url_with_password
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.text2sql.env.turns import Action
from jaxrl_sql.text2sql.prompts.dialects import DialectAssigner, target_sql
from jaxrl_sql.text2sql.prompts.shots import ShotSelector
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import Example
from sqlexec_rs.servers import Server

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "configs" / "quickstart_start"
DIALECTS = ("duckdb", "postgresql", "mysql")
VERSION = {"duckdb": "SELECT version()", "postgresql": "SHOW server_version", "mysql": "SELECT version()"}


class Copies(NamedTuple):
    """A dataset, the folder of its copies per dialect, and the connection settings of servers."""

    data: Path
    folders: Mapping[str, Path]
    servers: Mapping[str, Server]

    def examples(self, dialect: str) -> tuple[Example, ...]:
        return load_benchmark(self.folders[dialect]).examples


@pytest.fixture(scope="module")
def copies(start_server: Callable[[str, str], Server], tmp_path_factory: pytest.TempPathFactory) -> Copies:
    root = tmp_path_factory.mktemp("engines")
    generate(
        root / "data", SynthSpec(seed=3, train_dbs=3, dev_dbs=1, unseen_dbs=1, train_questions=12, dev_questions=4)
    )
    names = {"postgresql": "postgresql", "mysql": "mariadb"}
    servers = {dialect: start_server(name, "SELECT 1;") for dialect, name in names.items()}
    folders = {dialect: root / dialect for dialect in DIALECTS}
    for dialect, out in folders.items():
        to = servers[dialect].owner if dialect in servers else f"duckdb:{root / 'files'}"
        reader = ["--reader", servers[dialect].reader] if dialect in servers else []
        source = str(root / "data" / "train")
        assert copy(["--from", source, "--to", to, "--out", str(out), "--questions", source, *reader]) == 0
    return Copies(root / "data", folders, servers)


@pytest.fixture(autouse=True)
def _passwords(copies: Copies, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the readers' passwords in the engines' environment variables; the copies' questions contain none."""
    for dialect, variable in (("postgresql", "PGPASSWORD"), ("mysql", "MYSQL_PWD")):
        monkeypatch.setenv(variable, urlsplit(copies.servers[dialect].reader).password or "")


@pytest.mark.parametrize("dialect", DIALECTS)
def test_questions_of_a_copy_are_judged_on_its_engine(dialect: str, copies: Copies, tmp_path: Path) -> None:
    examples = copies.examples(dialect)
    assert len(examples) > 20
    assert {example.dialect for example in examples} == {dialect}
    passwords = {urlsplit(server.reader).password or "" for server in copies.servers.values()} - {""}
    assert not any(
        word in repr(examples) + (copies.folders[dialect] / "questions.jsonl").read_text() for word in passwords
    )
    lines = [{"id": item.uid, "sql": VERSION[dialect] if i == 0 else item.gold_sql} for i, item in enumerate(examples)]
    predictions = tmp_path / "predictions.jsonl"
    predictions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [
        "--data",
        str(copies.folders[dialect]),
        "--predictions",
        str(predictions),
        "--field",
        "sql",
        "--out",
        str(tmp_path / "out"),
    ]
    assert evaluate([*command, "--out", str(tmp_path / "out"), "run.display=none"]) == 0
    records = [json.loads(line) for line in next(tmp_path.glob("out/**/records.jsonl")).read_text().splitlines()]
    by_id = {record["id"]: record for record in records}
    first = by_id.pop(examples[0].uid)
    assert first["scores"]["bird"] == 0.0
    assert first["status"] == ("ok" if dialect != "postgresql" else first["status"])  # SHOW is not scored
    assert {entry["scores"]["bird"] for entry in by_id.values()} == {1.0}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_sqlite_replica_has_the_names_and_types_of_the_engine(dialect: str, copies: Copies) -> None:
    item = copies.examples(dialect)[0]
    entry = json.loads((copies.folders[dialect] / "manifest.json").read_text())["databases"][item.db_id]
    shown = {table.name: {c.name: c.type for c in table.columns} for table in read_schema(item.db_path).tables}
    assert shown.keys() == {table["name"] for table in entry["tables"].values()}
    types = {kind.lower() for columns in shown.values() for kind in columns.values()}  # SQLite writes TEXT
    assert (
        types
        <= {
            "duckdb": {"bigint", "double", "varchar", "date", "timestamp"},
            "postgresql": {"bigint", "double precision", "text", "date", "timestamp"},
            "mysql": {"bigint", "double", "text", "date", "datetime"},
        }[dialect]
    )


@pytest.mark.parametrize("dialect", DIALECTS)
def test_dialogue_queries_run_on_the_engine(dialect: str, copies: Copies) -> None:
    item = copies.examples(dialect)[0]
    table = read_schema(item.db_path).tables[0].name
    turns = RECIPES["skyrl_sql"].turns
    assert turns is not None
    with make_executor(ExecutorConfig(threads=1, max_rows=3)) as executor:
        environment = turns(executor, item, 4)

        def observed(sql: str) -> str:
            pending = environment.next(Action(f"<think>.</think><sql>{sql}</sql>", "stop"))
            assert pending is not None
            return pending.result()

        assert "count" in observed(f"SELECT COUNT(*) AS count FROM {table}")
        crossed = observed(f"SELECT a.* FROM {table} a, {table} b")
        assert "too_large" in crossed or "over" in crossed
        assert "sqlite" not in observed("SELECT sqlite_version()").replace("sqlite_version", "")


def test_questions_move_to_the_copy_if_their_gold_is_kept(copies: Copies) -> None:
    source = load_benchmark(copies.data / "train").examples
    there = {dialect: copies.examples(dialect) for dialect in ("postgresql", "duckdb")}
    change = DialectAssigner({"sqlite": 0.3, "mysql": 0.2, "postgresql": 0.3, "duckdb": 0.2}, there)
    changed = [*map(change, source)]
    assert [element.uid for element in changed] == [entry.uid for entry in source]
    assert {example.dialect for example in changed} == {"sqlite", *DIALECTS}
    for before, after in zip(source, changed, strict=True):
        if after.dialect in there:
            remaining = {example.uid: example for example in there[after.dialect]}[before.uid]
            assert (after.gold_sql, after.engine_url, after.reasoning) == (
                remaining.gold_sql,
                remaining.engine_url,
                before.reasoning,
            )
            assert target_sql(after) == remaining.gold_sql
        else:
            assert (after.gold_sql, after.engine_url, after.db_path) == (before.gold_sql, "", before.db_path)
    assert [*map(change, source)] == changed
    assert [*map(change, there["duckdb"])] == [*there["duckdb"]]
    lost = DialectAssigner({"sqlite": 0.0, "duckdb": 1.0}, {"duckdb": there["duckdb"][1:]})
    dialects = {item.uid: lost(item).dialect for item in source}
    assert dialects[there["duckdb"][0].uid] == "sqlite"
    assert dialects[there["duckdb"][1].uid] == "duckdb"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_questions_are_written_without_passwords(dialect: str, copies: Copies) -> None:
    item = copies.examples(dialect)[0]
    line = plain_record(item)
    written = json.loads((copies.folders[dialect] / "questions.jsonl").read_text().splitlines()[0])
    assert line.items() <= written.items()
    assert url_with_password(line["db"]) == item.engine_url


def test_examples_of_another_engine_are_not_in_the_prompt(copies: Copies) -> None:
    mixed = [
        *copies.examples("duckdb"),
        *copies.examples("postgresql"),
        *load_benchmark(copies.data / "train").examples,
    ]
    example = copies.examples("postgresql")[0]
    shown = ShotSelector(mixed, 40).choose(example)
    assert {item.dialect for item in shown} == {"postgresql"}
    assert {"duckdb:" in entry.engine_url for entry in shown} == {False}
    assert any(element.engine_url for element in shown)
    assert any(not example.engine_url for example in shown)


@pytest.mark.slow
def test_training_uses_all_engines(copies: Copies, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    places = [f"executor.databases.{dialect}={copies.folders[dialect]}" for dialect in DIALECTS]
    shares = "data.dialects={sqlite: 0.25, mysql: 0.25, postgresql: 0.25, duckdb: 0.25}"
    sizes = ["grpo.steps=1", "grpo.prompts=16", "grpo.num_generations=2", "sampling.max_new_tokens=24", "sft.steps=0"]
    fixed = [
        "data.prompt=compact",
        "model.compute_dtype=same",
        f"data.dir={copies.data}",
        "data.evals=[train]",
        "data.select.limit_eval=4",
        "recipe=paverl",
    ]
    model = [
        f"model.checkpoint={MODEL}",
        "data.max_prompt_tokens=640",
        "rollout.max_num_seqs=16",
        "run.samples_per_step=99",
    ]
    command = [*fixed, *model, *sizes, shares, *places, f"run.dir={run}", "run.display=plain", "run.pad_to_max=true"]
    assert train(command) == 0
    captured = capsys.readouterr()
    assert "in PostgreSQL" in captured.out + captured.err
    samples = [json.loads(line) for line in (run / "samples.jsonl").read_text().splitlines()]
    ran = {
        (sample["dialect"], sample["status"]) for sample in samples if sample["phase"] == "grpo" and "dialect" in sample
    }
    # Whether a policy's SQL runs is random; access and scoring on each engine are not.
    assert {dialect for dialect, _ in ran} == {*DIALECTS}
    assert "db_error" not in {status for _, status in ran}
    assert "ok" in {status for _, status in ran}
    passwords = {urlsplit(server.reader).password or "" for server in copies.servers.values()} - {""}
    files = [path for path in run.rglob("*") if path.suffix in (".yaml", ".jsonl", ".json", ".gz") and path.is_file()]
    remaining = [gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes() for file in files]
    assert passwords
    assert not any(word.encode() in text for word in passwords for text in remaining)
    # Output of `view`: each answer is judged again on its engine.
    groups = [group for chunk in list_chunks(open_result_folder(run)) for group in read_chunk(chunk).groups]
    with make_executor(ExecutorConfig()) as executor:
        judge = Judge(executor, 1000, 600.0)
        judge.judge(judge_requests(groups))
    judge.attach(groups)
    answers = [(item["example"].dialect, answer) for item in groups for answer in item["answers"] if answer["sql"]]
    assert {dialect for dialect, _ in answers} >= {*DIALECTS}
    assert all(answer["verdict"]["results"]["gold"].keys() >= {"columns"} for _, answer in answers)


def test_ask_works_on_a_server(
    copies: Copies, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    item = copies.examples("postgresql")[0]
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path / "cache"))
    command = [
        "--model",
        str(MODEL),
        "--db",
        item.engine_url,
        "data.prompt=compact",
        "evaluate.sampling.max_new_tokens=24",
    ]
    first = ask([*command, item.question])
    captured = capsys.readouterr()
    assert first in {0, 1}
    assert "a sample of 200 rows per table" in captured.err
    shown = next((tmp_path / "cache").rglob("*.sqlite"))
    assert {table.name for table in read_schema(shown).tables} == {
        table.name for table in read_schema(item.db_path).tables
    }
    shutil.rmtree(tmp_path / "cache")
    assert ask([*command, item.question, "--stand-in", item.db_path]) == first
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("dialect", ["postgresql", "mysql"])
def test_questions_are_generated_on_a_server(dialect: str, copies: Copies, tmp_path: Path) -> None:
    item = copies.examples(dialect)[0]
    out = tmp_path / "made"
    assert synth(["--db", item.engine_url, "--out", str(out), "--n", "12"]) == 0
    result = load_benchmark(out).examples
    assert len(result) > 6
    assert {(entry.dialect, entry.engine_url) for entry in result} == {(dialect, item.engine_url)}
    with make_executor(ExecutorConfig(threads=1)) as executor:
        outcomes = executor.execute_many([(element.database, element.gold_sql) for element in result])
    assert all(outcome.status == "ok" and outcome.row_count for outcome in outcomes)


@pytest.mark.parametrize(
    ("command", "error"),
    [
        (["data.dialects={sqlite: 0.5, mysql: 0.4}"], "add up to 0.9"),
        (["data.dialects={sqlite: 0.5, mysql: 0.5}"], "needs a database: set executor.databases.mysql"),
        (["data.dialects={sqlite: 0.5, duckdb: 0.5}", "executor.databases.duckdb=DATA"], "it has no questions.jsonl"),
        (["data.dialects={sqlite: 0.5, duckdb: 0.5}", "executor.databases.duckdb=MYSQL"], "is for mysql"),
    ],
)  # fmt: skip
def test_invalid_dialect_settings_are_refused(
    command: list[str], error: str, copies: Copies, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    places = {"DATA": str(copies.data), "MYSQL": str(copies.folders["mysql"])}
    arguments = [reduce(lambda text, name: text.replace(name, places[name]), places, word) for word in command]
    fixed = ["data.source=folder", f"data.dir={copies.data}", f"model.checkpoint={MODEL}"]
    assert train([*fixed, f"run.dir={tmp_path / 'run'}", *arguments]) == 2
    assert error in capsys.readouterr().err
