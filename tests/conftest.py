"""Fixtures of all tests: the optional folder of real data, servers, and shared modules."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxrl_sql.runtime.cache_folder import processor_hash

# Tests run on the CPU by default, so that results are comparable on every machine.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compilation dominates the run time here; fewer optimizations give the same results. XLA_FLAGS="" gives the defaults.
# jaxlib 0.11 removed the second flag: XLA aborts a process that names it.
_QUICK = ["--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"]
_HAS_JAX = importlib.util.find_spec("jaxlib") is not None  # the environment of `make test-trainers` has none
if _HAS_JAX:
    _JAXLIB = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
    os.environ.setdefault("XLA_FLAGS", " ".join(_QUICK if _JAXLIB < (0, 11) else _QUICK[:1]))

# A shell lets background processes and their children ignore Ctrl-C, which would fail tests of Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Bytecode and XLA programs are cached for other test processes and later runs: without bytecode each process
# compiles the package, and each test process its assertions.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# The disk cache of database facts is only enabled in its own tests.
os.environ.setdefault("JAXRL_SQL_CACHE", "off")


COMPILED_BYTES = 1 << 30
"""Size limit of the folder of compiled programs; a larger folder is emptied."""

PROGRAM_MAPS = 16_384
"""Memory maps of a process above which compiled programs are released; Linux allows 65,530."""


@pytest.hookimpl(optionalhook=True)  # the environment of `make test-trainers` has no pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return one worker more than there are processors: many tests wait for another process."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def _compiled_folder() -> Path:
    """Return the folder of compiled programs for this processor and JAX version, which cache keys do not contain."""
    versions = "-".join(importlib.metadata.version(name) for name in ("jax", "jaxlib"))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "jaxrl_sql", "tests", f"{processor_hash()}-{versions}")


# XLA programs are cached for other test processes and later runs, unless a folder is set. JAX reads these
# variables on import, which happens in a folder's conftest before `pytest_configure`.
_FOLDER = _compiled_folder() if _HAS_JAX and "JAX_COMPILATION_CACHE_DIR" not in os.environ else None
if _FOLDER is not None:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_FOLDER)  # for processes that tests start
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_configure(config: pytest.Config) -> None:
    """Create the folder of compiled programs, and empty it if it is full."""
    for name in ("disk_fixtures", "server_fixtures"):
        config.pluginmanager.register(_module(name))
    folder = _FOLDER
    if folder is None or hasattr(config, "workerinput"):  # the main process has checked it
        return
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {file: file.stat().st_size for file in folder.iterdir()}
    is_full = sum(sizes.values()) > COMPILED_BYTES
    for file, size in sizes.items():
        if is_full or size == 0:  # a process was killed before writing the file that it had opened
            file.unlink(missing_ok=True)


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Release compiled programs if there are many: a process out of memory maps is aborted."""
    yield
    if "jax" in sys.modules and _memory_maps() > PROGRAM_MAPS:
        sys.modules["jax"].clear_caches()


def _memory_maps() -> int:
    """Return the number of memory maps of this process, or more than the limit if the system does not report it."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else PROGRAM_MAPS + 1


@pytest.fixture(scope="session")
def real_data() -> Path:
    """Return the folder of real text-to-SQL data, or skip the test."""
    folder = os.environ.get("JAXRL_SQL_DATA", "")
    if not folder:
        pytest.skip("JAXRL_SQL_DATA is not set: it names the folder that holds spider_dev, spider_train, …")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"JAXRL_SQL_DATA names {folder}, which is not a folder")
    return path


@pytest.fixture(scope="session")
def gguf_files() -> ModuleType:
    """Return the module that writes GGUF files."""
    return _module("gguf_files")


@pytest.fixture(scope="session")
def tokenizer_kinds() -> ModuleType:
    """Return the module that makes small tokenizers of several kinds."""
    return _module("tokenizer_kinds")


@pytest.fixture
def hub() -> Iterator[Any]:
    """A model hub on loopback, without repositories."""
    with _module("hub_server").serving() as served:
        yield served


@pytest.fixture(scope="session")
def chat_server() -> ModuleType:
    """Return the module that serves a chat endpoint."""
    return _module("chat_server")


@pytest.fixture(scope="session")
def view_runs() -> ModuleType:
    """Return the module that writes run folders for tests of `view`."""
    return _module("view_runs")


@pytest.fixture(scope="session")
def plain_decode() -> ModuleType:
    """Return the module that decodes with a plain cache."""
    return _module("plain_decode")


@pytest.fixture(scope="session")
def plain_kernel() -> ModuleType:
    """Return the module that computes the calls of a fused attention kernel in plain products."""
    return _module("plain_kernel")


@pytest.fixture(scope="session")
def rewind() -> Callable[[Path, int], None]:
    """Return a function that deletes the checkpoints of a run after a step, as if it had been stopped there."""

    def delete_newer(run: Path, step: int) -> None:
        for folder in (run / "checkpoints").iterdir():
            if folder.name.isdecimal() and int(folder.name) > step:
                shutil.rmtree(folder)

    return delete_newer


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """Compile for the CPU: XLA counts the work and memory of its own kernels, not of GPU libraries."""
    import jax

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def _module(name: str) -> ModuleType:
    """Load a file in this folder: tests are collected by path, so they cannot import each other."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up annotations
    spec.loader.exec_module(module)
    return module
