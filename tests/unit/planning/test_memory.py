"""Memory available to a process: the machine's, or the container's limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxrl_sql.planning.chips import _memory_limits, machine_memory

UNLIMITED = 9223372036854771712  # version 1 reports this value for no limit


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/a/b\n", {"a/b/memory.max": "max", "a/memory.max": "4096", "memory.max": "8192"}, [4096, 8192]),
        ("0::/\n", {"memory.max": "4096\n"}, [4096]),
        ("0::/far\n", {"memory.max": "4096"}, [4096]),  # a container has its group at the root
        ("0::/../../a\n", {}, []),
        (
            "9:cpu:/x\n4:memory:/a\n0::/\n",
            {"memory/a/memory.limit_in_bytes": "4096", "memory/memory.limit_in_bytes": str(UNLIMITED)},
            [4096, UNLIMITED],
        ),
    ],
)  # fmt: skip
def test_cgroup_limits_are_read(groups: str, files: dict[str, str], limits: list[int], tmp_path: Path) -> None:
    (tmp_path / "groups").write_text(groups)
    for name, text in files.items():
        (tmp_path / "mount" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "mount" / name).write_text(text)
    assert [*_memory_limits(tmp_path / "groups", tmp_path / "mount")] == limits
    assert [*_memory_limits(tmp_path / "absent", tmp_path / "mount")] == []


def test_machine_memory_is_positive() -> None:
    assert machine_memory() > 1 << 28
