"""Turn Ctrl-C and SIGTERM into a stop request, which the training loop reads between steps.

A preempted machine sends SIGTERM to some or all of a run's processes; they agree on their last step
(`TrainingRun.sync_stop_requests`). The handlers here replace that of JAX's preemption service, which handles SIGTERM
too. The earlier handlers are restored afterwards, except one that was not installed from Python.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType

EXIT_INTERRUPTED, EXIT_ENDED = 130, 0
"""Exit codes of a run that was stopped by Ctrl-C, and by SIGTERM (it has saved a checkpoint and can resume)."""
_IMPORT_FRAMES = "<frozen importlib._bootstrap>"
"""File name of the frames of Python's import system."""


def print_interruption() -> None:
    """Print that Ctrl-C ended the command."""
    with suppress(OSError):
        os.write(2, b"interrupted\n")  # not buffered: the process may end at once


@contextmanager
def exit_on_ctrl_c_during_imports() -> Iterator[None]:
    """Within the context, end the process with one line if Ctrl-C arrives while a module is being imported.

    An extension may turn an interrupted import into another error, or print a traceback and continue. At other times
    Ctrl-C raises KeyboardInterrupt as usual. If another handler than Python's default is installed, nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        inner = frame
        while inner is not None:
            if inner.f_code.co_filename == _IMPORT_FRAMES:
                print_interruption()
                os._exit(EXIT_INTERRUPTED)
            inner = inner.f_back
        signal.default_int_handler(number, frame)

    signal.signal(signal.SIGINT, leave)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is leave:
            signal.signal(signal.SIGINT, signal.default_int_handler)


def drop_output() -> None:
    """Discard further output, after its reader (such as `head`) has closed the pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@dataclass
class StopRequest:
    """A request to stop the run: the exit code with which the run then ends (None: no request), and its source.

    `source` is "Ctrl-C", "SIGTERM" or the text of another part of the program that stops the run; "" if another
    process of the run got the request.
    """

    exit_code: int | None = None
    source: str = ""

    @property
    def cause(self) -> str:
        """Return the signal or the source that stopped the run; for a request of another process, its signal."""
        return self.source or ("Ctrl-C" if self.exit_code == EXIT_INTERRUPTED else "SIGTERM")

    @property
    def is_made(self) -> bool:
        """Return whether the run was asked to stop."""
        return self.exit_code is not None


@contextmanager
def stop_on_signals(notify: Callable[[str], None]) -> Iterator[StopRequest]:
    """Turn Ctrl-C and SIGTERM into a request; a second Ctrl-C is an ordinary KeyboardInterrupt.

    `notify` shows a line to the user when a signal arrives.
    """
    request = StopRequest()

    def ask(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            code, source = EXIT_INTERRUPTED, "Ctrl-C"
            signal.signal(signal.SIGINT, signal.default_int_handler)
            message = "stopping after this step (Ctrl-C again to stop at once)"
        else:
            code, source = EXIT_ENDED, "SIGTERM"
            message = "received SIGTERM: saving"
        # The first signal decides: a second one may arrive while the run stops.
        if request.exit_code is None:
            request.exit_code, request.source = code, source
        with suppress(RuntimeError):  # the signal interrupted a write of the display: its stream is not reentrant
            notify(message)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():  # None: not installed from Python, so it cannot be restored
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
