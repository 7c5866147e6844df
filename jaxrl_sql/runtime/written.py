"""Files that are written whole or not at all, beside their place and moved there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4


@contextmanager
def written_whole(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that takes the place of `path` when all of it is written, and is gone when that fails.

    It is made as any other file is, so that the umask says who may read it: a temporary file is its owner's alone.
    """
    scratch = path.with_name(f"{path.name}.{uuid4().hex}")
    try:
        with scratch.open("xb") as file:
            yield file
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise
