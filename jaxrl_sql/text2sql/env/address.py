"""Addresses of databases on engines other than SQLite: a server's URL, or a folder of DuckDB files.

An engine is a database system: PostgreSQL, MySQL (or MariaDB) or DuckDB. A URL without a password takes it from the
environment variable of the engine's client: PGPASSWORD or MYSQL_PWD. Passwords are never printed.
"""

from __future__ import annotations

import os
import re
import ssl
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import quote

from jaxrl_sql.types import NEEDS_SERVER, InputError
from sqlexec_rs import join_url, split_url

_FORMS = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE, mysql://USER:PASSWORD@HOST:PORT or duckdb:FOLDER"
PASSWORD_VARIABLES = {"postgresql": "PGPASSWORD", "mysql": "MYSQL_PWD"}
_MIN_UNIQUE_PASSWORD = 4  # characters; shorter passwords also occur in ordinary words
_LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Address:
    """A server, or a folder of DuckDB files; the password is not part of its `repr`.

    `engine` is `postgresql`, `mysql` or `duckdb`. `database` is the database's name on the server, or "" for a server
    without a selected database. `options` are the (name, value) pairs of the URL's query, such as `sslmode`. `folder`
    is DuckDB's folder; all fields of a server are then empty.
    """

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
        return f"{self.engine}://{_bracket_ipv6(self.host)}:{self.port}"

    @property
    def is_local(self) -> bool:
        """Return whether the server is on this machine."""
        return self.host in _LOCAL_HOSTS or self.host.startswith("/")

    @property
    def users(self) -> tuple[str, ...]:
        """Return the database users: the user or, with the option `roles=N`, USER_1 to USER_N.

        Each thread of the executor then connects as a different user.
        """
        roles = self.option("roles")
        return tuple(f"{self.user}_{i + 1}" for i in range(int(roles))) if roles else (self.user,)

    @property
    def single(self) -> Address:
        """Return the address for a single connection: with the option `roles`, that of the first user."""
        options = tuple(option for option in self.options if option[0] != "roles")
        return replace(self, user=self.users[0], options=options)

    def tls_settings(self) -> dict[str, str]:
        """Return TLS settings of libpq, PostgreSQL's client; by default, remote servers need a valid certificate."""
        mode = self.option("sslmode") or ("prefer" if self.is_local else "verify-full")
        system_roots = ssl.get_default_verify_paths().cafile if mode == "verify-full" else None
        root_certificates = self.option("sslrootcert") or system_roots
        return {"sslmode": mode} | ({"sslrootcert": root_certificates} if root_certificates else {})

    def tls_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for a MariaDB server; None for a local server by default, and with sslmode=disable."""
        mode = self.option("sslmode") or ("disable" if self.is_local else "verify-full")
        return None if mode == "disable" else ssl.create_default_context(cafile=self.option("sslrootcert") or None)

    def option(self, name: str) -> str:
        """Return an option of the URL's query, or ""."""
        return dict(self.options).get(name, "")

    def display_name(self, database: str) -> str:
        """Return a database at this address as text for output: a file, or a URL without user and password."""
        if self.folder:
            return f"duckdb:{Path(self.folder) / f'{database}.duckdb'}"
        return f"{self.shown}/{quote(database, safe='')}"

    def url(self, database: str) -> str:
        """Return the URL of a database with user and password, for the executor."""
        if self.folder:
            return self.display_name(database)
        return join_url(self.engine, self.host, self.port, self.user, self.password, database, self.options)

    def public_url(self, database: str) -> str:
        """Return the URL of a database with the user but without the password, for storage."""
        if self.folder:
            return f"duckdb:{Path(self.folder).resolve() / f'{database}.duckdb'}"
        return replace(self, password="").url(database)

    def redact(self, message: object) -> str:
        """Return a message as one line, without the password.

        A password of up to three characters, or one that equals a name of the address, is masked only in URLs and
        after `password`: its text also occurs in words and statements, where its mask would disclose it.
        """
        text = " ".join(str(message).split())
        if not self.password:
            return text
        for secret in {self.password, quote(self.password, safe="")}:
            value = re.escape(secret)
            text = re.sub(rf"(?<=:){value}(?=@)", "***", text)
            text = re.sub(rf"(?i)(\bpassword\b(?:\s*[=:]\s*['\"]?|\s+['\"]))(?-i:{value})(?!\w)", r"\1***", text)
        is_common = len(self.password) < _MIN_UNIQUE_PASSWORD or self.password in (self.user, self.database, self.host)
        return text if is_common else text.replace(self.password, "***")

    def with_database(self, database: str) -> Address:
        """Return the address of a database on the same server."""
        return replace(self, database=database)


def parse_address(text: str) -> Address:
    """Parse the address of a server or a folder of DuckDB files; raises InputError if it is invalid."""
    scheme, colon, rest = text.partition(":")
    if scheme == "duckdb" and colon:
        if not rest or rest.startswith("//"):
            raise InputError(f"{_without_credentials(text)}: DuckDB's files are in a folder: give duckdb:FOLDER")
        return Address("duckdb", folder=rest)
    try:
        engine, host, port, user, password, database, options = split_url(text)
    except ValueError as error:
        raise InputError(f"{_without_credentials(text)}: {error}: give {_FORMS}") from None
    if "#" in text:
        raise InputError(
            f"{_without_credentials(text)}: a database URL has no part after #: write %23 in a password or name"
        )
    password = password or os.environ.get(PASSWORD_VARIABLES[engine], "")
    return Address(engine, host, port, user, password, database, tuple(options))


def url_with_password(text: str) -> str:
    """Return a database's URL for the executor, with the password from the environment unless it has one.

    `duckdb:FILE` has no password and is returned unchanged, and so is NEEDS_SERVER, the placeholder for a question
    whose server is not configured yet. Raises InputError for an invalid URL, and for one without a database.
    """
    if text.startswith("duckdb:") or text == NEEDS_SERVER:
        return text
    address = parse_address(text)
    if not address.database:
        raise InputError(
            f"{address.shown}: no database: give {_FORMS.partition(',')[0].replace('postgresql', address.engine)}"
        )
    return address.url(address.database)


def users_of(text: str) -> tuple[str, ...]:
    """Return the users of a server's URL, or a user name as the only one; empty for ""."""
    return parse_address(text).users if is_address(text) else (text,) if text else ()


def without_password(url: str) -> str:
    """Undo `url_with_password`: return the URL without its password, for storage."""
    if not is_address(url):
        return url
    address = parse_address(url)
    return address.public_url(address.database)


def public_name(database: str) -> str:
    """Return a database as text for output: a file unchanged, a URL without user, password and options."""
    if not is_address(database):
        return database
    address = parse_address(database)
    return address.display_name(address.database)


def is_address(text: str) -> bool:
    """Return whether a text is a server's URL, not a path."""
    return "://" in text


def _without_credentials(text: str) -> str:
    """Return the printable part of an invalid URL that may contain a password: after `@`, or before a colon."""
    head, slashes, rest = text.partition("://")
    before, at, behind = rest.rpartition("@")
    return f"{head}{slashes}{behind if at else before + behind.partition(':')[0]}"


def _bracket_ipv6(name: str) -> str:
    """Return a host for a URL, which requires brackets around an IPv6 address."""
    return f"[{name}]" if ":" in name else name
