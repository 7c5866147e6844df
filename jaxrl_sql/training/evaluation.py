"""Execution accuracy during training: one answer per question, run and compared with the gold by the set's rule.

`QuestionSets.rules` has the rule: the recipe's, as in its paper, unless `validation.rule` names one.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter

from jaxrl_sql.batch import PyTree
from jaxrl_sql.inference.policy_client import make_sampling_params, sample_answers
from jaxrl_sql.parallel.processes import exchange, share
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.text2sql.evals.endings import ending_metrics
from jaxrl_sql.text2sql.evals.records import AnswerJudge, QuestionAnswers
from jaxrl_sql.text2sql.evals.summary import validation_metrics
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.training.build import make_client, make_validation_engine
from jaxrl_sql.training.keep import keep_evaluation
from jaxrl_sql.training.training_run import PreemptedError, TrainingRun


def validation_answers(
    run: TrainingRun, params: PyTree, name: str, questions: PromptSet
) -> tuple[list[QuestionAnswers], RolloutStats]:
    """Answer every question of the set `name` by `validation.sampling`; return the answers and the engine's counts.

    Raises PreemptedError if the run is to stop first.
    """
    cfg = run.config.validation
    engine = make_validation_engine(run, params)
    client = make_client(run, engine)
    settings = cfg.sampling_in(run.config.sampling)
    sampling = make_sampling_params(settings, n=1, seed=run.config.seed, stop=client.stops(settings.stop))

    pairs = list(zip(questions.examples, questions.prompts, strict=True))
    with run.display.task(f"evaluating {name}", len(pairs), "questions") as advance:

        def on_progress(done: int, _of: int) -> None:
            advance(done)
            if run.should_abort():
                raise PreemptedError

        answered = sample_answers(client, pairs, sampling, max_turns=settings.turns, on_progress=on_progress)
    return answered, engine.gather_stats()


def verdicts_of(
    run: TrainingRun, name: str, questions: PromptSet, answered: list[QuestionAnswers], rule: str
) -> list[Verdict]:
    """Score the answers to the set `name` by a rule; each of several processes scores its share."""
    local = share(len(answered))
    judging = AnswerJudge(run.executor, (rule,), rule)
    examples = questions.examples[local.start : local.stop]
    with run.display.task(f"judging {name}", len(examples), "questions", is_announced=False) as on_progress:
        verdicts = judging.verdicts(examples, answered[local.start : local.stop], on_progress=on_progress)
    return [Verdict(**fields) for fields in exchange([dataclasses.asdict(verdict) for verdict in verdicts])]


def evaluate_all(run: TrainingRun, params: PyTree, step: int) -> dict[str, float]:
    """Evaluate on every held-out split, record the metrics at `step` and return them; once per step.

    If the run is to stop meanwhile, nothing is recorded or returned: the evaluation is made when the run resumes.
    """
    saved = run.status.evaluation_of(step)
    if saved is not None:
        return saved
    start_time = time.perf_counter()
    numbers: dict[str, float] = {}
    evaluated = []
    for name, questions in run.questions.evals.items():
        rule = run.questions.rules[name]
        try:
            answered, stats = validation_answers(run, params, name, questions)
        except PreemptedError:
            return {}
        for error in (answer.error for answer in answered if answer.error):
            run.note(f"not answered: {error}")
        verdicts = verdicts_of(run, name, questions, answered, rule)
        metrics = validation_metrics(questions.examples, verdicts, len(questions.skipped), rule)
        metrics |= ending_metrics(Counter(reason for answer in answered for reason in answer.finish_reasons))
        numbers |= {f"eval/{name}/{key}": value for key, value in metrics.items()}
        numbers |= {f"eval/{name}/prefix_reuse": stats.reuse, f"eval/{name}/occupancy": stats.occupancy}
        evaluated.append((name, answered, verdicts))
    for evaluation in evaluated:
        keep_evaluation(run, step, *evaluation)
    numbers["time/eval"] = time.perf_counter() - start_time
    run.record(step, "eval", numbers)
    run.status.keep_evaluation(step, numbers)
    return numbers
