"""A PostgreSQL server of one's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sqlexec_rs.servers import _functions, _programs
from sqlexec_rs.servers._programs import SECONDS

SCHEME = "postgresql"
DATABASE = "postgres"
USERS = ("postgres",)

FACTS = """
SELECT current_setting('server_version'), current_user, current_setting('temp_file_limit'), current_setting('work_mem'),
       current_setting('max_connections'),
       (SELECT rolconnlimit FROM pg_catalog.pg_roles WHERE rolname = current_user)
"""

LONG_QUERIES = """
SELECT count(*) FROM pg_catalog.pg_stat_get_backend_idset() AS id
WHERE pg_catalog.pg_stat_get_backend_pid(id) <> pg_catalog.pg_backend_pid()
  AND pg_catalog.pg_stat_get_backend_activity_start(id) < pg_catalog.now() - interval '60 s'
  AND pg_catalog.pg_stat_get_backend_wait_event_type(id) IS DISTINCT FROM 'Client'
"""
"""Counts the role's queries that run for more than a minute; a session without a query waits for its client."""


def launch(root: Path, port: int, passwords: Mapping[str, str]) -> None:
    """Make a server's files, and start it."""
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
    # Unix sockets are put where they disturb nobody, and nothing is written safely to disk.
    _control(root, "start", "--options", " ".join([f"-h 127.0.0.1 -p {port} -k '{root}' -F", *options]))


def make_readers(password: str, numbered: Sequence[str]) -> str:
    """Return the statements that make who may only read.

    What they revoke in template1 holds in every database that is created from it.
    """
    members = "".join(f"CREATE ROLE {role} LOGIN PASSWORD '{password}' IN ROLE reader;\n" for role in numbered)
    return f"""
        REVOKE CREATE ON SCHEMA public FROM PUBLIC;
        REVOKE TEMPORARY ON DATABASE postgres FROM PUBLIC;
        CREATE ROLE reader LOGIN PASSWORD '{password}';
        GRANT USAGE ON SCHEMA public TO reader;
        ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT SELECT ON TABLES TO reader;
        ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT USAGE ON SCHEMAS TO reader;
        {members}
        {_functions.revoke_script()}
        \\connect template1
        {_functions.revoke_script()}
    """


def ask(url: str, script: str) -> None:
    """Run SQL statements as the user of a URL."""
    parts = urlsplit(url)
    address = parts._replace(netloc=f"{parts.username}@{parts.hostname}:{parts.port}").geturl()
    command = [_program("psql"), "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", address]
    _programs.ask(command, script, {"PGPASSWORD": parts.password or ""})


def end(root: Path) -> None:
    """End the server of a folder, and wait for its end; one that has ended is none to stop."""
    if (root / "data" / "postmaster.pid").exists():
        _control(root, "stop", "--mode=fast")


def tell(facts: tuple[str, ...]) -> list[str]:
    """Return lines that say what an executor can hold the server to."""
    version, role, temp, memory, connections, limit = facts
    most = connections if int(limit) < 0 else limit
    files = f"bounded by temp_file_limit, {temp}"
    if temp == "-1":
        files = f"not bounded, but by a superuser: ALTER ROLE {role} SET temp_file_limit = '1GB'"
    return [
        f"PostgreSQL {version}: the role {role} can read, and do nothing else",
        f"time: each run is answered in time, and some functions work on; connections: one a thread of an executor, of {most} that there may be",
        f"temporary files: {files}",
        f"memory: not bounded; work_mem is {memory} for each sort and hash table of a query",
        f"sessions of {role} can end each other; with ?roles=N each thread has a role of its own",
    ]


def _control(root: Path, command: str, *options: str) -> None:
    """Start or stop the server of a folder, and wait until it has."""
    program = [_program("pg_ctl"), command, f"--pgdata={root / 'data'}", f"--log={root / 'log'}", "--wait", "--silent"]
    _programs.run([*program, f"--timeout={SECONDS}", *options], root, _programs.find_user(USERS))


def _program(name: str) -> str:
    """Return the path of a program; Debian's are not on the search path, but wrappers of theirs are."""
    return _programs.find_program(name, "postgresql", "usr/lib/postgresql/*/bin/{name}")
