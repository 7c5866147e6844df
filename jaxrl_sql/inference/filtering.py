"""Select training questions: by text, gold execution, duplicates, prompt length, pass rate, then a subsample.

A gold is a question's reference query. The pass rate of a question is the share of the policy's answers that are right
by BIRD's comparison: their rows equal the gold's as a set.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import ExecutorConfig, FilterSettings, SamplingConfig
from jaxrl_sql.inference.compiling import report_compilations
from jaxrl_sql.inference.fingerprint import (
    checkpoint_settings,
    describe_changes,
    digests,
    fingerprint,
    select_unchanged,
    values_of,
)
from jaxrl_sql.inference.policy_client import (
    PolicyClient,
    make_sampling_params,
    max_answer_tokens,
    open_policy_client,
    sample_answers,
    style_for,
)
from jaxrl_sql.inference.policy_spec import PolicySpec
from jaxrl_sql.inference.training_set import training_questions
from jaxrl_sql.models.formats.hf import load_tokenizer
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.rollout import SamplingParams
from jaxrl_sql.runtime.journal import Journal
from jaxrl_sql.runtime.model_locator import with_chat_date
from jaxrl_sql.text2sql.env.executor import Executor, make_executor
from jaxrl_sql.text2sql.evals.endings import incomplete_warning, truncation_cause
from jaxrl_sql.text2sql.evals.score_predictions import score_predictions
from jaxrl_sql.text2sql.evals.tables import ReportTable
from jaxrl_sql.text2sql.files.jsonl import write_lines
from jaxrl_sql.text2sql.files.shares import one_in
from jaxrl_sql.text2sql.prompts.dialects import check_translation_support
from jaxrl_sql.text2sql.prompts.prompts import PromptSet, Pruning, make_prompts
from jaxrl_sql.text2sql.question_sets.filters import (
    DroppedQuestion,
    Filtered,
    by_choice,
    by_gold,
    by_pass_rate,
    by_prompt,
    by_text,
    without_repeats,
)
from jaxrl_sql.text2sql.question_sets.hiding import check_hide
from jaxrl_sql.types import Example, Fields, InputError, Record

PASS_RATES = "rates.jsonl"  # noqa: S105 - a file
# Number of questions per call of the engine; a killed run loses at most these.
_CHUNK = 128


class FilterResult(NamedTuple):
    """The size of a set, its chosen and dropped questions, a line on truncated answers, and the file of chosen ids."""

    name: str
    total: int
    examples: Sequence[Example]
    dropped: Sequence[DroppedQuestion]
    note: str
    path: Path


def filter_data(
    policy: PolicySpec,
    cfg: FilterSettings,
    sampling: SamplingConfig,
    limits: ExecutorConfig,
    report: Callable[[str], object] = lambda _: None,
    warn: Callable[[str], object] = lambda _: None,
) -> FilterResult:
    """Select questions and write the files; `report` gets progress lines, `warn` a line about changed questions."""
    out = Path(cfg.out)
    # If prompts include a date, a resumed command uses that of the first one.
    data = with_chat_date(policy.data, policy.model.checkpoint, out / PASS_RATES)
    policy = dataclasses.replace(policy, data=data)
    loaded = training_questions(data, limits.databases)
    check_hide(data.hide, (example.db_path for example in loaded.examples))
    check_translation_support(loaded.examples, limits.sqlite_version)
    out.mkdir(parents=True, exist_ok=True)
    dropped = [
        DroppedQuestion(uid, reason if reason.startswith("gold ") else f"cannot be read: {reason}")
        for uid, reason in loaded.skipped
    ]
    rates: list[Record] = []

    def record_dropped(filtered: Filtered) -> list[Example]:
        remaining, rejected = filtered
        dropped.extend(rejected)
        return remaining

    with make_executor(limits, data.hide) as executor:
        chosen_examples = record_dropped(by_text(loaded.examples, cfg))
        chosen_examples = record_dropped(by_gold(executor, chosen_examples, cfg))
        if cfg.repeats:
            chosen_examples = record_dropped(without_repeats(chosen_examples))
        if cfg.long_prompts or cfg.samples:
            questions = make_filter_prompts(policy, chosen_examples)
            chosen_examples = record_dropped(by_prompt(questions, data.max_prompt_tokens))
            if cfg.samples and chosen_examples:
                settings = pass_rate_settings(policy, cfg.samples, sampling, limits)
                with Journal(out / PASS_RATES, settings) as journal:
                    chosen = select_prompts(questions, chosen_examples)
                    rates = measure_pass_rates(policy, cfg.samples, sampling, executor, journal, chosen, report, warn)
                chosen_examples = record_dropped(
                    by_pass_rate(
                        chosen_examples, {rate["id"]: (rate["right"], rate["of"]) for rate in rates}, cfg.low, cfg.high
                    )
                )
        chosen_examples = record_dropped(
            by_choice(
                chosen_examples, one_in(chosen_examples, cfg.subsample_every), f"not one in {cfg.subsample_every}"
            )
        )
    write(out, chosen_examples, dropped, rates)
    total = len(loaded.examples) + len(loaded.skipped)
    note = ""
    if truncated := sum(rate["truncated"] for rate in rates):
        cause = truncation_cause(f"sampling.max_new_tokens above {sampling.max_new_tokens:,}")
        note = incomplete_warning(truncated, len(rates) * cfg.samples, cause)
    return FilterResult(data.train, total, chosen_examples, dropped, note, out / "kept.jsonl")


def make_filter_prompts(policy: PolicySpec, examples: Sequence[Example]) -> PromptSet:
    """Make the prompts of questions as in training, without a limit of length."""
    data = policy.data
    source = data.tokenizer.path or policy.model.checkpoint
    if not source:
        raise InputError("filter: prompt lengths require a tokenizer: name data.tokenizer.path or model.checkpoint")
    tokenizer = load_tokenizer(source)
    pruning = Pruning(data.max_prompt_tokens, policy.seed) if data.prune else None
    return make_prompts(examples, style_for(policy.recipe, data, tokenizer), tokenizer, sys.maxsize, pruning)


def select_prompts(questions: PromptSet, remaining: Sequence[Example]) -> PromptSet:
    """Return the prompts of the questions `remaining`."""
    ids = {example.uid for example in remaining}
    pairs = [pair for pair in zip(questions.examples, questions.prompts, strict=True) if pair[0].uid in ids]
    return PromptSet(tuple(example for example, _ in pairs), tuple(prompt for _, prompt in pairs), ())


def measure_pass_rates(
    policy: PolicySpec,
    samples: int,
    sampling: SamplingConfig,
    executor: Executor,
    journal: Journal,
    questions: PromptSet,
    report: Callable[[str], object],
    warn: Callable[[str], object],
) -> list[Record]:
    """Sample `samples` answers per question from the policy; return a record per question with its right answers.

    A record has the question's `id`, and the numbers of answers that are `right`, that have a verdict (`of`), and that
    are `truncated` at the token limit. Records in the journal of an earlier run are reused, except those of questions
    whose database failed for some answers. `questions` has the prompts.
    """
    question_digests = digests(questions.examples)
    if changed := describe_changes(journal.records, question_digests):
        warn(changed)
    records = select_unchanged(journal.records, question_digests)
    finished = {record["id"] for record in records if record["of"] == samples}
    starts = [
        start
        for start in range(0, len(questions.examples), _CHUNK)
        if any(example.uid not in finished for example in questions.examples[start : start + _CHUNK])
    ]
    if starts:
        slots, longest = policy.rollout.max_num_seqs, max_answer_tokens(sampling)
        with (
            report_compilations(report),
            open_policy_client(policy, executor, slots, Purpose.DATA, longest) as client,
        ):
            params = make_sampling_params(sampling, samples, policy.seed, client.stops(sampling.stop))
            for start in starts:
                for record in _measure_chunk(client, questions, start, params, sampling.turns):
                    if record["id"] not in finished:
                        journal.add({**record, "asked": question_digests[record["id"]]})
                report(f"answered {min(start + _CHUNK, len(questions.examples))} questions")
    return [*{record["id"]: record for record in select_unchanged(journal.records, question_digests)}.values()]


def pass_rate_settings(policy: PolicySpec, samples: int, sampling: SamplingConfig, limits: ExecutorConfig) -> Record:
    """Return the settings that the answers and their verdicts depend on."""
    data = policy.data
    settings = {
        "questions": f"{data.dir}/{data.train}",
        "seed": policy.seed,
        "filter.samples": samples,
        **values_of(sampling, "sampling"),
        **values_of(data.dialects, "data.dialects"),
        "data.prune": data.prune,
        **({"data.max_prompt_tokens": data.max_prompt_tokens} if data.prune else {}),
        **checkpoint_settings(policy.recipe, data, policy.model),
    }
    return fingerprint(settings, data, limits)


def _measure_chunk(
    client: PolicyClient, questions: PromptSet, start: int, sampling: SamplingParams, turns: int
) -> list[Record]:
    """Answer the chunk of questions from index `start`, and count right answers.

    The random numbers depend on the seed and the number of the chunk, so a resumed run gives the same answers.
    """
    examples, prompts = questions.examples[start : start + _CHUNK], questions.prompts[start : start + _CHUNK]
    pairs = list(zip(examples, prompts, strict=True))
    answered = sample_answers(client, pairs, sampling, start // _CHUNK, turns)
    for error in (answer.error for answer in answered if answer.error):
        raise InputError(f"sampling: {error}")
    predictions = [(example, sql) for example, answer in zip(examples, answered, strict=True) for sql in answer.sqls]
    verdicts = score_predictions(
        client.executor, [example for example, _ in predictions], [sql for _, sql in predictions]
    )
    right = Counter(verdict.uid for verdict in verdicts if verdict.is_right("bird"))
    judged = Counter(verdict.uid for verdict in verdicts if verdict.is_judged)
    return [
        {
            "id": example.uid,
            "right": right[example.uid],
            "of": judged[example.uid],
            "truncated": answer.finish_reasons.count("length"),
        }
        for example, answer in zip(examples, answered, strict=True)
    ]


def write(out: Path, remaining: Sequence[Example], dropped: Sequence[DroppedQuestion], rates: Sequence[Fields]) -> None:
    """Write kept.jsonl, dropped.jsonl and counts.json."""
    write_lines(out / "kept.jsonl", [{"id": example.uid} for example in remaining])
    write_lines(
        out / "dropped.jsonl",
        [{"id": question.uid, "reason": question.reason, **question.numbers} for question in dropped],
    )
    right = Counter(f"{rate['right']}/{rate['of']}" for rate in rates)
    counts = {
        "questions": len(remaining) + len(dropped),
        "kept": len(remaining),
        "dropped": dict(Counter(question.reason for question in dropped)),
        "right": dict(sorted(right.items(), key=lambda pair: int(pair[0].partition("/")[0]))),
        "truncated": sum(rate["truncated"] for rate in rates),
    }
    (out / "counts.json").write_text(json.dumps(counts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def table(result: FilterResult) -> ReportTable:
    """Return a table of the dropped questions per reason, in the order of the filters."""
    reasons = Counter(question.reason for question in result.dropped)
    rows = [(f"{result.name}: questions", result.total), *reasons.items(), ("kept", len(result.examples))]
    cells = ((word, f"{count:,}", f"{100 * count / max(result.total, 1):.1f} %") for word, count in rows)
    return ReportTable("", ("", "count", "share"), tuple(cells))
