"""Verbal RL on a split: a model writes candidates for each question and chooses among them (PaVeRL-SQL).

A candidate is a query that runs and returns rows (`judging`). Every answer of the model is recorded in a journal, the
file ANSWERS in the output folder. A killed run that is started again takes the recorded answers from it (`replay`).
"""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import DatabasesConfig, DataConfig, EndpointConfig, ExecutorConfig, VerbalSettings
from jaxrl_sql.inference.fingerprint import (
    checkpoint_settings,
    digests,
    effort_settings,
    endpoint_settings,
    fingerprint,
    values_of,
)
from jaxrl_sql.inference.policy_client import open_policy_client
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.training_set import load_split_questions, make_synthetic
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.rollout import SamplingParams
from jaxrl_sql.runtime.budget import Budget, BudgetSpentError, Usage
from jaxrl_sql.runtime.control_tokens import ControlTokens, prepend_begin_token, strip_marks
from jaxrl_sql.runtime.display import Display, make_display
from jaxrl_sql.runtime.endpoint import make_budget, open_endpoint
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.runtime.model_locator import find_trained, prompt_differences, with_chat_date
from jaxrl_sql.runtime.progress import agree, quantity
from jaxrl_sql.text2sql.benchmarks import Benchmark, summarize_skipped
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.evals.choices import SelectedQuery, compare_choices, table
from jaxrl_sql.text2sql.evals.endings import ending_metrics, finish_reasons, incomplete_warning, truncation_cause
from jaxrl_sql.text2sql.evals.tables import ReportTable
from jaxrl_sql.text2sql.files.jsonl import write_lines
from jaxrl_sql.text2sql.prompts.chat import THINKING, chat_messages, render_chat
from jaxrl_sql.text2sql.prompts.prompts import make_prompts, message_texts, select_schema
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.question_sets.filters import keep_only
from jaxrl_sql.text2sql.question_sets.hiding import check_hide
from jaxrl_sql.text2sql.recipes import Recipe, find_recipe
from jaxrl_sql.training.verbal.judging import (
    CANDIDATES,
    JUDGE,
    SCORES_END,
    JudgeChoice,
    JudgingConfig,
    VerbalPolicy,
    VerbalQuestion,
    choose_by_judging,
)
from jaxrl_sql.training.verbal.replay import Memory, UnreachableError, endpoint_asker, engine_asker
from jaxrl_sql.types import Example, Fields, InputError, JaxrlSqlError, Prompt, Record

ANSWERS = "answers.jsonl"
_SHOWN_EVERY_S = 10.0
_MAX_NAMED = 3  # unfinished questions that a message names
_COUNTS = ("attempts", "unanswered", "without_sql", "failed", "empty")
"""The counts of `JudgeCandidates` that records and metrics contain."""


class VerbalModel(NamedTuple):
    """The policy, the recipe and style that read its answers, and `prompts`, which makes the prompts of questions."""

    policy: VerbalPolicy
    recipe: Recipe
    style: PromptStyle
    prompts: Callable[[Sequence[Example]], Sequence[str | Prompt]]


@dataclasses.dataclass
class VerbalRun:
    """A run: its settings, questions, executor, budget and display.

    `memory` has the model's answers so far, from the journal and from this process. `finished` has the records of the
    finished questions by id. `last_update` is the time of the last update of the display.
    """

    policy: PolicySpec
    cfg: VerbalSettings
    examples: Sequence[Example]
    executor: Executor
    memory: Memory
    budget: Budget
    display: Display
    finished: dict[str, Fields]
    last_update: float = 0.0

    @property
    def pending(self) -> list[Example]:
        """Return the questions that are not finished."""
        return [example for example in self.examples if example.uid not in self.finished]

    def show(self, now: bool = False) -> None:
        """Show the progress if the last update was some seconds ago, or always with `now`."""
        if now or time.monotonic() - self.last_update > _SHOWN_EVERY_S:
            self.last_update = time.monotonic()
            num_finished = len(self.examples) - len(self.pending)
            spent = dataclasses.replace(self.budget, spent=self.memory.total)
            self.display.update(num_finished, spent.as_metrics())


class VerbalResult(NamedTuple):
    """The result of a run.

    - `table` has the accuracy of the judge's choice and of other ways to choose.
    - `notes` are lines on costs, truncated answers and unfinished questions, for printing.
    - `unanswered` is a line on attempts without an answer, or "". `has_failed` is True if no attempt was answered.
    - `stopped` is the error that stopped the run before all questions were asked, if any.
    - `path` is the file with the metrics.
    """

    table: ReportTable
    notes: tuple[str, ...]
    unanswered: str
    stopped: JaxrlSqlError | None
    path: Path
    has_failed: bool


