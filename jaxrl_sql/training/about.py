"""The machine and times of a run: `about.json` in its folder, with an entry per session.

A session is the time from the start or a resumption of the run until its process ends.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import jax

from jaxrl_sql.report.outcome import COMPLETE, FAILED, STOPPED
from jaxrl_sql.runtime.progress import Activity, quantity
from jaxrl_sql.runtime.signals import StopRequest
from jaxrl_sql.types import Record

ABOUT = "about.json"
PACKAGES = ("jaxrl-sql", "sqlexec-rs", "jax", "jaxlib", "transformers", "optax")


class SessionPlan(NamedTuple):
    """Facts of a session that are known at its start.

    `parameters` is the number of the model's parameters. `phases` has (name, last step) of each phase. `resume` is the
    Python call that resumes a run whose questions or reward were passed in Python, else "". `base` is the
    `org/name@commit` of a hub model that the weights were read from, else "".
    """

    parameters: int
    phases: Sequence[tuple[str, int]]
    resume: str = ""
    base: str = ""


@contextmanager
def record_session(folder: Path | None, plan: SessionPlan, activity: Activity, request: StopRequest) -> Iterator[None]:
    """Record the start of a session, and on exit its end, duration and outcome; without a folder nothing is written.

    The duration is that of `activity`, which the terminal prints, too. If the process is killed, the entry has no end.
    `request` has the reason if a stop was requested.
    """
    if folder is None:
        yield
        return
    about = _read(folder / ABOUT)
    began = datetime.now(UTC) - timedelta(seconds=activity.clock() - activity.start_time)
    session: Record = {
        "began": _timestamp(began), "machine": _machine(), "versions": _versions(), "commit": _commit(),
        "phases": [list(phase) for phase in plan.phases], **({"resume": plan.resume} if plan.resume else {}),
    }  # fmt: skip
    about = {
        "parameters": plan.parameters,
        **({"base": plan.base} if plan.base else {}),
        "sessions": [*about.get("sessions", []), session],
    }
    _write(folder / ABOUT, about)
    try:
        yield
        is_complete = activity.total_s is not None or not request.is_made  # a complete run has printed its duration
        session |= {"outcome": COMPLETE} if is_complete else {"outcome": STOPPED, "reason": request.cause}
    except BaseException as error:
        session |= _failure(error)
        raise
    finally:
        session |= {"ended": _timestamp(datetime.now(UTC)), "seconds": round(activity.finish(), 3)}
        with suppress(OSError):  # do not hide the error that ended the session
            _write(folder / ABOUT, about)


def _failure(error: BaseException) -> Record:
    """Return the outcome of a session that an exception ended."""
    if isinstance(error, KeyboardInterrupt):
        return {"outcome": STOPPED, "reason": "Ctrl-C"}
    first = (str(error).strip() or type(error).__name__).splitlines()[0]
    return {"outcome": FAILED, "reason": first}


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


def _timestamp(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


def _machine() -> str:
    """Return the devices, the processor and the system as text, without the host's name."""
    devices = jax.devices()
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    processes = f", {jax.process_count()} processes" if jax.process_count() > 1 else ""
    devices_text = f"{len(devices)} x {devices[0].device_kind}{processes}"
    return f"{devices_text}; {quantity(count or 1, 'cores')} {platform.machine()}, {platform.system()}"


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
        process = subprocess.run(  # noqa: S603 - the arguments are fixed
            ["git", "-C", str(root), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],  # noqa: S607
            capture_output=True, text=True, timeout=10, check=False,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip() if process.returncode == 0 else ""
