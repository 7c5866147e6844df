"""Ask a database a question: `jaxrl-sql ask --model M --db FILE "How many …?"` answers with SQL and a result.

FILE is SQLite's. With the URL of a server in its place the question is asked in the server's dialect and the SQL runs
there, read-only. A small sample, without the tables and columns of `--leave-out`, or the file `--stand-in` shows the
database to the model.

`--n N` samples N answers, takes the one that most agree on, and says by how much; `--explain` shows the others. Without
a question one is read after another until an empty line, with the model loaded once: on a terminal the line is edited,
Tab completes names of the database, and the arrows bring back what was asked. How the model is asked is what a trained
model's folder says; else it follows from `--recipe`, `--config` and `key.sub=value`. With
`--endpoint URL` M is the name of a model that a server of OpenAI's form has.
"""

from __future__ import annotations

import argparse
import io
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from jaxrl_sql.api import policy_spec
from jaxrl_sql.commands.arguments import EXIT_CODES, Parser, add_config, add_endpoint, add_leave_out
from jaxrl_sql.commands.running import report_errors, run_or_print
from jaxrl_sql.config import EvaluateConfig, EvaluateSettings, ExecutorConfig, load_config
from jaxrl_sql.config.load import check_keys
from jaxrl_sql.inference.ask import Reply, database_of, opened
from jaxrl_sql.inference.evaluation_config import ask_layers
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.process import prepare_process
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text, printable
from jaxrl_sql.text2sql.files.jsonl import as_windows
from jaxrl_sql.types import InputError, whole_text

UNANSWERED = 1
"""Exit code where no answer held SQL that runs."""

_OVERRIDE = re.compile(r"(?:seed|recipe|[a-z_]+(?:\.[a-z_0-9]+)+)=")


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, answer, and return the exit code."""
    codes = f"{EXIT_CODES}; of a single question 1 also where no answer held SQL that runs"
    parser = Parser(description=__doc__)
    add_config(parser, EvaluateConfig, codes)
    parser.add_argument(
        "--model", required=True, help="a run folder, a Hugging Face folder, a name of the hub or a GGUF file"
    )
    add_endpoint(parser, "evaluate")
    parser.add_argument(
        "--db", required=True, metavar="FILE|URL", help="a SQLite file, postgresql://…, mysql://…; it is only read"
    )
    parser.add_argument(
        "--stand-in", type=Path, metavar="FILE", help="a SQLite file that the model is shown for the URL's"
    )
    add_leave_out(parser, several=False)
    parser.add_argument("--n", type=int, help="how many answers to sample, of which a vote takes one")
    parser.add_argument("--explain", action="store_true", help="show the whole answer, and all candidates with votes")
    parser.add_argument("--evidence", default="", metavar="TEXT", help="background knowledge for the question")
    parser.add_argument("--recipe", help="whose form and prompt it is asked in (default: as it was trained)")
    parser.add_argument("words", nargs="*", metavar="QUESTION", help="the question; values may be set by key.sub=value")
    args = parser.parse_intermixed_args(arguments)
    prepare_process()
    return report_errors(lambda: _ask(args))


def _ask(given: argparse.Namespace) -> int:
    overrides = [word for word in given.words if _OVERRIDE.match(word)]
    questions = [word for word in given.words if not _OVERRIDE.match(word)]
    if len(questions) > 1:
        raise InputError(f"one question at a time, in quotes: {questions[0]!r} and {questions[1]!r} were given")
    if questions and not questions[0].strip():
        raise InputError("the question is empty")
    check_keys(EvaluateConfig, given.config, overrides)
    database = database_of(given.db, given.stand_in, given.leave_out, to_stderr)  # before a model is fetched for it
    layers = ask_layers(given.model, overrides, endpoint=given.endpoint, recipe=given.recipe, samples=given.n)
    config = load_config(EvaluateConfig, given.config, *layers)
    from jaxrl_sql.text2sql.question_sets.hiding import hide_in_example

    database = hide_in_example(database, config.data.hide)

    def answer(policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig) -> int:
        with opened(policy, cfg, limits) as ask:

            def reply(question: str) -> Reply:
                words = replace(database, question=as_windows(question), evidence=as_windows(given.evidence))
                return ask([words])[0]

            if questions:
                return show(reply(questions[0]), given.explain, sys.stdout)
            return talk(reply, given.explain, question_reader(Path(database.db_path)))

    return run_or_print(lambda fetched: answer(policy_spec(fetched), fetched.evaluate, fetched.executor), config, given)


def to_stderr(line: str) -> None:
    """Print a line to standard error, away from the answer."""
    print_text(line, sys.stderr)


def show(reply: Reply, explain: bool, stream: TextIO) -> int:
    """Write the SQL and its result, with answer and candidates where they are asked for; return the exit code."""
    if explain:
        print_text(f"{whole_text(reply.response).strip()}\n", stream)
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
    sql = reply.sql or "no SQL in the answer"
    stream.write(f"{printable(sql) if stream.isatty() else sql}\n\n")  # files and pipes get it unchanged
    if reply.outcome is not None:
        print_text(reply.outcome.pretty().rstrip(), stream)
    if reply.note:
        print_text(f"\n{reply.note}", stream)
    if reply.answers > 1:
        print_text(f"\n{_vote_words(reply)}", stream)
    stream.flush()
    return 0 if reply.outcome is not None and reply.outcome.status == "ok" else UNANSWERED


def _vote_words(reply: Reply) -> str:
    """Return one line on how the vote went."""
    if not reply.votes:
        return f"vote: of {reply.answers} answers none ran"
    first, *others = (f"{vote:.3g}" for vote in reply.votes)
    other = f"{others[0]} for the next, a margin of {reply.margin:.3g}" if others else "none for another"
    return f"vote: {first} of {reply.answers} answers for this result, {other}"


def talk(ask: Callable[[str], Reply], explain: bool, next_question: Callable[[], str]) -> int:
    """Answer one question after another until an empty line or the end of the input; return the exit code."""
    while question := next_question():
        try:
            show(ask(question), explain, sys.stdout)
        except InputError as error:
            print_text(f"error: {error}", sys.stderr)
        print_text("")
    return 0


def question_reader(database: Path) -> Callable[[], str]:
    """Return what reads the next question, "" for the end: from a terminal with line editing, else a line as it is.

    On a terminal Tab completes the tables and columns of the database, and the arrows bring earlier questions back.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="surrogateescape")  # as arguments are read
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
