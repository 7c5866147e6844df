"""The machine and times of a run: `about.json` in its folder, with an entry for its start and each resumption."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax

from jaxrl_sql.types import Record

ABOUT = "about.json"
PACKAGES = ("jaxrl-sql", "sqlexec-rs", "jax", "jaxlib", "transformers", "optax")


@contextmanager
def record_session(folder: Path | None, parameters: int, base: str = "") -> Iterator[None]:
    """Record the start of a session, and its end on exit; without a folder nothing is written.

    `parameters` is the model's number of parameters, and `base` the `org/name@commit` of a hub model that it was read
    from. A killed session has no end.
    """
    if folder is None:
        yield
        return
    about = _read(folder / ABOUT)
    session: Record = {"began": _now(), "machine": _machine(), "versions": _versions(), "commit": _commit()}
    about = {
        "parameters": parameters,
        **({"base": base} if base else {}),
        "sessions": [*about.get("sessions", []), session],
    }
    _write(folder / ABOUT, about)
    try:
        yield
    finally:
        session["ended"] = _now()
        with suppress(OSError):  # an earlier error is reported instead
            _write(folder / ABOUT, about)


def _read(path: Path) -> Record:
    """Return the existing entries; {} if the file cannot be read."""
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return about if isinstance(about, dict) and isinstance(about.get("sessions", []), list) else {}


def _write(path: Path, about: Record) -> None:
    scratch = path.with_name(f"{path.name}.tmp")
    scratch.write_text(json.dumps(about, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    scratch.replace(path)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _machine() -> str:
    """Return the devices, and the processor and system around them; the host name is left out."""
    devices = jax.devices()
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = f", {jax.process_count()} processes" if jax.process_count() > 1 else ""
    devices_text = f"{len(devices)} x {devices[0].device_kind}{processes}"
    return f"{devices_text}; {count} cores {platform.machine()}, {platform.system()}"


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _commit() -> str:
    """Return the commit of the clone that contains this package, with a + if files have changed; "" without a clone."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        process = subprocess.run(  # noqa: S603 - our own words
            ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],  # noqa: S607
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""
