"""What the tests of the executor may ask for."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="module", params=["thread", "process"])
def isolation(request: pytest.FixtureRequest) -> str:
    """Return where queries run; a test that asks runs in both ways."""
    return str(request.param)
