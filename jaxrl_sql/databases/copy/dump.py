"""Load a published dump, a file of SQL statements that create a database, with the server's command-line client."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from jaxrl_sql.databases.engines.base import Server
from jaxrl_sql.databases.engines.registry import SERVERS
from jaxrl_sql.text2sql.env.address import parse_address, users_of
from jaxrl_sql.types import InputError


def load_dump(dump: Path, url: str, reader: str = "") -> str:
    """Load a dump into the new or empty database of a URL, and grant read access to `reader`, a user or a URL.

    Returns a line with the database's address and the server's version. If the dump fails, drops the database. Raises
    InputError for a failed dump, and for a database that is not empty.
    """
    address = parse_address(url).single
    if address.engine not in SERVERS or not address.database:
        raise InputError(
            f"--to {address.shown}: a dump is loaded into a server's database: name it, …://USER@HOST/NAME"
        )
    if not dump.is_file():
        raise InputError(f"--from {dump}: no such file")
    server, name = SERVERS[address.engine](address.with_database("")), address.database
    program = next((path for client in server.clients if (path := shutil.which(client))), None)
    if program is None:
        raise InputError(f"loading a dump needs {server.clients[0]}: install {server.client_package}")
    server.prepare()
    if server.state(name) == "full":
        raise InputError(f"{address.display_name(name)}: not empty: remove it, or give another name")
    with server.open(name):
        pass  # `open` creates an empty database
    errors = _run(program, dump, server, name)
    if errors:
        server.drop(name)
        raise InputError(f"{dump}: {errors[0]}{f' and {len(errors) - 1} more' if errors[1:] else ''}")
    if reader:
        server.grant_read(name, users_of(reader))
    return f"{address.display_name(name)}, {server.version}"


def _run(program: str, dump: Path, server: Server, database: str) -> list[str]:
    """Run a dump with a client program; return the error lines that it prints, except harmless ones."""
    arguments, environment = server.client_options(database)
    with dump.open("rb") as file:
        process = subprocess.run(  # noqa: S603
            [program, *arguments], stdin=file, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
            env={**os.environ, **environment},
        )  # fmt: skip
    lines = [line for line in process.stderr.decode(errors="replace").splitlines() if "ERROR" in line]
    errors = [server.address.redact(line) for line in lines if not server.is_harmless_error(line)]
    return errors or ([f"{Path(program).name} ended with {process.returncode}"] if process.returncode else [])
