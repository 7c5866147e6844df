"""Write the report of a run folder: `jaxrl-sql report RUN`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("run", metavar="RUN", help="run folder, with metrics.jsonl in it")
    folder = parser.parse_args(arguments).run
    from jaxrl_sql.report.html import write_report

    try:
        path = write_report(folder)
    except InputError as error:
        print_text(f"error: {error}", sys.stderr)
        return 2
    except OSError as error:  # a folder that is read-only, or a disk that is full
        print_text(f"error: the report of {folder} cannot be written: {error.strerror or error}", sys.stderr)
        return 1
    print_text(str(path))
    return 0
