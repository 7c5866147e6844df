"""Print the file that starts a run on several hosts: `jaxrl-sql launch slurm --hosts 4 --config FILE`.

Nothing is started. The file is a batch script of Slurm (`slurm`), a JobSet for Kubernetes (`jobset`), or a script for a
Cloud TPU VM (`tpu-vm`). In each, all hosts run the same `train` command in a shared folder; a preempted run saves a
checkpoint, is queued again, and resumes from it until its `model/` is written. `jaxrl-sql train --help` lists the
settings for --config and key.sub=value.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import EXIT_CODES, Parser
from jaxrl_sql.commands.running import report_errors
from jaxrl_sql.training.launch import FORMS, LaunchOptions, launch_file


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, print the file, and return the exit code."""
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, epilog=EXIT_CODES)
    parser.add_argument("form", choices=tuple(FORMS), help="scheduler")
    parser.add_argument("--hosts", type=int, required=True, metavar="N", help="number of hosts")
    description = "YAML file; may be repeated"
    parser.add_argument(
        "--config", dest="files", type=Path, action="append", default=[], metavar="FILE", help=description
    )
    parser.add_argument("--chips", type=int, default=0, metavar="N", help="accelerators per host (0: none requested)")
    parser.add_argument("--tasks", type=int, default=1, metavar="N", help="slurm: processes per host (1)")
    parser.add_argument(
        "--time", default="", metavar="D-HH:MM:SS", help="slurm: time limit of a job; the run resumes in the next"
    )
    parser.add_argument("--partition", default="", metavar="NAME", help="slurm: partition of the job")
    parser.add_argument("--image", default="", metavar="NAME", help="jobset: container image; tpu-vm: VM version")
    parser.add_argument("--claim", default="", metavar="NAME", help="jobset: volume claim with the folder")
    accelerator = "jobset: KIND:TOPOLOGY, as in tpu-v5p-slice:4x4x2; tpu-vm: a type, as in v5p-64"
    parser.add_argument("--accelerator", default="", metavar="NAME", help=accelerator)
    parser.add_argument("--zone", default="", metavar="NAME", help="tpu-vm: zone")
    parser.add_argument("--name", default="", help="name of the job (default: the last part of run.dir)")
    folder = "working folder, on storage shared by all hosts (default: this folder)"
    parser.add_argument("--folder", default=str(Path.cwd()), metavar="DIR", help=folder)
    parser.add_argument("--program", default="jaxrl-sql", metavar="WORDS", help="command on the hosts (jaxrl-sql)")
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    args = parser.parse_intermixed_args(arguments)

    def show() -> None:
        sys.stdout.write(launch_file(LaunchOptions(**vars(args))))

    return report_errors(show)
