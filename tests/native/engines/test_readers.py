"""The statements that `python -m sqlexec_rs.servers readers` prints create readers and change no other role."""

from __future__ import annotations

import shlex
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from sqlexec_rs import Executor
from sqlexec_rs.servers import ROLES, ServerError, __main__, _postgresql, make_readers

HARMFUL = ("pg_advisory_lock(bigint)", "pg_notify(text, text)", "normalize(text, text)")


@pytest.fixture(params=["postgresql", "mariadb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Printed:
    """The output of `readers` for a database: the statements, the two exports, and the URL with its password."""

    def __init__(self, database: Any, name: str, capsys: pytest.CaptureFixture[str], *options: str) -> None:
        arguments = ["readers", database.engine, "--database", database.name, "--name", name, *options]
        assert __main__.main([*arguments, "--port", str(database.server.port)]) == 0
        self.script, self.errors = capsys.readouterr()
        self.exports = dict(
            shlex.split(line)[1].split("=", 1) for line in self.errors.splitlines() if line.startswith("export ")
        )
        password, self.shown = self.exports.values()
        parts = urlsplit(self.shown)
        self.url = parts._replace(netloc=parts.netloc.replace("@", f":{password}@")).geturl()


def rights_of_others(database: Any) -> list[Any]:
    """Return the privileges of PUBLIC and on functions, as the server's owner sees them."""
    with closing(database.connect(database.server.owner)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT (SELECT md5(string_agg(oid || coalesce(proacl::text, ''), ',' ORDER BY oid)) FROM pg_proc),"
            "       has_database_privilege(%(role)s, current_database(), 'TEMPORARY'),"
            "       has_schema_privilege(%(role)s, 'public', 'CREATE')",
            {"role": f"{database.user}_other"},
        )
        return list(cursor.fetchall())


def can_execute(database: Any) -> set[bool]:
    with closing(database.connect(database.server.owner)) as connection, connection.cursor() as cursor:
        cursor.execute(
            "SELECT has_function_privilege(%s, unnest(%s), 'EXECUTE')", [f"{database.user}_other", list(HARMFUL)]
        )
        return {is_allowed for (is_allowed,) in cursor.fetchall()}


@pytest.fixture
def permissive(database: Any) -> Any:
    """Return a PostgreSQL database in which PUBLIC has temporary tables, with a role for another application."""
    database.run(
        f"DO $$ BEGIN CREATE ROLE {database.user}_other; EXCEPTION WHEN duplicate_object THEN END $$;"
        f"GRANT TEMPORARY ON DATABASE {database.name} TO PUBLIC"
    )
    return database


def test_printed_statements_create_readers_of_another_database(
    database: Any, engine: str, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = Printed(database, f"{database.user}-made", capsys, "--roles", "3")
    database.run(printed.script)
    assert list(printed.exports) == ["PGPASSWORD" if engine == "postgresql" else "MYSQL_PWD", "DB"]
    assert printed.shown.endswith(f"@127.0.0.1:{database.server.port}/{database.name}?roles=3")
    with Executor(threads=2) as executor:
        assert executor.execute(printed.url, "SELECT count(*) FROM item").rows == [(500,)]
        assert executor.submit_score([printed.url], ["SELECT 5"], ["SELECT 5"], ["bird"]).result()["bird"][0] == 1
    with pytest.raises(ServerError, match=r"already exists|CREATE USER failed"):
        database.run(printed.script)
    removal = printed.script.partition("removes these by:\n--   ")[2]
    database.run(removal.partition("\n")[0])
    database.run(printed.script)
    assert ROLES > 3
    assert f"-made_{ROLES}" in make_readers(engine, database.name, f"{database.user}-made").script


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_other_roles_keep_their_rights(permissive: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = rights_of_others(permissive)
    permissive.run(Printed(permissive, f"{permissive.user}-mild", capsys, "--roles", "2").script)
    assert rights_of_others(permissive) == before
    assert before[0][1]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_hardening_warns_and_can_be_undone(permissive: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = rights_of_others(permissive)
    printed = Printed(permissive, f"{permissive.user}-hard", capsys, "--roles", "2", "--harden")
    assert "warning: --harden takes functions from all roles" in printed.errors
    assert "-- WARNING: the statements below take rights from ALL roles" in printed.script
    permissive.run(printed.script)
    assert can_execute(permissive) == {False}
    assert not rights_of_others(permissive)[0][1]
    with Executor(threads=1) as executor:
        assert executor.execute(printed.url, "SELECT pg_advisory_lock(1)").status == "forbidden"
    undo = printed.script.partition("-- To undo them")[2].partition("\n")[2]
    lines = [line for line in undo.partition("CREATE ROLE")[0].splitlines() if "only if PUBLIC had it" not in line]
    permissive.run("\n".join(line.removeprefix("-- ") for line in lines))
    assert can_execute(permissive) == {True}
    assert rights_of_others(permissive)[0][1:] == before[0][1:]


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_readers_read_all_schemas_with_tables_or_the_named(database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    schema = f"""{database.user}'s "Grid" Ops"""
    quoted = _postgresql._quote(schema)
    database.run(
        f"CREATE SCHEMA {quoted}; CREATE TABLE {quoted}.farm(id int); INSERT INTO {quoted}.farm VALUES (7); "
        f"CREATE SCHEMA {database.user}_empty"
    )
    printed = Printed(database, f"{database.user}'s", capsys, "--roles", "2")
    database.run(printed.script)
    named = Printed(database, f"{database.user}-named", capsys, "--roles", "2", "--schema", schema)
    database.run(named.script)
    missing = make_readers("postgresql", database.name, f"{database.user}-x", 1, ["no_such"]).script
    with pytest.raises(ServerError, match='schema "no_such" does not exist'):
        database.run(missing)
    with Executor(threads=1) as executor:
        for url in (printed.url, named.url):
            assert executor.execute(url, f"SELECT id FROM {quoted}.farm").rows == [(7,)]
        assert executor.execute(printed.url, "SELECT count(*) FROM item").rows == [(500,)]
        assert "permission denied for table item" in (executor.execute(named.url, "TABLE item").error or "")


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_an_owner_without_superuser_can_run_the_statements(database: Any, capsys: pytest.CaptureFixture[str]) -> None:
    owner, schema = f"{database.user}_owner", f"{database.user}_owned"
    database.run(
        f"CREATE ROLE {owner} LOGIN CREATEROLE PASSWORD 'm'; CREATE SCHEMA {schema} AUTHORIZATION {owner}; "
        f"SET ROLE {owner}; CREATE TABLE {schema}.farm(id int)"
    )
    printed = Printed(database, f"{database.user}-plain", capsys, "--roles", "2", "--schema", schema)
    _postgresql.ask(database.url_of(owner, "m"), f"BEGIN; {printed.script} COMMIT;")
    with Executor(threads=1) as executor:
        assert executor.execute(printed.url, f"SELECT count(*) FROM {schema}.farm").rows == [(0,)]
        error = executor.execute(database.url_of(owner, "m"), "SELECT 1").error or ""
    assert "A superuser, or an owner of the tables with CREATEROLE, can create a read-only role" in error
    schemas = error.partition("GRANT SELECT ON ALL TABLES IN SCHEMA ")[2].partition(" TO reader")[0].split(", ")
    assert {"public", schema}.issubset(schemas)
    assert "FROM PUBLIC" not in error


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_refusal_names_the_schema_in_which_every_role_may_create(
    database: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    schema = f"{database.user}_open"
    database.run(f"CREATE SCHEMA {schema}; GRANT CREATE ON SCHEMA {schema} TO PUBLIC")
    printed = Printed(database, f"{database.user}-open", capsys, "--roles", "0")
    database.run(printed.script)
    with Executor(threads=1) as executor:
        error = executor.execute(printed.url, "SELECT 1").error or ""
        assert f"Every role may create tables in the schema {schema}, which ends with: REVOKE CREATE ON SCHEMA" in error
        database.run(error[error.index("REVOKE CREATE") :])
        assert executor.execute(printed.url, "SELECT 1").rows == [(1,)]


@pytest.mark.parametrize("engine", ["mariadb"], indirect=True)
@pytest.mark.parametrize("option", [["--harden"], ["--schema", "grid"]])
def test_mariadb_has_neither_schemas_nor_hardening(
    engine: str, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert __main__.main(["readers", engine, "--database", "shop", *option]) == 2
    output, errors = capsys.readouterr()
    assert errors.startswith(f"error: {option[0]}")
    assert output == ""


def test_a_host_with_a_port_is_refused(engine: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert __main__.main(["readers", engine, "--database", "shop", "--host", "db.example:5433"]) == 2
    assert "write --host db.example --port 5433" in capsys.readouterr().err
    assert "@[::1]:5433/" in make_readers(engine, "shop", address=("::1", 5433)).exports


def test_output_states_who_may_run_it_and_how(engine: str) -> None:
    script = make_readers(engine, "my shop").script
    who, command = {
        "postgresql": (
            "a superuser, or an owner of the tables with CREATEROLE",
            "psql --dbname 'my shop' --set ON_ERROR_STOP=1 --single-transaction --file readers.sql",
        ),
        "mariadb": (
            "a user with the privileges CREATE USER and GRANT OPTION",
            "mariadb 'my shop' < readers.sql",
        ),
    }[engine]
    assert who in script.splitlines()[0]
    assert script.splitlines()[1] == f"--   {command}"
