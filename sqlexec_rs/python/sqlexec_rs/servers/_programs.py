"""Programs of database servers: where they are, as whom they run, and what they say."""

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
"""How long a server may take to start or to stop."""


class ServerError(Exception):
    """A server cannot be started or stopped: what is wrong, and what to do."""


def find_program(name: str, package: str, places: str) -> str:
    """Return the path of a program, the newest among such places or on the search path; raises ServerError."""
    numbers = [(_version(path), str(path)) for path in Path("/").glob(places.format(name=name))]
    found = max(numbers)[1] if numbers else shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if found is None:
        raise ServerError(f"{name} is not installed: on Debian it is in the package {package}")
    return os.path.realpath(found)


def _version(path: Path) -> float:
    numbers = [float(part) for part in path.parts if part.replace(".", "", 1).isdigit()]
    return numbers[-1] if numbers else 0.0


def find_user(names: Sequence[str]) -> pwd.struct_passwd | None:
    """Return who is to run a server, which root must not; None is oneself."""
    if os.geteuid() != 0:
        return None
    for name in (*names, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            pass
    raise ServerError(f"the server does not run as root, and there is no user {' or '.join(names)} or nobody")


def make_folder(folder: str | os.PathLike[str], user: pwd.struct_passwd | None) -> Path:
    """Return a folder of the server's own, which must be empty or not there yet."""
    root = Path(folder).absolute()
    if root.exists() and any(root.iterdir()):
        raise ServerError(f"{root} is not empty: give a folder of the server's own, or stop the server there")
    root.mkdir(parents=True, exist_ok=True)
    give(root, user)
    return root


def give(path: Path, user: pwd.struct_passwd | None) -> None:
    """Give a file to who runs the server."""
    if user is not None:
        os.chown(path, user.pw_uid, user.pw_gid)


def run(command: Sequence[str], folder: Path, user: pwd.struct_passwd | None) -> None:
    """Run a program as who runs the server; raises ServerError with what it said."""
    ids = (None, None, None) if user is None else (user.pw_uid, user.pw_gid, ())
    # A server keeps what it is started with, so a pipe would have no end.
    with (folder / "output").open("w+", encoding="utf-8", errors="replace") as output:
        try:
            done = subprocess.run(  # noqa: S603 - the servers' own programs
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, user=ids[0], group=ids[1],
                extra_groups=ids[2], check=False,
            )  # fmt: skip
        except PermissionError:
            name = user.pw_name if user is not None else "you"
            raise ServerError(f"{folder} is not to be entered by {name}, who runs the server: choose another") from None
        output.seek(0)
        said = output.read()
    (folder / "output").unlink()
    if done.returncode:
        raise ServerError(f"{Path(command[0]).name} failed in {folder}: {telling(said)}")


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
    """Start a server that is nobody's child, and start it again whenever it ends, until `end`.

    It is given up once it ends 30 times in a row within five seconds of its start.
    """
    mark = folder / f"running-{secrets.token_hex(8)}"
    mark.touch()
    give(mark, user)
    # The mark holds the supervisor's process id before this returns.
    launcher = 'script=$1; shift; /bin/sh -c "$script" "$@" & echo $! >"$1"'
    run(["/bin/sh", "-c", launcher, "sh", _KEEP, str(mark), *command], folder, user)


def end(folder: Path, pid_file: Path, ordinary: signal.Signals, forced: signal.Signals) -> None:
    """End the server of a folder by a signal, and wait until it and its supervisor have ended; raises ServerError.

    A server that starts meanwhile, or does not end for long, gets the forced signal: a MariaDB that gets SIGTERM before
    it is ready may hang.
    """
    supervisors = set()
    for mark in folder.glob("running-*"):
        supervisors.add(_read_pid(mark))
        mark.unlink(missing_ok=True)
    first = _read_pid(pid_file)
    signalled: set[int] = set()
    late = time.monotonic() + SECONDS / 2

    def has_ended() -> bool:
        # Before it has seen that the mark is gone, the supervisor may start a server that writes its id later.
        pid = _read_pid(pid_file)
        is_forced = pid != first or time.monotonic() > late
        if _runs_in(folder, pid) and (is_forced or pid not in signalled):
            with suppress(ProcessLookupError):
                os.kill(pid, forced if is_forced else ordinary)
            signalled.add(pid)
        return not any(_runs_in(folder, pid) for pid in supervisors | signalled)

    wait(has_ended, f"the server in {folder} did not end")


def _read_pid(file: Path) -> int:
    """Return the process id that a file begins with; 0 where it has none."""
    try:
        return int(file.read_text(encoding="ascii").split()[0])
    except (FileNotFoundError, ValueError, IndexError):
        return 0


def _runs_in(folder: Path, pid: int) -> bool:
    """Return whether a process runs and is of a folder's server: another may have the id of an ended one."""
    if not Path("/proc/self/cmdline").exists():
        return pid > 0 and _is_alive(pid)
    try:  # empty after its end, until its parent asks
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


def telling(said: str) -> str:
    """Return what a program said of its failure: its lines of errors where it has some, else its last words."""
    errors = [line for line in said.splitlines() if "ERROR" in line]
    return " ".join(" ".join(errors).split())[:400] or " ".join(said.split())[-400:]


def ask(command: Sequence[str], script: str, env: Mapping[str, str]) -> None:
    """Give a client SQL statements; raises ServerError with what the server said.

    A password belongs into the environment, as a command line is for everybody to see.
    """
    done = subprocess.run(  # noqa: S603 - the servers' own programs
        command, input=script, capture_output=True, text=True, env={**os.environ, **env}, check=False
    )
    if done.returncode:
        raise ServerError(done.stderr.strip() or f"{Path(command[0]).name} ended with exit code {done.returncode}")


def wait(is_done: Callable[[], bool], what: str) -> None:
    """Wait until something is done; raises ServerError after a minute."""
    end = time.monotonic() + SECONDS
    while not is_done():
        if time.monotonic() > end:
            raise ServerError(f"{what} within {SECONDS} seconds")
        time.sleep(0.02)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
