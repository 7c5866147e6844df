"""Serve a folder over loopback with the standard library, for a browser behind a tunnel and for live runs."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import BinaryIO

from jaxrl_sql.report.folder import DATA
from jaxrl_sql.runtime.loopback import is_loopback_host
from jaxrl_sql.types import InputError

ADDRESS = "127.0.0.1"
# Only these parts of the folder are served.
_SERVED = ("index.html", "page", DATA)


class _FileHandler(SimpleHTTPRequestHandler):
    """Serve files without caching, to requests with a loopback Host header only."""

    def end_headers(self) -> None:
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        super().end_headers()

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        if not is_loopback_host(self.headers.get("Host") or ""):
            self.send_error(403)
            return None
        path = Path(self.translate_path(self.path))
        if "\0" in str(path) or path.relative_to(self.directory).parts[:1] not in [(), *((name,) for name in _SERVED)]:
            self.send_error(404)
            return None
        return super().send_head()

    def list_directory(self, path: object) -> None:  # noqa: ARG002 - its base's
        self.send_error(404)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@contextmanager
def serve_folder(folder: Path, port: int) -> Iterator[str]:
    """Serve a folder on loopback within the context; yield its address. A port of 0 selects a free one.

    Raises InputError if the port is not available.
    """
    try:
        server = ThreadingHTTPServer((ADDRESS, port), partial(_FileHandler, directory=str(folder)))
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"--serve {port}: {reason}: choose another port, or 0 for any that is free") from error
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{ADDRESS}:{server.server_address[1]}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def follow(update: Callable[[], object], every: float, is_over: threading.Event) -> None:
    """Call `update` every `every` seconds until `is_over` is set."""
    while not is_over.wait(every):
        update()
