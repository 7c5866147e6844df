"""A command line whose mistakes are answered by one line: what is wrong, what was meant, where all options are."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from typing import Any, NoReturn

from jaxrl_sql.runtime.terminal import printable

_NEAR = 0.5  # below, nobody would see a likeness
_UNKNOWN = re.compile(r"unrecognized arguments: (\S+)")


class Parser(argparse.ArgumentParser):
    """An `ArgumentParser` that writes no usage above an error, and names the option that is nearest to an unknown one.

    What was called as `jaxrl-sql NAME` is called so in its usage and errors.
    """

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
        near = difflib.get_close_matches(name, self._option_string_actions, n=1, cutoff=_NEAR)
        return f"; the nearest is {near[0]}" if near and name.startswith("-") else ""
