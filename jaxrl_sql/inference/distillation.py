"""Distillation: ask a teacher endpoint for each training question's SQL, and save right answers as traces.

The teacher is a model behind a server. A trace is the reasoning and the SQL of a right answer, a target of supervised
learning. An answer is right by BIRD's comparison: its rows equal the gold's (the reference query's) as a set. A recipe
is the prompt and the parsing of a published system.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import DataConfig, DistillSettings, ExecutorConfig, FilterSettings
from jaxrl_sql.inference.fingerprint import (
    describe_changes,
    digests,
    endpoint_settings,
    fingerprint,
    select_unchanged,
    teacher_settings,
)
from jaxrl_sql.inference.training_set import sqlite_questions
from jaxrl_sql.runtime.budget import Budget, BudgetSpentError, Usage
from jaxrl_sql.runtime.display import Display, make_display
from jaxrl_sql.runtime.endpoint import Endpoint, EndpointAnswer, make_budget, open_endpoint
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.env.tags import with_opened_thought
from jaxrl_sql.text2sql.evals.endings import incomplete_warning, truncation_cause
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.files.jsonl import write_lines
from jaxrl_sql.text2sql.prompts.prompts import message_texts
from jaxrl_sql.text2sql.prompts.styles import PromptStyle
from jaxrl_sql.text2sql.question_sets.filters import DroppedQuestion, by_gold
from jaxrl_sql.text2sql.question_sets.hiding import check_hide
from jaxrl_sql.text2sql.recipes import Recipe, find_recipe
from jaxrl_sql.types import TRUNCATED_REASONS, Example, Fields, Record

# Verdicts on answers, see `judge`.
RIGHT, FAILED, MALFORMED, TRUNCATED = "right", "failed", "malformed", "truncated"


class DistillResult(NamedTuple):
    """The counts of a distillation, lines on incomplete answers and the spent budget, and a line on unanswered ones.

    `has_failed`: no question was answered at all.
    """

    counts: Mapping[str, float]
    notes: tuple[str, ...]
    unanswered: str
    has_failed: bool


def distill(
    recipe_name: str,
    data: DataConfig,
    limits: ExecutorConfig,
    cfg: DistillSettings,
    display_kind: str,
    warn: Callable[[str], object],
) -> DistillResult:
    """Ask the teacher until each question has `distill.wanted` traces or `distill.samples` answers; write the files."""
    out, recipe = Path(cfg.out), find_recipe(recipe_name)
    style = recipe.endpoint_style(data)
    loaded = sqlite_questions(data, limits.databases)
    check_hide(data.hide, (example.db_path for example in loaded.examples))
    with (
        Journal(out / "answers.jsonl", trace_settings(recipe_name, data, limits, cfg)) as journal,
        open_endpoint(cfg, make_budget(cfg, Usage.total(journal.records))) as endpoint,
        make_executor(limits, data.hide) as executor,
    ):
        # Traces are in SQLite's dialect; supervised learning translates them for other dialects.
        questions = [
            example if example.engine_url else dataclasses.replace(example, dialect="sqlite")
            for example in loaded.examples
        ]
        examples, dropped = by_gold(executor, questions, FilterSettings())
        dropped += [DroppedQuestion(uid, reason) for uid, reason in loaded.skipped if data.hide]
        question_digests = digests(examples)
        if changed := describe_changes(journal.records, question_digests):
            warn(changed)
        with make_display(display_kind, len(examples), out.name, unit="question") as display:
            reached_limit = ask_until_done(
                endpoint, executor, (recipe, style), examples, question_digests, cfg, journal, display
            )
        records = select_unchanged(journal.records, question_digests)
        counts = write(out, cfg, examples, dropped, records, endpoint.budget)
    notes = []
    if counts["truncated"]:
        cause = truncation_cause(f"distill.max_tokens above {cfg.max_tokens:,}")
        notes.append(incomplete_warning(int(counts["truncated"]), len(records), cause))
    if reached_limit:
        notes.append(f"distill.{reached_limit} is reached; a larger number continues")
    errors = Counter(record["error"] for record in records if record["verdict"] == FAILED)
    most_common = (f"{count} because of: {error}" for error, count in errors.most_common(1))
    unanswered = "".join(f"not answered: {errors.total()}, of which {line}" for line in most_common)
    return DistillResult(counts, tuple(notes), unanswered, bool(records) and errors.total() == len(records))


def trace_settings(recipe: str, data: DataConfig, limits: ExecutorConfig, cfg: DistillSettings) -> Record:
    """Return the settings that the answers and their verdicts depend on."""
    questions = {"questions": f"{data.dir}/{data.train}"}
    return fingerprint(questions | teacher_settings(cfg) | endpoint_settings(recipe, data), data, limits)


def ask_until_done(
    endpoint: Endpoint,
    executor: Executor,
    prompting: tuple[Recipe, PromptStyle],
    examples: Sequence[Example],
    question_digests: Mapping[str, str],
    cfg: DistillSettings,
    journal: Journal,
    display: Display,
) -> str:
    """Ask each question until it has `distill.wanted` traces or `distill.samples` answers.

    Return the name of the budget's limit if it was reached, else "". `prompting` is the recipe and the style of its
    prompts. `question_digests` (by id) detect changed questions: earlier answers in the journal to another question
    with the same id do not count.
    """
    recipe, style = prompting
    options = {"temperature": cfg.temperature, cfg.token_limit: cfg.max_tokens}
    failed_ids: set[str] = set()
    records = select_unchanged(journal.records, question_digests)
    answered, shown_every = {record["id"] for record in records}, max(len(examples) // 100, 1)
    try:
        while pending := find_unanswered(examples, records, cfg, failed_ids):
            requests = ((example, messages(example, style)) for example in pending)
            for example, answer in endpoint.ask_all(requests, **options):
                record = {**judge(executor, recipe, style, example, answer), "asked": question_digests[example.uid]}
                journal.add(record)
                records.append(record)
                if record["verdict"] == FAILED:
                    failed_ids.add(example.uid)
                if example.uid not in answered and (len(answered) + 1) % shown_every == 0:
                    display.update(len(answered) + 1, endpoint.budget.as_metrics())
                answered.add(example.uid)
    except BudgetSpentError:
        return endpoint.budget.reached_limit
    return ""


def find_unanswered(
    examples: Sequence[Example], records: Sequence[Fields], cfg: DistillSettings, failed_ids: Collection[str]
) -> list[Example]:
    """Return the questions to ask again.

    These have too few right answers, fewer answers than `distill.samples`, and no failed request in this call.
    """
    answered = Counter(record["id"] for record in records if record["verdict"] != FAILED)
    right = Counter(record["id"] for record in records if record["verdict"] == RIGHT)
    return [
        example
        for example in examples
        if right[example.uid] < cfg.wanted and answered[example.uid] < cfg.samples and example.uid not in failed_ids
    ]


def messages(example: Example, style: PromptStyle) -> list[dict[str, str]]:
    """Return the chat messages of a question: the policy's prompt without a chat template."""
    return message_texts(example, style).messages()


