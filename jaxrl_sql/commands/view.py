"""View the answers of a run in a browser: `jaxrl-sql view RUN [OTHER]`.

It writes a folder (RUN/view, or --out DIR) whose index.html opens from disk: the run's curves, all answers with
filters, the rows of an answer and of the gold with the verdict of every rule, and evaluations by question. RUN is a
run, a folder of `evaluate --out` or of `evaluate --compare`; OTHER is compared with it. --serve PORT serves the folder
on loopback and follows an active run until Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.runtime.terminal import print_text, printable

MAX_JUDGED, SECONDS = 20_000, 60.0
"""Default limits on the judged answers and the seconds of judging."""
UPDATE_EVERY_S = 2.0
"""Seconds between updates of a served folder."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, write the folder or serve it, and return the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN", help="a run, an evaluation or a comparison of two")
    parser.add_argument("other", metavar="OTHER", nargs="?", help="another run or evaluation to compare")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder (default: RUN/view)")
    parser.add_argument("--serve", type=int, metavar="PORT", help="serve it live on loopback; 0: a free port")
    judge = f"score at most N distinct answers by every rule (default {MAX_JUDGED:,}; 0: none)"
    parser.add_argument("--judge", type=int, default=MAX_JUDGED, metavar="N", help=judge)
    seconds = f"stop scoring after S seconds (default {SECONDS:g})"
    parser.add_argument("--seconds", type=float, default=SECONDS, metavar="S", help=seconds)
    args = parser.parse_args(arguments)
    return report_errors(lambda: _view(args))


def _view(args: argparse.Namespace) -> None:
    from jaxrl_sql.report.view.folder import open_view
    from jaxrl_sql.report.view.serving import follow, serve_folder

    folders = [folder for folder in (args.run, args.other) if folder]
    report = _show_progress if sys.stderr.isatty() else None
    with open_view(folders, args.out, args.judge, args.seconds, report) as view:
        if args.serve is None:
            view.update()
            print_text(str(view.out / "index.html"))
            return
        view.make_folder()  # fails if the folder has files of other origin, before it is served
        with serve_folder(view.out, args.serve) as address:
            view.update(is_live=True)
            print_text(address)
            sys.stdout.flush()
            try:
                # The event is never set: only Ctrl-C ends this.
                follow(lambda: view.update(is_live=True), UPDATE_EVERY_S, threading.Event())
            except KeyboardInterrupt:
                view.update()  # write the folder as that of a finished run


def _show_progress(text: str) -> None:
    sys.stderr.write(f"\r{printable(text)}\033[K")
    sys.stderr.flush()
