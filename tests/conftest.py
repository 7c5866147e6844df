"""What every test may ask for: the real data's folder, where there is one."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Tests run on the CPU unless somebody says otherwise, so that they mean the same on every machine.
os.environ.setdefault("JAX_PLATFORMS", "cpu")


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of real text-to-SQL data, or skip the test that asks."""
    folder = os.environ.get("JAXRL_SQL_DATA", "")
    if not folder:
        pytest.skip("JAXRL_SQL_DATA is not set: it names the folder that holds spider_dev, spider_train, …")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"JAXRL_SQL_DATA names {folder}, which is no folder")
    return path
