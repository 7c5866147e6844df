"""Load a dump as it was published, by the client of its server: psql or mariadb."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from jaxrl_sql.databases.engines.registry import open_target
from jaxrl_sql.text2sql.env.address import Address, parse_address, users_of
from jaxrl_sql.types import InputError

_CLIENTS = {"postgresql": ("psql",), "mysql": ("mariadb", "mysql")}
_PACKAGES = {"postgresql": "postgresql-client", "mysql": "mariadb-client"}
# Who owned a dump's tables where it was made need not be here.
_OWNERS = re.compile(r'ERROR:\s+role ".*" does not exist')


def load_dump(dump: Path, url: str, reader: str = "") -> str:
    """Load a dump into the new or empty database of a URL, which `reader`, a user or a URL, may then read.

    Returns the database's name and the server's version. Raises InputError and leaves no part of the dump.
    """
    address = parse_address(url).single
    if address.engine not in _CLIENTS or not address.database:
        raise InputError(
            f"--to {address.shown}: a dump is loaded into a server's database: name it, …://USER@HOST/NAME"
        )
    if not dump.is_file():
        raise InputError(f"--from {dump}: no such file")
    program = next((found for name in _CLIENTS[address.engine] if (found := shutil.which(name))), None)
    if program is None:
        raise InputError(
            f"{_CLIENTS[address.engine][0]} is not installed, which loads dumps: {_PACKAGES[address.engine]}"
        )
    target, name = open_target(address.within("")), address.database
    if target.state(name) == "full":
        raise InputError(f"{address.named(name)}: already holds something: remove it, or give another name")
    with target.open(name):
        pass  # now it is there, and empty
    faults = _run(program, dump, address)
    if faults:
        target.drop(name)
        raise InputError(f"{dump}: {faults[0]}{f' and {len(faults) - 1} more' if faults[1:] else ''}")
    if reader:
        target.let_read(name, users_of(reader))
    return f"{address.named(name)}, {target.version}"


def _run(program: str, dump: Path, address: Address) -> list[str]:
    """Run a dump by a client; return what failed, a line each."""
    if address.engine == "postgresql":
        arguments = ["--no-psqlrc", "--quiet", "--output", os.devnull, "--dbname", address.told(address.database)]
        password = {"PGPASSWORD": address.password}
    else:
        where = (
            ["--socket", address.host] if address.host.startswith("/") else ["--host", address.host, "--protocol=tcp"]
        )
        ca = [f"--ssl-ca={address.option('sslrootcert')}"] if address.option("sslrootcert") else []
        secure = ["--ssl-verify-server-cert", *ca] if address.tls_context() else []
        arguments = ["--port", str(address.port), "--user", address.user, *where, *secure, address.database]
        password = {"MYSQL_PWD": address.password}
    with dump.open("rb") as file:
        done = subprocess.run(  # noqa: S603
            [program, *arguments], stdin=file, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=False,
            env={**os.environ, **password},
        )  # fmt: skip
    lines = [address.redacted(line) for line in done.stderr.decode(errors="replace").splitlines() if "ERROR" in line]
    faults = [line for line in lines if not _OWNERS.search(line)]
    return faults or ([f"{Path(program).name} ended with {done.returncode}"] if done.returncode else [])
