"""Fixtures of the executor's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqlexec_rs import Executor


@pytest.fixture(scope="module", params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Return the isolation of queries; tests that use it run in both modes."""
    return str(request.param)


@pytest.fixture(scope="module")
def executor(isolation: str) -> Iterator[Executor]:
    """Return an executor of two threads; tests that use it run in both modes."""
    with Executor(threads=2, isolation=isolation) as executor:
        yield executor
