"""Database servers for tests: one per engine and test run with a database per user, or servers of a single test.

All servers of a run are in one folder. The process that started pytest stops them at its end; a small process does
so if it was killed.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from sqlexec_rs import servers
from sqlexec_rs.servers import Server, ServerError

FIXTURES = frozenset({"start_server", "server_database", "shared_server"})
FILES = frozenset({"duckdb", "sqlite"})
"""Parameters of engines that need no server, in tests of several engines."""
STOPPER = Path(__file__).with_name("stop_servers.py")

_folder = pytest.StashKey[Path]()
_item = pytest.StashKey[pytest.Item]()


def pytest_configure(config: pytest.Config) -> None:
    """Create the folder of the run's servers, or use that of the main process."""
    named: str | None = getattr(config, "workerinput", {}).get("servers_folder")
    config.stash[_folder] = Path(named or tempfile.mkdtemp(prefix="sqlexec-servers-"))
    config.stash[_folder].chmod(0o755)  # the users that run the servers enter it


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the folder to a worker."""
    node.workerinput["servers_folder"] = str(node.config.stash[_folder])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the run's servers, in the process that started it."""
    if not hasattr(config, "workerinput"):
        spec = importlib.util.spec_from_file_location("stop_servers", STOPPER)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.stop(config.stash[_folder])


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark tests that need a server."""
    parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
    on_file = any(isinstance(value, str) and value in FILES for value in parameters)
    if not FIXTURES.isdisjoint(getattr(item, "fixturenames", ())) and not on_file:
        item.add_marker("servers")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Remember the current test."""
    item.config.stash[_item] = item


def _start(config: pytest.Config, engine: str, folder: Path) -> Server:
    """Start a server, or skip the test if that is impossible and servers are not required."""
    item = config.stash[_item]
    assert item.get_closest_marker("servers"), f"{item.nodeid} starts a server and has no mark `servers`"
    try:
        (config.stash[_folder] / "watched").touch(exist_ok=False)
    except FileExistsError:
        pass
    else:
        pid = os.getppid() if hasattr(config, "workerinput") else os.getpid()
        command = [sys.executable, "-I", "-S", str(STOPPER), str(pid), str(config.stash[_folder])]
        null = subprocess.DEVNULL
        # Its parent ends at once, so that no test sees it as a child process.
        subprocess.run(["/bin/sh", "-c", '"$@" &', "sh", *command], stdin=null, stdout=null, stderr=null, check=True)
    try:
        return servers.start(engine, folder)
    except ServerError as error:
        if os.environ.get("SQLEXEC_SERVERS") != "required":
            pytest.skip(str(error))
        # MariaDB's installer failed once in hundreds of starts on a busy machine; an error of ours fails twice.
        shutil.rmtree(folder, ignore_errors=True)
        return servers.start(engine, folder)


@pytest.fixture(scope="session")
def servers_folder(pytestconfig: pytest.Config) -> Path:
    """Return the folder of the run's servers, which the users that run them may enter."""
    return pytestconfig.stash[_folder]


@pytest.fixture(scope="session")
def start_server(pytestconfig: pytest.Config, servers_folder: Path) -> Iterator[Callable[[str, str], Server]]:
    """Return a function that starts a server for a single test, and runs a script there.

    For tests that stop, restart or configure it; `server_database` is cheaper.
    """
    started: list[Server] = []

    def start(engine: str, script: str) -> Server:
        server = _start(pytestconfig, engine, servers_folder / f"{engine}-{os.getpid()}-{len(started)}")
        started.append(server)
        server.run(script)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def shared_server(pytestconfig: pytest.Config, servers_folder: Path) -> Callable[[str], Server]:
    """Return a function that starts the run's server of an engine, unless another process has."""

    def find_or_start(engine: str) -> Server:
        with (servers_folder / f"{engine}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                return servers.find(servers_folder / engine)
            except ServerError:
                return _start(pytestconfig, engine, servers_folder / engine)

    return find_or_start


class Database(Server):
    """A database on the run's server of an engine: `owner` has all rights on it, `reader` may only read."""

    def restart(self, *_options: str) -> None:
        raise AssertionError("other tests use this server: restart one that start_server started")

    def stop(self) -> None:
        raise AssertionError("other tests use this server: stop one that start_server started")


# Statements contain the reader's name: sessions and rights of other databases' readers are separate.
# A database of template0 resembles one on a foreign server: no function is revoked there. In the server's first
# database (`shared_server(engine).reader`) functions are revoked.
CREATE = {
    "postgresql": """
        CREATE DATABASE {name} TEMPLATE template0;
        REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC;
        CREATE ROLE {reader} LOGIN PASSWORD '{password}';
        {numbered}
        \\connect {name}
        REVOKE CREATE ON SCHEMA public FROM PUBLIC;
        GRANT USAGE ON SCHEMA public TO {reader};
        ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT SELECT ON TABLES TO {reader};
        ALTER DEFAULT PRIVILEGES FOR ROLE owner GRANT USAGE ON SCHEMAS TO {reader};
    """,
    "mariadb": """
        CREATE DATABASE {name};
        CREATE USER {reader} IDENTIFIED BY '{password}';
        GRANT SELECT ON {name}.* TO {reader};
        {numbered}
    """,
}
NUMBERED = {
    "postgresql": "CREATE ROLE {role} LOGIN PASSWORD '{password}' IN ROLE {reader};",
    "mariadb": "CREATE USER {role} IDENTIFIED BY '{password}'; GRANT SELECT ON {name}.* TO {role};",
}
# PostgreSQL ends an idle session in a transaction; MariaDB reports an error after a while.
DROP = {
    "postgresql": "DROP DATABASE {name} WITH (FORCE);",
    "mariadb": "SET SESSION lock_wait_timeout = 30; DROP DATABASE {name};",
}


@pytest.fixture(scope="module")
def server_database(shared_server: Callable[[str], Server]) -> Iterator[Callable[[str, str], Server]]:
    """Return a function that creates a database on the run's server of an engine and runs a script there.

    The database has its own readers. It is dropped after the module; its roles end with the server.
    """
    scripts: dict[Server, str] = {}

    def create(engine: str, script: str) -> Server:
        server = shared_server(engine)
        number, password = uuid4().hex[:12], secrets.token_hex(16)
        names = {"name": f"db{number}", "reader": f"reader{number}", "password": password}
        roles = [f"{names['reader']}_{i}" for i in range(1, servers.ROLES + 1)]
        numbered = "\n".join(NUMBERED[engine].format(role=role, **names) for role in roles)
        server.run(CREATE[engine].format(numbered=numbered, **names))
        scripts[server] = scripts.get(server, "") + DROP[engine].format(**names) + "\n"
        owner = server.owner.rpartition("/")[0] + f"/{names['name']}"
        scheme, place = owner.partition("//")[0], owner.rpartition("@")[2]
        reader = f"{scheme}//{names['reader']}:{password}@{place}"
        database = Database(engine, server.folder, server.port, owner, reader)
        database.run(script)
        return database

    yield create
    for server, script in scripts.items():
        server.run(script)
