"""Find, run and supervise the programs of database servers."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

SECONDS = 60
"""Maximum time for a server to start or to stop."""


class ServerError(Exception):
    """A server cannot be started or stopped; the message includes advice."""


def find_program(name: str, package: str, pattern: str) -> str:
    """Return the path of a program: the newest that matches the pattern, or on the search path; raises ServerError."""
    numbers = [(_version(path), str(path)) for path in Path("/").glob(pattern.format(name=name))]
    path = max(numbers)[1] if numbers else shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if path is None:
        raise ServerError(f"{name} is not installed: on Debian it is in the package {package}")
    return os.path.realpath(path)


def _version(path: Path) -> float:
    numbers = [float(part) for part in path.parts if part.replace(".", "", 1).isdigit()]
    return numbers[-1] if numbers else 0.0


def find_user(names: Sequence[str]) -> pwd.struct_passwd | None:
    """Return the user to run a server as, because root must not; None for the current user."""
    if os.geteuid() != 0:
        return None
    for name in (*names, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise ServerError(f"a server cannot run as root, and there is no user {' or '.join(names)} or nobody")


def make_folder(folder: str | os.PathLike[str], user: pwd.struct_passwd | None) -> Path:
    """Create the folder of a server, which must be empty or new."""
    root = Path(folder).absolute()
    if root.exists() and any(root.iterdir()):
        raise ServerError(f"{root} is not empty: choose a new folder, or stop the server there")
    root.mkdir(parents=True, exist_ok=True)
    give(root, user)
    return root


def give(path: Path, user: pwd.struct_passwd | None) -> None:
    """Change the owner of a file to the server's user."""
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def run(command: Sequence[str], folder: Path, user: pwd.struct_passwd | None) -> None:
    """Run a program as the server's user; raises ServerError with its output."""
    ids = (None, None, None) if user is None else (user.pw_uid, user.pw_gid, ())
    # A file, because a server inherits the descriptor and would keep a pipe open.
    with (folder / "output").open("w+", encoding="utf-8", errors="replace") as output:
        try:
            done = subprocess.run(  # noqa: S603 - the servers' own programs
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, user=ids[0], group=ids[1],
                extra_groups=ids[2], check=False,
            )  # fmt: skip
        except PermissionError:
            name = user.pw_name if user is not None else "you"
            raise ServerError(
                f"{folder} is not accessible to {name}, who runs the server: choose another folder"
            ) from None
        output.seek(0)
        text = output.read()
    (folder / "output").unlink()
    if done.returncode:
        raise ServerError(f"{Path(command[0]).name} failed in {folder}: {summarize_output(text)}")


_KEEP = """
n=0
while [ -e "$0" ] && [ $n -lt 30 ]; do
    begun=$(date +%s)
    "$@"
    [ -e "$0" ] || exit 0
    if [ $(($(date +%s) - begun)) -gt 5 ]; then n=0; else n=$((n + 1)); fi
    if [ $n -gt 3 ]; then sleep 2; else sleep 0.2; fi
done
"""


def keep_running(command: Sequence[str], folder: Path, user: pwd.struct_passwd | None) -> None:
    """Start a server in the background, and restart it whenever it ends, until `end`.

    Gives up after 30 consecutive ends within five seconds of a start.
    """
    mark = folder / f"running-{secrets.token_hex(8)}"
    mark.touch()
    give(mark, user)
    # The mark holds the supervisor's process id before this returns.
    launcher = 'script=$1; shift; /bin/sh -c "$script" "$@" & echo $! >"$1"'
    run(["/bin/sh", "-c", launcher, "sh", _KEEP, str(mark), *command], folder, user)


def end(folder: Path, pid_file: Path, ordinary: signal.Signals, forced: signal.Signals) -> None:
    """Stop the server of a folder by a signal, and wait until it and its supervisor have ended; raises ServerError.

    A server that starts meanwhile, or takes long to end, gets the forced signal: MariaDB may hang after SIGTERM before
    it is ready.
    """
    supervisors = set()
    for mark in folder.glob("running-*"):
        supervisors.add(_read_pid(mark))
        mark.unlink(missing_ok=True)
    first = _read_pid(pid_file)
    signalled: set[int] = set()
    late = time.monotonic() + SECONDS / 2

    def has_ended() -> bool:
        # The supervisor may start another server before it notices that the mark is gone.
        pid = _read_pid(pid_file)
        is_forced = pid != first or time.monotonic() > late
        if _runs_in(folder, pid) and (is_forced or pid not in signalled):
            with suppress(ProcessLookupError):
                os.kill(pid, forced if is_forced else ordinary)
            signalled.add(pid)
        return not any(_runs_in(folder, pid) for pid in supervisors | signalled)

    wait(has_ended, f"the server in {folder} did not end")


def _read_pid(file: Path) -> int:
    """Return the process id at the start of a file; 0 without one."""
    try:
        return int(file.read_text(encoding="ascii").split()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return 0


def _runs_in(folder: Path, pid: int) -> bool:
    """Return whether a process runs and belongs to a folder's server, because process ids are reused."""
    if not Path("/proc/self/cmdline").exists():
        return pid > 0 and _is_alive(pid)
    try:  # empty for a zombie
        return os.fsencode(f"{folder}/") in Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


def succeeds(command: Sequence[str]) -> bool:
    """Return whether a program ends with the exit code 0."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603 - servers' programs


def _is_alive(pid: int) -> bool:
    """Return whether a process runs."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def summarize_output(output: str) -> str:
    """Return the error lines of a program's output, or else its end."""
    errors = [line for line in output.splitlines() if "ERROR" in line]
    return " ".join(" ".join(errors).split())[:400] or " ".join(output.split())[-400:]


def ask(command: Sequence[str], script: str, env: Mapping[str, str]) -> None:
    """Run SQL statements with a client program; raises ServerError with the server's message.

    Pass passwords in the environment, because command lines are visible to all users.
    """
    done = subprocess.run(  # noqa: S603 - the servers' own programs
        command, input=script, capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    if done.returncode:
        raise ServerError(done.stderr.strip() or f"{Path(command[0]).name} ended with exit code {done.returncode}")


def wait(is_done: Callable[[], bool], what: str) -> None:
    """Wait until `is_done`; raises ServerError after `SECONDS`."""
    end = time.monotonic() + SECONDS
    while not is_done():
        if time.monotonic() > end:
            raise ServerError(f"{what} within {SECONDS} seconds")
        time.sleep(0.02)


def free_port() -> int:
    """Return an unused port of 127.0.0.1."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
