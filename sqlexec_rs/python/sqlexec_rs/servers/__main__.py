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
    maker.add_argument("--database", required=True)
    maker.add_argument("--name", default="reader")
    maker.add_argument(
        "--roles", type=int, default=servers.ROLES, help="number of roles: an executor's threads plus one"
    )
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
            print(servers.make_readers(options.engine, options.database, options.name, options.roles), end="")
        else:
            inside = [folder for folder in map(Path(options.dir).joinpath, servers.ENGINES) if folder.is_dir()]
            for server in [servers.find(folder) for folder in inside or [options.dir]]:
                server.stop()
    except ServerError as error:
        print(printable(f"error: {error}"), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
