"""How far a job is: a bar on a terminal, a plain line now and then anywhere else."""

from __future__ import annotations

import time
from typing import TextIO

from sqlexec_rs._native import Job

_WIDTH = 30
_LINE_EVERY_S = 10.0
_LOOK_EVERY_S = 0.1


def watch(job: Job, label: str, stream: TextIO) -> None:
    """Show how far a job is until it is done."""
    begun = last = time.monotonic()
    is_terminal = stream.isatty()
    while not job.wait(_LOOK_EVERY_S):
        done, of = job.progress()
        if is_terminal:
            bar = "█" * (_WIDTH * done // of)
            stream.write(f"\r{label}: {bar:░<{_WIDTH}} {done:,} of {of:,} distinct items")
            stream.flush()
        elif time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            stream.write(f"{label}: {done:,} of {of:,} distinct items\n")
            stream.flush()
    _, of = job.progress()
    start = "\r\x1b[2K" if is_terminal else ""
    stream.write(f"{start}{label}: {of:,} of {of:,} distinct items in {time.monotonic() - begun:.1f} s\n")
