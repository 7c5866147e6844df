"""What `await job` does; apart, so that asyncio is imported only where there is an event loop."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

from sqlexec_rs._native import Job


async def result_in_loop(job: Job) -> Any:
    """Return the result of a job; the event loop runs on meanwhile. What `await job` does."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def wake() -> None:
        if not done.done():  # the task that waited may have been cancelled
            done.set_result(None)

    def call(_job: Job) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, so nobody waits
            loop.call_soon_threadsafe(wake)

    job.add_done_callback(call)
    await done
    return job.result()
