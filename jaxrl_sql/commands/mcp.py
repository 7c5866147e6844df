"""Give agents a database to read, over the Model Context Protocol: `jaxrl-sql mcp --db FILE|URL` speaks on stdio.

Four tools: `schema`, `query`, `explain` and, with `--model M` (or `--endpoint URL`, whose model is called M), `ask`.
Nothing that they are given can write: one statement that reads, run by the executor in a sandbox, within its budgets,
of whose result the first `--max-rows` rows are returned. Values are set by `key.sub=value`, as for `ask`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from jaxrl_sql.api import policy_spec
from jaxrl_sql.commands.arguments import EXIT_CODES, Parser, add_config, add_endpoint, add_leave_out
from jaxrl_sql.commands.ask import to_stderr
from jaxrl_sql.commands.running import report_errors, run_or_print
from jaxrl_sql.config import EvaluateConfig, EvaluateSettings, ExecutorConfig, load_config
from jaxrl_sql.config.load import check_keys
from jaxrl_sql.databases.sample.options import is_served, refuse_leave_out
from jaxrl_sql.inference.ask import Asker
from jaxrl_sql.inference.evaluation_config import Layers, ask_layers
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.serving.mcp import LIMITS, MAX_ROWS, make_server, opened_database
from jaxrl_sql.types import InputError


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, serve, and return the exit code."""
    parser = Parser(description=__doc__)
    add_config(parser, EvaluateConfig, EXIT_CODES)
    parser.add_argument(
        "--db", required=True, metavar="FILE|URL", help="a SQLite file, postgresql://…, mysql://…; it is only read"
    )
    parser.add_argument(
        "--stand-in", type=Path, metavar="FILE", help="a SQLite file that the model is shown for the URL's"
    )
    add_leave_out(parser, several=False)
    parser.add_argument("--model", help="what answers questions: a run, a Hugging Face folder, a hub name, a GGUF file")
    add_endpoint(parser, "evaluate")
    parser.add_argument("--recipe", help="whose form and prompt it is asked in (default: as it was trained)")
    parser.add_argument("--n", type=int, help="how many answers to sample, of which a vote takes one")
    parser.add_argument(
        "--max-rows", type=int, default=MAX_ROWS, help="rows of a result that are returned (default: %(default)s)"
    )
    parser.add_argument("overrides", nargs="*", metavar="key.sub=value", help="values that replace the defaults")
    args = parser.parse_intermixed_args(arguments)
    if args.max_rows < 1:
        parser.error(f"--max-rows must be at least 1, not {args.max_rows}")
    if args.stand_in and not is_served(args.db):
        parser.error(f"--stand-in {args.stand_in} is for a --db of another engine; {args.db} shows itself")
    prepare_process()
    return report_errors(lambda: serve(args))


def serve(given: argparse.Namespace) -> int:
    """Serve until the client goes away; return the exit code."""
    check_keys(EvaluateConfig, given.config, given.overrides)  # before a model is looked for on the hub
    if given.endpoint and not given.model:
        raise InputError("--endpoint needs --model, the name that the server has for it")
    if given.model:
        layers = ask_layers(given.model, given.overrides, endpoint=given.endpoint, recipe=given.recipe, samples=given.n)
    else:
        layers = Layers(given.overrides, {"executor": dict(LIMITS)}, {})
    config = load_config(EvaluateConfig, given.config, *layers)
    if not is_served(given.db) and not Path(given.db).is_file():  # before a model is fetched for it
        found = "is a folder: name the file in it" if Path(given.db).is_dir() else "no such file"
        raise InputError(f"--db {given.db}: {found}")
    if is_served(given.db):
        from jaxrl_sql.text2sql.question_sets.hiding import refuse_hide

        refuse_hide(config.data.hide, "--db names a database of another engine")
    else:
        refuse_leave_out(given.leave_out, given.db)
    return run_or_print(
        lambda fetched: _speak(policy_spec(fetched), fetched.evaluate, fetched.executor, given), config, given
    )


def _speak(policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig, given: argparse.Namespace) -> int:
    """Serve the tools on stdio; return the exit code."""
    options = {"stand_in": given.stand_in, "leave_out": given.leave_out, "max_rows": given.max_rows}
    with opened_database(given.db, limits, policy.data.hide, **options, report=to_stderr) as database:
        asker = Asker(policy, cfg, limits) if given.model else None
        try:
            make_server(database, asker).run("stdio")
        finally:
            if asker is not None:
                asker.close()
    return 0
