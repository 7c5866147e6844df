"""Where databases of other engines are: a server's URL or a folder of DuckDB's files, shown without its password.

A password that a URL does not hold is taken from where the engine's own programs look for it: PGPASSWORD, MYSQL_PWD.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from jaxrl_sql.types import UNPLACED, InputError
from sqlexec_rs import join_url, split_url

_FORMS = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, mysql://USER:PASSWORD@HOST:PORT or duckdb:FOLDER"
_PASSWORDS = {"postgresql": "PGPASSWORD", "mysql": "MYSQL_PWD"}
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Address:
    """A server, or a folder of DuckDB's files; the password is in no text that is made of it."""

    engine: str
    host: str = ""
    port: int = 0
    user: str = ""
    password: str = field(default="", repr=False)
    database: str = ""
    options: tuple[tuple[str, str], ...] = ()
    folder: str = ""

    @property
    def shown(self) -> str:
        """Return the address without user and password."""
        if self.folder:
            return f"duckdb:{self.folder}"
        return f"{self.engine}://{_host(self.host)}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Return whether what is sent stays on this machine."""
        return self.host in _LOCAL or self.host.startswith("/")

    @property
    def users(self) -> tuple[str, ...]:
        """Return who asks: the user or, with the option `roles`, USER_1, USER_2, …, one for each thread."""
        roles = self.option("roles")
        return tuple(f"{self.user}_{i + 1}" for i in range(int(roles))) if roles else (self.user,)

    @property
    def single(self) -> Address:
        """Return the address for who connects once: with the option `roles` it is that of the first."""
        options = tuple(option for option in self.options if option[0] != "roles")
        return replace(self, user=self.users[0], options=options)

    def tls_settings(self) -> dict[str, str]:
        """Return libpq's settings of how a PostgreSQL server proves who it is: one elsewhere does, unless told."""
        mode = self.option("sslmode") or ("prefer" if self.is_local else "verify-full")
        usual = ssl.get_default_verify_paths().cafile if mode == "verify-full" else None
        roots = self.option("sslrootcert") or usual
        return {"sslmode": mode} | ({"sslrootcert": roots} if roots else {})

    def tls_context(self) -> ssl.SSLContext | None:
        """Return how a MariaDB server proves who it is; None for one on this machine, or where told to do without."""
        mode = self.option("sslmode") or ("disable" if self.is_local else "verify-full")
        return None if mode == "disable" else ssl.create_default_context(cafile=self.option("sslrootcert") or None)

    def option(self, name: str) -> str:
        """Return an option behind the question mark, or nothing."""
        return dict(self.options).get(name, "")

    def named(self, database: str) -> str:
        """Return how a copied database is called where no password is told: a file's name, or a URL without user."""
        if self.folder:
            return f"duckdb:{Path(self.folder) / f'{database}.duckdb'}"
        return f"{self.shown}/{quote(database, safe='')}"

    def url(self, database: str) -> str:
        """Return the URL of a database with user and password, as the executor takes it."""
        if self.folder:
            return self.named(database)
        return join_url(self.engine, self.host, self.port, self.user, self.password, database, self.options)

    def told(self, database: str) -> str:
        """Return the URL of a database with its user and without the password, to be written down."""
        if self.folder:
            return f"duckdb:{Path(self.folder).resolve() / f'{database}.duckdb'}"
        return replace(self, password="").url(database)

    def redacted(self, message: object) -> str:
        """Return a message in one line, without the password."""
        text = " ".join(str(message).split())
        return text.replace(self.password, "***") if self.password else text

    def within(self, database: str) -> Address:
        """Return the address of a database of the same server."""
        return replace(self, database=database)


def parse_address(text: str) -> Address:
    """Read where databases are copied to; raises InputError for what is no such place."""
    scheme, colon, rest = text.partition(":")
    if scheme == "duckdb" and colon:
        if not rest or rest.startswith("//"):
            raise InputError(f"{_bare(text)}: DuckDB's files are in a folder: give duckdb:FOLDER")
        return Address("duckdb", folder=rest)
    try:
        engine, host, port, user, password, database, options = split_url(text)
    except ValueError as error:
        raise InputError(f"{_bare(text)}: {error}: give {_FORMS}") from None
    if "#" in text:
        raise InputError(f"{_bare(text)}: a URL of a database has no part behind #: write %23 in a password or name")
    password = password or os.environ.get(_PASSWORDS[engine], "")
    return Address(engine, host, port, user, password, database, tuple(options))


def open_url(text: str) -> str:
    """Return the URL of a database as the executor takes it, with the password of the environment where it has none.

    What `told` wrote is one, and `duckdb:FILE` is. Raises InputError for what is neither.
    """
    if text.startswith("duckdb:") or text == UNPLACED:
        return text
    address = parse_address(text)
    if not address.database:
        raise InputError(
            f"{address.shown}: no database: give {_FORMS.partition(',')[0].replace('postgresql', address.engine)}"
        )
    return address.url(address.database)


def users_of(text: str) -> tuple[str, ...]:
    """Return the users whom a name or a server's URL stands for; an empty text is nobody."""
    return parse_address(text).users if is_address(text) else (text,) if text else ()


def told_url(url: str) -> str:
    """Return a URL that `open_url` gave without its password, to be written down."""
    if not is_address(url):
        return url
    address = parse_address(url)
    return address.told(address.database)


def is_address(text: str) -> bool:
    """Return whether a text is meant as a server's URL and not as a path."""
    return "://" in text


def _bare(text: str) -> str:
    """Return what may be shown of a text that might hold a password: what stands behind `@`, or before a colon."""
    head, slashes, rest = text.partition("://")
    before, at, behind = rest.rpartition("@")
    return f"{head}{slashes}{behind if at else before + behind.partition(':')[0]}"


def _host(name: str) -> str:
    return f"[{name}]" if ":" in name else name