def verbal(policy: PolicySpec, cfg: VerbalSettings, limits: ExecutorConfig, display_kind: str) -> VerbalResult:
    """Choose an answer to every question, write the files, and compare the choice with other ways to choose.

    The model is an endpoint if `cfg.base_url` is set, else the checkpoint of `policy`. `limits` are the executor's.
    """
    out, trained = Path(cfg.out), None
    if not cfg.base_url:
        checkpoint, trained = find_trained(policy.model.checkpoint)
        policy = dataclasses.replace(
            policy,
            model=dataclasses.replace(policy.model, checkpoint=str(checkpoint)),
            # The date that a chat template prints: that of the journal if it exists, so that prompts stay the same.
            data=with_chat_date(policy.data, str(checkpoint), out / ANSWERS),
        )
    data = policy.data
    loaded = load_questions(data, limits.databases, cfg.include_ids)
    check_hide(data.hide, (example.db_path for example in loaded.examples))
    # Candidates run unchanged, so questions without a server are answered in SQLite's dialect.
    examples = [
        example if example.engine_url else dataclasses.replace(example, dialect="sqlite") for example in loaded.examples
    ]
    with (
        Journal(out / ANSWERS, choice_settings(policy, cfg, limits)) as journal,
        make_executor(limits, data.hide) as executor,
    ):
        memory = Memory(journal, digests(examples))
        finished = {outcome["id"]: outcome for record in journal.records if (outcome := record.get("finished"))}
        stopped: JaxrlSqlError | None = None
        with make_display(display_kind, len(examples), out.name, unit="question") as display:
            for line in summarize_skipped(loaded.skipped, loaded.lines):
                display.note(line)
            for setting in prompt_differences(policy.recipe, data, trained) if trained else ():
                display.note(f"the model was trained with other prompt settings: {setting}")
            budget = make_budget(cfg, memory.total)
            run = VerbalRun(policy, cfg, examples, executor, memory, budget, display, finished)
            if run.pending:
                with open_model(run) as model:
                    stopped = choose(run, model)
        run.budget.spent = memory.total
        metrics = write_results(out, run, loaded)
    unanswered = ""
    if metrics["unanswered"]:
        cause = next((f": {record['error']}" for record in reversed(journal.records) if record.get("error")), "")
        attempts = f"{quantity(int(metrics['unanswered']), 'attempts', 'were')} not answered"
        unanswered = f"{attempts}; {out / 'records.jsonl'} names them{cause}"
    is_spent = isinstance(stopped, BudgetSpentError)
    return VerbalResult(
        table=table(metrics, loaded.rule),
        notes=(run.budget.text(), *_truncation_lines(cfg, run.finished.values()), *_unfinished_lines(run, is_spent)),
        unanswered=unanswered,
        stopped=None if is_spent else stopped,
        path=out / "metrics.json",
        has_failed=0 < metrics["attempts"] == metrics["unanswered"],
    )


def load_questions(data: DataConfig, databases: DatabasesConfig, include_ids: str) -> Benchmark:
    """Load the questions of the single split in `data.evals`; synthetic data are generated first.

    `include_ids` is a file with the ids of the questions to load, or "" for all.
    """
    if len(data.evals) != 1:
        raise InputError(f"verbal answers one set at a time: data.evals={data.evals} names {len(data.evals)}")
    make_synthetic(data)
    if not include_ids:
        return load_split_questions(data, data.evals[0], data.select.limit_eval, databases)
    questions = load_split_questions(data, data.evals[0], 0, databases)
    return questions._replace(examples=tuple(keep_only(questions.examples, include_ids, data.select.limit_eval)))


def choice_settings(policy: PolicySpec, cfg: VerbalSettings, limits: ExecutorConfig) -> Record:
    """Return the settings that answers depend on; a journal that has answers under other settings is refused."""
    data = policy.data
    without_effect = {field.name for field in dataclasses.fields(EndpointConfig)} | {
        "out",
        "batch",
        "surplus_columns",
        "include_ids",
    }
    settings = {"questions": f"{data.dir}/{data.evals[0]}", "seed": policy.seed}
    settings |= values_of(cfg, "verbal", exclude=without_effect)
    if cfg.base_url:
        settings |= {"verbal.model": cfg.model} | endpoint_settings(policy.recipe, data)
        settings |= effort_settings(cfg, "verbal")
    else:
        settings |= checkpoint_settings(policy.recipe, data, policy.model)
    return fingerprint(settings, data, limits)


