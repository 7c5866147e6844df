"""A local PostgreSQL server."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sqlexec_rs._native import join_url, split_url
from sqlexec_rs.servers import _functions, _programs
from sqlexec_rs.servers._programs import ServerError

SCHEME = "postgresql"
PASSWORD_VARIABLE = "PGPASSWORD"  # noqa: S105 - a variable's name
RUN = "psql --dbname {database} --set ON_ERROR_STOP=1 --single-transaction --file readers.sql"
WHO = "a superuser, or an owner of the tables with CREATEROLE"
DATABASE = "postgres"
USERS = ("postgres",)

# Limits on a role's disk usage, which only a superuser can change. The log records no query of a reader, nor messages
# that quote one: `debug_print_plan` and similar settings log below `fatal`.
_LOG_LEVELS = ("log_min_messages = 'fatal'", "log_min_error_statement = 'panic'")
_BOUNDS = (
    "temp_file_limit = '1GB'",
    *_LOG_LEVELS,
    "log_parameter_max_length = 0",
    "log_min_duration_statement = -1",
    "log_statement = 'none'",
)

# Schemas that readers get by default. `public` may get tables later, and every role may use it.
_SCHEMAS = """SELECT nspname FROM pg_catalog.pg_namespace
        WHERE nspname !~ '^pg_' AND nspname <> 'information_schema' AND (nspname = 'public' OR EXISTS (
            SELECT FROM pg_catalog.pg_class
            WHERE relnamespace = pg_namespace.oid AND relkind IN ('r', 'p', 'v', 'm', 'f')))"""

_FACTS = """
SELECT current_setting('server_version'), current_user, current_setting('temp_file_limit'), current_setting('work_mem'),
       current_setting('max_connections'), current_setting('log_min_messages'),
       current_setting('log_min_error_statement'),
       (SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = current_user)
"""

_DEFINERS = f"""
SELECT pg_proc.oid::regprocedure::text, owner.rolname, owner.rolsuper FROM pg_catalog.pg_proc
JOIN pg_catalog.pg_roles AS owner ON owner.oid = proowner
WHERE prosecdef AND {_functions.IS_EXECUTABLE} ORDER BY 1
"""
LONG_QUERIES = """
SELECT count(*) FROM pg_catalog.pg_stat_get_backend_idset() AS id
WHERE pg_catalog.pg_stat_get_backend_pid(id) <> pg_catalog.pg_backend_pid()
  AND pg_catalog.pg_stat_get_backend_activity_start(id) < pg_catalog.now() - interval '60 s'
  AND pg_catalog.pg_stat_get_backend_wait_event_type(id) IS DISTINCT FROM 'Client'
"""
"""Counts the role's queries that run for more than a minute; idle sessions wait for their client."""


def launch(root: Path, port: int, passwords: Mapping[str, str]) -> None:
    """Create a server's files and start it."""
    user = _programs.find_user(USERS)
    secret = root / "password"
    secret.touch(0o600)
    secret.write_text(passwords["owner"], encoding="ascii")
    _programs.give(secret, user)
    options = ["--username=owner", f"--pwfile={secret}", "--auth=scram-sha-256", "--encoding=UTF8", "--locale=C"]
    try:
        _programs.run([_program("initdb"), f"--pgdata={root / 'data'}", *options, "--no-sync"], root, user)
    finally:
        secret.unlink()
    resume(root, port)


def resume(root: Path, port: int, *options: str) -> None:
    """Start the server of a folder."""
    # Unix sockets are in the server's folder, and -F disables syncing to disk.
    server = [_program("postgres"), "-D", str(root / "data"), "-h", "127.0.0.1", "-p", str(port), "-k", str(root), "-F"]
    arguments = [argument for option in options for argument in shlex.split(option)]
    command = ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(root / "log"), *server, *arguments]
    _programs.keep_running(command, root, _programs.find_user(USERS))
    is_ready = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    try:
        _programs.wait(lambda: _programs.succeeds(is_ready), f"the server in {root} did not answer")
    except ServerError as error:
        end(root)
        log = (root / "log").read_text(encoding="utf-8", errors="replace")
        raise ServerError(f"{error}: {_programs.summarize_output(log)}") from None


