"""Whether the other processes of a run are still there: each holds a connection to the first, which ends with it.

The error of a collective says so as well, but not to a process that waits for another elsewhere (for storage, at a
barrier, for a connection): it would hear nothing until JAX's heartbeat aborts it, after 100 s and in its own words.
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
from jax._src import distributed  # JAX has no public door to the store that its processes share

BYE = b"."
GRACE = 10.0
"""Seconds in which the main thread may tell of a lost process itself, by the error of a collective."""
LONGEST = 300.0
"""Seconds that the others may take to come here."""
_number = itertools.count()


@contextmanager
def watched(advice: str) -> Iterator[None]:
    """End this process, exit code 1 and one line with `advice`, when another leaves the context by dying or an error.

    Every process must enter it. Where the first cannot be reached by another port than JAX's own, nothing is watched.
    """
    if jax.process_count() == 1:
        yield
        return
    key = f"jaxrl_sql/watch/{next(_number)}"
    with ExitStack() as closed:
        watch, joined = _Watch(advice), distributed.global_state
        assert joined.client is not None
        assert joined.coordinator_address is not None
        if jax.process_index() == 0:
            listener = closed.enter_context(_listener())
            closed.callback(_shut, listener)  # closing alone would not wake who waits for a connection
            word = secrets.token_hex(16)
            host = joined.coordinator_address.rpartition(":")[0].strip("[]")
            joined.client.key_value_set(key, f"{host} {listener.getsockname()[1]} {word}")
            threading.Thread(target=watch.welcome, args=(listener, word.encode()), daemon=True).start()
        else:
            said = joined.client.blocking_key_value_get(key, int(LONGEST * 1000))
            host, port, word = said.split()
            with suppress(OSError):
                connection = socket.create_connection((host, int(port)), timeout=GRACE)
                connection.settimeout(None)
                connection.sendall(word.encode())
                watch.hear(connection)
        joined.client.wait_at_barrier(key, int(LONGEST * 1000))  # from here on each is watched
        is_well = False
        try:
            yield
            is_well = True
        finally:
            watch.leave(is_well)


def _listener() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def _shut(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _Watch:
    """The connections to others, each heard by a thread."""

    def __init__(self, advice: str) -> None:
        self.advice = advice
        self._connections: list[socket.socket] = []
        self._has_left = threading.Event()

    def welcome(self, listener: socket.socket, word: bytes) -> None:
        """Take the connections of those who know the word, until the listener is closed."""
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                connection.settimeout(GRACE)
                with suppress(OSError):
                    if secrets.compare_digest(connection.recv(len(word), socket.MSG_WAITALL), word):
                        connection.settimeout(None)
                        self.hear(connection)
                        continue
                connection.close()

    def hear(self, connection: socket.socket) -> None:
        """Listen to a connection until its other side says goodbye, or is gone without."""
        self._connections.append(connection)
        threading.Thread(target=self._listen, args=(connection,), daemon=True).start()

    def leave(self, is_well: bool) -> None:
        """Close all connections, with a goodbye where all is well."""
        self._has_left.set()
        for connection in self._connections:
            with suppress(OSError):
                if is_well:
                    connection.sendall(BYE)
            _shut(connection)
            connection.close()

    def _listen(self, connection: socket.socket) -> None:
        said = b""
        with suppress(OSError):
            said = connection.recv(1)
        if said == BYE:
            return
        if not self._has_left.wait(GRACE):
            sys.stderr.write(
                f"error: another process of this run has ended (its connection is closed); {self.advice}\n"
            )
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
