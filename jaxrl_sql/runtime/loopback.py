"""Check the Host header of requests to a loopback server, against DNS rebinding from web pages."""

from __future__ import annotations

import re

_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE | re.ASCII)


def is_loopback_host(host: str) -> bool:
    """Return whether a Host header, with or without a port, names this machine's loopback interface."""
    return bool(_LOOPBACK.fullmatch(host))
