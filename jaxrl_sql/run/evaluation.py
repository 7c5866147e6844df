"""Greedy execution accuracy during training: one answer a question, run and compared with the gold."""

from __future__ import annotations

import dataclasses
import itertools
import time
from typing import Any

from jaxrl_sql.data.prompts import PromptSet
from jaxrl_sql.evals.execution import ExecutionRecord, ExecutionSummary, execution_accuracy, summarize
from jaxrl_sql.ops.rng import Purpose
from jaxrl_sql.parallel.processes import exchange, share
from jaxrl_sql.rollout import SamplingParams
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.run.build import make_client, make_engine
from jaxrl_sql.run.policy_client import response, whole_text
from jaxrl_sql.run.session import Session
from jaxrl_sql.types import Response


def greedy_accuracy(
    s: Session, params: Any, questions: PromptSet
) -> tuple[ExecutionSummary, list[ExecutionRecord], list[str], RolloutStats] | None:
    """Answer every question greedily and score the answers by BIRD's comparison -> summary, records, texts, counts.

    None when the run is to stop before it is done.
    """
    cfg = s.config.validation
    engine = make_engine(s, params, cfg.max_num_seqs, Purpose.EVAL)
    client = make_client(s, engine)
    budget = cfg.turns or s.config.sampling.turns
    total = s.config.sampling.max_total_tokens if budget > 1 else 0
    stop = client.stops(s.config.sampling.stop)
    sampling = SamplingParams(temperature=0.0, max_new_tokens=cfg.max_new_tokens, max_total_tokens=total, stop=stop)
    said: list[Response] = [""] * len(questions.prompts)
    for sample in client.generate(questions.examples, questions.prompts, sampling, budget=budget):
        if s.should_abort():
            return None
        if sample.error:
            s.note(f"not answered: {sample.error}")
        said[sample.prompt_index] = response(sample)
    mine = share(len(said))
    asked, answered = questions.examples[mine.start : mine.stop], said[mine.start : mine.stop]
    own = execution_accuracy(s.executor, asked, [s.recipe.reading(one, s.style).sql for one in answered])[1]
    records = [ExecutionRecord(**record) for record in exchange([dataclasses.asdict(record) for record in own])]
    summary = summarize(questions.examples, records).with_unasked(len(questions.skipped))
    return summary, records, [whole_text(one) for one in said], engine.stats


def evaluate_all(s: Session, params: Any, step: int) -> dict[str, float]:
    """Evaluate on every held-out split, record the numbers at `step` and return them; once for a step.

    When the run is to stop meanwhile nothing is recorded, and nothing returned: it is made when the run goes on.
    """
    if s.evaluation is not None and s.evaluation[0] == step:
        return s.evaluation[1]
    began = time.perf_counter()
    numbers: dict[str, float] = {}
    samples = []
    for name, questions in s.evals.items():
        found = greedy_accuracy(s, params, questions)
        if found is None:
            return {}
        summary, records, texts, stats = found
        numbers |= {f"eval/{name}/{key}": value for key, value in summary.metrics().items()}
        numbers |= {f"eval/{name}/prefix_reuse": stats.reuse, f"eval/{name}/occupancy": stats.occupancy}
        answered = zip(questions.examples, texts, records, strict=True)
        for example, text, record in itertools.islice(answered, s.config.run.samples_per_step):
            samples.append((f"eval/{name}", example, text, record.sql, record.status, float(record.correct)))
    for sample in samples:
        s.write_sample(step, *sample)
    numbers["time/eval"] = time.perf_counter() - began
    s.record(step, "eval", numbers)
    s.evaluation = (step, numbers)
    return numbers
