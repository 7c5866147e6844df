"""Arguments that several commands share, and a parser that reports a mistake in one line."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from jaxrl_sql.config import RootConfig
from jaxrl_sql.config.settings import settings_help
from jaxrl_sql.config.unknown import settings_called
from jaxrl_sql.runtime.terminal import printable

EXIT_CODES = """exit codes: 0 done, or stopped by SIGTERM with a checkpoint; 1 something broke, as when a disk is full;
2 an input that cannot be used; 3 the run's own health stopped it; 130 stopped by Ctrl-C with a checkpoint"""

_NEAR = 0.5  # below, nobody would see a likeness
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that writes no usage above an error, and names the option that is nearest to an unknown one.

    What was called as `jaxrl-sql NAME` is called so in its usage and errors. An unknown option that is the name of a
    setting of `root` is answered with the setting's keys.
    """

    root: type[RootConfig] | None = None

    def __init__(self, **options: Any) -> None:
        if sys.argv[0].startswith("jaxrl-sql "):
            options["prog"] = sys.argv[0]
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Write one line and end with exit code 2."""
        self.exit(2, f"error: {printable(message)}{self._meant(message)} ({self.prog} --help lists what it takes)\n")

    def _meant(self, message: str) -> str:
        """Return the option that an unknown one is likely to mean, as words to go on with; "" for none."""
        found = _UNKNOWN.match(message)
        if found is None:
            return ""
        name = found[1].partition("=")[0]
        keys = settings_called(name.lstrip("-").replace("-", "_"), self.root) if self.root is not None else []
        keys = [key for key in keys if key != "run.resume"]  # commands without --resume resume by themselves
        if keys:
            return f"; settings have no dashes: {' or '.join(f'{key}=VALUE' for key in keys)}"
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=_NEAR)
        return f"; the nearest is {near[0]}" if near and name.startswith("-") else ""


def add_config(parser: Parser, root: type[RootConfig], epilog: str = EXIT_CODES) -> None:
    """Add what says a command's numbers, but for the words `key.sub=value`; its help ends with those of `root`."""
    parser.root = root
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"{settings_help(root())}\n\n{epilog}"
    words = "YAML file, see configs/; may be repeated, and each lies over those before it"
    parser.add_argument("--config", type=Path, action="append", metavar="FILE", help=words)
    parser.add_argument("--print-config", action="store_true", help="print what would be run with, and do nothing")


def add_endpoint(parser: argparse.ArgumentParser, section: str) -> None:
    """Add `--endpoint URL`, which is short for what a section says of an endpoint (`endpoint_values`)."""
    words = (
        f"a server of OpenAI's form that answers, ending before /chat/completions: {section}.base_url; names, values "
        "and rows of the database are sent to it, except the columns of data.hide"
    )
    parser.add_argument("--endpoint", metavar="URL", help=words)


def add_leave_out(parser: argparse.ArgumentParser, *, several: bool = True) -> None:
    """Add the option --leave-out. It takes `several` names, or one for a command that takes words after it."""
    parser.add_argument(
        "--leave-out", nargs="+" if several else 1, action="extend", default=[], metavar="TABLE[.COLUMN]",
        help="tables and columns of a server's database that the sample does not hold; may be repeated",
    )  # fmt: skip
