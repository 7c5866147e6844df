"""Write a run's answers to its folder: a few as plain lines (`samples.jsonl`), and all to `rollouts/`.

`run.keep_rollouts` limits the number of answers in `rollouts/`, which `runtime/rollouts.py` writes; 0 writes none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxrl_sql.batch import GroupBatch
from jaxrl_sql.parallel.processes import to_host
from jaxrl_sql.rollout.stop_strings import token_bytes
from jaxrl_sql.runtime.plain import plain
from jaxrl_sql.runtime.rollouts import pack_ids, pack_logprobs
from jaxrl_sql.text2sql.env.address import without_password
from jaxrl_sql.text2sql.evals.records import QuestionAnswers
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.training.collect import ScoredGroup
from jaxrl_sql.training.training_run import TrainingRun
from jaxrl_sql.types import Example, Record, Response, Turn, response_text

# Decimal places of a reward or advantage: more than a reader needs, and few enough to compress well.
_DIGITS = 4


def keep_groups(
    run: TrainingRun, step: int, phase: str, groups: Sequence[ScoredGroup], chosen: Sequence[ScoredGroup]
) -> None:
    """Write the groups of the rollout before `step`; `chosen` are the groups that are learned, in order.

    `phase` is the name of the phase in the metrics.
    """
    for group in groups[: run.config.run.samples_per_step]:
        scored = group.scored[0]
        about = {
            "finish_reason": group.trajectories[0].finish_reason,
            "sql": scored.sql,
            "status": scored.status,
            "reward": scored.reward.total,
            "right": scored.is_right,
        }
        run.write_sample(step, phase, group.example, response_text(group.responses[0]), about)
    if not run.outputs.rollouts.keeps:
        return
    keep_tokens(run)
    positions = {id(group): position for position, group in enumerate(chosen)}
    run.outputs.rollouts.write(
        "train", [_group_record(step, phase, group, positions.get(id(group))) for group in groups]
    )


def keep_advantages(run: TrainingRun, step: int, rollout_step: int, batch_index: int, batch: GroupBatch) -> None:
    """Write the advantages of `step`, which trains on batch `batch_index` of the groups chosen at `rollout_step`.

    If the tokens of an answer have different advantages, the mean over its trained tokens is written.
    """
    if not run.outputs.rollouts.keeps or batch.advantage is None:
        return
    advantage = np.asarray(to_host(batch.advantage), np.float32)
    if advantage.shape[-1] > 1:
        trained = np.asarray(to_host(batch.policy_mask()), np.float32)
        mean = (advantage * trained).sum(-1) / np.maximum(trained.sum(-1), 1)
    else:
        mean = advantage[..., 0]
    rows = [[_round(value) for value in row] for row in mean.tolist()]
    record = {"step": step, "rollout_step": rollout_step, "part": batch_index, "advantages": rows}
    run.outputs.rollouts.write("train", [record])


def keep_evaluation(
    run: TrainingRun, step: int, split: str, answered: Sequence[QuestionAnswers], verdicts: Sequence[Verdict]
) -> None:
    """Write the answers to a held-out split at `step`; the reward of an answer is its score by the split's rule."""
    examples, rule = run.questions.evals[split].examples, run.questions.rules[split]
    triples = list(zip(examples, answered, verdicts, strict=True))
    for example, answer, verdict in triples[: run.config.run.samples_per_step]:
        about = {
            "finish_reason": _finish_reason(answer),
            "sql": verdict.sql,
            "status": verdict.status,
            "reward": verdict.scores.get(rule, 0.0),
            "right": verdict.is_right(rule) if rule in verdict.scores else None,
        }
        run.write_sample(step, f"eval/{split}", example, response_text(_response(answer)), about)
    if run.outputs.rollouts.keeps:
        run.outputs.rollouts.write(
            "eval", [_evaluation_record(step, f"eval/{split}", rule, *evaluated) for evaluated in triples]
        )


def keep_tokens(run: TrainingRun) -> None:
    """Write the text of each token of the vocabulary, unless a file already has them."""
    if not run.outputs.rollouts.has_tokens:
        run.outputs.rollouts.write_tokens(
            [token.decode(errors="replace") for token in token_bytes(run.prompt_format.tokenizer)]
        )


def question_of(example: Example) -> Record:
    """Return the fields of a question that `view` needs to show its answers and judge them again.

    URLs have no passwords, and empty fields are omitted.
    """
    record = {
        "uid": example.uid,
        "db_id": example.db_id,
        "db_path": example.db_path,
        "db": without_password(example.engine_url),
        "question": example.question,
        "evidence": example.evidence,
        "gold": example.gold_sql,
        "golds": list(example.other_golds),
        "difficulty": example.difficulty,
        "dialect": example.dialect,
        "suite": list(example.suite),
        "options": plain(example.options),
        "has_tables": bool(example.gold_tables),
        "answerable": example.answerable,
    }
    return {name: value for name, value in record.items() if value not in ("", [], {}, False) or name == "answerable"}


def _group_record(step: int, phase: str, group: ScoredGroup, chosen: int | None) -> Record:
    """Return a group's record; `chosen` is its position among the chosen groups, None if it is not learned."""
    answers = [
        {
            "turns": [_turn(turn) for turn in trajectory.turns],
            "sql": scored.sql,
            "status": scored.status,
            "gold_status": scored.gold_status,
            "stop": scored.stop,
            "reward": _round(scored.reward.total),
            "parts": plain(scored.reward.parts),
            "weight": weight,
            "finish_reason": trajectory.finish_reason,
        }
        for trajectory, scored, weight in zip(group.trajectories, group.scored, group.weights, strict=True)
    ]
    return {"step": step, "phase": phase, "chosen": chosen, **question_of(group.example), "answers": answers}


def _evaluation_record(
    step: int, phase: str, rule: str, example: Example, answered: QuestionAnswers, verdict: Verdict
) -> Record:
    response = _response(answered)
    turns = [["assistant", response]] if isinstance(response, str) else [[role, text] for role, text in response]
    answer = {
        "turns": turns,
        "finish_reason": _finish_reason(answered),
        "sql": verdict.sql,
        "status": verdict.status,
        "gold_status": verdict.gold_status,
        "stop": verdict.stop,
        "reward": _round(verdict.scores.get(rule, 0.0)),
        **({"error": answered.error} if answered.error else {}),
    }
    return {"step": step, "phase": phase, "rule": rule, **question_of(example), "answers": [answer]}


def _response(answered: QuestionAnswers) -> Response:
    return answered.responses[0] if answered.responses else ""


def _finish_reason(answered: QuestionAnswers) -> str:
    return answered.finish_reasons[0] if answered.finish_reasons else ""


def _turn(turn: Turn) -> list[Any]:
    """Return [role, text], followed by token ids and log-probabilities (both packed as texts) for sampled turns.

    The log-probabilities are those of the distribution that the tokens were sampled from.
    """
    logprobs = turn.behavior_logprobs or turn.logprobs
    if not logprobs:
        return [turn.role, turn.text]
    return [turn.role, turn.text, pack_ids(turn.token_ids), pack_logprobs(logprobs)]


def _round(value: Any) -> float | None:
    """Return a value rounded for JSON, which has no NaN and no infinity (None); -0.0 becomes 0.0."""
    number = float(value)
    return round(number, _DIGITS) + 0.0 if math.isfinite(number) else None
