"""Operations across processes, for a single process; tests/multidevice has several."""

from __future__ import annotations

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.parallel import local_rows, make_mesh
from jaxrl_sql.parallel.processes import exchange, first_process_first, gather_array, is_first, share, start_processes
from jaxrl_sql.types import InputError


def test_single_process_owns_all_data_and_never_waits() -> None:
    start_processes(1)
    assert is_first()
    assert share(5) == range(5)
    value = (1, "a")
    assert exchange([value])[0] is value
    with first_process_first("nothing"):
        pass
    np.testing.assert_array_equal(gather_array(jnp.arange(3)), [0, 1, 2])
    assert local_rows(make_mesh(-1), 4) == [0, 1, 2, 3]


@pytest.mark.parametrize("number", ["", "one"])
def test_missing_process_settings_are_an_input_error(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("JAX_", "SLURM_", "OMPI_"))]:
            patch.delenv(name)
        if number:
            patch.setenv("JAX_PROCESS_ID", number)
        with pytest.raises(InputError) as caught:
            start_processes(2)
    assert "\n" not in str(caught.value)
    assert ("JAX_PROCESS_ID='one'" if number else "JAX_COORDINATOR_ADDRESS") in str(caught.value)


@pytest.mark.slow
def test_process_without_settings_exits_with_an_input_error() -> None:
    code = (
        "from jaxrl_sql.parallel.processes import start_processes\n"
        "from jaxrl_sql.types import InputError\n"
        "try:\n    start_processes(2)\nexcept InputError as error:\n    print(error)\n"
    )
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "SLURM_", "OMPI_"))}
    env |= {"JAX_PLATFORMS": "cpu"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert "JAX_COORDINATOR_ADDRESS" in done.stdout
