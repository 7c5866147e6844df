"""The cache of compiled programs, in a folder per CPU type."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from jaxrl_sql.inference import program_cache as programs

# Compiles one program that takes longer than MIN_S; prints the cache folder and whether the program was cached.
COMMAND = """
import sys
import jax
import jax.numpy as jnp
from jaxrl_sql.inference import program_cache as programs

programs.MIN_S = 0.0
jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
programs.keep_programs(sys.argv[1])
heard = []
jax.monitoring.register_event_listener(lambda event, **_: heard.append(event))
jax.jit(lambda x: jnp.linalg.qr(x @ x)[0])(jnp.ones((8, 8)))
print(jax.config.jax_compilation_cache_dir, heard.count("/jax/compilation_cache/cache_hits"))
"""


def compiled(named: str, **variables: str) -> tuple[str, bool]:
    """Return the cache folder of a command, and whether it contained a program."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")} | variables
    arguments = [sys.executable, "-c", COMMAND, named]
    where, hits = subprocess.run(arguments, env=environment, check=True, capture_output=True, text=True).stdout.split()
    return where, int(hits) > 0


@pytest.fixture
def cache_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Return a function that sets the cache like a command, compiles one program and returns the folder."""
    names = (
        "jax_compilation_cache_dir",
        programs.MIN_COMPILE_TIME_VARIABLE.lower(),
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}

    def choose(named: str, **variables: str) -> str:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        for name, setting in zip(names, (variables.get("JAX_COMPILATION_CACHE_DIR"), 0.0, -1), strict=True):
            jax.config.update(name, setting)
        compilation_cache.reset_cache()
        programs.keep_programs(named)
        jax.jit(lambda x: x @ x)(np.ones((8, 8), np.float32))
        return str(programs.cache_location())

    yield choose
    for name, value in before.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()


@pytest.mark.slow
def test_second_command_reuses_compiled_programs(tmp_path: Path) -> None:
    where, result = compiled("auto", JAXRL_SQL_CACHE=str(tmp_path))
    assert Path(where).parent == tmp_path / "programs"
    assert not result
    assert list(Path(where).iterdir())
    assert compiled("auto", JAXRL_SQL_CACHE=str(tmp_path)) == (where, True)


@pytest.mark.slow
@pytest.mark.parametrize(("shortest", "is_cached"), [("1000", False), ("0", True)])
def test_environment_variable_sets_the_shortest_cached_compilation(
    shortest: str, is_cached: bool, tmp_path: Path
) -> None:
    for result in (False, is_cached):
        assert compiled(str(tmp_path), **{programs.MIN_COMPILE_TIME_VARIABLE: shortest}) == (str(tmp_path), result)


@pytest.mark.parametrize(
    ("named", "variables", "where"),
    [
        ("auto", {"JAXRL_SQL_CACHE": "off"}, "None"),
        ("", {"JAXRL_SQL_CACHE": "{folder}"}, "None"),
        ("auto", {"JAXRL_SQL_CACHE": "{folder}/ours", "JAX_COMPILATION_CACHE_DIR": "{folder}/jax"}, "{folder}/jax"),
        ("{folder}/named", {"JAXRL_SQL_CACHE": "{folder}/ours"}, "{folder}/named"),
    ],
)
def test_configured_folder_precedes_the_user_cache(
    named: str, variables: dict[str, str], where: str, tmp_path: Path, cache_folder: Callable[..., str]
) -> None:
    filled = {name: text.format(folder=tmp_path) for name, text in variables.items()}
    folder = cache_folder(named.format(folder=tmp_path), **filled)
    assert folder == where.format(folder=tmp_path)
    assert folder == "None" or list(Path(folder).iterdir())


def test_default_is_a_folder_per_cpu_in_the_user_cache(tmp_path: Path, cache_folder: Callable[..., str]) -> None:
    where = Path(cache_folder("auto", JAXRL_SQL_CACHE=str(tmp_path)))
    assert where.parent == tmp_path / "programs"
    assert list(where.iterdir())


def test_multiprocess_runs_have_no_cache_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process would find different programs in its machine's folder."""
    monkeypatch.setenv("JAXRL_SQL_CACHE", str(tmp_path))
    before = programs.jax.config.jax_compilation_cache_dir
    monkeypatch.setattr(programs.jax, "process_count", lambda: 2)
    programs.jax.config.update("jax_compilation_cache_dir", None)
    try:
        programs.keep_programs("auto")
        assert programs.jax.config.jax_compilation_cache_dir is None
        assert not list(tmp_path.iterdir())
    finally:
        programs.jax.config.update("jax_compilation_cache_dir", before)


def test_oldest_programs_are_evicted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "MAX_BYTES", 250)
    for age, name in enumerate(("newest", "second", "third", "oldest")):
        (tmp_path / name).write_bytes(b"x" * 100)
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    (tmp_path / "cut short").touch()
    programs._evict_oldest(tmp_path)
    assert {file.name for file in tmp_path.iterdir()} == {"newest", "second"}
    programs._evict_oldest(tmp_path / "that is not there")
