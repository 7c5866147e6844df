"""A local MariaDB server."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from sqlexec_rs._native import split_url
from sqlexec_rs.servers import _programs
from sqlexec_rs.servers._programs import ServerError

SCHEME = "mysql"
PASSWORD_VARIABLE = "MYSQL_PWD"  # noqa: S105 - a variable's name
RUN = "mariadb {database} < readers.sql"
WHO = "a user with the privileges CREATE USER and GRANT OPTION"
DATABASE = "main"
USERS = ("mysql",)
_LOG = "error.log"

_FACTS = """
SELECT version(), current_user(), @@max_connections, @@max_user_connections, @@max_session_mem_used,
       @@tmp_disk_table_size, @@max_allowed_packet
"""

LONG_QUERIES = """
SELECT COUNT(*) FROM information_schema.processlist
WHERE id <> CONNECTION_ID() AND (command = 'Killed' OR (command IN ('Query', 'Execute') AND time > 60))
"""
"""Counts the user's queries that continue after a kill, or run for more than a minute.

The executor runs no other query on the process list (`core/src/server/mysql/sessions.rs`).
"""


def launch(root: Path, port: int, passwords: Mapping[str, str]) -> None:
    """Create a server's files and start it."""
    user = _programs.find_user(USERS)
    install = ["--auth-root-authentication-method=normal", "--skip-test-db", "--skip-name-resolve", _tmpdir(root)]
    program = [_program("mariadb-install-db"), "--no-defaults", f"--datadir={root / 'data'}"]
    _programs.run([*program, *install], root, user)
    # The owner is the only user from the moment that clients can connect.
    first = root / "first.sql"
    first.touch(0o600)
    first.write_text(  # one statement per line
        f"""DELETE FROM mysql.global_priv WHERE User NOT IN ('mariadb.sys');
FLUSH PRIVILEGES;
CREATE DATABASE {DATABASE};
CREATE USER owner IDENTIFIED BY '{passwords["owner"]}';
GRANT ALL ON *.* TO owner WITH GRANT OPTION;
""",
        encoding="ascii",
    )
    _programs.give(first, user)
    resume(root, port, f"--init-file={first}")
    owner = f"mysql://owner:{passwords['owner']}@127.0.0.1:{port}/{DATABASE}"
    try:
        _programs.wait(lambda: _answers(owner), f"the server in {root} did not answer")
    except ServerError as error:
        log = root / _LOG
        output = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        end(root)
        raise ServerError(f"{error}: {' '.join(output.split())[-400:]}") from None
    first.write_text("", encoding="ascii")  # read again at each start of the server


def _tmpdir(root: Path) -> str:
    """Return the option for a server's own temporary files: in a shared folder each start deletes those of others."""
    return f"--tmpdir={root}"


def resume(root: Path, port: int, *options: str) -> None:
    """Start the server of a folder; it may not answer immediately."""
    server = [
        _program("mariadbd"), "--no-defaults", f"--datadir={root / 'data'}", f"--socket={root / 'mysqld.sock'}",
        f"--port={port}", "--bind-address=127.0.0.1", "--skip-name-resolve", f"--pid-file={root / 'pid'}",
        f"--log-error={root / _LOG}", _tmpdir(root), "--character-set-server=utf8mb4", "--innodb-buffer-pool-size=128M",
        "--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0", "--skip-log-bin",
        # REPLACE() of a long text takes quadratic time without checking the clock.
        "--max-allowed-packet=1M",
    ]  # fmt: skip
    _programs.keep_running([*server, *options], root, _programs.find_user(USERS))


def make_readers(database: str, name: str, password: str, n_roles: int, schemas: Sequence[str] = ()) -> str:
    """Return the statements that create read-only users of a database, which has no schemas."""
    if schemas:
        raise ServerError(f"--schema {schemas[0]}: a schema of MariaDB is a database, which --database names")
    users = _users(name, n_roles)
    definitions = ", ".join(f"{user} IDENTIFIED BY '{password}'" for user in users)
    # In a GRANT, the name of a database is a pattern.
    pattern = _quote(re.sub(r"([_%\\])", r"\\\1", database))
    return f"CREATE USER {definitions};\nGRANT SELECT ON {pattern}.* TO {', '.join(users)};\n"


def drop_readers(name: str, n_roles: int) -> str:
    """Return the statement that removes the users."""
    return f"DROP USER {', '.join(_users(name, n_roles))};"


def _users(name: str, n_roles: int) -> list[str]:
    """Return the quoted names of a user and of the numbered ones."""
    return [_quote(user) for user in (name, *(f"{name}_{i}" for i in range(1, n_roles + 1)))]


def harden(_database: str) -> str:
    """Raise ServerError: MariaDB has no rights on built-in functions."""
    raise ServerError("--harden: MariaDB has no rights on built-in functions that could be revoked")


def prepare(password: str, n_roles: int) -> str:
    """Return the statements that set up a new server."""
    return make_readers(DATABASE, "reader", password, n_roles)


def ask(url: str, script: str) -> None:
    """Run SQL statements as the user of a URL."""
    _, host, port, user, password, database, _ = split_url(url)
    server = ["--no-defaults", "--protocol=tcp", f"--host={host}", f"--port={port}", "--batch"]
    session = [f"--user={user}", "--default-character-set=utf8mb4", database]
    _programs.ask([_program("mariadb"), *server, *session], script, {"MYSQL_PWD": password})


def end(root: Path) -> None:
    """Stop the server of a folder and wait for its end; does nothing if it has ended already."""
    file = root / "pid"
    _programs.end(root, file, signal.SIGTERM, signal.SIGKILL)
    file.unlink(missing_ok=True)  # left by a crashed server


def describe(ask: Callable[[str], list[tuple[str, ...]]]) -> list[str]:
    """Return lines with the limits that an executor can enforce on the server; `ask` runs a query as the reader."""
    version, user, connections, limit, memory, disk, packet = ask(_FACTS)[0]
    most = limit if int(limit) > 0 else connections
    return [
        f"MariaDB {version}: the user {user} can only read",
        "time: each run returns in time, but some functions continue on the server",
        f"connections: one per thread of an executor, two with ?roles=N; at most {most}",
        f"memory: {int(memory) >> 20} MiB per run",
        f"temporary tables on disk: {int(disk) >> 20} MiB per table",
        f"functions of long texts may outlive their run; max_allowed_packet limits texts to {int(packet) >> 20} MiB",
        f"sessions of {user} can end each other; ?roles=N gives each thread a separate user",
        "routines: none; a user that may execute a routine is refused",
    ]


def _answers(url: str) -> bool:
    try:
        ask(url, "SELECT 1")
    except ServerError:
        return False
    return True


def _program(name: str) -> str:
    return _programs.find_program(name, "mariadb-server", "opt/mariadb/*/bin/{name}")


def _quote(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
