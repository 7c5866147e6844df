"""Databases of generated data."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence

import pytest

from jaxrl_sql.datagen.synth.spec import SynthDatabase
from jaxrl_sql.datagen.synth.store import write_database


@pytest.fixture(scope="module")
def connect_all(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Sequence[SynthDatabase]], dict[str, sqlite3.Connection]]]:
    """Write databases to files and connect to them; close all connections at the end."""
    folder = tmp_path_factory.mktemp("databases")
    opened: dict[str, sqlite3.Connection] = {}

    def connect(databases: Sequence[SynthDatabase]) -> dict[str, sqlite3.Connection]:
        for database in databases:
            write_database(database, folder / database.db_id)
            opened[database.db_id] = sqlite3.connect(folder / database.db_id)
        return opened

    yield connect
    for connection in opened.values():
        connection.close()