def make_readers(database: str, name: str, password: str, n_roles: int, schemas: Sequence[str] = ()) -> str:
    """Return the statements that create read-only roles of a database and change nothing for other roles.

    Without `schemas` the roles read all schemas that hold tables when the statements run.
    """
    quoted, literal = _quote(name), _literal(name)
    roles = _roles(name, n_roles)
    members = [f"CREATE ROLE {role} LOGIN PASSWORD '{password}' IN ROLE {quoted};" for role in roles[1:]]
    chosen = f"SELECT unnest(ARRAY[{', '.join(map(_literal, schemas))}])" if schemas else _SCHEMAS
    future = f"IN SCHEMA {', '.join(map(_quote, schemas))} " if schemas else ""
    lines = [
        f"CREATE ROLE {quoted} LOGIN PASSWORD '{password}';",
        *members,
        f"GRANT CONNECT ON DATABASE {_quote(database)} TO {quoted};",
        f"""DO $readers$ DECLARE place text; BEGIN
    FOR place IN {chosen} LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', place, {literal});
        EXECUTE format('GRANT SELECT ON ALL TABLES IN SCHEMA %I TO %I', place, {literal});
    END LOOP;
    FOR place IN SELECT quote_ident(nspname) FROM pg_catalog.pg_namespace
        WHERE nspname !~ '^pg_' AND has_schema_privilege({literal}, oid, 'CREATE') LOOP
        RAISE WARNING 'every role may create tables in the schema %, so the executor refuses the readers', place
            USING HINT = 'REVOKE CREATE ON SCHEMA ' || place || ' FROM PUBLIC ends this, for all other roles too.';
    END LOOP;
END $readers$;""",
        f"ALTER DEFAULT PRIVILEGES {future}GRANT SELECT ON TABLES TO {quoted};",
        *([] if schemas else [f"ALTER DEFAULT PRIVILEGES GRANT USAGE ON SCHEMAS TO {quoted};"]),
        "-- Limits of the readers, which only a superuser can set.",
        "DO $readers$ BEGIN",
        "    IF NOT (SELECT rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user) THEN",
        "        RAISE NOTICE 'no limits of temporary files and log entries are set: this needs a superuser';",
        "        RETURN;",
        "    END IF;",
        *(f"    ALTER ROLE {role} SET {setting};" for role in roles for setting in _BOUNDS),
        "END $readers$;",
    ]
    return "\n".join(lines) + "\n"


def drop_readers(name: str, n_roles: int) -> str:
    """Return the statements that remove the roles and their rights, to be run in the database of `make_readers`."""
    roles = ", ".join(_roles(name, n_roles))
    return f"DROP OWNED BY {roles}; DROP ROLE {roles};"


def _roles(name: str, n_roles: int) -> list[str]:
    """Return the quoted names of a role and of the numbered ones."""
    return [_quote(role) for role in (name, *(f"{name}_{i}" for i in range(1, n_roles + 1)))]


def harden(database: str) -> str:
    """Return the statements that revoke harmful rights from PUBLIC, with their effects and how to undo them."""
    undo = (
        f"GRANT TEMPORARY ON DATABASE {_quote(database)} TO PUBLIC;\n"
        "GRANT CREATE ON SCHEMA public TO PUBLIC; -- only if PUBLIC had it: the default before PostgreSQL 15\n"
        f"{_functions.grant_script()}"
    )
    commented = "\n".join(f"-- {line}" for line in undo.splitlines())
    return f"""-- WARNING: the statements below take rights from ALL roles of this database except superusers. Other
-- applications lose advisory locks (common in migrations), pg_notify(), jsonpath, normalize(), xpath(), large objects,
-- exported snapshots, cancelling of their sessions, and the activity of sessions. Roles other than the owner lose
-- temporary tables, and tables of their own in the schema public.
{_revoke_statements(database)}
-- To undo them, run as a superuser, without the leading dashes:
{commented}
"""


