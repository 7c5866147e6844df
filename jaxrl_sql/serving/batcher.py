"""Batch requests of many clients into calls of the engine, in one thread.

The engine runs one call at a time. Meanwhile requests wait in a bounded queue. The next call takes requests for the
model of the oldest request, up to the number of decode slots; a slot decodes one sample. Clients receive finished
samples at once, and partial ones if they stream. A client that disconnects frees its slots.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import jax

from jaxrl_sql.rollout import Engine, Sample, SamplingParams
from jaxrl_sql.rollout.call import EngineCall
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.types import JaxrlSqlError, Prompt

_LOG = logging.getLogger(__name__)


class QueueFullError(JaxrlSqlError):
    """The queue has no room; try again after `seconds`."""

    def __init__(self, seconds: int) -> None:
        super().__init__(f"the queue is full: try again in {seconds} s")
        self.seconds = seconds


@dataclass(eq=False)
class Job:
    """A client's request: prompts for the model with the name `model`, and the callback `emit`.

    `emit` is called in the batcher's thread. It gets each finished sample, partial samples (without a finish_reason) if
    `is_streamed`, or the error that ended the job. A client may set `cancelled` at any time.
    """

    model: str
    prompts: Sequence[Prompt]
    sampling: SamplingParams
    emit: Callable[[Sample | Exception], None]
    is_streamed: bool = False
    cancelled: bool = False

    @property
    def n_samples(self) -> int:
        """Return the number of samples."""
        return len(self.prompts) * self.sampling.n


class Batcher:
    """Runs the jobs of any number of clients on `engines`, by the name of the model, while it is `running`.

    At most `capacity` jobs wait, cancelled ones not counted; a further job raises QueueFullError. Only one engine holds
    a KV cache at a time.
    """

    def __init__(self, engines: Mapping[str, Engine], capacity: int) -> None:
        self.engines, self.capacity = engines, capacity
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._is_closed = False
        self._call_seconds = 1.0  # of the last call: the wait that a refused client is advised
        self._running = self._cancelled = 0
        self._mesh = jax.sharding.get_mesh()  # the current mesh belongs to a thread, so `_run` sets it again
        self._thread = threading.Thread(target=self._run, name="batcher", daemon=True)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run jobs until the end of the context; running jobs are dropped then."""
        self._thread.start()
        try:
            yield
        finally:
            with self._changed:
                self._is_closed = True
                self._changed.notify_all()
            self._thread.join()

    @property
    def counts(self) -> dict[str, int]:
        """Return the numbers of waiting, running and cancelled jobs."""
        return {"waiting": len(self._uncancelled_jobs()), "running": self._running, "cancelled": self._cancelled}

    @property
    def is_alive(self) -> bool:
        """Return whether the batcher's thread is running."""
        return self._thread.is_alive()

    def submit(self, job: Job) -> None:
        """Queue a job; raises QueueFullError, with the seconds to wait, if the queue is full."""
        with self._changed:
            self._waiting = self._uncancelled_jobs()
            if len(self._waiting) >= self.capacity:
                raise QueueFullError(max(1, round(self._call_seconds)))
            self._waiting.append(job)
            self._changed.notify()

    def _uncancelled_jobs(self) -> deque[Job]:
        """Return the waiting jobs without cancelled ones."""
        with self._changed:
            return deque(job for job in self._waiting if not job.cancelled)

    def _run(self) -> None:
        with contextlib.nullcontext() if self._mesh.empty else jax.set_mesh(self._mesh):
            last_model = ""
            while jobs := self._next_jobs():
                model = jobs[0].model
                if last_model not in ("", model):
                    self.engines[last_model].release()
                last_model, start_time = model, time.monotonic()
                self._running = len(jobs)
                try:
                    self._call(self.engines[model], jobs)
                except Exception as error:  # noqa: BLE001 - clients of this call get the error; the others are served
                    _LOG.exception("a call of the engine failed")
                    self.engines[model].release()
                    for job in jobs:
                        job.emit(error)
                self._running = 0
                self._call_seconds = time.monotonic() - start_time

    def _next_jobs(self) -> list[Job]:
        """Wait for jobs and return those of the next call, of one model and up to its slots; [] once closed."""
        with self._changed:
            while True:
                self._waiting = self._uncancelled_jobs()
                if self._is_closed:
                    return []
                if self._waiting:
                    break
                self._changed.wait()
            model, n_samples, jobs = self._waiting[0].model, 0, list[Job]()
            for job in self._waiting:
                if job.model != model:
                    continue
                if jobs and n_samples + job.n_samples > self.engines[model].config.max_num_seqs:
                    break
                jobs.append(job)
                n_samples += job.n_samples
            self._waiting = deque(job for job in self._waiting if job not in jobs)
            return jobs

    def _call(self, engine: Engine, jobs: Sequence[Job]) -> None:
        """Run jobs as one call; each job gets the same samples as in a separate call."""
        pending = [(job, i) for job in jobs for i in range(len(job.prompts))]
        prompts, prompt_numbers = [job.prompts[i] for job, i in pending], [i for _, i in pending]
        # Random keys derive from a prompt's number within its job, so other jobs do not change its samples.
        request = GenerationRequest(prompts, [job.sampling for job, _ in pending], 0, None, numbers=prompt_numbers)
        call = engine.begin(request)
        cancelled: set[int] = set()
        try:
            _deliver(pending, call.ready_samples())
            while call.unfinished:
                for index, (job, _) in enumerate(pending):
                    if (job.cancelled or self._is_closed) and index not in cancelled and index not in call.invalid:
                        cancelled.add(index)
                        call.cancel(index)
                _deliver(pending, [*call.launch(), *call.read()])
                _deliver(pending, _partial_samples(pending, call))
        finally:
            self._cancelled += len({id(pending[index][0]) for index in cancelled})


_Pending = Sequence[tuple[Job, int]]
"""The prompts of a call: each prompt's job, and its index in the job."""


def _deliver(pending: _Pending, samples: Iterable[Sample]) -> None:
    """Pass samples to their jobs' clients, with the prompt's index in the job instead of that in the call."""
    for sample in samples:
        job, i = pending[sample.prompt_index]
        if not job.cancelled:
            job.emit(replace(sample, prompt_index=i))


def _partial_samples(pending: _Pending, call: EngineCall) -> Iterator[Sample]:
    """Yield the partial samples of streamed jobs."""
    for completion_number in call.partial:
        prompt, index = call.global_index(completion_number)
        if pending[prompt][0].is_streamed:
            ids, logprobs, _ = call.current_turn(completion_number)
            yield Sample(prompt, index, ids, logprobs, (), "", "")
