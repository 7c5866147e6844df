"""Stop the database servers of a test run and delete their files: `python stop_servers.py PID FOLDER`.

The command waits until the process PID has ended, so that no server outlives a killed run.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

FORCED = {"*/data/postmaster.pid": signal.SIGQUIT, "*/pid": signal.SIGKILL}
"""The process id files of PostgreSQL and MariaDB, and the signal that ends each immediately."""


def stop(folder: Path) -> None:
    """Stop the servers in a folder's subfolders, and delete the folder."""
    supervisors = set()
    for mark in folder.glob("*/running-*"):  # without it a server is not restarted
        with suppress(OSError, ValueError):
            supervisors.add(int(mark.read_text(encoding="ascii")))
        mark.unlink(missing_ok=True)
    end = time.monotonic() + 10
    _kill(folder)
    while any(map(_supervises, supervisors)) and time.monotonic() < end:
        time.sleep(0.02)
        _kill(folder)  # a starting server writes its process id later
    end = time.monotonic() + 10  # a stopping server may still write a file
    while folder.exists() and time.monotonic() < end:
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)


def _kill(folder: Path) -> None:
    for pattern, number in FORCED.items():
        for file in folder.glob(pattern):
            with suppress(OSError, ValueError, IndexError):
                os.kill(int(file.read_text(encoding="ascii").split()[0]), number)


def _supervises(pid: int) -> bool:
    with suppress(OSError):
        return b"/running-" in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    while _is_alive(int(sys.argv[1])):
        time.sleep(0.5)
    stop(Path(sys.argv[2]))
