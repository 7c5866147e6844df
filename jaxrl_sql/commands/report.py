"""Write the report of a run folder: `jaxrl-sql report RUN`."""

from __future__ import annotations

from collections.abc import Sequence

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.types import JaxrlSqlError


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    parser = Parser(description=__doc__)
    parser.add_argument("run", metavar="RUN", help="run folder, with metrics.jsonl in it")
    folder = parser.parse_args(arguments).run

    def write() -> None:
        from jaxrl_sql.report.html import write_report

        try:
            path = write_report(folder)
        except OSError as error:  # for example a read-only folder or a full disk
            reason = error.strerror or error
            raise JaxrlSqlError(f"the report of {folder} cannot be written: {reason}") from error
        print_text(str(path))

    return report_errors(write)
