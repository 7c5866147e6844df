"""Wait for jobs in completion order, by callbacks instead of polling."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator

from sqlexec_rs._native import Job


def as_completed(jobs: Iterable[Job], timeout: float | None = None) -> Iterator[Job]:
    """Yield jobs as they finish, each once.

    Raises TimeoutError if not all are finished `timeout` seconds after the first iteration starts.
    """
    waiting = list(dict.fromkeys(jobs))
    deadline = None if timeout is None else time.monotonic() + timeout
    finished: queue.SimpleQueue[Job] = queue.SimpleQueue()
    for job in waiting:
        job.add_done_callback(finished.put)
    for n_left in range(len(waiting), 0, -1):
        try:
            yield finished.get(timeout=None if deadline is None else max(deadline - time.monotonic(), 0.0))
        except queue.Empty:
            raise TimeoutError(f"{n_left} of {len(waiting)} jobs were not finished in time") from None
