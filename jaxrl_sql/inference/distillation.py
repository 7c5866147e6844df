"""A teacher's reasoning: ask an endpoint for each training question's SQL, and keep right answers as traces."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import DataConfig, DistillSettings, ExecutorConfig, FilterSettings
from jaxrl_sql.inference.fingerprint import (
    as_asked,
    changed_since,
    digests,
    endpoint_settings,
    fingerprint,
    teacher_settings,
)
from jaxrl_sql.inference.training_set import sqlite_questions
from jaxrl_sql.runtime.budget import Budget, BudgetSpentError, Spent
from jaxrl_sql.runtime.display import Display, make_display
from jaxrl_sql.runtime.endpoint import Answer, Endpoint, budget_of, open_endpoint
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.env.tags import with_opened_thought
from jaxrl_sql.text2sql.evals.endings import cut_at, incomplete_warning
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.files.jsonl import write_lines
from jaxrl_sql.text2sql.prompts.chat import chat_messages
from jaxrl_sql.text2sql.prompts.prompts import PromptStyle, message_texts
from jaxrl_sql.text2sql.question_sets.filters import Dropped, by_gold
from jaxrl_sql.text2sql.question_sets.hiding import check_hide
from jaxrl_sql.text2sql.recipes import Recipe, find_recipe
from jaxrl_sql.types import CUT, Example, Fields, Record

RIGHT, FAILED, MALFORMED, TRUNCATED = "right", "failed", "malformed", "truncated"


class Distilled(NamedTuple):
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
) -> Distilled:
    """Ask the teacher until every question has its traces or was asked often enough, and write the files."""
    out, recipe = Path(cfg.out), find_recipe(recipe_name)
    style = recipe.endpoint_style(data)
    loaded = sqlite_questions(data, limits.databases)
    check_hide(data.hide, (example.db_path for example in loaded.examples))
    with (
        Journal(out / "answers.jsonl", trace_settings(recipe_name, data, limits, cfg)) as journal,
        open_endpoint(cfg, budget_of(cfg, Spent.total(journal.records))) as endpoint,
        make_executor(limits, data.hide) as executor,
    ):
        # What supervised learning imitates is SQLite's, and translated where another dialect is asked for.
        asked_for = [one if one.engine_url else dataclasses.replace(one, dialect="sqlite") for one in loaded.examples]
        examples, dropped = by_gold(executor, asked_for, FilterSettings())
        dropped += [Dropped(uid, reason) for uid, reason in loaded.skipped if data.hide]
        asked = digests(examples)
        if changed := changed_since(journal.records, asked):
            warn(changed)
        with make_display(display_kind, len(examples), out.name, unit="question") as display:
            spent = ask_until_done(endpoint, executor, (recipe, style), examples, asked, cfg, journal, display)
        records = as_asked(journal.records, asked)
        counts = write(out, cfg, examples, dropped, records, endpoint.budget)
    notes = []
    if counts["truncated"]:
        why = cut_at(f"distill.max_tokens={cfg.max_tokens}")
        notes.append(incomplete_warning(int(counts["truncated"]), len(records), why))
    if spent:
        notes.append(f"distill.{spent} is reached; a larger number continues")
    faults = Counter(record["error"] for record in records if record["verdict"] == FAILED)
    common = (f"{count} for this: {fault}" for fault, count in faults.most_common(1))
    unanswered = "".join(f"not answered: {faults.total()}, of which {line}" for line in common)
    return Distilled(counts, tuple(notes), unanswered, bool(records) and faults.total() == len(records))


def trace_settings(recipe: str, data: DataConfig, limits: ExecutorConfig, cfg: DistillSettings) -> Record:
    """Return what the answers and their verdicts depend on."""
    questions = {"questions": f"{data.dir}/{data.train}"}
    return fingerprint(questions | teacher_settings(cfg) | endpoint_settings(recipe, data), data, limits)


def ask_until_done(
    endpoint: Endpoint,
    executor: Executor,
    asked_as: tuple[Recipe, PromptStyle],
    examples: Sequence[Example],
    asked: Mapping[str, str],
    cfg: DistillSettings,
    journal: Journal,
    display: Display,
) -> str:
    """Ask each question until it has its traces or was asked often enough; return the bound that stopped it, or "".

    `asked` are the digests of the questions; answers to others of the same ids do not count.
    """
    recipe, style = asked_as
    options = {"temperature": cfg.temperature, cfg.token_limit: cfg.max_tokens}
    unreached: set[str] = set()
    records = as_asked(journal.records, asked)
    answered, shown_every = {record["id"] for record in records}, max(len(examples) // 100, 1)
    try:
        while left := unanswered(examples, records, cfg, unreached):
            questions = ((example, messages(example, style)) for example in left)
            for example, answer in endpoint.ask_all(questions, **options):
                record = {**judge(executor, recipe, style, example, answer), "asked": asked[example.uid]}
                journal.add(record)
                records.append(record)
                if record["verdict"] == FAILED:
                    unreached.add(example.uid)
                if example.uid not in answered and (len(answered) + 1) % shown_every == 0:
                    display.update(len(answered) + 1, endpoint.budget.shown())
                answered.add(example.uid)
    except BudgetSpentError:
        return endpoint.budget.limit
    return ""


def unanswered(
    examples: Sequence[Example], records: Sequence[Fields], cfg: DistillSettings, unreached: Collection[str]
) -> list[Example]:
    """Return the questions to ask once more: too few right answers, too few answers, and not `unreached` just now."""
    answered = Counter(record["id"] for record in records if record["verdict"] != FAILED)
    right = Counter(record["id"] for record in records if record["verdict"] == RIGHT)
    return [
        example
        for example in examples
        if right[example.uid] < cfg.wanted and answered[example.uid] < cfg.samples and example.uid not in unreached
    ]


def messages(example: Example, style: PromptStyle) -> list[dict[str, str]]:
    """Return the chat that asks: what the policy is asked too, without a template round it."""
    return chat_messages(style.system, "".join(message_texts(example, style)))


def judge(executor: Executor, recipe: Recipe, style: PromptStyle, example: Example, answer: Answer) -> Record:
    """Run what an answer holds and say what came of it: `right`, `wrong`, `failed` (no answer), or a status.

    A right one is `malformed` when it cannot be taught: a thought that quotes tags or fences is read back otherwise. It
    is `truncated`, and is not taught either, when the endpoint cut it.
    Reasoning is what the server gives beside the answer, else what the answer itself holds in the recipe's form.
    """
    about = {"id": example.uid, **answer.spent._asdict()}
    if answer.error:
        return {**about, "verdict": FAILED, "error": answer.error}
    reading = recipe.reading(with_opened_thought(answer.text), style)
    (found,) = score_predictions(executor, [example], [reading.sql])
    if not found.is_judged:
        return {**about, "verdict": FAILED, "error": f"no verdict: {found.status}"}
    verdict = RIGHT if found.is_right("bird") else "wrong" if found.executes else found.status
    reasoning = (answer.reasoning or reading.think).strip()
    if verdict == RIGHT and answer.finish_reason in CUT:
        verdict = TRUNCATED
    elif verdict == RIGHT and not is_teachable(recipe, example, reasoning, reading.sql or ""):
        verdict = MALFORMED
    said = {"finish_reason": answer.finish_reason, "reasoning": reasoning, "sql": reading.sql}
    return {**about, "verdict": verdict, **said, **({} if verdict == RIGHT else {"text": answer.text})}


def is_teachable(recipe: Recipe, example: Example, reasoning: str, sql: str) -> bool:
    """Return whether what supervised learning makes of a trace, in either tag of a thought, reads back as it.

    Without a thought only the SQL has to: some systems' form asks for one.
    """
    trace = dataclasses.replace(example, reasoning=reasoning, demonstration=sql)
    readings = [recipe.read(recipe.taught(trace, thinks=thinks)) for thinks in (False, True)]
    return all(back.sql == sql and (back.well_formed or not reasoning) for back in readings)


def write(
    out: Path,
    cfg: DistillSettings,
    examples: Sequence[Example],
    dropped: Sequence[Dropped],
    records: Sequence[Fields],
    budget: Budget,
) -> dict[str, float]:
    """Write the traces, what was rejected and why, and the counts, which are returned."""
    of: dict[str, list[Fields]] = {example.uid: [] for example in examples}
    for record in records:
        of.get(record["id"], []).append(record)
    traces: list[Record] = []
    shown = ("verdict", "finish_reason", "sql", "error")
    rejected: list[Record] = [{"id": one.uid, "reason": one.reason} for one in dropped]
    for uid, own in of.items():
        right = [one for one in own if one["verdict"] == RIGHT][: cfg.wanted]
        taught = ("id", "reasoning", "sql", "finish_reason")
        traces += [{**{name: record[name] for name in taught}, "model": cfg.model} for record in right]
        if not right:
            last = own[-1] if own else {"verdict": "not asked"}
            brief = [{name: one[name] for name in shown if name in one} for one in own]
            rejected.append({"id": uid, "reason": last["verdict"], "answers": brief})
    counts: dict[str, float] = {
        "questions": len(examples) + len(dropped),
        "traces": len(traces),
        "rejected": len(rejected),
        **budget.numbers(),
        "truncated": sum(record.get("finish_reason") == "length" for record in records),
        **{f"answers: {verdict}": n for verdict, n in Counter(one["verdict"] for one in records).most_common()},
    }
    write_lines(out / "traces.jsonl", traces)
    write_lines(out / "rejected.jsonl", rejected)
    (out / "counts.json").write_text(json.dumps(counts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return counts
