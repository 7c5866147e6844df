"""Who may ask a server that listens on loopback: a page elsewhere may have its own name point there."""

from __future__ import annotations

import re

_LOOPBACK = re.compile(r"(localhost|127(\.\d{1,3}){3}|\[::1\])(:\d+)?", re.IGNORECASE | re.ASCII)


def names_loopback(host: str) -> bool:
    """Return whether a request's Host header, with or without a port, is this machine's loopback and no other name."""
    return bool(_LOOPBACK.fullmatch(host))
