"""PostgreSQL databases with tables in several schemas, names in mixed case, booleans and enums, and changed tables."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.commands.synth import main as synth
from jaxrl_sql.databases.sample.external import open_external
from jaxrl_sql.databases.sample.sample import sample
from jaxrl_sql.inference.ask import database_example
from jaxrl_sql.text2sql.env.executor import Executor
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.text2sql.schema.render import RENDERERS
from jaxrl_sql.types import InputError

pytestmark = pytest.mark.servers

Make = Callable[[str, str], Any]
"""Makes a database of an engine by a script; the result is a `ServerDatabase` of conftest.py."""

WAREHOUSE = """
CREATE SCHEMA grid; CREATE SCHEMA ops;
CREATE TYPE ops.status AS ENUM ('open', 'in work', 'done');
CREATE TABLE grid.turbines(id int PRIMARY KEY, "hubHeight" int, online boolean NOT NULL, since timestamptz);
CREATE TABLE ops.orders(id int PRIMARY KEY, turbine int REFERENCES grid.turbines, state ops.status);
INSERT INTO grid.turbines SELECT i, 80 + i, i % 3 > 0, '2024-01-01 00:00:00+00' FROM generate_series(1, 40) i;
INSERT INTO ops.orders SELECT i, i, 'open' FROM generate_series(1, 40) i;
"""


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def warehouse(make_database: Make) -> Any:
    return make_database("postgresql", WAREHOUSE)


def run(database: Any, *queries: str) -> list[tuple[str, Any]]:
    """Return (status, rows) of each query, all in one session."""
    with Executor(threads=1) as executor:
        outcomes = [executor.execute(database.reader, query) for query in queries]
    return [(outcome.status, outcome.rows) for outcome in outcomes]


class TestSchemas:
    def test_queries_name_tables_with_and_without_their_schema(self, warehouse: Any) -> None:
        queries = [
            "SELECT count(*) FROM turbines",
            "SELECT count(*) FROM grid.turbines",
            "SELECT count(*) FROM ops.orders o JOIN turbines t ON t.id = o.turbine",
            # The session that runs a query in a transaction of its own, and is reset after it.
            "SELECT count(*) FROM turbines WHERE set_config('search_path', 'ops', false) = 'ops'",
            "SELECT count(*) FROM turbines",
        ]
        assert run(warehouse, *queries) == [("ok", [(40,)])] * 5

    def test_the_path_of_the_role_comes_first(self, warehouse: Any, tmp_path: Path) -> None:
        warehouse.run(
            "CREATE TABLE public.turbines(id int PRIMARY KEY); CREATE TABLE ops.pumps(id int); "
            "CREATE TABLE grid.pumps(id int PRIMARY KEY); INSERT INTO ops.pumps VALUES (7)"
        )
        assert run(warehouse, "SELECT count(*) FROM turbines", "SELECT count(*) FROM pumps") == [("ok", [(0,)])] * 2
        report = sample(warehouse.reader, tmp_path, 10)
        assert report.rows.keys() == {"turbines", "pumps", "orders"}
        assert report.notes == (
            "the search_path of queries ends with grid, ops: tables need no schema's name",
            "grid.turbines is left out: public.turbines has its name and is before it in the search_path",
            "ops.pumps is left out: grid.pumps has its name and is before it in the search_path",
        )
        warehouse.server.run(f"ALTER ROLE {warehouse.role} SET search_path = ops, grid")
        assert run(warehouse, "SELECT count(*) FROM turbines", "SELECT id FROM pumps") == [
            ("ok", [(40,)]),
            ("ok", [(7,)]),
        ]
        notes = sample(warehouse.reader, tmp_path / "2", 10).notes
        assert "public.turbines is left out: grid.turbines has its name and is before it in the search_path" in notes

    def test_the_grants_of_a_role_without_rights_cover_public_too(self, warehouse: Any, tmp_path: Path) -> None:
        warehouse.run(
            f"CREATE TABLE public.notes(id int); REVOKE SELECT ON notes FROM {warehouse.role}; "
            f"REVOKE USAGE ON SCHEMA grid, ops FROM {warehouse.role}"
        )
        with pytest.raises(InputError, match="no table that the role can read") as failure:
            sample(warehouse.reader, tmp_path, 10)
        warehouse.run(str(failure.value).partition("To be run by an owner of the tables: ")[2])
        assert sample(warehouse.reader, tmp_path / "2", 10).rows.keys() == {"turbines", "orders", "notes"}

    def test_synth_writes_golds_that_run(self, warehouse: Any, tmp_path: Path) -> None:
        assert synth(["--db", warehouse.reader, "--out", str(tmp_path / "out"), "--n", "40"]) == 0
        lines = (tmp_path / "out/questions.jsonl").read_text(encoding="utf-8").splitlines()
        golds = [json.loads(line)["sql"] for line in lines]
        assert len(golds) > 30
        assert {status for status, _ in run(warehouse, *golds)} == {"ok"}
        assert any('"hubHeight"' in gold for gold in golds)


class TestPrompts:
    @pytest.mark.parametrize("name", ["ddl", "omnisql", "profile", "compact"])
    def test_prompts_quote_names_as_postgresql_does(self, warehouse: Any, name: str) -> None:
        example = database_example(warehouse.reader)
        shown = RENDERERS[name](example, read_schema(example.db_path))
        assert '"hubHeight"' in shown
        assert '"turbines"' not in shown

    def test_values_are_those_of_the_server(self, warehouse: Any) -> None:
        example = database_example(warehouse.reader)
        schema = read_schema(example.db_path)
        omnisql, profile = (RENDERERS[name](example, schema) for name in ("omnisql", "profile"))
        assert "    online BOOLEAN, -- example: [true, false]\n" in omnisql
        assert "since TIMESTAMPTZ, -- example: ['2024-01-01 00:00:00+00']\n" in omnisql
        assert "state TEXT, -- values: 'open', 'in work', 'done', example: ['open']\n" in omnisql
        assert "online BOOLEAN NOT NULL, --Example true, false\n" in profile


def test_changed_tables_are_sampled_again(warehouse: Any) -> None:
    lines: list[str] = []

    def columns() -> list[str]:
        lines.clear()
        database = open_external(warehouse.reader, None, [], lines.append)
        lines.append(database.sample_note)
        (table,) = (table for table in read_schema(database.sample_path).tables if table.name == "turbines")
        return [column.name for column in table.columns]

    assert columns() == ["id", "hubHeight", "online", "since"]
    assert not any("a new sample" in line for line in lines)
    columns()
    assert any("an earlier sample (0 min old)" in line for line in lines)
    warehouse.run("ALTER TABLE grid.turbines ADD COLUMN capacity int")
    assert columns()[-1] == "capacity"
    assert "a new sample: tables, columns or rights have changed since the last one" in lines
