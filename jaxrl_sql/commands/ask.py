"""Ask a database a question: `jaxrl-sql ask --model M --db FILE "How many …?"` prints SQL and its result.

FILE is a SQLite file. With a server's URL or `duckdb:FILE` instead, the model answers in that dialect and the SQL runs
there, read-only. Without `--db` the database is `data.database` of the configuration or of the model's run. The model
sees a small sample of the database, without the tables and columns of `--leave-out`, or the file `--stand-in`.

`--n N` samples N answers, chooses one by majority vote and prints the margin; `--explain` shows all candidates. Without
a question, questions are read interactively until an empty line, with line editing, a history, and Tab completion of
database names. Prompt and sampling come from a trained model's folder, or from `--recipe`, `--config` and
`key.sub=value`. With `--endpoint URL`, M is the name of a model of an OpenAI-compatible server.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TextIO

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
from jaxrl_sql.commands.running import report_errors, run_or_print
from jaxrl_sql.config import EvaluateConfig, EvaluateSettings, ExecutorConfig, load_config
from jaxrl_sql.config.load import check_keys
from jaxrl_sql.inference.ask import Reply, database_example, open_model
from jaxrl_sql.inference.evaluation_config import ask_layers, prompt_warning
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.runtime.model_locator import find_model
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text, printable
from jaxrl_sql.text2sql.files.jsonl import decode_windows_1252
from jaxrl_sql.types import TRUNCATED_REASONS, InputError, response_text

UNANSWERED = 1
"""Exit code if no answer had executable SQL."""

# The start of a setting, such as `data.prompt=`, among arguments that may also be the question.
_OVERRIDE = re.compile(r"(?:seed|recipe|[a-z_]+(?:\.[a-z_0-9]+)+)=")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, answer, and return the exit code."""
    codes = f"{EXIT_CODES}; for a single question also 1 if no answer had executable SQL"
    parser = Parser(description=__doc__)
    add_config(parser, EvaluateConfig, codes)
    parser.add_argument("--model", required=True, help=MODEL_HELP)
    add_endpoint(parser, "evaluate")
    parser.add_argument(
        "--db",
        type=not_empty,
        metavar="FILE|URL",
        help="a SQLite file, duckdb:FILE, postgresql://…, mysql://…; read-only (default: data.database)",
    )
    parser.add_argument("--stand-in", type=Path, metavar="FILE", help="a SQLite file for prompts, in place of a sample")
    add_leave_out(parser, several=False)
    parser.add_argument("--n", type=int, help="number of answers to sample for a vote")
    parser.add_argument("--explain", action="store_true", help="show the whole answer, and all candidates with votes")
    parser.add_argument("--evidence", default="", metavar="TEXT", help="background knowledge for the question")
    parser.add_argument("--recipe", help="recipe of prompt and answer format (default: the model's own)")
    parser.add_argument("arguments", nargs="*", metavar="QUESTION", help="the question; also settings as key.sub=value")
    args = parser.parse_intermixed_args(arguments)
    prepare_process()
    return report_errors(lambda: _ask(args))


def _ask(args: argparse.Namespace) -> int:
    overrides = [argument for argument in args.arguments if _OVERRIDE.match(argument)]
    questions = [argument for argument in args.arguments if not _OVERRIDE.match(argument)]
    if len(questions) > 1:
        raise InputError(f"expected one question, in quotes, not {questions[0]!r} and {questions[1]!r}")
    if questions and not questions[0].strip():
        raise InputError("the question is empty")
    check_keys(EvaluateConfig, args.config, overrides)
    from jaxrl_sql.databases.question_files import single_database
    from jaxrl_sql.text2sql.question_sets.hiding import hide_in_example

    if not args.endpoint:
        find_model(args.model)  # a wrong path is reported before a database is sampled
    open_database = partial(database_example, stand_in=args.stand_in, leave_out=args.leave_out, report=to_stderr)
    database_of_option = open_database(args.db) if args.db else None  # errors appear before the model is downloaded
    layers = ask_layers(args.model, overrides, args.config, endpoint=args.endpoint, recipe=args.recipe, samples=args.n)
    config = load_config(EvaluateConfig, args.config, *layers)
    if warning := prompt_warning(config.evaluate, config.data.prompt):
        to_stderr(warning)
    database = database_of_option or open_database(single_database(config.data.database))
    database = hide_in_example(database, config.data.hide)

    def answer(policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig) -> int:
        with open_model(policy, cfg, limits) as ask:

            def reply(question: str) -> Reply:
                example = replace(
                    database, question=decode_windows_1252(question), evidence=decode_windows_1252(args.evidence)
                )
                return ask([example])[0]

            if questions:
                return show(reply(questions[0]), args.explain, sys.stdout)
            return answer_interactively(reply, args.explain, question_reader(Path(database.db_path)))

    return run_or_print(lambda cfg: answer(policy_spec(cfg), cfg.evaluate, cfg.executor), config, args)


