"""Start local database servers for tests and demos: `python -m sqlexec_rs.servers start postgresql`.

A server uses the installed programs, runs without privileges, listens only on 127.0.0.1, and keeps its files in the
given folder. It has an owner with all rights and a reader that can only read, as an executor requires. Sessions of one
role can end and read each other, so there are also reader_1 to reader_16: the last for golds, the others for the
threads of an executor. Writes are not synced to disk, so a server is not suitable for permanent data.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlexec_rs._native import Executor, join_url, split_url
from sqlexec_rs.servers import _long_queries, _mariadb, _postgresql, _programs
from sqlexec_rs.servers._functions import revoke_script
from sqlexec_rs.servers._programs import ServerError

__all__ = [
    "ENGINES",
    "ROLES",
    "Readers",
    "Server",
    "ServerError",
    "check",
    "find",
    "make_readers",
    "revoke_script",
    "start",
]

_ENGINES = {"postgresql": _postgresql, "mariadb": _mariadb}
ENGINES = tuple(_ENGINES)
ROLES = 16
_RECORD = "server.json"


@dataclass(frozen=True)
class Server:
    """A started server: its folder and port, and the URLs of its database by role."""

    engine: str
    folder: str
    port: int
    owner: str
    reader: str

    @property
    def readers(self) -> str:
        """Return the reader's URL with a separate role for each thread of an executor."""
        return f"{self.reader}?roles={ROLES}"

    def run(self, script: str) -> None:
        """Run SQL statements as the owner; raises ServerError with the server's message."""
        _ENGINES[self.engine].ask(self.owner, script)

    def restart(self, *options: str) -> None:
        """Restart the server with its data and additional program options.

        It may not answer immediately.
        """
        _ENGINES[self.engine].end(Path(self.folder))
        _ENGINES[self.engine].resume(Path(self.folder), self.port, *options)

    def stop(self) -> None:
        """Stop the server and wait for its end; does nothing if it has ended already."""
        root = Path(self.folder)
        _ENGINES[self.engine].end(root)
        (root / _RECORD).unlink(missing_ok=True)


def start(engine: str, folder: str | os.PathLike[str]) -> Server:
    """Start a server with its files in an empty or new folder; raises ServerError."""
    if engine not in _ENGINES:
        raise ServerError(f"{engine} is not a supported server: {', '.join(ENGINES)}")
    module = _ENGINES[engine]
    root = _programs.make_folder(folder, _programs.find_user(module.USERS))
    passwords = {role: secrets.token_hex(16) for role in ("owner", "reader")}
    port = _programs.free_port()
    urls = {
        role: join_url(module.SCHEME, "127.0.0.1", port, role, password, module.DATABASE, [])
        for role, password in passwords.items()
    }
    server = Server(engine, str(root), port, **urls)
    module.launch(root, port, passwords)
    try:
        server.run(module.prepare(passwords["reader"], ROLES))
    except BaseException:
        server.stop()
        raise
    record = root / _RECORD
    record.touch(0o600)
    record.write_text(json.dumps(asdict(server)), encoding="utf-8")
    return server


def find(folder: str | os.PathLike[str]) -> Server:
    """Return the server that was started in a folder; raises ServerError without one."""
    record = Path(folder).absolute() / _RECORD
    try:
        return Server(**json.loads(record.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ServerError(f"no server was started in {record.parent}") from None


def check(url: str) -> list[str]:
    """Return lines with the limits that an executor can and cannot enforce on a server.

    A URL without a password uses PGPASSWORD or MYSQL_PWD. Raises ServerError if no query can run, for example because
    the role can do more than read.
    """
    try:
        scheme, host, port, user, password, database, options = split_url(url)
    except ValueError as error:
        raise ServerError(f"{error}: a server's URL must start with postgresql:// or mysql://") from None
    engine = {"postgresql": _postgresql, "mysql": _mariadb}[scheme]
    if not password:
        url = join_url(scheme, host, port, user, os.environ.get(engine.PASSWORD_VARIABLE, ""), database, options)
    with Executor(threads=1) as executor:

        def ask(sql: str) -> list[tuple[Any, ...]]:
            outcome = executor.execute(url, sql)
            if outcome.status != "ok":
                raise ServerError(outcome.error or outcome.status)
            return outcome.rows

        lines: list[str] = engine.describe(ask)
        return [*lines, _long_queries.count(executor, url, engine.LONG_QUERIES)]


@dataclass(frozen=True)
class Readers:
    """Read-only roles that do not exist yet: the statements that create them, and the shell lines of their URL."""

    script: str
    exports: str


def make_readers(
    engine: str,
    database: str,
    name: str = "reader",
    n_roles: int = ROLES,
    schemas: Sequence[str] = (),
    is_hardened: bool = False,
    address: tuple[str, int | None] = ("127.0.0.1", None),
) -> Readers:
    """Return the statements that create read-only roles, and the exports of their password and URL.

    The roles can read `schemas` (PostgreSQL), by default all that hold tables. With `is_hardened` the statements also
    revoke harmful functions from PUBLIC, which changes the rights of other roles. `address` is the host and the port of
    the URL; raises ServerError for an option that the engine lacks.
    """
    module, password = _ENGINES[engine], secrets.token_hex(16)
    host, _, port = address[0].partition(":")
    if port.isdigit():  # more colons are an IPv6 address
        raise ServerError(f"--host {address[0]}: is a host with a port; write --host {host} --port {port}")
    roles = [("roles", str(n_roles))] if n_roles else []
    url = join_url(module.SCHEME, *address, name, "", database, roles)
    exports = f"export {module.PASSWORD_VARIABLE}={password}\nexport DB={shlex.quote(url)}\n"
    shown = " ".join(database.split())  # in a comment, which ends with its line
    who = "a superuser" if is_hardened else module.WHO
    head = f"-- Read-only roles of the database {shown}. To be run by {who}:\n"
    head += f"--   {module.RUN.format(database=shlex.quote(shown))}\n"
    head += "" if is_hardened else "-- Nothing changes for other roles.\n"
    removal = " ".join(module.drop_readers(name, n_roles).split())
    head += f"-- Other readers need another --name. An administrator removes these by:\n--   {removal}\n"
    script = module.harden(database) if is_hardened else ""
    script += module.make_readers(database, name, password, n_roles, schemas)
    commented = "".join(f"-- {line}\n" for line in exports.splitlines())
    return Readers(f"{head}{script}-- The URL, for the shell:\n{commented}", exports)
