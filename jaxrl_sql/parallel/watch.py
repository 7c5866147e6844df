"""Detect lost processes: each process of a run has a connection to the first process, which closes when either ends.

A collective operation with a lost process fails too. But a process may wait for something else: storage, a barrier, a
connection. JAX's heartbeat would abort it only after 100 s, and without our message.

At its regular end a process sends BYE. A connection that closes without it means that the process was lost. To connect,
a process sends a secret that the first process has put into JAX's key-value store, which only the run's processes read.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

import jax
from jax._src import distributed  # JAX has no public interface to its processes' shared store

BYE = b"."
GRACE_S = 10.0
"""Seconds to wait, after a connection was lost, for the main thread to report it from the error of a collective.

Also the timeout of a new connection and of its secret.
"""
MAX_WAIT_S = 300.0
"""Maximum seconds to wait for the other processes at the start."""
# Numbers of the watches of this process; they are equal in all processes, as each enters the same contexts.
_watch_numbers = itertools.count()


@contextmanager
def watch_processes(advice: str) -> Iterator[None]:
    """Watch the other processes of the run within the context.

    If another process dies or fails, this process prints a line with `advice` and exits with code 1. Every process must
    enter the context. If a process cannot connect to the port that the first process opens for this purpose, it is not
    watched.
    """
    if jax.process_count() == 1:
        yield
        return
    key = f"jaxrl_sql/watch/{next(_watch_numbers)}"
    with ExitStack() as stack:
        watch, state = _Watch(advice), distributed.global_state
        assert state.client is not None
        assert state.coordinator_address is not None
        if jax.process_index() == 0:
            listener = stack.enter_context(_listener())
            stack.callback(_shut_down, listener)  # closing alone would not wake a waiting `accept`
            secret = secrets.token_hex(16)
            host = state.coordinator_address.rpartition(":")[0].strip("[]")
            state.client.key_value_set(key, f"{host} {listener.getsockname()[1]} {secret}")
            threading.Thread(target=watch.accept, args=(listener, secret.encode()), daemon=True).start()
        else:
            address = state.client.blocking_key_value_get(key, int(MAX_WAIT_S * 1000))
            host, port, secret = address.split()
            with suppress(OSError):
                connection = socket.create_connection((host, int(port)), timeout=GRACE_S)
                connection.settimeout(None)
                connection.sendall(secret.encode())
                watch.start_reader(connection)
        state.client.wait_at_barrier(key, int(MAX_WAIT_S * 1000))  # all processes are connected when it returns
        is_clean = False
        try:
            yield
            is_clean = True
        finally:
            watch.close(is_clean)


def _listener() -> socket.socket:
    """Return a socket that listens on a free port, by IPv6 and IPv4 if possible."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _shut_down(connection: socket.socket) -> None:
    """Shut a socket down, which ends calls that wait for it in other threads."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Watch:
    """The connections to other processes, each with a reader thread."""

    def __init__(self, advice: str) -> None:
        self.advice = advice
        self._connections: list[socket.socket] = []
        self._is_closing = threading.Event()

    def accept(self, listener: socket.socket, secret: bytes) -> None:
        """Accept connections that send the `secret`, until the listener is closed."""
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(GRACE_S)
                with suppress(OSError):
                    if secrets.compare_digest(connection.recv(len(secret), socket.MSG_WAITALL), secret):
                        connection.settimeout(None)
                        self.start_reader(connection)
                        continue
                connection.close()

    def start_reader(self, connection: socket.socket) -> None:
        """Start a thread that waits until the other side of a connection sends BYE, or closes it without BYE."""
        self._connections.append(connection)
        threading.Thread(target=self._wait_for_end, args=(connection,), daemon=True).start()

    def close(self, is_clean: bool) -> None:
        """Close all connections; send BYE first if `is_clean`."""
        self._is_closing.set()
        for connection in self._connections:
            with suppress(OSError):
                if is_clean:
                    connection.sendall(BYE)
            _shut_down(connection)
            connection.close()

    def _wait_for_end(self, connection: socket.socket) -> None:
        """Wait for BYE; if the connection closes without it and this process is not closing, exit with an error."""
        answer = b""
        with suppress(OSError):
            answer = connection.recv(1)
        if answer == BYE:
            return
        if not self._is_closing.wait(GRACE_S):
            sys.stderr.write(
                f"error: another process of this run has ended (its connection is closed); {self.advice}\n"
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
