"""What `await job` and `async for` over its items do; apart, so that only who has an event loop imports asyncio."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, cast

from sqlexec_rs._native import Job

_LOOK_S = 0.02


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


async def next_in_loop(items: Any) -> tuple[int, Any]:
    """Return the next item of `job.as_completed()`; the event loop runs on meanwhile. Raises StopAsyncIteration."""
    found = items.poll()
    while found is False:
        # In a thread, for a moment, and without taking the item: who cancels the task loses none and waits for none.
        await asyncio.to_thread(items.wait, _LOOK_S)
        found = items.poll()
    if found is None:
        raise StopAsyncIteration
    return cast("tuple[int, Any]", found)
