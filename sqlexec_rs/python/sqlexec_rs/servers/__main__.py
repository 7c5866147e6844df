"""The command `python -m sqlexec_rs.servers`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from sqlexec_rs import servers
from sqlexec_rs.servers import ServerError
from sqlexec_rs.terminal import printable


def main(arguments: list[str] | None = None) -> int:
    """Start or stop a server; return the exit code."""
    description = (servers.__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m sqlexec_rs.servers", description=description)
    commands = parser.add_subparsers(dest="command", required=True)
    starter = commands.add_parser("start", help="start servers and print their URLs")
    starter.add_argument("engines", nargs="+", choices=servers.ENGINES)
    starter.add_argument("--dir", required=True, help="an empty folder for the files; several servers have subfolders")
    stopper = commands.add_parser("stop", help="stop the servers started in a folder")
    stopper.add_argument("--dir", required=True)
    checker = commands.add_parser("check", help="list the limits that can and cannot be enforced on a server")
    checker.add_argument("url")
    maker = commands.add_parser("readers", help="print the SQL with which an owner creates read-only roles")
    maker.add_argument("engine", choices=servers.ENGINES)
    maker.add_argument("--database", required=True, help="the database that the roles can read")
    maker.add_argument("--name", default="reader", help="name of the first role; the others are NAME_1, NAME_2, …")
    maker.add_argument(
        "--roles", type=int, default=servers.ROLES, help="number of roles: an executor's threads plus one"
    )
    maker.add_argument(
        "--schema", nargs="+", default=(), help="PostgreSQL: schemas to read; by default all that hold tables"
    )
    maker.add_argument(
        "--harden",
        action="store_true",
        help="PostgreSQL: also revoke harmful functions from PUBLIC; other applications may need them",
    )
    maker.add_argument("--host", default="127.0.0.1", help="host of the printed URL, without a port")
    maker.add_argument("--port", type=int, help="port of the printed URL")
    options = parser.parse_args(arguments)
    try:
        if options.command == "start":
            for engine in options.engines:
                folder = Path(options.dir, engine) if len(options.engines) > 1 else Path(options.dir)
                server = servers.start(engine, folder)
                print(f"owner  {server.owner}\nreader {server.readers}", flush=True)
        elif options.command == "check":
            print(printable("\n".join(servers.check(options.url))))
        elif options.command == "readers":
            _print_readers(options)
        else:
            inside = [folder for folder in map(Path(options.dir).joinpath, servers.ENGINES) if folder.is_dir()]
            for server in [servers.find(folder) for folder in inside or [options.dir]]:
                server.stop()
    except ServerError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 2
    return 0


def _print_readers(options: argparse.Namespace) -> None:
    """Print the statements to stdout, and the exports and a warning to stderr: stdout is usually a file."""
    readers = servers.make_readers(
        options.engine,
        options.database,
        options.name,
        options.roles,
        options.schema,
        options.harden,
        (options.host, options.port),
    )
    print(readers.script, end="")
    if options.harden:
        print(
            "warning: --harden takes functions from all roles of the database, such as advisory locks and pg_notify(); "
            "the output lists them, and how to undo it",
            file=sys.stderr,
        )
    print(f"# After running the statements:\n{readers.exports}", end="", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
