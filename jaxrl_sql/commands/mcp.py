"""Serve a database to agents over the Model Context Protocol, on stdio: `jaxrl-sql mcp --db FILE|URL`.

Without `--db` the database is `data.database` of the configuration or of the model's run.

Tools: `schema`, `query`, `explain` and, with `--model M` (or `--endpoint URL`, whose model is named M), `ask`. All are
read-only: the executor runs a single reading statement in a sandbox, within its limits, and returns the first
`--max-rows` rows. Settings are `key.sub=value`, as for `ask`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.api import policy_spec
from jaxrl_sql.commands.arguments import (
    EXIT_CODES,
    MODEL_HELP,
    Parser,
    add_config,
    add_endpoint,
    add_leave_out,
    not_empty,
)
from jaxrl_sql.commands.ask import to_stderr
from jaxrl_sql.commands.running import report_errors, run_or_print
from jaxrl_sql.config import EvaluateConfig, EvaluateSettings, ExecutorConfig, load_config
from jaxrl_sql.config.load import check_keys
from jaxrl_sql.databases.sample.options import is_external, refuse_leave_out
from jaxrl_sql.inference.ask import Asker
from jaxrl_sql.inference.evaluation_config import Layers, ask_layers, prompt_warning
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.serving.mcp import LIMITS, MAX_ROWS, make_server, open_database
from jaxrl_sql.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, serve, and return the exit code."""
    parser = Parser(description=__doc__)
    add_config(parser, EvaluateConfig, EXIT_CODES)
    parser.add_argument(
        "--db",
        type=not_empty,
        metavar="FILE|URL",
        help="a SQLite file, duckdb:FILE, postgresql://…, mysql://…; read-only (default: data.database)",
    )
    parser.add_argument("--stand-in", type=Path, metavar="FILE", help="a SQLite file for prompts, in place of a sample")
    add_leave_out(parser, several=False)
    parser.add_argument("--model", help=f"model for `ask`: {MODEL_HELP}")
    add_endpoint(parser, "evaluate")
    parser.add_argument("--recipe", help="recipe of prompt and answer format (default: the model's own)")
    parser.add_argument("--n", type=int, help="number of answers to sample for a vote")
    parser.add_argument(
        "--max-rows", type=int, default=MAX_ROWS, help="maximum number of rows per result (default: %(default)s)"
    )
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the defaults")
    args = parser.parse_intermixed_args(arguments)
    if args.max_rows < 1:
        parser.error(f"--max-rows must be at least 1, not {args.max_rows}")
    prepare_process()
    return report_errors(lambda: serve(args))


def serve(args: argparse.Namespace) -> int:
    """Serve until the client disconnects; return the exit code."""
    check_keys(EvaluateConfig, args.config, args.overrides)  # before the model is looked up on the hub
    if args.endpoint and not args.model:
        raise InputError("--endpoint needs --model, the model's name on the server")
    if args.model:
        layers = ask_layers(
            args.model, args.overrides, args.config, endpoint=args.endpoint, recipe=args.recipe, samples=args.n
        )
    else:
        layers = Layers(args.overrides, {"executor": dict(LIMITS)}, {})
    config = load_config(EvaluateConfig, args.config, *layers)
    if warning := prompt_warning(config.evaluate, config.data.prompt):
        to_stderr(warning)
    from jaxrl_sql.databases.question_files import single_database

    db = args.db or single_database(config.data.database)
    if not is_external(db) and not Path(db).is_file():  # before the weights are downloaded
        reason = "is a folder: name the file in it" if Path(db).is_dir() else "no such file"
        raise InputError(f"--db {db}: {reason}")
    if args.stand_in and not is_external(db):
        raise InputError(f"--stand-in {args.stand_in} is only for a --db of another engine, not {db}")
    if is_external(db):
        from jaxrl_sql.text2sql.question_sets.hiding import refuse_hide

        refuse_hide(config.data.hide, "--db names a database of another engine")
    else:
        refuse_leave_out(args.leave_out, db)
    return run_or_print(lambda cfg: _serve_tools(policy_spec(cfg), cfg.evaluate, cfg.executor, db, args), config, args)


def _serve_tools(
    policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig, db: str, args: argparse.Namespace
) -> int:
    """Serve the tools on stdio; return the exit code."""
    options = {"stand_in": args.stand_in, "leave_out": args.leave_out, "max_rows": args.max_rows}
    with open_database(db, limits, policy.data.hide, **options, report=to_stderr) as database:
        asker = Asker(policy, cfg, limits) if args.model else None
        try:
            make_server(database, asker).run("stdio")
        finally:
            if asker is not None:
                asker.close()
    return 0
