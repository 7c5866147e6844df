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
from jaxrl_sql.config.unknown import find_keys
from jaxrl_sql.runtime.terminal import printable

EXIT_CODES = """exit codes: 0 done, or stopped by SIGTERM with a checkpoint; 1 a failure, such as a full disk;
2 invalid input; 3 stopped by a health check; 130 stopped by Ctrl-C with a checkpoint"""

MODEL_HELP = "a run folder, a Hugging Face folder, a hub name (org/name or org/name@revision) or a GGUF file"

_MIN_SIMILARITY = 0.5  # of a suggestion to the unknown option
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that reports errors without usage, and suggests the nearest option for an unknown one.

    A command called as `jaxrl-sql NAME` has this name in usage and errors. `root` is the class of the command's
    configuration. For an unknown option with the name of a setting, such as `--lr`, the suggestion is the setting's
    keys, `grpo.optim.lr=VALUE`.
    """

    root: type[RootConfig] | None = None

    def __init__(self, **options: Any) -> None:
        if sys.argv[0].startswith("jaxrl-sql "):
            options["prog"] = sys.argv[0]
        super().__init__(**options)

    def error(self, message: str) -> NoReturn:
        """Print a one-line error and exit with code 2."""
        self.exit(
            2, f"error: {printable(message)}{self._suggest_option(message)} ({self.prog} --help lists the options)\n"
        )

    def _suggest_option(self, message: str) -> str:
        """Return a suggestion for an unknown option, to append to the error, or ""."""
        match = _UNKNOWN.match(message)
        if match is None:
            return ""
        name = match[1].partition("=")[0]
        keys = find_keys(name.lstrip("-").replace("-", "_"), self.root) if self.root is not None else []
        keys = [key for key in keys if key != "run.resume"]  # commands without --resume resume by themselves
        if keys:
            return f"; settings have no dashes: {' or '.join(f'{key}=VALUE' for key in keys)}"
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=_MIN_SIMILARITY)
        return f"; the nearest is {near[0]}" if near and name.startswith("-") else ""


def add_config(parser: Parser, root: type[RootConfig], epilog: str = EXIT_CODES) -> None:
    """Add the options of a command's configuration, except `key.sub=value`.

    At the end of the help, the settings of `root`, the class of the configuration, are listed, and then `epilog`.
    """
    parser.root = root
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"{settings_help(root())}\n\n{epilog}"
    description = "YAML file, see configs/; may be repeated, and later files override earlier ones"
    parser.add_argument("--config", type=Path, action="append", metavar="FILE", help=description)
    parser.add_argument("--print-config", action="store_true", help="print the configuration and exit")


def add_endpoint(parser: argparse.ArgumentParser, section: str) -> None:
    """Add `--endpoint URL`, a shorthand that sets `base_url` of a section.

    It also empties the section's `key_env` if the default variable of the API key is not set
    (`runtime.endpoint.endpoint_values`).
    """
    description = (
        f"base URL of an OpenAI-compatible endpoint, without /chat/completions (sets {section}.base_url); it receives "
        "names, values and rows of the database, except the columns of data.hide"
    )
    parser.add_argument("--endpoint", metavar="URL", help=description)


def not_empty(value: str) -> str:
    """Return an argument's value; an empty one, as of an unset shell variable, is an error."""
    if not value:
        raise argparse.ArgumentTypeError("is empty; a shell variable in it may not be set")
    return value


def add_leave_out(parser: argparse.ArgumentParser, *, several: bool = True) -> None:
    """Add the option --leave-out.

    It takes several names at once, or a single name (`several` false) for commands with positional arguments, which
    would be read as further names.
    """
    parser.add_argument(
        "--leave-out", nargs="+" if several else 1, action="extend", default=[], metavar="TABLE[.COLUMN]",
        help="tables and columns of a server's database to omit from the sample; may be repeated",
    )  # fmt: skip
