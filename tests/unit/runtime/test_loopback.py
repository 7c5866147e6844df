"""Host headers that a server on loopback accepts."""

from __future__ import annotations

import pytest

from jaxrl_sql.runtime.loopback import is_loopback_host


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LocalHost:80", "[::1]", "[::1]:8000", "127.8.0.1:1"]
)
def test_loopback_hosts_are_recognized(host: str) -> None:
    assert is_loopback_host(host)


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example:80", "a@localhost",
        "localhost:80:80", "localhost:", "[::1", "10.0.0.1", "localhost\n", "x127.0.0.1",
    ],
)  # fmt: skip
def test_other_hosts_are_not_loopback(host: str) -> None:
    assert not is_loopback_host(host)
