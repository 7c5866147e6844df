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
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from jaxrl_sql.commands.arguments import (
    ALL,
    EXIT_CODES,
    Parser,
    add_config,
    add_endpoint,
    add_leave_out,
    endpoint_values,
)
from jaxrl_sql.commands.running import prepare_process, report_errors, run_or_print
from jaxrl_sql.config import EvaluateConfig, TrainConfig, changed, load_config
from jaxrl_sql.config.load import check_keys
from jaxrl_sql.databases.sample.options import is_served, refuse_leave_out
from jaxrl_sql.runtime.model_locator import defaults_for
from jaxrl_sql.runtime.tables import show_table
from jaxrl_sql.runtime.terminal import print_text, printable
from jaxrl_sql.text2sql.env.executor import Executor, Outcome, make_executor
from jaxrl_sql.text2sql.files.jsonl import as_windows
from jaxrl_sql.types import Example, InputError, Response, whole_text

if TYPE_CHECKING:
    from jaxrl_sql.text2sql.evals.records import Answered
    from jaxrl_sql.text2sql.evals.vote import Ballot

UNANSWERED = 1
"""Exit code where no answer held SQL that runs."""

_TEMPERATURE = 0.8
_OVERRIDE = re.compile(r"(?:seed|recipe|[a-z_]+(?:\.[a-z_0-9]+)+)=")
_NO_ROOM = "cut where the model has no position left"
_LIMITS = {"vm_steps": 3_000_000_000, "timeout_ms": 30_000}


class Candidate(NamedTuple):
    """A query that some of the answers wrote, the votes of its result, and how it ended."""

    sql: str
    answers: int
    votes: float
    outcome: Outcome


class Reply(NamedTuple):
    """What came of a question: the chosen SQL and its result, the answer that it stands in, and all candidates.

    `answers` were sampled; `votes` are those of each result, the chosen one's first, and none where nothing ran.
    `finish_reason` is that of the answer; `note` reports answers that are incomplete, with the setting to raise.
    """

    sql: str | None
    outcome: Outcome | None
    response: Response
    candidates: tuple[Candidate, ...]
    answers: int
    votes: tuple[float, ...]
    finish_reason: str = ""
    note: str = ""

    @property
    def margin(self) -> float:
        """Return by how many votes the chosen result leads the next; by `soft` they are summed similarities."""
        first, second = (*self.votes, 0.0, 0.0)[:2]
        return first - second


Ask = Callable[[Sequence[Example]], list[Reply]]
"""Answers questions side by side."""


def database_of(db: str, stand_in: Path | None = None, leave_out: Sequence[str] = ()) -> Example:
    """Return a question without words on a database, a SQLite file or the URL of another engine's.

    Raises InputError for one that is not there, or has no tables.
    """
    from jaxrl_sql.databases.sample.served import open_served
    from jaxrl_sql.text2sql.schema.read import read_schema

    if is_served(db):
        served = open_served(db, stand_in, leave_out, lambda line: print_text(line, sys.stderr))
        path, engine, url = served.shown_by, served.engine, served.url
    else:
        path, engine, url = Path(db), "sqlite", ""
        refuse_leave_out(leave_out, db)
        if stand_in is not None:
            raise InputError(f"--stand-in {stand_in}: is for a --db of another engine; {db} shows itself")
        if not path.is_file():
            raise InputError(f"--db {db}: {'is a folder: name the file in it' if path.is_dir() else 'no such file'}")
    schema = read_schema(path)
    for line in schema.omissions:
        print_text(line, sys.stderr)
    if not schema.tables:
        raise InputError(f"--db {path}: the database has no tables that can be read")
    return Example("", path.stem, str(path), "", "", dialect=engine, engine_url=url)


