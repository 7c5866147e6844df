"""Look at the answers of a run in a browser: `jaxrl-sql view RUN [OTHER]`.

It writes a folder (RUN/view, or --out DIR) whose index.html is opened from disk: the run's curves, every answer behind
filters, an answer's rows beside the gold's with its verdict by every rule, and evaluations question by question. RUN
is a run, a folder of `evaluate --out` or one of `evaluate --compare`; OTHER is compared with it. --serve PORT hands the
folder out on this machine's loopback, and follows a run that goes on until Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.config import ExecutorConfig, TrainConfig, load_config
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.terminal import print_text, printable
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.types import InputError

if TYPE_CHECKING:
    from jaxrl_sql.report.groups import Source

MOST_JUDGED, SECONDS, EVERY_S = 20_000, 60.0, 2.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, write the folder or serve it, and return the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="a run, an evaluation or a comparison of two")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="another run or evaluation, to be compared")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the folder to write (default: RUN/view)")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve it on loopback, live; 0: a port that is free")
    judge = f"judge at most N distinct answers by every rule (default {MOST_JUDGED:,}; 0: none)"
    parser.add_argument("--judge", type=int, default=MOST_JUDGED, metavar="N", help=judge)
    seconds = f"begin to judge no more after S seconds (default {SECONDS:g})"
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=seconds)
    given = parser.parse_args(arguments)
    return report_errors(lambda: view(given))


def view(given: argparse.Namespace) -> int:
    """Write the folder, serve it where that is asked for, and return the exit code."""
    from jaxrl_sql.report.groups import RUN, open_source
    from jaxrl_sql.report.view.folder import View
    from jaxrl_sql.report.view.judging import Judge
    from jaxrl_sql.report.view.serving import follow, serving

    sources = [open_source(folder) for folder in (given.run, given.other) if folder]
    out = given.out or sources[0].folder / "view"
    with ExitStack() as stack:
        judge = None
        runs = [one for one in sources if one.kind == RUN]
        if given.judge > 0 and runs:
            executor = stack.enter_context(make_executor(*executor_settings(runs)))
            judge = Judge(executor, given.judge, given.seconds)
        shown = View(sources, out, judge, _tell if sys.stderr.isatty() else None)
        if given.serve is None:
            shown.update()
            print_text(str(out / "index.html"))
            return 0
        shown.make_folder()  # nobody else's folder is handed out
        address = stack.enter_context(serving(out, given.serve))
        shown.update(is_live=True)
        print_text(address)
        sys.stdout.flush()
        try:
            follow(lambda: shown.update(is_live=True), EVERY_S, threading.Event())
        except KeyboardInterrupt:
            shown.update()
    return 0


def executor_settings(runs: Sequence[Source]) -> tuple[ExecutorConfig, list[str]]:
    """Return the limits of the first run's executor, and the hidden columns of all.

    Of a run whose configuration cannot be read the limits are the usual ones, and nothing is known to be hidden.
    """
    configs = []
    for run in runs:
        try:
            configs.append(load_config(run.folder / CONFIG))
        except InputError:
            configs.append(TrainConfig())
    return configs[0].executor, [name for config in configs for name in config.data.hide]


def _tell(text: str) -> None:
    sys.stderr.write(f"\r{printable(text)}\033[K")
    sys.stderr.flush()
