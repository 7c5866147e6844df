"""Check the installation and list missing optional dependencies: `jaxrl-sql doctor`.

It changes nothing. The exit code is 1 if the executor or an installed JAX does not work.
"""

from __future__ import annotations

import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.planning.units import format_bytes
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.runtime.tables import show_table

OPTIONAL = (
    ("duckdb", "duckdb", "DuckDB databases"),
    ("psycopg2-binary", "postgresql", "copying databases to PostgreSQL, sampling databases of PostgreSQL"),
    ("pymysql", "mysql", "copying databases to MariaDB or MySQL, sampling databases of them"),
    ("openai", "endpoint", "models behind an endpoint: distill, augment, verbal"),
    ("starlette", "serve", "an OpenAI-compatible server of a model: jaxrl-sql serve"),
    ("mcp", "mcp", "an MCP server of a database for agents: jaxrl-sql mcp"),
    ("gguf", "gguf", "weights in GGUF files"),
    ("pyarrow", "parquet", "questions in Parquet files"),
    ("wandb", "wandb", "metrics in Weights & Biases: run.trackers"),
    ("trackio", "trackio", "metrics and traces in Trackio: run.trackers"),
    ("libtpu", "tpu-plan", "plans for TPUs without a TPU: jaxrl-sql plan"),
)
"""Optional packages: name, the extra that installs it, and its purpose."""


class ComponentCheck(NamedTuple):
    """A line of the table: the component, its state, and advice; `is_working` is false if no run is possible."""

    component: str
    state: str
    advice: str = ""
    is_working: bool = True


def checks() -> Iterator[ComponentCheck]:
    """Yield the state of each component, required ones first."""
    yield ComponentCheck(
        "jaxrl-sql", f"{_version('jaxrl-sql')}, Python {platform.python_version()}, {platform.platform()}"
    )
    yield _check("executor", _executor, "pip install --force-reinstall sqlexec-rs, or `make setup` in a clone")
    missing = [name for name in ("jax", "flax", "optax", "orbax-checkpoint") if not _version(name)]
    if missing:
        advice = "pip install 'jaxrl-sql[train]' (or cuda, cuda12, tpu): training and inference"
        yield ComponentCheck("jax", f"not installed: {', '.join(missing)}", advice)
    else:
        yield (
            jax := _check(
                "jax", _devices, "pip install 'jaxrl-sql[cuda]' (or cuda12, tpu); JAX_PLATFORMS=cpu to use the CPU"
            )
        )
        yield _driver()
        if jax.is_working:
            yield _processor()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield ComponentCheck("memory", format_bytes(total), "rollout.memory is the fraction for the KV cache")
    disk = shutil.disk_usage(Path.cwd())
    yield ComponentCheck(
        "disk", f"{format_bytes(disk.free)} free of {format_bytes(disk.total)} here", "run.dir holds the checkpoints"
    )
    for package, extra, purpose in OPTIONAL:
        installed = _version(package)
        yield ComponentCheck(
            package,
            installed or "not installed",
            purpose if installed else f"pip install 'jaxrl-sql[{extra}]': {purpose}",
        )


def _executor() -> str:
    from sqlexec_rs import Executor, sqlite_version

    with TemporaryDirectory() as folder:
        path = Path(folder, "test.sqlite")
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE t(x)")
        with Executor(threads=1, isolation="process") as executor:
            outcome = executor.execute(path, "SELECT 1")
        if outcome.status != "ok":
            raise RuntimeError(f"SELECT 1: {outcome.status} {outcome.error or ''}")
    return f"sqlexec-rs {_version('sqlexec-rs')} with SQLite {sqlite_version()}; a worker process ran SELECT 1"


def _devices() -> str:
    import jax

    devices = jax.devices()
    memory = (devices[0].memory_stats() or {}).get("bytes_limit", 0)
    memory_text = f" of {format_bytes(memory)}" if memory else ""
    return f"{jax.__version__} with {len(devices)} x {devices[0].device_kind}{memory_text} ({jax.default_backend()})"


def _driver() -> ComponentCheck:
    path = Path("/proc/driver/nvidia/version")
    if not path.is_file():
        advice = "training runs on the CPU; on a machine with a GPU: pip install 'jaxrl-sql[cuda]' (or cuda12, tpu)"
        return ComponentCheck("GPU driver", "no NVIDIA driver", advice)
    plugins = [name for name in ("jax-cuda12-plugin", "jax-cuda13-plugin") if _version(name)]
    advice = "" if plugins else "pip install 'jaxrl-sql[cuda]' (CUDA 13) or [cuda12] for training on the GPU"
    return ComponentCheck(
        "GPU driver", path.read_text(encoding="utf-8").splitlines()[0].removeprefix("NVRM version: "), advice
    )


def _processor() -> ComponentCheck:
    from jaxrl_sql.models.ops.cpu import has_bfloat16_products

    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    is_supported = has_bfloat16_products()
    advice = (
        "model.compute_dtype=bfloat16 is faster on it"
        if is_supported
        else "model.compute_dtype=bfloat16 is slower on it"
    )
    unit = f"{'with' if is_supported else 'without'} AMX or AMD's AVX512_BF16 for bfloat16"
    return ComponentCheck("processor", f"{quantity(count or 1, 'cores')}, {unit}", advice)


def _check(component: str, check: Callable[[], str], advice: str) -> ComponentCheck:
    try:
        return ComponentCheck(component, check())
    except Exception as error:  # noqa: BLE001 - any failure is reported
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        return ComponentCheck(component, f"does not work: {reason}", advice, is_working=False)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the checks as a table, and return the exit code."""
    Parser(description=__doc__).parse_args(arguments)
    prepare_process()
    rows = list(checks())
    show_table(sys.stdout, "", ("", "here", ""), [row[:3] for row in rows], text_columns=(0, 1, 2))
    return 0 if all(row.is_working for row in rows) else 1