@contextmanager
def open_model(run: VerbalRun) -> Iterator[VerbalModel]:
    """Open the endpoint or the checkpoint; requests whose answers are in the journal do not reach it."""
    spec, cfg = run.policy, run.cfg
    sampling = SamplingParams(temperature=cfg.temperature, max_new_tokens=cfg.max_tokens, seed=spec.seed)
    judge_sampling = SamplingParams(
        temperature=cfg.judge_temperature, max_new_tokens=cfg.judge_max_tokens, seed=spec.seed
    )
    if cfg.base_url:
        recipe = find_recipe(spec.recipe)
        style = recipe.endpoint_style(spec.data)

        def join_messages(examples: Sequence[Example]) -> Sequence[str]:
            chats = (message_texts(example, style).messages() for example in examples)
            # A request is one text, so a system message becomes its beginning.
            return ["\n\n".join(message["content"] for message in chat) for chat in chats]

        with open_endpoint(cfg, run.budget) as endpoint:
            ask = endpoint_asker(endpoint, run.memory, cfg.token_limit, run.show)
            policy = VerbalPolicy(ask, sampling, judge_sampling)
            yield VerbalModel(policy, recipe, style, join_messages)
        return
    longest = max(cfg.max_tokens, cfg.judge_max_tokens)
    with open_policy_client(spec, run.executor, spec.rollout.max_num_seqs, Purpose.EVAL, longest) as client:
        style, tokenizer = client.style, client.engine.tokenizer
        control = ControlTokens(tokenizer)

        def prompts(examples: Sequence[Example]) -> Sequence[Prompt]:
            return make_prompts(examples, style, tokenizer, sys.maxsize).prompts  # no prompt is too long

        policy = VerbalPolicy(
            engine_asker(client.engine, run.memory),
            dataclasses.replace(sampling, stop=client.stops(cfg.stop)),
            dataclasses.replace(judge_sampling, stop=(SCORES_END,)),
            lambda text: judge_prompt(text, spec.data, control),
            control.escape,
        )
        yield VerbalModel(policy, client.recipe, style, prompts)


def judge_prompt(text: str, data: DataConfig, control: ControlTokens) -> Prompt:
    """Return a judge's text as a prompt: a chat, or plain text if the policy's prompts are not chats.

    The text may contain marked names of control tokens (`ControlTokens.escape`), which are encoded as plain text.
    """
    if data.is_chat:
        text = render_chat(control.tokenizer, chat_messages("", text), THINKING[data.chat.thinking], "", data.chat.date)
    else:
        text = prepend_begin_token(control.tokenizer, text)
    return Prompt("judge", tuple(control.encode(text)), strip_marks(text))


def choose(run: VerbalRun, model: VerbalModel) -> JaxrlSqlError | None:
    """Answer the questions in batches of `verbal.batch`; return the error that stopped the run, or None.

    If the model answers no request on some questions of a batch, these are left for a later run. If it answers no
    request on any of several questions, or the budget is spent, the run stops.
    """
    size = run.cfg.batch
    for start in range(0, len(run.examples), size):
        todo = [example for example in run.examples[start : start + size] if example.uid not in run.finished]
        while todo:
            try:
                _finish(run, model, todo)
                break
            except BudgetSpentError as error:
                return error
            except UnreachableError as error:
                if len(todo) > 1 and error.uids >= {example.uid for example in todo}:  # no question was answered
                    return error
                run.display.note(f"left for a later run: {', '.join(sorted(error.uids))}: {error}")
                todo = [example for example in todo if example.uid not in error.uids]
        run.show(now=True)
    return None


def _finish(run: VerbalRun, model: VerbalModel, todo: Sequence[Example]) -> None:
    """Choose an answer to each of the questions `todo` and add its record to the journal."""
    cfg = run.cfg
    questions = [
        VerbalQuestion(example.uid, prompt, example.database, _judge_context(example, model.style))
        for example, prompt in zip(todo, model.prompts(todo), strict=True)
    ]
    choices = choose_by_judging(
        model.policy,
        run.executor,
        questions,
        lambda text: model.recipe.parse(text, model.style).sql,
        JudgingConfig(cfg.candidates, cfg.attempts, cfg.rounds, cfg.normalise),
    )
    for example, choice in zip(todo, choices, strict=True):
        record = _record(example, choice, run.memory)
        run.memory.journal.add({"finished": record})
        run.finished[example.uid] = record


