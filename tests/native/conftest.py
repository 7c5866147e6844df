"""What the tests of the executor may ask for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sqlexec_rs import Executor


@pytest.fixture(scope="module", params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Return where queries run; a test that asks runs in both ways."""
    return str(request.param)


@pytest.fixture(scope="module")
def executor(isolation: str) -> Iterator[Executor]:
    """Return an executor of two threads; a test that asks runs in both ways."""
    with Executor(threads=2, isolation=isolation) as executor:
        yield executor
