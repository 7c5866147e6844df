"""Servers of `sqlexec_rs.servers`: their supervisor restarts them, and none outlives its stop."""

from __future__ import annotations

import importlib.util
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sqlexec_rs import servers
from sqlexec_rs.servers import Server, _programs

STOPPER = Path(__file__).parents[1] / "stop_servers.py"
PID_FILES = {"postgresql": "data/postmaster.pid", "mariadb": "pid"}
needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="inspects processes through /proc")


def wait_until(condition: Callable[[], object], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def command_lines(folder: str) -> dict[int, str]:
    """Return the processes whose command line names a folder: the server and its supervisor."""
    lines = {}
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().decode(errors="replace")
        except OSError:
            continue
        if f"{folder}/" in line:
            lines[int(file.parent.name)] = line
    return lines


def programs(folder: str) -> set[int]:
    """Return the processes of a folder except its supervisor."""
    return {pid for pid, line in command_lines(folder).items() if "/running-" not in line}


def kill(server: Server) -> int:
    """Kill a server's process, and return its id."""
    pid = int(Path(server.folder, PID_FILES[server.engine]).read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    return pid


def kill_until_it_starts_again(server: Server) -> None:
    """Kill a server's process, and return once another has started that has not written its id yet."""
    pid = kill(server)
    wait_until(lambda: programs(server.folder) - {pid})


def answers(server: Server) -> bool:
    try:
        server.run("SELECT 1;")
    except servers.ServerError:
        return False
    return True


@contextmanager
def left_behind_killed(folder: str) -> Iterator[None]:
    """Kill the processes that a failing test leaves of a folder's server."""
    try:
        yield
    finally:
        for pid in sorted(command_lines(folder), reverse=True):
            os.kill(pid, signal.SIGKILL)


@needs_proc
@pytest.mark.parametrize("engine", servers.ENGINES)
def test_stopping_after_a_crash_leaves_no_process(engine: str, start_server: Callable[[str, str], Server]) -> None:
    server = start_server(engine, "SELECT 1;")
    with left_behind_killed(server.folder):
        for crash in (kill, kill_until_it_starts_again):
            crash(server)
            server.stop()
            time.sleep(0.5)  # longer than a supervisor waits
            assert command_lines(server.folder) == {}, crash
            server.restart()
            wait_until(lambda: answers(server))
        kill_until_it_starts_again(server)
        server.restart()
        wait_until(lambda: answers(server))
        assert len(programs(server.folder)) == 1
        server.stop()
        assert command_lines(server.folder) == {}
        server.stop()  # no effect


@needs_proc
@pytest.mark.parametrize("engine", servers.ENGINES)
def test_a_finished_test_run_leaves_no_server(
    engine: str, start_server: Callable[[str, str], Server], servers_folder: Path
) -> None:
    spec = importlib.util.spec_from_file_location("stop_servers", STOPPER)
    assert spec is not None
    assert spec.loader is not None
    stopper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(stopper)
    server = start_server(engine, "SELECT 1;")
    folder = servers_folder / f"ending-{engine}"
    with left_behind_killed(server.folder):
        kill_until_it_starts_again(server)
        folder.mkdir()
        (folder / "server").symlink_to(server.folder)
        stopper.stop(folder)
        time.sleep(0.5)
        assert command_lines(server.folder) == {}


@needs_proc
def test_a_stale_process_id_ends_no_other_process(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(f"{os.getpid()}\n", encoding="ascii")
    (tmp_path / "running-0").write_text(f"{os.getpid()}\n", encoding="ascii")
    _programs.end(tmp_path, tmp_path / "pid", signal.SIGTERM, signal.SIGKILL)
    assert not (tmp_path / "running-0").exists()


@needs_proc
@pytest.mark.slow
def test_a_frequently_crashing_program_is_restarted(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    _programs.keep_running(["/bin/sh", "-c", 'echo >>"$0"; exit 1', str(starts)], tmp_path, None)
    wait_until(lambda: starts.exists() and len(starts.read_text()) > 5, seconds=30)
    _programs.end(tmp_path, tmp_path / "pid", signal.SIGTERM, signal.SIGKILL)
    assert command_lines(str(tmp_path)) == {}
