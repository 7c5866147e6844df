"""Run a command: build its configuration from arguments, and report errors as one line and an exit code."""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxrl_sql.commands.arguments import Parser, add_config, add_endpoint
from jaxrl_sql.config import load_config, to_yaml
from jaxrl_sql.config.check import values_by_key
from jaxrl_sql.config.load import Root
from jaxrl_sql.inference.process import NEEDS_JAX, lacks_jax, platform_error, prepare_process
from jaxrl_sql.inference.prompt_form import resolve_settings
from jaxrl_sql.runtime.cache_folder import cache_folder
from jaxrl_sql.runtime.endpoint import endpoint_values
from jaxrl_sql.runtime.folder import CONFIG, blocked_folder_error, file_error, find_full_folders, load_resumed_config
from jaxrl_sql.runtime.health import UNHEALTHY, HealthError
from jaxrl_sql.runtime.signals import EXIT_INTERRUPTED, drop_output, print_interruption
from jaxrl_sql.runtime.terminal import print_text
from jaxrl_sql.text2sql.env.executor import ExecutorError
from jaxrl_sql.types import InputError, JaxrlSqlError


def run_command(
    root: type[Root],
    command: Callable[[Root], int],
    description: str,
    arguments: Sequence[str] | None = None,
    dry_run: Callable[[Root], int] | None = None,
    endpoint_section: str = "",
) -> int:
    """Read `--config FILE key.sub=value …` and run a command; report an error as one line and an exit code.

    `root` is the class of the command's configuration, and `endpoint_section` is the section that `--endpoint` sets.
    Training commands have `dry_run`, which the option `--dry-run` calls instead of `command`, and the option
    `--resume [FOLDER]`. Without arguments, an error explains the first steps.
    """
    parser = Parser(description=description)
    add_config(parser, root)
    parser.set_defaults(resume=None)
    if dry_run is not None:
        parser.add_argument(
            "--resume", nargs="?", const="", metavar="FOLDER",
            help="resume the run in FOLDER (default: run.dir); without --config, with its original settings",
        )  # fmt: skip
        parser.add_argument(
            "--dry-run", action="store_true", help="check everything up to the first compilation, without a run folder"
        )
    if endpoint_section:
        add_endpoint(parser, endpoint_section)
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the file's")
    args = parser.parse_intermixed_args(arguments)
    if endpoint_section:
        args.overrides = [*endpoint_values(endpoint_section, args.endpoint), *args.overrides]
    if not (args.config or args.resume is not None or args.overrides):
        advice = "start with --config FILE, such as configs/quickstart.yaml, or key.sub=value"
        advice += ", or continue with --resume FOLDER" if dry_run is not None else ""
        message = f"no arguments: {advice} ({parser.prog} --help)"
        return _report(InputError(message), 2)
    prepare_process()
    work = dry_run if dry_run is not None and args.dry_run else command
    return report_errors(
        lambda: run_or_print(
            work,
            _config(root, args.config, args.resume, args.overrides),
            args,
        )
    )


def run_or_print(
    command: Callable[[Root], int], config: Root, args: argparse.Namespace, with_weights: bool = True
) -> int:
    """Run a command, after downloading a model of the hub; with `--print-config` print the configuration instead."""
    if not args.print_config:
        return command(resolve_settings(config, with_weights))
    sys.stdout.write(to_yaml(config))
    return 0


def report_errors(work: Callable[[], int | None]) -> int:
    """Run a command's work and return its exit code, 0 for None; an error is one line on standard error.

    Codes: 2 for invalid input, 3 for a failed health check, 1 for another failure such as a full disk, 130 after
    Ctrl-C. Other exceptions are bugs and are raised.
    """
    try:
        return work() or 0
    except BrokenPipeError:
        drop_output()
        return 1
    except KeyboardInterrupt:
        print_interruption()
        return EXIT_INTERRUPTED
    except Exception as error:
        reported = _error_and_exit_code(error)
        if reported is None:
            raise
        return _report(*reported)


def _error_and_exit_code(error: Exception) -> tuple[Exception, int] | None:
    """Return the error to print instead of an exception, and the exit code; None for a bug."""
    reported: tuple[Exception, int]
    match error:
        case InputError():
            reported = error, 2
        case HealthError():
            reported = error, UNHEALTHY
        case JaxrlSqlError() | ExecutorError():
            reported = error, 1
        case ModuleNotFoundError() if lacks_jax(error):
            reported = InputError(NEEDS_JAX), 2
        case FileExistsError() | NotADirectoryError():
            reported = blocked_folder_error(error), 2
        case OSError():
            reported = file_error(error, _list_writable_paths()), 1
        case sqlite3.OperationalError(sqlite_errorcode=sqlite3.SQLITE_FULL):
            full_folders = " and ".join(find_full_folders(_list_writable_paths()))
            problem = f"no space left on {full_folders}" if full_folders else "a database cannot be written"
            reported = JaxrlSqlError(f"{problem}: {error}"), 1
        # JAX's error of exhausted memory; its class cannot be imported without JAX.
        case RuntimeError() if str(error).startswith("RESOURCE_EXHAUSTED"):
            reason = str(error).splitlines()[0].partition(": ")[2]
            advice = "`jaxrl-sql plan` reports the memory of a run and suggests changes"
            reported = JaxrlSqlError(f"memory: {reason}: {advice}"), 1
        case AssertionError() | RuntimeError() if problem := platform_error():
            reported = InputError(problem), 2
        case _:
            return None
    return reported


def _list_writable_paths() -> list[str]:
    """Return the paths that a command may write: its arguments, the current, the temporary and the cache folder."""
    return [*sys.argv[1:], ".", tempfile.gettempdir(), str(cache_folder() or ".")]


def _config(root: type[Root], files: list[Path] | None, resume: str | None, overrides: list[str]) -> Root:
    if resume is None:
        return load_config(root, files, overrides)
    if "=" in resume:  # `--resume key=value`: the folder was omitted
        resume, overrides = "", [resume, *overrides]
    folder = Path(resume or values_by_key(load_config(root, files, overrides, is_checked=False))["run.dir"])
    if files is None:
        return load_resumed_config(root, folder, overrides)
    if resume and not (folder / CONFIG).is_file():
        raise InputError(f"--resume {folder}: no run found; run.dir={folder} run.resume=true starts or resumes one")
    return load_config(root, files, [*overrides, f"run.dir={folder}", "run.resume=true"])


def _report(error: Exception, code: int) -> int:
    """Print an error and return the exit code; a process of a distributed run exits immediately.

    At a normal exit JAX would wait for the other processes, which wait for this process or have ended.
    """
    print_text(f"error: {error}", sys.stderr)
    jax = sys.modules.get("jax")  # not loaded: not part of a distributed run
    if jax is not None and jax.distributed.is_initialized():
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code
