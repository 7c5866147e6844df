"""Execution accuracy during training: one answer per question, run and compared with the gold by the set's rule.

`QuestionSets.rules` has the rule: the recipe's own, as its paper evaluates, unless `validation.rule` names one.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter

from jaxrl_sql.batch import PyTree
from jaxrl_sql.inference.policy_client import answers, sampling_by
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.parallel.processes import exchange, share
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.text2sql.evals.endings import ending_metrics
from jaxrl_sql.text2sql.evals.records import Answered, Judging
from jaxrl_sql.text2sql.evals.summary import validation_metrics
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.training.build import make_client, make_engine
from jaxrl_sql.training.keep import keep_evaluation
from jaxrl_sql.training.training_run import PreemptedError, TrainingRun


def validation_answers(
    s: TrainingRun, params: PyTree, name: str, questions: PromptSet
) -> tuple[list[Answered], RolloutStats]:
    """Answer every question of the set `name` by `validation.sampling`; return the answers and the engine's counts.

    Raises PreemptedError when the run is to stop before it is done.
    """
    cfg = s.config.validation
    engine = make_engine(s, params, cfg.max_num_seqs, Purpose.EVAL)
    client = make_client(s, engine)
    settings = cfg.sampling_in(s.config.sampling)
    sampling = sampling_by(settings, n=1, seed=s.config.seed, stop=client.stops(settings.stop))

    asked = list(zip(questions.examples, questions.prompts, strict=True))
    with s.display.work(f"evaluating {name}", len(asked), "questions") as at:

        def tick(done: int, _of: int) -> None:
            at(done)
            if s.should_abort():
                raise PreemptedError

        made = answers(client, asked, sampling, budget=settings.turns, tick=tick)
    return made, engine.gather_stats()


def verdicts_of(s: TrainingRun, questions: PromptSet, answered: list[Answered], rule: str) -> list[Verdict]:
    """Score the answers by a rule; of several processes each scores its share."""
    mine = share(len(answered))
    judging = Judging(s.executor, (rule,), rule)
    own = judging.verdicts(questions.examples[mine.start : mine.stop], answered[mine.start : mine.stop])
    return [Verdict(**one) for one in exchange([dataclasses.asdict(one) for one in own])]


def evaluate_all(s: TrainingRun, params: PyTree, step: int) -> dict[str, float]:
    """Evaluate on every held-out split, record the numbers at `step` and return them; once for a step.

    When the run is to stop meanwhile nothing is recorded, and nothing returned: it is made when the run goes on.
    """
    known = s.status.evaluation_of(step)
    if known is not None:
        return known
    began = time.perf_counter()
    numbers: dict[str, float] = {}
    kept = []
    for name, questions in s.questions.evals.items():
        rule = s.questions.rules[name]
        try:
            answered, stats = validation_answers(s, params, name, questions)
        except PreemptedError:
            return {}
        for fault in (one.fault for one in answered if one.fault):
            s.note(f"not answered: {fault}")
        with s.display.work(f"judging {name}", is_told=False):
            verdicts = verdicts_of(s, questions, answered, rule)
        found = validation_metrics(questions.examples, verdicts, len(questions.skipped), rule)
        found |= ending_metrics(Counter(reason for answer in answered for reason in answer.finish_reasons))
        numbers |= {f"eval/{name}/{key}": value for key, value in found.items()}
        numbers |= {f"eval/{name}/prefix_reuse": stats.reuse, f"eval/{name}/occupancy": stats.occupancy}
        kept.append((name, answered, verdicts))
    for one in kept:
        keep_evaluation(s, step, *one)
    numbers["time/eval"] = time.perf_counter() - began
    s.record(step, "eval", numbers)
    s.status.keep_evaluation(step, numbers)
    return numbers
