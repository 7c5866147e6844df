"""Write files atomically: into a temporary file next to the target, then renamed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` on success and is deleted on an error.

    It is created with the umask's permissions, as any other file; files of `tempfile` are readable by their owner only.
    """
    scratch = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        with scratch.open("xb") as file:
            yield file
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
