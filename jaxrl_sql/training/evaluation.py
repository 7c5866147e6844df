"""Execution accuracy during training: one answer per question, run and compared with the gold by the set's rule.

A rule is a comparison of two results, such as `bird` (rows compared as sets). `QuestionSets.rules` has the rule of each
held-out set: `validation.rule` if it is set, else the recipe's, as in its paper, else the set's own.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from jaxrl_sql.batch import PyTree
from jaxrl_sql.config import ExecutorConfig
from jaxrl_sql.inference.policy_client import make_sampling_params, sample_answers
from jaxrl_sql.parallel.processes import exchange, share
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.runtime.progress import quantity
from jaxrl_sql.text2sql.benchmarks.gather import join_names
from jaxrl_sql.text2sql.evals.endings import ending_metrics
from jaxrl_sql.text2sql.evals.records import AnswerJudge, QuestionAnswers
from jaxrl_sql.text2sql.evals.summary import validation_metrics
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.training.build import make_client, make_validation_engine
from jaxrl_sql.training.keep import keep_evaluation
from jaxrl_sql.training.training_run import PreemptedError, TrainingRun

_MAX_FAILED_GOLDS = 5


def validation_answers(
    run: TrainingRun, params: PyTree, name: str, questions: PromptSet
) -> tuple[list[QuestionAnswers], RolloutStats]:
    """Answer every question of the set `name` by `validation.sampling`; return the answers and the engine's counts.

    Raises PreemptedError if a stop of the run is requested before the last answer.
    """
    cfg = run.config.validation
    engine = make_validation_engine(run, params)
    client = make_client(run, engine)
    settings = cfg.sampling_in(run.config.sampling)
    sampling = make_sampling_params(settings, n=1, seed=run.config.seed, stop=client.stops(settings.stop))

    pairs = list(zip(questions.examples, questions.prompts, strict=True))
    with run.display.task(f"evaluating {name}", len(pairs), "questions") as advance:

        def on_progress(done: int, _total: int) -> None:
            advance(done)
            if run.should_abort():
                raise PreemptedError

        answered = sample_answers(client, pairs, sampling, max_turns=settings.turns, on_progress=on_progress)
    return answered, engine.gather_stats()


def verdicts_of(
    run: TrainingRun, name: str, questions: PromptSet, answered: list[QuestionAnswers], rule: str
) -> list[Verdict]:
    """Score the answers to the set `name` by a rule.

    Each of several processes scores its share, and all return the verdicts on all answers.
    """
    local = share(len(answered))
    judge = AnswerJudge(run.executor, (rule,), rule)
    examples = questions.examples[local.start : local.stop]
    with run.display.task(f"judging {name}", len(examples), "questions", is_announced=False) as on_progress:
        verdicts = judge.verdicts(examples, answered[local.start : local.stop], on_progress=on_progress)
    return [Verdict(**fields) for fields in exchange([dataclasses.asdict(verdict) for verdict in verdicts])]


def describe_failed_golds(verdicts: Sequence[Verdict], lines: Mapping[str, str], limits: ExecutorConfig) -> str:
    """Return a message that names the questions whose gold fails, by their place in `lines`; "" if there are none."""
    failed = [f"{lines.get(v.uid, v.uid)} ({v.gold_status})" for v in verdicts if not v.gold_ok]
    if not failed:
        return ""
    is_over = any(verdict.gold_status == "timeout" for verdict in verdicts)
    over = f" within executor.timeout_ms={limits.timeout_ms} or engine_timeout_ms={limits.engine_timeout_ms}"
    return (
        f"{quantity(len(failed), 'golds', 'fail')}, and every answer counts as wrong: "
        f"{join_names(failed, _MAX_FAILED_GOLDS)}: correct the SQL so that it runs{over if is_over else ''}, or remove "
        "the question"
    )


def evaluate_all(run: TrainingRun, params: PyTree, step: int) -> dict[str, float]:
    """Evaluate `params` on every held-out set, record the metrics at `step` and return them.

    A step is evaluated once: a second call returns the same metrics. If a stop is requested meanwhile, nothing is
    recorded and the result is empty; the run makes the evaluation when it resumes.
    """
    saved = run.status.evaluation_of(step)
    if saved is not None:
        return saved
    start_time = time.perf_counter()
    metrics: dict[str, float] = {}
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
        message = describe_failed_golds(verdicts, run.questions.lines.get(name, {}), run.config.executor)
        if message and run.status.evaluation is None:  # only the first evaluation of the run reports them
            run.note(f"{name}: {message}")
        set_metrics = validation_metrics(questions.examples, verdicts, len(questions.skipped), rule)
        set_metrics |= ending_metrics(Counter(reason for answer in answered for reason in answer.finish_reasons))
        metrics |= {f"eval/{name}/{key}": value for key, value in set_metrics.items()}
        metrics |= {f"eval/{name}/prefix_reuse": stats.reuse, f"eval/{name}/occupancy": stats.occupancy}
        evaluated.append((name, answered, verdicts))
    for evaluation in evaluated:
        keep_evaluation(run, step, *evaluation)
    metrics["time/eval"] = time.perf_counter() - start_time
    run.record(step, "eval", metrics)
    run.status.keep_evaluation(step, metrics)
    return metrics
