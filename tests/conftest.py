"""What every test may ask for: the real data's folder, where there is one, servers, and modules that tests share."""

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

import pytest

from jaxrl_sql.runtime.cache_folder import processor

# Tests run on the CPU unless somebody says otherwise, so that they mean the same on every machine.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of the time here, and less of it computes the same. XLA_FLAGS set to nothing gives the defaults.
# The second flag went with jaxlib 0.11, where XLA ends a process that names it.
_QUICK = ["--xla_backend_optimization_level=0", "--xla_cpu_use_fusion_emitters=false"]
_HAS_JAX = importlib.util.find_spec("jaxlib") is not None  # the environment of `make test-trainers` has none
if _HAS_JAX:
    _JAXLIB = tuple(map(int, importlib.metadata.version("jaxlib").split(".")[:2]))
    os.environ.setdefault("XLA_FLAGS", " ".join(_QUICK if _JAXLIB < (0, 11) else _QUICK[:1]))

# A shell lets what it starts in the background ignore Ctrl-C, and whatever that starts: tests of Ctrl-C could not pass.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Bytecode is kept for the other processes of the tests and for the next time, as what XLA compiles is: without it each
# process compiles the package, and each process of the tests their assertions.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# What is found out about databases is kept on disk in the tests of that alone.
os.environ.setdefault("JAXRL_SQL_CACHE", "off")


COMPILED_BYTES = 1 << 30
"""So much may lie in the folder of compiled programs before it is emptied."""

PROGRAM_MAPS = 16_384
"""So many memory maps may a process have before compiled programs are let go; Linux allows 65,530."""


@pytest.hookimpl(optionalhook=True)  # the environment of `make test-trainers` has no pytest-xdist
def pytest_xdist_auto_num_workers() -> int:
    """Return a worker more than there are processors: many tests wait for another process."""
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1


def _compiled_folder() -> Path:
    """Return the folder of compiled programs of this processor and this JAX, which its keys do not name."""
    versions = "-".join(importlib.metadata.version(name) for name in ("jax", "jaxlib"))
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "jaxrl_sql", "tests", f"{processor()}-{versions}")


# What XLA compiles is kept for the other processes of the tests and for the next time, unless a folder is named. JAX
# reads these as it is imported, which a folder's conftest does before `pytest_configure`.
_FOLDER = _compiled_folder() if _HAS_JAX and "JAX_COMPILATION_CACHE_DIR" not in os.environ else None
if _FOLDER is not None:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(_FOLDER)  # processes that tests start have it too
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"


def pytest_configure(config: pytest.Config) -> None:
    """Make the folder of compiled programs, and empty it where it is full."""
    config.pluginmanager.register(_module("server_fixtures"))
    folder = _FOLDER
    if folder is None or hasattr(config, "workerinput"):  # the process that started this one has looked
        return
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {file: file.stat().st_size for file in folder.iterdir()}
    is_full = sum(sizes.values()) > COMPILED_BYTES
    for file, size in sizes.items():
        if is_full or size == 0:  # a process was killed before it wrote what it had opened
            file.unlink(missing_ok=True)


@pytest.fixture(autouse=True, scope="module")
def _few_programs() -> Iterator[None]:
    """Let compiled programs go where they are many: a process out of memory maps is aborted."""
    yield
    if "jax" in sys.modules and _memory_maps() > PROGRAM_MAPS:
        sys.modules["jax"].clear_caches()


def _memory_maps() -> int:
    """Return how many memory maps this process has, or more than are allowed on a system that does not say."""
    maps = Path("/proc/self/maps")
    return maps.read_bytes().count(b"\n") if maps.exists() else PROGRAM_MAPS + 1


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


@pytest.fixture(scope="session")
def gguf_files() -> ModuleType:
    """Return the module that writes GGUF files."""
    return _module("gguf_files")


@pytest.fixture(scope="session")
def tokenizer_kinds() -> ModuleType:
    """Return the module that makes small tokenizers of several kinds."""
    return _module("tokenizer_kinds")


@pytest.fixture(scope="session")
def chat_server() -> ModuleType:
    """Return the module that serves a chat endpoint."""
    return _module("chat_server")


@pytest.fixture(scope="session")
def view_runs() -> ModuleType:
    """Return the module that writes run folders to be looked at."""
    return _module("view_runs")


@pytest.fixture(scope="session")
def plain_decode() -> ModuleType:
    """Return the module that decodes from a cache in its plain form."""
    return _module("plain_decode")


@pytest.fixture(scope="session")
def plain_kernel() -> ModuleType:
    """Return the module that computes a fused attention kernel's calls in plain products."""
    return _module("plain_kernel")


@pytest.fixture(scope="session")
def rewind() -> Callable[[Path, int], None]:
    """Return what deletes the checkpoints of a run behind a step, as if it had been stopped there."""

    def delete_newer(run: Path, step: int) -> None:
        for folder in (run / "checkpoints").iterdir():
            if folder.name.isdecimal() and int(folder.name) > step:
                shutil.rmtree(folder)

    return delete_newer


@pytest.fixture
def on_cpu() -> Iterator[None]:
    """Compile for the processor: XLA counts the work and memory of its own kernels, not of a GPU's libraries."""
    import jax

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


def _module(name: str) -> ModuleType:
    """Load a file beside this one: tests are found by path, so that they cannot import one another."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module
