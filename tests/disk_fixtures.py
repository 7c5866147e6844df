"""Small file systems for tests of full and read-only disks. They need the right to mount; without it tests skip."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


def _mount(*options: str) -> int:
    """Run mount and return its exit code."""
    return subprocess.run(["mount", *options], capture_output=True, check=False).returncode  # noqa: S607


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return the folder of a file system of 2 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if _mount("-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)):
        pytest.skip("this process may not mount a file system")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # noqa: S607


@pytest.fixture
def full_disk(small_disk: Path) -> Path:
    """Return the folder of a full file system."""
    with pytest.raises(OSError, match="No space left"):
        (small_disk / "ballast").write_bytes(bytes(4 << 20))
    return small_disk


@pytest.fixture
def remount(small_disk: Path) -> Callable[[str], None]:
    """Return a function that changes an option of the small file system, such as `size=64m` or `ro`."""

    def change(option: str) -> None:
        assert _mount("-o", f"remount,{option}", str(small_disk)) == 0

    return change