def judge(executor: Executor, recipe: Recipe, style: PromptStyle, example: Example, answer: EndpointAnswer) -> Record:
    """Run the SQL of an answer and return its record; the verdict is `right`, `wrong`, `failed` or a status.

    `failed` means that the request failed, or that the database did, so that it may be repeated. A right answer is
    `malformed` if its reasoning quotes tags or fences, because a training target of it would be parsed differently. It
    is `truncated` if it reached the token limit. Neither becomes a target. The reasoning is the server's separate
    field, else that in the answer in the recipe's form.
    """
    common_fields = {"id": example.uid, **answer.spent._asdict()}
    if answer.error:
        return {**common_fields, "verdict": FAILED, "error": answer.error}
    parsed = recipe.parse(with_opened_thought(answer.text), style)
    (judgement,) = score_predictions(executor, [example], [parsed.sql])
    if not judgement.is_judged:
        return {**common_fields, "verdict": FAILED, "error": f"no verdict: {judgement.status}"}
    verdict = RIGHT if judgement.is_right("bird") else "wrong" if judgement.executes else judgement.status
    reasoning = (answer.reasoning or parsed.think).strip()
    if verdict == RIGHT and answer.finish_reason in TRUNCATED_REASONS:
        verdict = TRUNCATED
    elif verdict == RIGHT and not is_teachable(recipe, example, reasoning, parsed.sql or ""):
        verdict = MALFORMED
    answer_fields = {"finish_reason": answer.finish_reason, "reasoning": reasoning, "sql": parsed.sql}
    return {**common_fields, "verdict": verdict, **answer_fields, **({} if verdict == RIGHT else {"text": answer.text})}


def is_teachable(recipe: Recipe, example: Example, reasoning: str, sql: str) -> bool:
    """Return whether a trace as a target of supervised learning is parsed back to the same SQL.

    It must be with the recipe's own tag of reasoning, and with `<think>`, the tag of reasoning models. It must also be
    well formed, except without reasoning, because the form of some systems requires reasoning.
    """
    trace = dataclasses.replace(example, reasoning=reasoning, demonstration=sql)
    parsed_targets = [recipe.read(recipe.target_response(trace, thinks=thinks)) for thinks in (False, True)]
    return all(parsed.sql == sql and (parsed.well_formed or not reasoning) for parsed in parsed_targets)


def write(
    out: Path,
    cfg: DistillSettings,
    examples: Sequence[Example],
    dropped: Sequence[DroppedQuestion],
    records: Sequence[Fields],
    budget: Budget,
) -> dict[str, float]:
    """Write the traces, the rejected questions with reasons, and the counts; return the counts."""
    records_by_id: dict[str, list[Fields]] = {example.uid: [] for example in examples}
    for record in records:
        records_by_id.get(record["id"], []).append(record)
    traces: list[Record] = []
    reported_fields = ("verdict", "finish_reason", "sql", "error")
    rejected: list[Record] = [{"id": question.uid, "reason": question.reason} for question in dropped]
    for uid, answers in records_by_id.items():
        right = [answer for answer in answers if answer["verdict"] == RIGHT][: cfg.wanted]
        fields = ("id", "reasoning", "sql", "finish_reason")
        traces += [{**{name: record[name] for name in fields}, "model": cfg.model} for record in right]
        if not right:
            last = answers[-1] if answers else {"verdict": "not asked"}
            summaries = [{name: answer[name] for name in reported_fields if name in answer} for answer in answers]
            rejected.append({"id": uid, "reason": last["verdict"], "answers": summaries})
    counts: dict[str, float] = {
        "questions": len(examples) + len(dropped),
        "traces": len(traces),
        "rejected": len(rejected),
        **budget.numbers(),
        "truncated": sum(record.get("finish_reason") == "length" for record in records),
        **{f"answers: {verdict}": n for verdict, n in Counter(record["verdict"] for record in records).most_common()},
    }
    write_lines(out / "traces.jsonl", traces)
    write_lines(out / "rejected.jsonl", rejected)
    (out / "counts.json").write_text(json.dumps(counts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return counts