def to_stderr(line: str) -> None:
    """Print a line to standard error, away from the answer."""
    print_text(line, sys.stderr)


def show(reply: Reply, explain: bool, stream: TextIO) -> int:
    """Print the SQL of a reply and its result; return the exit code.

    With `explain`, print before them the whole answer and the candidates of the vote, the distinct SQL of all answers.
    """
    if explain:
        print_text(f"{response_text(reply.response).strip()}\n", stream)
        rows = [
            (
                f"{candidate.votes:g}",
                str(candidate.answers),
                candidate.outcome.status,
                str(candidate.outcome.row_count),
                candidate.sql,
            )
            for candidate in reply.candidates
        ]
        if rows:
            show_table(stream, "candidates", ("votes", "answers", "status", "rows", "SQL"), rows, (2, 4))
    has_result = reply.outcome is not None and reply.outcome.status == "ok"
    # SQL of a truncated answer is incomplete, so its error would mislead: the note about the limit replaces it.
    is_cut = reply.finish_reason in TRUNCATED_REASONS and not has_result
    if is_cut:
        print_text(f"{reply.note}\n", stream)
    sql = reply.sql or "no SQL in the answer"
    stream.write(f"{printable(sql) if stream.isatty() else sql}\n\n")  # unchanged in files and pipes
    if reply.outcome is not None and not is_cut:
        print_text(reply.outcome.pretty().rstrip(), stream)
    if reply.note and not is_cut:
        print_text(f"\n{reply.note}", stream)
    if reply.answers > 1:
        print_text(f"\n{_vote_text(reply)}", stream)
    stream.flush()
    return 0 if has_result else UNANSWERED


def _vote_text(reply: Reply) -> str:
    """Return a line with the result of the vote."""
    if not reply.votes:
        return f"vote: none of {reply.answers} answers executed"
    first, *others = (f"{votes:.3g}" for votes in reply.votes)
    comparison = f"{others[0]} for the next, a margin of {reply.margin:.3g}" if others else "no other result"
    return f"vote: {first} of {reply.answers} answers for this result, {comparison}"


def answer_interactively(ask: Callable[[str], Reply], explain: bool, next_question: Callable[[], str]) -> int:
    """Answer questions until an empty line or the end of the input; return the exit code."""
    while question := next_question():
        try:
            show(ask(question), explain, sys.stdout)
        except InputError as error:
            print_text(f"error: {error}", sys.stderr)
        print_text("")
    return 0


def question_reader(database: Path) -> Callable[[], str]:
    """Return a function that reads the next question, "" at the end, with line editing on a terminal.

    On a terminal, Tab completes tables and columns of the database, and the arrow keys browse earlier questions.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # invalid UTF-8 is read as in arguments
        return lambda: sys.stdin.readline().strip()
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter

    from jaxrl_sql.text2sql.schema.read import read_schema

    tables = read_schema(database).tables
    names = {name for table in tables for name in (table.name, *(column.name for column in table.columns))}
    session: PromptSession[str] = PromptSession(
        "question: ", completer=WordCompleter(sorted(names), ignore_case=True), complete_while_typing=False
    )

    def read() -> str:
        try:
            return session.prompt().strip()
        except EOFError:
            return ""

    return read
