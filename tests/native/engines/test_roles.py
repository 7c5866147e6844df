"""A role that can gain write access is refused, and a reader cannot fill its server's disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from sqlexec_rs import Executor, Outcome
from sqlexec_rs.servers import Server, __main__, _functions, revoke_script

# Statements that give the role `{r}` a right, and the right in the message. `{b}` is another role of the case.
POSTGRESQL_GRANTS = {
    "noinherit member of a superuser": (
        "CREATE ROLE {b} SUPERUSER; ALTER ROLE {r} NOINHERIT; GRANT {b} TO {r}",
        "is a member of {b}, which is a superuser",
    ),
    "noinherit member of a writer": (
        "CREATE ROLE {b}; GRANT INSERT ON item TO {b}; ALTER ROLE {r} NOINHERIT; GRANT {b} TO {r}",
        "can write to public.item",
    ),
    "other role at login": (
        "CREATE ROLE {b}; GRANT {b} TO {r}; GRANT INSERT ON item TO {r}; ALTER ROLE {r} SET role = '{b}'",
        "can write to public.item",
    ),
    "member of a member": (
        "CREATE ROLE {b}; CREATE ROLE {b}2 NOINHERIT IN ROLE {b}; GRANT DELETE ON item TO {b}; GRANT {b}2 TO {r}",
        "can write to public.item",
    ),
    "column": ("GRANT UPDATE (price) ON item TO {r}", "can write to public.item"),
    "column insert": ("GRANT INSERT (price) ON item TO {r}", "can write to public.item"),
    "column references": ("GRANT REFERENCES (price) ON item TO {r}", "has REFERENCES on public.item"),
    "truncate": ("GRANT TRUNCATE ON item TO {r}", "can write to public.item"),
    "trigger": ("GRANT TRIGGER ON item TO {r}", "has TRIGGER on public.item"),
    "view": ("GRANT UPDATE ON cheap TO {r}", "can write to public.cheap"),
    "catalog": ("GRANT UPDATE ON pg_catalog.pg_class TO {r}", "can write to pg_catalog.pg_class"),
    "sequence": ("GRANT USAGE ON SEQUENCE numbers TO {r}", "can advance public.numbers"),
    "schema": ("CREATE SCHEMA {b}; GRANT CREATE ON SCHEMA {b} TO {r}", "can create tables in the schema {b}"),
    "database": ("GRANT CREATE ON DATABASE {d} TO {r}", "can create schemas in the database"),
    "owner of a table": ("CREATE TABLE {b}(x int); ALTER TABLE {b} OWNER TO {r}", "owns the table {b}"),
    "owner of a function": (
        "CREATE FUNCTION {b}() RETURNS int LANGUAGE sql AS 'SELECT 1'; ALTER FUNCTION {b}() OWNER TO {r}",
        "owns the function {b}()",
    ),
    "owner of a schema": ("CREATE SCHEMA {b} AUTHORIZATION {r}", "owns the schema {b}"),
    "large object": ("SELECT lo_create(77); GRANT UPDATE ON LARGE OBJECT 77 TO {r}", "the large object 77"),
    "default privileges": (
        "ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT INSERT ON TABLES TO {r}",
        "will have INSERT on future objects of owner",
    ),
    "default privileges on sequences": (
        "ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT USAGE ON SEQUENCES TO {r}",
        "will have USAGE on future objects of owner",
    ),
    "foreign-data wrapper": (
        "CREATE FOREIGN DATA WRAPPER {b}; GRANT USAGE ON FOREIGN DATA WRAPPER {b} TO {r}",
        "can use the foreign-data wrapper {b}",
    ),
    "foreign server": (
        (
            "CREATE FOREIGN DATA WRAPPER {b}; CREATE SERVER {b} FOREIGN DATA WRAPPER {b}; "
            "GRANT USAGE ON FOREIGN SERVER {b} TO {r}"
        ),
        "can use the foreign server {b}",
    ),
    "parameter": ("GRANT SET ON PARAMETER log_statement TO {r}", "has SET on the parameter log_statement"),
    "function of files": ("GRANT EXECUTE ON FUNCTION lo_export(oid, text) TO {r}", "can call lo_export"),
    "function of a member": (
        (
            "CREATE ROLE {b}; GRANT EXECUTE ON FUNCTION pg_read_file(text) TO {b}; ALTER ROLE {r} NOINHERIT; "
            "GRANT {b} TO {r}"
        ),
        "can call pg_read_file",
    ),
    "create roles": ("CREATE ROLE {b} CREATEROLE; GRANT {b} TO {r}", "which can create roles"),
    "replication": ("ALTER ROLE {r} REPLICATION", "can replicate"),
    "row security": ("ALTER ROLE {r} BYPASSRLS", "bypasses row security"),
    **{
        role: (f"ALTER ROLE {{r}} NOINHERIT; GRANT {role} TO {{r}}", f"is a member of {role}")
        for role in (
            "pg_write_all_data", "pg_execute_server_program", "pg_write_server_files", "pg_read_server_files",
            "pg_signal_backend", "pg_checkpoint", "pg_monitor", "pg_read_all_stats", "pg_stat_scan_tables",
        )
    },
}  # fmt: skip
MARIADB_GRANTS = {
    "role": ("CREATE ROLE {b}; GRANT INSERT ON {d}.* TO {b}; GRANT {b} TO {r}", "INSERT on `{d}`.*"),
    "role of a role": (
        (
            "CREATE ROLE {b}; CREATE ROLE {b}2; GRANT UPDATE (name) ON {d}.item TO {b}; GRANT {b} TO {b}2; "
            "GRANT {b}2 TO {r}"
        ),
        "UPDATE on `{d}`.`item`",
    ),
    "default role": (
        "CREATE ROLE {b}; GRANT FILE ON *.* TO {b}; GRANT {b} TO {r}; SET DEFAULT ROLE {b} FOR {r}",
        "FILE on *.*",
    ),
    "admin of a role": ("CREATE ROLE {b}; GRANT {b} TO {r} WITH ADMIN OPTION", "ADMIN OPTION on the role `{b}`"),
    "column": ("GRANT UPDATE (name) ON {d}.item TO {r}", "UPDATE on `{d}`.`item`"),
    "routine": ("CREATE FUNCTION {b}() RETURNS int RETURN 1; GRANT EXECUTE ON FUNCTION {d}.{b} TO {r}", "EXECUTE on"),
    "proxy": ("GRANT PROXY ON owner TO {r}", "PROXY on `owner`"),
    "everybody": ("GRANT EXECUTE ON {d}.* TO PUBLIC", "EXECUTE on `{d}`.*"),
}
UNDO = {"everybody": "REVOKE EXECUTE ON {d}.* FROM PUBLIC"}
REFUSED_GRANTS = {"postgresql": POSTGRESQL_GRANTS, "mariadb": MARIADB_GRANTS}
ACCEPTED_GRANTS = {
    "postgresql": (
        "CREATE ROLE {b}; GRANT SELECT ON item TO {b}; GRANT {b} TO {r}; ALTER ROLE {r} NOINHERIT; "
        "GRANT SELECT (price) ON item TO {r}; GRANT pg_read_all_data TO {r}; "
        "ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT SELECT ON SEQUENCES TO {r}; "
        "SELECT lo_create(78); GRANT SELECT ON LARGE OBJECT 78 TO {r}; GRANT USAGE ON LANGUAGE plpgsql TO {r}"
    ),
    "mariadb": "CREATE ROLE {b}; GRANT SELECT ON {d}.* TO {b}; GRANT {b} TO {r}; GRANT SHOW VIEW ON {d}.* TO {r}",
}
CREATE = {
    "postgresql": "CREATE ROLE {r} LOGIN PASSWORD 'm'",
    "mariadb": "CREATE USER {r} IDENTIFIED BY 'm'; GRANT SELECT ON {d}.* TO {r}",
}


@pytest.fixture(params=["postgresql", "mariadb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_a_role_that_can_gain_write_access_is_refused(database: Any, engine: str) -> None:
    wrong: dict[str, Outcome | str | None] = {}
    with Executor(threads=1) as executor:
        for number, (case, (script, right)) in enumerate(REFUSED_GRANTS[engine].items()):
            names = {"r": f"{database.user}_r{number}", "b": f"{database.user}_b{number}", "d": database.name}
            database.run(f"{CREATE[engine]}; {script}".format(**names))
            outcome = executor.execute(database.url_of(names["r"], "m"), "SELECT 1")
            if outcome.status != "db_error" or f"{names['r']} can do more than read" not in (outcome.error or ""):
                wrong[case] = outcome
            elif right.format(**names) not in (outcome.error or ""):
                wrong[case] = outcome.error
            if case in UNDO:
                database.run(UNDO[case].format(**names))
    assert not wrong


def test_other_forms_of_read_only_roles_are_accepted(database: Any, engine: str) -> None:
    names = {"r": f"{database.user}_less", "b": f"{database.user}_readers", "d": database.name}
    database.run(f"{CREATE[engine]}; {ACCEPTED_GRANTS[engine]}".format(**names))
    with Executor(threads=1) as executor:
        assert executor.execute(database.url_of(names["r"], "m"), "SELECT 1").rows == [(1,)]
        role = "SELECT current_role" if engine == "postgresql" else "SELECT coalesce(CURRENT_ROLE(), 'none')"
        (row,) = executor.execute(database.url_of(names["r"], "m"), role).rows
        assert row == (names["r"],) if engine == "postgresql" else row in {("none",), ("NONE",)}


@pytest.mark.parametrize("engine", ["postgresql"], indirect=True)
def test_check_lists_functions_that_a_reader_may_execute(
    database: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database.run("CREATE FUNCTION write_all(x int) RETURNS int LANGUAGE sql SECURITY DEFINER AS 'SELECT 1'")
    password = str(urlsplit(database.url).password)
    monkeypatch.setenv("PGPASSWORD", password)
    assert __main__.main(["check", database.url.replace(f":{password}@", "@")]) == 0
    output = capsys.readouterr().out
    parts = ("the log records", "fill the disk", "pg_logical_emit_message", "pg_advisory_lock", "readers postgresql")
    for part in parts:
        assert part in output
    assert "write_all(integer) runs as owner, a superuser" in output
    bounds = ("log_min_messages = fatal", "log_min_error_statement = panic")
    database.run("; ".join(f"ALTER ROLE {database.user} SET {bound}" for bound in bounds))
    database.run(f"REVOKE EXECUTE ON FUNCTION write_all FROM PUBLIC; {revoke_script()}")
    assert __main__.main(["check", database.url]) == 0
    output = capsys.readouterr().out
    assert "write_all" not in output
    assert "the log records" not in output
    assert "functions that write, lock, overrun or show other sessions: revoked" in output


def test_a_reader_of_an_own_server_cannot_fill_its_disk(shared_server: Callable[[str], Server]) -> None:
    server = shared_server("postgresql")
    calls = (
        "pg_logical_emit_message(false, 'x', repeat('y', 100))",
        "pg_logical_emit_message(true, 'x', 'y'::bytea)",
        "lo_from_bytea(0, 'x')",
        "lo_create(0)",
        "lo_put(1, 0, 'x')",
        "pg_export_snapshot()",
        "pg_notify('x', 'y')",
        "pg_advisory_lock(1)",
        "pg_try_advisory_xact_lock_shared(1, 2)",
        "pg_terminate_backend(1)",
        "pg_cancel_backend(1)",
    )
    with Executor(threads=1) as executor:
        for call in calls:
            for url in (server.reader, server.readers):
                outcome = executor.execute(url, f"SELECT {call}")
                assert (call, outcome.status) == (call, "forbidden")
                assert "permission denied for function" in (outcome.error or "")
        assert executor.execute(server.reader, _functions.executable_query()).rows == []
        assert executor.execute(server.reader, "SELECT current_setting('temp_file_limit')").rows == [("1GB",)]
        names = ", ".join(f"'{name}'" for group in _functions.REVOKED for name in group.names)
        (count,) = executor.execute(server.reader, f"SELECT count(*) FROM pg_proc WHERE proname IN ({names})").rows
        assert count[0] >= 34, "the names are those of functions"


def test_own_server_logs_contain_no_reader_queries(shared_server: Callable[[str], Server]) -> None:
    server = shared_server("postgresql")
    marker = "marker of a text that fails"
    texts = (
        f"SELECT 1 / 0, '{marker}'",
        f"SELECT '{marker}'::integer",
        f"SELECT set_config('debug_print_plan', 'on', true), query_to_xml('SELECT ''{marker}''', true, true, '')",
    )
    with Executor(threads=1) as executor:
        for sql in texts:
            executor.execute(server.reader, sql)
    log = Path(server.folder, "log").read_text(encoding="utf-8", errors="replace")
    assert marker not in log
    assert "database system is ready" in log, "the server's own messages are present"
