"""Commands and calls without JAX name the packages to install."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from jaxrl_sql.inference.process import NEEDS_JAX, require_jax
from jaxrl_sql.types import InputError

START = Path(__file__).parents[3] / "configs" / "quickstart_start"


def test_calls_from_python_without_jax_name_the_packages(tmp_path: Path) -> None:
    """The agent tool `ask` calls `Asker.answer`, like `jx.Model.ask`."""
    with closing(sqlite3.connect(tmp_path / "shop.sqlite")) as connection:
        connection.execute("CREATE TABLE item(name TEXT)")
    program = (
        "import sys\n"
        "sys.modules['jax'] = None\n"
        "import jaxrl_sql as jx\n"
        "from jaxrl_sql.api import policy_spec\n"
        "from jaxrl_sql.inference.ask import Asker\n"
        "from jaxrl_sql.types import InputError\n"
        f"start, shop = {str(START)!r}, {str(tmp_path / 'shop.sqlite')!r}\n"
        "example = jx.Example('q', 'shop', shop, 'How many items?', 'SELECT count(*) FROM item')\n"
        "model = jx.Model(start)\n"
        "config = model.config\n"
        "for call in (\n"
        "    lambda: jx.train(None, {'run.dir': 'nowhere', 'model.checkpoint': start, 'data.dir': '.'}),\n"
        "    lambda: model.ask(shop, 'How many items?'),\n"
        "    lambda: Asker(policy_spec(config), config.evaluate, config.executor).answer([example]),\n"
        "    lambda: jx.evaluate([example], model=start),\n"
        "):\n"
        "    try:\n"
        "        call()\n"
        "    except InputError as error:\n"
        "        print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [NEEDS_JAX] * 4, done.stderr


def test_another_missing_package_is_not_reported_as_missing_jax() -> None:
    with pytest.raises(ModuleNotFoundError), require_jax():
        raise ModuleNotFoundError("No module named 'pandas'", name="pandas")
    with pytest.raises(InputError, match=r"^this needs JAX"), require_jax():
        raise ModuleNotFoundError("No module named 'jax.numpy'", name="jax.numpy")
