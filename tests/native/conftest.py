"""What the tests of the executor may ask for."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from sqlexec_rs import Executor, servers
from sqlexec_rs.servers import Server, ServerError


@pytest.fixture(scope="module", params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Return where queries run; a test that asks runs in both ways."""
    return str(request.param)


@pytest.fixture(scope="module")
def executor(isolation: str) -> Iterator[Executor]:
    """Return an executor of two threads; a test that asks runs in both ways."""
    with Executor(threads=2, isolation=isolation) as executor:
        yield executor


@pytest.fixture(scope="session")
def servers_folder() -> Iterator[Path]:
    """Return a folder that the users may enter who run servers."""
    folder = Path(tempfile.mkdtemp(prefix="sqlexec-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def start_server(servers_folder: Path) -> Iterator[Callable[[str, str], Server]]:
    """Return what starts a server of an engine and runs a script there; they are stopped at the end."""
    started: list[Server] = []

    def start(engine: str, script: str) -> Server:
        try:
            server = servers.start(engine, servers_folder / f"{engine}-{len(started)}")
        except ServerError as error:
            if os.environ.get("SQLEXEC_SERVERS") == "required":
                raise
            pytest.skip(str(error))
        started.append(server)
        server.run(script)
        return server

    yield start
    for server in started:
        server.stop()
