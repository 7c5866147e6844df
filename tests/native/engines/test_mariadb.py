"""Behaviour of the executor on MariaDB only."""

from __future__ import annotations

import time
from contextlib import closing
from typing import Any

import pymysql
import pytest

from sqlexec_rs import Executor


@pytest.fixture(params=["mariadb"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_users_of_separate_roles_cannot_end_sessions_of_each_other(database: Any) -> None:
    def connect(user: str) -> Any:
        return closing(database.connect(database.url_of(user)))

    user = database.user
    with (
        connect(f"{user}_1") as first,
        connect(f"{user}_2") as second,
        connect(user) as reader,
        connect(user) as fellow,
    ):
        for attack in (f"KILL {second.thread_id()}", f"KILL QUERY {second.thread_id()}", f"SET ROLE {user}_2"):
            with first.cursor() as cursor, pytest.raises(pymysql.Error, match=r"not owner|Invalid role"):
                cursor.execute(attack)
        with first.cursor() as cursor:
            cursor.execute(f"KILL USER {user}_2")  # ends only sessions of that user
            cursor.execute("SELECT DISTINCT user FROM information_schema.processlist")
            assert cursor.fetchall() == ((f"{user}_1",),)
        with second.cursor() as cursor:
            assert cursor.execute("SELECT 1") == 1
        with reader.cursor() as cursor:  # sessions of one user can end each other
            cursor.execute(f"KILL {fellow.thread_id()}")
        with pytest.raises(pymysql.Error):
            fellow.ping(reconnect=False)


def test_a_server_at_its_connection_limit_is_a_db_error(database: Any) -> None:
    crowded = f"{database.user}_crowded"
    database.run(
        f"CREATE USER {crowded} IDENTIFIED BY 'c' WITH MAX_USER_CONNECTIONS 1; "
        f"GRANT SELECT ON {database.name}.* TO {crowded}"
    )
    url = database.url_of(crowded, "c")
    with closing(database.connect(url)), Executor(threads=1) as executor:
        outcome = executor.execute(url, "SELECT 1")
        assert outcome.status == "db_error"
        assert "max_user_connections" in (outcome.error or "")
    with Executor(threads=1) as executor:
        end = time.monotonic() + 60  # the server may take a moment to notice that the other session has ended
        while executor.execute(url, "SELECT 1").status != "ok":
            assert time.monotonic() < end
            time.sleep(0.05)
