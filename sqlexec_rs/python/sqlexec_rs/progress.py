"""Progress of a job: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import time
from typing import TextIO

from sqlexec_rs._native import Job

_WIDTH = 30
_LINE_EVERY_S = 10.0
_LOOK_EVERY_S = 0.1


def watch(job: Job, label: str, stream: TextIO) -> None:
    """Show the progress of a job until it is finished."""
    begun = last = time.monotonic()
    is_terminal = stream.isatty()
    while not job.wait(_LOOK_EVERY_S):
        done, total = job.progress()
        if is_terminal:
            bar = "█" * (_WIDTH * done // total)
            stream.write(f"\r{label}: {bar:░<{_WIDTH}} {done:,} of {total:,} distinct items")
            stream.flush()
        elif time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            stream.write(f"{label}: {done:,} of {total:,} distinct items\n")
            stream.flush()
    _, total = job.progress()
    start = "\r\x1b[2K" if is_terminal else ""
    stream.write(f"{start}{label}: {total:,} of {total:,} distinct items in {time.monotonic() - begun:.1f} s\n")
