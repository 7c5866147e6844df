"""Format sizes and times."""

from __future__ import annotations

MIB, GIB = 1 << 20, 1 << 30


def format_bytes(size: float) -> str:
    """Return a number of bytes as text, in MiB, or in GiB from 0.1 GiB on."""
    return f"{size / GIB:.1f} GiB" if size >= GIB // 10 else f"{size / MIB:.1f} MiB"


def format_seconds(seconds: float) -> str:
    """Return seconds as text, in milliseconds below 1 s."""
    return f"{seconds:,.1f} s" if seconds >= 1 else f"{1000 * seconds:,.2f} ms"
