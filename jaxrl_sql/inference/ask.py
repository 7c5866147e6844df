"""Ask a database a question: a model or an endpoint writes SQL, the executor runs it, and a vote chooses one result."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from jaxrl_sql.config import EvaluateSettings, ExecutorConfig
from jaxrl_sql.databases.sample.options import is_external, refuse_leave_out
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.process import prepare_process, require_jax
from jaxrl_sql.inference.prompt_form import resolve_settings
from jaxrl_sql.runtime.progress import agree, quantity
from jaxrl_sql.runtime.terminal import printable
from jaxrl_sql.text2sql.env.executor import Executor, Outcome, make_executor
from jaxrl_sql.types import Example, InputError, Prompt, Response

if TYPE_CHECKING:
    from jaxrl_sql.inference.policy_client import PolicyClient
    from jaxrl_sql.inference.prompt_lengths import PromptShortener
    from jaxrl_sql.text2sql.evals.records import QuestionAnswers
    from jaxrl_sql.text2sql.evals.vote import Ballot


class CandidateQuery(NamedTuple):
    """A distinct query among the answers, the number of answers with it, the votes of its result, and its outcome."""

    sql: str
    answers: int
    votes: float
    outcome: Outcome


class Reply(NamedTuple):
    """A reply to a question: the chosen SQL and its result, the model's response with it, and all candidates.

    `answers` is the number of answers that were sampled. `votes` has the votes of each distinct result in descending
    order; it is empty if no SQL ran. `finish_reason` is that of the chosen answer; `note` reports incomplete answers,
    with the setting to raise.
    """

    sql: str | None
    outcome: Outcome | None
    response: Response
    candidates: tuple[CandidateQuery, ...]
    answers: int
    votes: tuple[float, ...]
    finish_reason: str = ""
    note: str = ""

    @property
    def margin(self) -> float:
        """Return the lead of the chosen result over the next in votes (in summed similarities for `soft`)."""
        first, second = (*self.votes, 0.0, 0.0)[:2]
        return first - second


Ask = Callable[[Sequence[Example]], list[Reply]]
"""Answers questions, several at a time."""


def log_line(line: str) -> None:
    """Log a line on tables that a prompt omits; unless logging is configured it goes to standard error."""
    logging.getLogger("jaxrl_sql").warning(printable(line))


def database_example(
    db: str,
    stand_in: Path | None = None,
    leave_out: Sequence[str] = (),
    report: Callable[[str], object] = log_line,
) -> Example:
    """Return an example with an empty question on a database, a SQLite file or the URL of another engine's.

    The SQL runs on `db`. If `db` is a URL, prompts show the schema and values of a SQLite file: `stand_in`, or a sample
    of the database, which is made without the tables and columns `leave_out` (`table` or `table.column`). `report` gets
    lines about the sample and about tables that prompts omit. Raises InputError for a database that is absent or has no
    tables, and for `stand_in` and `leave_out` with a SQLite file.
    """
    from jaxrl_sql.databases.sample.external import describe_samples, open_external
    from jaxrl_sql.text2sql.schema.read import read_schema

    if is_external(db):
        database = open_external(db, stand_in, leave_out, report)
        for line in describe_samples([database]):
            report(line)
        path, engine, url = database.sample_path, database.engine, database.url
    else:
        path, engine, url = Path(db), "sqlite", ""
        refuse_leave_out(leave_out, db)
        if stand_in is not None:
            raise InputError(f"--stand-in {stand_in}: only for a --db of another engine; prompts show {db} itself")
        if not path.is_file():
            raise InputError(f"--db {db}: {'is a folder: name the file in it' if path.is_dir() else 'no such file'}")
    schema = read_schema(path)
    for line in schema.omissions:
        report(line)
    if not schema.tables:
        raise InputError(f"--db {path}: the database has no tables that can be read")
    return Example("", path.stem, str(path), "", "", dialect=engine, engine_url=url)


@contextmanager
def open_model(
    policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig, concurrency: int = 1
) -> Iterator[Ask]:
    """Open the model or the endpoint, and yield a function that answers questions, `concurrency` of them concurrently.

    Raises InputError for a model that cannot be read.
    """
    if cfg.base_url:
        with _open_endpoint(policy, cfg, limits) as ask_endpoint:
            yield ask_endpoint
        return
    from jaxrl_sql.inference.policy_client import (  # slow: the errors so far are reported before
        check_turns,
        make_sampling_params,
        max_answer_tokens,
        open_policy_client,
        sample_answers,
        style_for,
    )
    from jaxrl_sql.inference.prompt_lengths import PromptShortener, positions_line
    from jaxrl_sql.models.ops.rng import Purpose

    # `num_asked`, the number of the next question, also selects its random numbers.
    data, slots, num_asked = policy.data, min(cfg.max_num_seqs, concurrency * cfg.samples), 0
    with (
        make_executor(limits, data.hide) as executor,
        open_policy_client(policy, executor, slots, Purpose.EVAL, max_answer_tokens(cfg.sampling)) as client,
    ):
        check_turns(client.recipe, cfg.sampling.turns)
        sampling = make_sampling_params(cfg.sampling, cfg.samples, policy.seed, client.stops(cfg.sampling.stop))
        tokenizer, positions = client.engine.tokenizer, client.engine.model.max_positions
        shortening = PromptShortener(data, lambda data: style_for(policy.recipe, data, tokenizer), tokenizer)

        def ask(questions: Sequence[Example]) -> list[Reply]:
            nonlocal num_asked
            examples = [replace(question, uid=f"question {num_asked + i}") for i, question in enumerate(questions)]
            pairs = _make_prompts(client, examples, shortening)
            if not pairs:
                return []
            longest_example, longest_prompt = max(pairs, key=lambda pair: len(pair[1].token_ids))
            free_positions = positions - len(longest_prompt.token_ids)
            fitted = sampling.within(free_positions)  # interactive use: truncate rather than refuse

            def explain_positions() -> str:
                return positions_line(longest_example, positions, sampling.longest, shortening)

            if free_positions < 1:
                raise InputError(explain_positions())
            answered = sample_answers(client, pairs, fitted, num_asked, cfg.sampling.turns)
            num_asked += len(pairs)
            is_truncated = any("length" in answer.finish_reasons for answer in answered)
            limit = explain_positions() if is_truncated and fitted.longest < sampling.longest else ""
            if error := next((answer.error for answer in answered if answer.error), ""):
                raise InputError(f"not answered: {error}")
            return [
                choose_reply(executor, example, candidates, cfg, limit)
                for example, candidates in zip(examples, answered, strict=True)
            ]

        yield ask


def _make_prompts(
    client: PolicyClient, examples: Sequence[Example], shortening: PromptShortener
) -> list[tuple[Example, Prompt]]:
    """Return the questions with their prompts; raises InputError, with settings that shorten it, for a long prompt."""
    from jaxrl_sql.inference.prompt_lengths import question_line
    from jaxrl_sql.text2sql.prompts.prompts import make_prompt

    pairs, max_tokens = [], shortening.data.max_prompt_tokens
    for example in examples:
        prompt = make_prompt(example, client.style, client.engine.tokenizer, max_tokens)
        if prompt is None:
            raise InputError(question_line(example, max_tokens, shortening))
        pairs.append((example, prompt))
    return pairs


@contextmanager
def _open_endpoint(policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig) -> Iterator[Ask]:
    """Open the endpoint of the section `evaluate`, and yield a function that asks it.

    Answers are not saved: their journal is in a temporary folder.
    """
    from jaxrl_sql.inference.endpoint_client import endpoint_answers
    from jaxrl_sql.text2sql.recipes import find_recipe

    recipe, data = find_recipe(policy.recipe), policy.data
    with TemporaryDirectory() as folder, make_executor(limits, data.hide) as executor:
        scratch_cfg = replace(cfg, out=folder)
        with endpoint_answers(scratch_cfg, recipe, data, executor, {}, lambda _line: None) as ask_all:
            numbers = count()

            def ask(questions: Sequence[Example]) -> list[Reply]:
                examples = [replace(question, uid=f"question {i}") for i, question in enumerate(questions)]
                answered = ask_all("ask", examples, next(numbers), 0, lambda _done, _all: None)
                if error := next((answer.error for answer in answered if answer.error), ""):
                    raise InputError(f"not answered: {error}")
                return [
                    choose_reply(executor, example, answers, cfg)
                    for example, answers in zip(examples, answered, strict=True)
                ]

            yield ask


class Asker:
    """A model in a separate thread, opened with the first question.

    JAX's current mesh belongs to a thread, so several open models have one each and the caller's does not change.
    """

    def __init__(self, policy: PolicySpec, cfg: EvaluateSettings, limits: ExecutorConfig, concurrency: int = 1) -> None:
        self._policy = policy
        self._open = partial(open_model, cfg=cfg, limits=limits, concurrency=concurrency)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="jaxrl_sql-model")
        self._stack = ExitStack()
        self._ask: Ask | None = None

    def answer(self, examples: Sequence[Example]) -> list[Reply]:
        """Return a reply per question; raises InputError for a model that cannot be read and an overlong prompt."""
        return self._thread.submit(self._answer, examples).result()

    def _answer(self, examples: Sequence[Example]) -> list[Reply]:
        with require_jax():
            if self._ask is None:
                prepare_process()
                self._ask = self._stack.enter_context(self._open(resolve_settings(self._policy)))
            return self._ask(examples)

    def close(self) -> None:
        """Release the model and its executor; a later question opens them again."""
        self._thread.submit(self._stack.close).result()
        self._ask = None


def choose_reply(
    executor: Executor, example: Example, answered: QuestionAnswers, cfg: EvaluateSettings, limit: str = ""
) -> Reply:
    """Run the SQL of the answers and choose one by vote.

    `limit` explains a truncation at the model's maximum number of positions ("": answers were not limited by it).
    """
    from jaxrl_sql.text2sql.evals.vote import ballots, choose

    ballot = ballots(executor, [example], [answered.sqls], cfg.vote)[0]
    choice = choose(ballot)
    counts = Counter(sql for sql in answered.sqls if sql is not None)
    outcomes = executor.execute_many([(example.database, sql) for sql in counts])
    candidates = [
        CandidateQuery(sql, count, _votes(ballot, answered.sqls.index(sql)), outcome)
        for (sql, count), outcome in zip(counts.items(), outcomes, strict=True)
    ]
    outcome = next((candidate.outcome for candidate in candidates if candidate.sql == choice.sql), None)
    ranked = sorted(candidates, key=lambda candidate: (candidate.sql != choice.sql, -candidate.votes))
    votes: dict[int, float] = {}
    for index, result in enumerate(ballot.results):
        if result >= 0:
            votes[result] = max(votes.get(result, 0.0), _votes(ballot, index))
    result_votes = tuple(sorted(votes.values(), reverse=True))
    response = answered.responses[choice.index]
    reason, note = _finish_note(answered, choice.index, cfg, limit)
    return Reply(choice.sql, outcome, response, tuple(ranked), len(answered.sqls), result_votes, reason, note)


def _finish_note(answered: QuestionAnswers, index: int, cfg: EvaluateSettings, limit: str) -> tuple[str, str]:
    """Return the finish reason of answer `index`, and a line on incomplete answers.

    The line is about answer `index` if that is incomplete, otherwise about the others; "" if all are complete.
    """
    from jaxrl_sql.text2sql.evals.endings import why_incomplete

    reasons = answered.finish_reasons
    tokens = answered.tokens if len(reasons) == 1 else 0
    after = f" after {quantity(tokens, 'tokens')}" if tokens else ""
    lines = []
    for reason in (reasons[index], *sorted(set(reasons))) if reasons else ():
        problem = why_incomplete(reason, cfg, tokens)
        if limit and reason == "length":
            problem = f"truncated{after}: {limit}"
        if problem:
            subject = (
                "the answer is"
                if reason == reasons[index]
                else f"{reasons.count(reason)} of {len(reasons)} answers {agree(reasons.count(reason), 'are')}"
            )
            lines.append(f"{subject} {problem}")
    return (reasons[index] if reasons else ""), next(iter(lines), "")


def _votes(ballot: Ballot, index: int) -> float:
    """Return the votes of a candidate's result: its count or its similarity to the others; 0 if the SQL failed."""
    if ballot.results[index] < 0:
        return 0.0
    if ballot.similarity is None:
        return float(ballot.results.count(ballot.results[index]))
    others = [i for i, result in enumerate(ballot.results) if result >= 0 and i != index]
    return float(ballot.similarity[index, others].sum())
