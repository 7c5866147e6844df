"""Implement `await job` and `async for` over its items. A separate module, to import asyncio only on use."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from sqlexec_rs._native import Job

_POLL_S = 0.02


async def result_in_loop(job: Job) -> Any:
    """Return the result of a job without blocking the event loop. Implements `await job`."""
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def wake() -> None:
        if not done.done():  # the task that waited may have been cancelled
            done.set_result(None)

    def call(_job: Job) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed, so no task waits
            loop.call_soon_threadsafe(wake)

    job.add_done_callback(call)
    await done
    return job.result()


async def next_in_loop(items: Any) -> tuple[int, Any]:
    """Return the next item of `job.as_completed()` without blocking the event loop. Raises StopAsyncIteration."""
    item = items.poll()
    while item is False:
        # Wait briefly in a thread, without taking the item, so that cancelling the task is quick and loses no item.
        await asyncio.to_thread(items.wait, _POLL_S)
        item = items.poll()
    if item is None:
        raise StopAsyncIteration
    return cast("tuple[int, Any]", item)
