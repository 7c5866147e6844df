"""Export a model: `jaxrl-sql export RUN` writes a Hugging Face folder with a model card.

RUN is the folder of a run or a model, a hub name or a GGUF file; `--model RUN` does the same. The default weights are
the run's final ones. `--step` exports a checkpoint of any phase, also of an unfinished run; `--average MODEL …` exports
the mean with other models of the same shape, such as the run's initial model. `--gguf f16|q8_0` writes the weights as
a file for llama.cpp and compatible tools instead of safetensors, and a Modelfile for ollama; `--hub` uploads the folder
to a repository of the Hugging Face hub.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import MODEL_HELP, Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.runtime.terminal import print_text

DTYPES = ("float32", "bfloat16")
GGUF_KINDS = ("f16", "q8_0")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, export, and return the exit code."""
    parser = Parser(prog=None, description=__doc__)
    parser.add_argument("model", nargs="?", metavar="RUN", help=MODEL_HELP)
    parser.add_argument("--model", dest="model_option", metavar="RUN", help="the same, as in evaluate, ask and serve")
    parser.add_argument("--step", type=int, metavar="N", help="export the checkpoint of step N")
    parser.add_argument("--average", nargs="+", default=(), metavar="MODEL", help="average with these models")
    parser.add_argument("--out", type=Path, metavar="DIR", help="output folder (RUN/export, RUN/averaged)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="type of the weights (bfloat16)")
    parser.add_argument(
        "--gguf", choices=GGUF_KINDS, default="", help="write a GGUF file, and a Modelfile, instead of safetensors"
    )
    parser.add_argument("--hub", metavar="REPO", default="", help="upload the folder to this repository of the hub")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    args = parser.parse_args(arguments)
    if bool(args.model) == bool(args.model_option):
        parser.error("expected one model, RUN or --model RUN")
    model = args.model or args.model_option
    prepare_process()

    def export() -> None:
        from jaxrl_sql.runtime.hub import upload
        from jaxrl_sql.training.exporting import export_folder

        written = export_folder(
            model,
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