@contextmanager
def opened(config: TrainConfig, at_once: int = 1) -> Iterator[Ask]:
    """Open the model, or the endpoint, and yield what answers questions, `at_once` of them side by side.

    Raises InputError for a model that cannot be read.
    """
    if config.evaluate.base_url:
        with _opened_endpoint(config) as ask_endpoint:
            yield ask_endpoint
        return
    # Slow to import, and what is wrong so far is told before.
    from jaxrl_sql.inference import policy_client as policy
    from jaxrl_sql.models.ops.rng import Purpose
    from jaxrl_sql.text2sql.prompts.prompts import make_prompt

    cfg, most, asked = config.evaluate, config.data.max_prompt_tokens, 0
    with (
        make_executor(config.executor, config.data.hide) as executor,
        policy.open_policy_client(
            config, executor, min(cfg.max_num_seqs, at_once * cfg.samples), Purpose.EVAL, policy.longest_of(cfg)
        ) as client,
    ):
        policy.check_turns(client.recipe, cfg.turns)
        sampling = policy.sampling_by(cfg, cfg.samples, config.seed, client.stops(config.sampling.stop))

        def ask(questions: Sequence[Example]) -> list[Reply]:
            nonlocal asked
            examples = [replace(one, uid=f"question {asked + i}") for i, one in enumerate(questions)]
            prompts = [make_prompt(one, client.style, client.engine.tokenizer, most) for one in examples]
            pairs = [(one, prompt) for one, prompt in zip(examples, prompts, strict=True) if prompt is not None]
            if len(pairs) < len(examples):
                raise InputError(f"schema and question are over data.max_prompt_tokens={most} together")
            longest = max((len(prompt.token_ids) for _, prompt in pairs), default=0)
            room = client.engine.model.max_positions - longest  # a person wants what there is
            fitted = sampling.within(room)
            answered = policy.answers(client, pairs, fitted, asked, cfg.turns)
            asked += len(pairs)
            limit = "" if fitted.longest == sampling.longest else _NO_ROOM
            if fault := next((one.fault for one in answered if one.fault), ""):
                raise InputError(f"not answered: {fault}")
            return [_reply(executor, one, said, cfg, limit) for one, said in zip(examples, answered, strict=True)]

        yield ask


@contextmanager
def _opened_endpoint(config: TrainConfig) -> Iterator[Ask]:
    """Open the endpoint of the section `evaluate` and yield what asks it; nothing of it is kept."""
    from jaxrl_sql.inference.endpoint_client import endpoint_answers

    with TemporaryDirectory() as folder, make_executor(config.executor, config.data.hide) as executor:
        here = changed(config, {"evaluate.out": folder})
        with endpoint_answers(here, executor, {}, lambda _line: None) as ask_all:
            numbers = count()

            def ask(questions: Sequence[Example]) -> list[Reply]:
                examples = [replace(one, uid=f"question {i}") for i, one in enumerate(questions)]
                answered = ask_all("ask", examples, next(numbers), 0, lambda _done, _all: None)
                if fault := next((one.fault for one in answered if one.fault), ""):
                    raise InputError(f"not answered: {fault}")
                return [
                    _reply(executor, one, said, config.evaluate) for one, said in zip(examples, answered, strict=True)
                ]

            yield ask


def _reply(executor: Executor, example: Example, answered: Answered, cfg: EvaluateConfig, limit: str = "") -> Reply:
    """Choose among the answers and run their SQL; `limit` names the limit that cut them where no setting did."""
    from jaxrl_sql.text2sql.evals.vote import ballots, choose

    ballot = ballots(executor, [example], [answered.sqls], cfg.vote)[0]
    choice = choose(ballot)
    counts = Counter(sql for sql in answered.sqls if sql is not None)
    outcomes = executor.execute_many([(example.database, sql) for sql in counts])
    found = [
        Candidate(sql, count, _votes(ballot, answered.sqls.index(sql)), outcome)
        for (sql, count), outcome in zip(counts.items(), outcomes, strict=True)
    ]
    outcome = next((one.outcome for one in found if one.sql == choice.sql), None)
    ranked = sorted(found, key=lambda one: (one.sql != choice.sql, -one.votes))
    votes: dict[int, float] = {}
    for at, result in enumerate(ballot.results):
        if result >= 0:
            votes[result] = max(votes.get(result, 0.0), _votes(ballot, at))
    of_results = tuple(sorted(votes.values(), reverse=True))
    response = answered.responses[choice.index]
    reason, note = _ending(answered, choice.index, cfg, limit)
    return Reply(choice.sql, outcome, response, tuple(ranked), len(answered.sqls), of_results, reason, note)


def _ending(answered: Answered, at: int, cfg: EvaluateConfig, limit: str) -> tuple[str, str]:
    """Return the finish reason of answer `at`, and a line on incomplete answers: this one, or else the others."""
    from jaxrl_sql.text2sql.evals.endings import why_incomplete

    reasons = answered.finish_reasons
    lines = []
    for reason in (reasons[at], *sorted(set(reasons))) if reasons else ():
        if why := limit if limit and reason == "length" else why_incomplete(reason, cfg):
            who = "the answer is" if reason == reasons[at] else f"{reasons.count(reason)} of {len(reasons)} answers are"
            lines.append(f"{who} {why}")
    return (reasons[at] if reasons else ""), next(iter(lines), "")


