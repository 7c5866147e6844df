"""What stops a run from outside: Ctrl-C and SIGTERM become a request that the loop looks at between steps.

A preempted machine's notice is a SIGTERM, to some or all of a run's processes; they agree on the step after which they
stop (`TrainingRun.agree_to_stop`). That takes the place of JAX's own preemption service, whose handler of the same
signal is put back on leaving, as far as Python can.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

INTERRUPTED, ENDED = 130, 0
"""Exit codes of a run that was stopped by Ctrl-C, and by a SIGTERM: it did as it was told, and can go on."""


def drop_output() -> None:
    """Let what Python would still write go nowhere: who read the output, such as `head`, has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass
class StopRequest:
    """Whether somebody asked the run to stop, and the exit code that it then ends with (None: nobody did)."""

    exit_code: int | None = None

    @property
    def is_made(self) -> bool:
        """Return whether somebody asked."""
        return self.exit_code is not None


@contextmanager
def stop_on_signals(tell: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turn Ctrl-C and SIGTERM into a request; a second Ctrl-C is an ordinary KeyboardInterrupt."""
    request = StopRequest()

    def ask(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            code = INTERRUPTED
            signal.signal(signal.SIGINT, signal.default_int_handler)
            words = "stopping after this step (Ctrl-C again to stop at once)"
        else:
            code = ENDED
            words = "asked to end (SIGTERM): saving"
        # Who asked first: a second signal comes while that is done.
        request.exit_code = code if request.exit_code is None else request.exit_code
        with suppress(RuntimeError):  # the signal came while the display was writing, and its stream lets nobody in
            tell(words)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():  # None: one that Python did not install and cannot put back
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
