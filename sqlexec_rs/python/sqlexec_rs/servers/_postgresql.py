"""A PostgreSQL server of one's own."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sqlexec_rs.servers import _functions, _programs
from sqlexec_rs.servers._programs import ServerError

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
    server = [_program("postgres"), "-D", str(root / "data"), "-h", "127.0.0.1", "-p", str(port), "-k", str(root), "-F"]
    words = [word for option in options for word in shlex.split(option)]
    command = ["/bin/sh", "-c", 'exec "$@" >>"$0" 2>&1', str(root / "log"), *server, *words]
    _programs.keep_running(command, root, _programs.find_user(USERS))
    is_ready = [_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
    try:
        _programs.wait(lambda: _programs.succeeds(is_ready), f"the server in {root} did not answer")
    except ServerError as error:
        end(root)
        log = (root / "log").read_text(encoding="utf-8", errors="replace")
        raise ServerError(f"{error}: {_programs.telling(log)}") from None


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
    _programs.let_end(root)
    file = root / "data" / "postmaster.pid"
    try:
        pid = int(file.read_text(encoding="ascii").split()[0])
        os.kill(pid, signal.SIGINT)  # a fast shutdown
    except (FileNotFoundError, ProcessLookupError, ValueError, IndexError):
        return
    _programs.wait(lambda: not (file.exists() and _programs.is_alive(pid)), f"the server in {root} did not end")


def tell(facts: tuple[str, ...]) -> list[str]:
    """Return lines that say what an executor can hold the server to."""
    version, role, temp, memory, connections, limit = facts
    most = connections if int(limit) < 0 else limit
    files = f"bounded by temp_file_limit, {temp}"
    if temp == "-1":
        files = f"not bounded, but by a superuser: ALTER ROLE {role} SET temp_file_limit = '1GB'"
    return [
        f"PostgreSQL {version}: the role {role} can read, and do nothing else",
        "time: each run is answered in time, and some functions continue",
        f"connections: one a thread of an executor, of {most} that there may be",
        f"temporary files: {files}",
        f"memory: not bounded; work_mem is {memory} for each sort and hash table of a query",
        f"sessions of {role} can end each other; with ?roles=N each thread has a role of its own",
    ]


def _program(name: str) -> str:
    """Return the path of a program; Debian's are not on the search path, but wrappers of theirs are."""
    return _programs.find_program(name, "postgresql", "usr/lib/postgresql/*/bin/{name}")