def _votes(ballot: Ballot, at: int) -> float:
    """Return the votes of a candidate's result: how many have it, or how like the others it is; 0 where it failed."""
    if ballot.results[at] < 0:
        return 0.0
    if ballot.likeness is None:
        return float(ballot.results.count(ballot.results[at]))
    ran = [i for i, result in enumerate(ballot.results) if result >= 0 and i != at]
    return float(ballot.likeness[at, ran].sum())


def show(reply: Reply, explain: bool, stream: TextIO) -> int:
    """Write the SQL and its result, with answer and candidates where they are asked for; return the exit code."""
    if explain:
        print_text(f"{whole_text(reply.response).strip()}\n", stream)
        rows = [
            (f"{one.votes:g}", str(one.answers), one.outcome.status, str(one.outcome.row_count), one.sql)
            for one in reply.candidates
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
    first, *others = (f"{one:.3g}" for one in reply.votes)
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


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, answer, and return the exit code."""
    codes = f"{EXIT_CODES}; of a single question 1 also where no answer held SQL that runs"
    parser = Parser(description=__doc__)
    add_config(parser, (*ALL, "evaluate"), codes)
    parser.add_argument(
        "--model", required=True, help="a run folder, a Hugging Face folder, a name of the hub or a GGUF file"
    )
    add_endpoint(parser, "evaluate")
    parser.add_argument(
        "--db", required=True, metavar="FILE|URL", help="a SQLite file, postgresql://…, mysql://…; it is only read"
    )
    parser.add_argument("--stand-in", type=Path, metavar="FILE", help="a SQLite file that shows what the URL's is like")
    add_leave_out(parser, several=False)
    parser.add_argument("--n", type=int, help="how many answers to sample, of which a vote takes one")
    parser.add_argument("--explain", action="store_true", help="show the whole answer, and all candidates with votes")
    parser.add_argument("--evidence", default="", metavar="TEXT", help="what to know beside the question")
    parser.add_argument("--recipe", help="whose form and prompt it is asked in (default: as it was trained)")
    parser.add_argument("words", nargs="*", metavar="QUESTION", help="the question; values may be set by key.sub=value")
    given = parser.parse_intermixed_args(arguments)
    prepare_process()
    return report_errors(lambda: _ask(given))


def _ask(given: argparse.Namespace) -> int:
    overrides = [word for word in given.words if _OVERRIDE.match(word)]
    questions = [word for word in given.words if not _OVERRIDE.match(word)]
    if len(questions) > 1:
        raise InputError(f"one question at a time, in quotes: {questions[0]!r} and {questions[1]!r} were given")
    if questions and not questions[0].strip():
        raise InputError("the question is empty")
    check_keys(given.config, overrides)
    database = database_of(given.db, given.stand_in, given.leave_out)  # before a model is fetched for it
    config = configuration(given, overrides)
    from jaxrl_sql.text2sql.question_sets.hiding import hide_in_example

    database = hide_in_example(database, config.data.hide)

    def answer(config: TrainConfig) -> int:
        with opened(config) as ask:

            def reply(question: str) -> Reply:
                words = replace(database, question=as_windows(question), evidence=as_windows(given.evidence))
                return ask([words])[0]

            if questions:
                return show(reply(questions[0]), given.explain, sys.stdout)
            return talk(reply, given.explain, question_reader(Path(database.db_path)))

    return run_or_print(answer, config, given)


def configuration(given: argparse.Namespace, overrides: Sequence[str]) -> TrainConfig:
    """Return the configuration that a command line asks for; several answers need a temperature, so they get one."""
    beneath = defaults_for("" if given.endpoint else given.model)
    beneath["executor"] |= _LIMITS
    above: dict[str, Any] = {"recipe": given.recipe} if given.recipe else {}
    if given.endpoint:
        above["evaluate"] = {"model": given.model}
        beneath["data"] = {"prompt": "chat"}
        overrides = [*endpoint_values("evaluate", given.endpoint), *overrides]
    else:
        above["model"] = {"checkpoint": beneath["model"]["checkpoint"]}
    if given.n is not None:
        above["evaluate"] = above.get("evaluate", {}) | {"samples": given.n}
        beneath["evaluate"] = beneath.get("evaluate", {}) | ({"temperature": _TEMPERATURE} if given.n > 1 else {})
    return load_config(given.config, overrides, beneath, above)