def _revoke_statements(database: str) -> str:
    return (
        "REVOKE CREATE ON SCHEMA public FROM PUBLIC;\n"
        f"REVOKE TEMPORARY ON DATABASE {_quote(database)} FROM PUBLIC;\n"
        f"{_functions.revoke_script()}"
    )


def prepare(password: str, n_roles: int) -> str:
    """Return the statements that set up a new server; new databases inherit the revocations from template1."""
    script = f"{_revoke_statements(DATABASE)}\n{make_readers(DATABASE, 'reader', password, n_roles)}"
    return f"{script}\\connect template1\n{_functions.revoke_script()}\n"


def ask(url: str, script: str) -> None:
    """Run SQL statements as the user of a URL."""
    engine, host, port, user, password, database, options = split_url(url)
    address = join_url(engine, host, port, user, "", database, options)
    command = [_program("psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", address]
    _programs.ask(command, script, {"PGPASSWORD": password})


def end(root: Path) -> None:
    """Stop the server of a folder and wait for its end; does nothing if it has ended already."""
    # A fast shutdown, then an immediate one.
    _programs.end(root, root / "data" / "postmaster.pid", signal.SIGINT, signal.SIGQUIT)


def describe(ask: Callable[[str], list[tuple[str, ...]]]) -> list[str]:
    """Return lines with the limits that an executor can enforce on the server; `ask` runs a query as the reader."""
    version, role, temp, memory, connections, *logged, limit = ask(_FACTS)[0]
    most = connections if int(limit) < 0 else limit
    files = f"limited by temp_file_limit, {temp}"
    if temp == "-1":
        files = f"not limited; a superuser can run ALTER ROLE {role} SET temp_file_limit = '1GB'"
    return [
        f"PostgreSQL {version}: the role {role} can only read",
        "time: each run returns in time, but some functions continue on the server",
        f"connections: one per thread of an executor, two with ?roles=N; at most {most}",
        f"temporary files: {files}",
        *_log(role, logged),
        f"memory: not limited; work_mem is {memory} for each sort and hash table of a query",
        f"sessions of {role} can end each other; ?roles=N gives each thread a separate role",
        *_executable(ask),
        *_definers(ask),
    ]


def _log(role: str, levels: Sequence[str]) -> list[str]:
    """Return a line if the server logs a reader's queries or errors; `levels` are those of messages and statements."""
    if {"fatal", "panic"}.issuperset(levels):
        return []
    settings = "; ".join(f"ALTER ROLE {role} SET {bound}" for bound in _LOG_LEVELS)
    return [f"the log records queries and errors of a reader, without a limit; a superuser can run {settings}"]


def _executable(ask: Callable[[str], list[tuple[str, ...]]]) -> list[str]:
    """Return lines for the functions that the role may execute and that setting up readers revokes."""
    executable = {name for (name,) in ask(_functions.executable_query())}
    lines = []
    for group in _functions.REVOKED:
        names = [name for name in (*group.names, *group.signatures) if name in executable]
        lines += [f"a reader can {group.effect}: {', '.join(names)}"] if names else []
    if not lines:
        return ["functions that write, lock, overrun or show other sessions: revoked"]
    command = "python -m sqlexec_rs.servers readers postgresql --database NAME --harden"
    return [*lines, f"a superuser can revoke them, from all roles: the first part of the output of {command}"]


def _definers(ask: Callable[[str], list[tuple[str, ...]]]) -> list[str]:
    """Return a line for each executable function that runs with its owner's rights."""
    return [
        f"{signature} runs as {owner}{', a superuser' if is_superuser else ''}, and the role may execute it: "
        f"REVOKE EXECUTE ON FUNCTION {signature} FROM PUBLIC"
        for signature, owner, is_superuser in ask(_DEFINERS)
    ]


def _program(name: str) -> str:
    """Return the path of a program. Debian's programs are not on the search path; only wrappers are."""
    return _programs.find_program(name, "postgresql", "usr/lib/postgresql/*/bin/{name}")


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
