"""Answer requests with 503 while a model is loading, on the socket that the server uses afterwards."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

RETRY_AFTER_S = 5
_POLL_S = 0.05


class _LoadingHandler(BaseHTTPRequestHandler):
    """Answer each request with 503, OpenAI's error object and Retry-After."""

    start_time: float

    def _refuse(self) -> None:
        seconds = round(time.monotonic() - self.start_time)
        error = {
            "message": f"the model is loading ({seconds} s so far): try again in {RETRY_AFTER_S} s",
            "type": "server_error",
            "param": None,
            "code": "model_loading",
        }
        body = json.dumps({"status": "loading", "error": error}).encode()
        self.send_response(503)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", str(RETRY_AFTER_S))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_POST = do_HEAD = do_OPTIONS = do_PUT = do_DELETE = _refuse  # noqa: N815 - names of the base class

    def log_message(self, *_: object) -> None:
        """Log nothing."""


class _LoadingServer(ThreadingHTTPServer):
    """A server on a listening socket of its caller, which stays open when the server stops."""

    daemon_threads = True

    def __init__(self, listener: socket.socket) -> None:
        handler = type("Handler", (_LoadingHandler,), {"start_time": time.monotonic()})
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()  # the base class has created a socket of its own
        self.socket = listener

    def handle_error(self, *_: object) -> None:
        """Ignore clients that disconnect."""


@contextmanager
def reject_while_loading(listener: socket.socket) -> Iterator[None]:
    """Answer requests on a listening socket with 503 within the context."""
    server = _LoadingServer(listener)
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), name="loading", daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()
