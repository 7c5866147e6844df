"""Start database servers of one's own, for tests and a first look: `python -m sqlexec_rs.servers start postgresql`.

A server is made of the programs that are installed, runs without privileges, listens on 127.0.0.1 alone, and keeps its
files in the given folder. It has an owner, who may do everything, and a reader, who may do nothing but read: the role
that an executor asks for. As sessions of one role can end and read each other there are reader_1 to reader_16, too:
the last for golds, and one of the others for each thread of an executor. Nothing is written safely to disk, so a
server is not a place to keep data.
"""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sqlexec_rs._native import Executor, join_url, split_url
from sqlexec_rs.servers import _long_queries, _mariadb, _postgresql, _programs
from sqlexec_rs.servers._functions import revoke_script
from sqlexec_rs.servers._programs import ServerError

__all__ = ["ENGINES", "ROLES", "Server", "ServerError", "check", "find", "make_readers", "revoke_script", "start"]

_ENGINES = {"postgresql": _postgresql, "mariadb": _mariadb}
ENGINES = tuple(_ENGINES)
ROLES = 16
_RECORD = "server.json"


@dataclass(frozen=True)
class Server:
    """A server that was started: its folder and port, and the URLs of its database by role."""

    engine: str
    folder: str
    port: int
    owner: str
    reader: str

    @property
    def readers(self) -> str:
        """Return the reader's URL by which each thread of an executor is a role of its own."""
        return f"{self.reader}?roles={ROLES}"

    def run(self, script: str) -> None:
        """Run SQL statements as the owner; raises ServerError with what the server said."""
        _ENGINES[self.engine].ask(self.owner, script)

    def restart(self, *options: str) -> None:
        """End the server and start it again, with what it holds and more options of its program.

        It may answer a little later.
        """
        _ENGINES[self.engine].end(Path(self.folder))
        _ENGINES[self.engine].resume(Path(self.folder), self.port, *options)

    def stop(self) -> None:
        """End the server, and wait for its end; one that has ended is none to stop."""
        root = Path(self.folder)
        _ENGINES[self.engine].end(root)
        (root / _RECORD).unlink(missing_ok=True)


def start(engine: str, folder: str | os.PathLike[str]) -> Server:
    """Start a server whose files are in a folder that is empty or not there yet; raises ServerError."""
    if engine not in _ENGINES:
        raise ServerError(f"{engine} is not among the servers that can be started: {', '.join(ENGINES)}")
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
    """Return the server that was started in a folder; raises ServerError where there is none."""
    record = Path(folder).absolute() / _RECORD
    try:
        return Server(**json.loads(record.read_text(encoding="utf-8")))
    except FileNotFoundError:
        raise ServerError(f"no server was started in {record.parent}") from None


def check(url: str) -> list[str]:
    """Return lines with the limits that an executor can enforce on another server, and those it cannot.

    Raises ServerError if no query can be run there, for example because the role can do more than read.
    """
    try:
        engine = {"postgresql": _postgresql, "mysql": _mariadb}[split_url(url)[0]]
    except ValueError as error:
        raise ServerError(f"{error}: a server's URL begins with postgresql:// or mysql://") from None
    with Executor(threads=1) as executor:

        def ask(sql: str) -> list[tuple[Any, ...]]:
            outcome = executor.execute(url, sql)
            if outcome.status != "ok":
                raise ServerError(outcome.error or outcome.status)
            return outcome.rows

        lines: list[str] = engine.describe(ask)
        return [*lines, _long_queries.count(executor, url, engine.LONG_QUERIES)]


def make_readers(engine: str, database: str, name: str = "reader", n_roles: int = ROLES) -> str:
    """Return the statements by which an owner of a server makes roles that only read, and the URL of them all."""
    module, password = _ENGINES[engine], secrets.token_hex(16)
    roles = [("roles", str(n_roles))] if n_roles else []
    url = join_url(module.SCHEME, "HOST", None, name, password, database, roles)
    return f"{module.make_readers(database, name, password, n_roles)}-- {url}\n"
