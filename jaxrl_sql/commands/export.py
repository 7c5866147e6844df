"""Take a model elsewhere: `jaxrl-sql export RUN` writes a Hugging Face folder with a card.

RUN is a run's folder or a model's. The weights are those of the run's end, or with `--step` those of a checkpoint, of
any phase and also of a run that never came to its end; with `--average MODEL …` the mean of these and of other models'
of its shape, as of the one that the run began with. `--gguf f16|q8_0` adds a file for llama.cpp and what is built on
it; `--hub` uploads the folder to a repository of the Hugging Face hub.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.runtime.terminal import print_text

DTYPES = ("float32", "bfloat16")
GGUF_KINDS = ("f16", "q8_0")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, export, and return the exit code."""
    parser = Parser(prog=None, description=__doc__)
    parser.add_argument("model", metavar="RUN", help="a run's folder, or a model's of Hugging Face form")
    parser.add_argument("--step", type=int, metavar="N", help="the run's checkpoint of step N, not its end")
    parser.add_argument("--average", nargs="+", default=(), metavar="MODEL", help="the mean of its and their weights")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to (RUN/export, RUN/averaged)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the folder's weights (bfloat16)")
    parser.add_argument("--gguf", choices=GGUF_KINDS, default="", help="write a GGUF file beside them")
    parser.add_argument("--hub", metavar="REPO", default="", help="upload the folder to this repository of the hub")
    parser.add_argument("--private", action="store_true", help="a repository that is new is private")
    args = parser.parse_args(arguments)
    prepare_process()

    def export() -> None:
        from jaxrl_sql.runtime.hub import upload
        from jaxrl_sql.training.exporting import export_folder

        written = export_folder(
            args.model,
            args.out,
            args.dtype,
            step=args.step,
            average=args.average,
            gguf=args.gguf,
            warn=lambda line: print_text(line, sys.stderr),
        )
        print_text("\n".join(map(str, written)))
        if args.hub:
            print_text(upload(written[0], args.hub, args.private))

    return report_errors(export)