def _judge_context(example: Example, style: PromptStyle) -> str:
    """Return the judge's context: the schema as in the candidates' prompt, and the question."""
    evidence = f"External knowledge: {example.evidence}\n" if example.evidence else ""
    schema = style.show(example, select_schema(example, style))
    if style.is_chat:
        schema = f"Here is a database, and a question about it.\n\nDatabase schema:\n{schema}"
    return f"{schema.strip()}\n\n{evidence}Question: {example.question}"


def _record(example: Example, choice: JudgeChoice, memory: Memory) -> Record:
    """Return a finished question's line in `records.jsonl`."""
    spent = memory.spent.get(example.uid, Usage())
    candidates = choice.candidates
    scores = choice.scores or (None,) * len(candidates.distinct)
    return {
        "id": example.uid,
        "question": example.question,
        "sql": choice.sql,
        "candidates": [
            {"sql": candidate.sql, "copies": candidate.copies, "score": score}
            for candidate, score in zip(candidates.distinct, scores, strict=True)
        ],
        "replies": [list(reply) for reply in choice.replies],
        "unread": choice.unread,
        **{name: getattr(candidates, name) for name in _COUNTS},
        "finish_reasons": memory.finish_reasons(example.uid),
        "spent": spent._asdict(),
    }


def write_results(out: Path, run: VerbalRun, loaded: Benchmark) -> dict[str, float]:
    """Write predictions, records and metrics of the finished questions; return the metrics."""
    finished_examples = [example for example in run.examples if example.uid in run.finished]
    records = [run.finished[example.uid] for example in finished_examples]
    chosen = [
        SelectedQuery(
            example,
            record["sql"],
            tuple(candidate["sql"] for candidate in record["candidates"]),
            tuple(candidate["copies"] for candidate in record["candidates"]),
        )
        for example, record in zip(finished_examples, records, strict=True)
    ]
    metrics: dict[str, float] = {}
    if chosen:
        surplus = run.cfg.surplus_columns
        metrics = compare_choices(run.executor, chosen, loaded.rule, loaded.prepare, surplus)
    metrics |= {name: sum(record[name] for record in records) for name in (*_COUNTS, "unread")}
    metrics |= {
        "candidates": sum(len(record["candidates"]) for record in records),
        "replies": sum(len(record["replies"]) for record in records),
        "truncated": ending_metrics(_finish_reasons(records, CANDIDATES)).get("truncated", 0.0),
        "truncated/judge": ending_metrics(_finish_reasons(records, JUDGE)).get("truncated", 0.0),
        "unfinished": len(run.examples) - len(finished_examples),
        "skipped": len(loaded.skipped),
        **run.budget.numbers(),
    }
    write_lines(out / "predictions.jsonl", [{"id": record["id"], "sql": record["sql"]} for record in records])
    write_lines(out / "records.jsonl", records)
    (out / "metrics.json").write_text(json.dumps(metrics, indent=2) + "\n", encoding="utf-8")
    return metrics


def _truncation_lines(cfg: VerbalSettings, records: Collection[Fields]) -> Iterator[str]:
    """Yield a line each on truncated answers and on truncated replies of the judge, with the setting to raise."""
    stages = (
        (CANDIDATES, "answers", f"verbal.max_tokens above {cfg.max_tokens:,}"),
        (JUDGE, "judge's replies", f"verbal.judge_max_tokens above {cfg.judge_max_tokens:,}"),
    )
    for stage, noun, setting in stages:
        reasons = _finish_reasons(records, stage)
        if count := reasons["length"]:
            yield incomplete_warning(count, reasons.total(), truncation_cause(setting), noun)


def _finish_reasons(records: Iterable[Fields], stage: str) -> Counter[str]:
    """Count the answers of a stage by finish reason."""
    counts_of_stage = (record["finish_reasons"].get(stage) for record in records)
    return finish_reasons({"finish_reasons": counts} for counts in counts_of_stage if counts)


def _unfinished_lines(run: VerbalRun, is_spent: bool) -> Iterator[str]:
    """Yield a line on unfinished questions, and one on how to resume if the budget is spent."""
    if run.pending:
        names = ", ".join(example.uid for example in run.pending[:_MAX_NAMED])
        subject = f"{len(run.pending)} of {len(run.examples)} questions {agree(len(run.pending), 'are')}"
        yield f"{subject} not finished, such as {names}"
    if is_spent:
        yield f"verbal.{run.budget.reached_limit} is reached; a larger number continues"
