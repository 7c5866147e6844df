"""What a run keeps of its answers: a few as plain lines (`samples.jsonl`), all of them as `runtime/rollouts` does."""

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
from jaxrl_sql.text2sql.env.address import told_url
from jaxrl_sql.text2sql.evals.records import Answered
from jaxrl_sql.text2sql.evals.verdict import Verdict
from jaxrl_sql.training.collect import Group
from jaxrl_sql.training.training_run import TrainingRun
from jaxrl_sql.types import Example, Record, Response, Turn, whole_text

# More than one sees of an advantage, and packs well.
_DIGITS = 4


def keep_groups(s: TrainingRun, step: int, phase: str, groups: Sequence[Group], chosen: Sequence[Group]) -> None:
    """Keep what was generated for `step`; `chosen` is what is learned from, in order."""
    for group in groups[: s.config.run.samples_per_step]:
        one = group.scored[0]
        text, reason = whole_text(group.responses[0]), group.trajectories[0].finish_reason
        s.write_sample(step, phase, group.example, text, reason, one.sql, one.status, one.reward.total)
    if not s.outputs.rollouts.keeps:
        return
    keep_tokens(s)
    at = {id(group): number for number, group in enumerate(chosen)}
    s.outputs.rollouts.write("train", [_group(step, phase, group, at.get(id(group))) for group in groups])


def keep_advantages(s: TrainingRun, step: int, rollout_step: int, part: int, batch: GroupBatch) -> None:
    """Keep the advantages that `step` learns by: of part `part` of what was chosen at `rollout_step`.

    Of tokens that differ in theirs it is the mean over what an answer is trained on.
    """
    if not s.outputs.rollouts.keeps or batch.advantage is None:
        return
    advantage = np.asarray(to_host(batch.advantage), np.float32)
    if advantage.shape[-1] > 1:
        trained = np.asarray(to_host(batch.trained()), np.float32)
        mean = (advantage * trained).sum(-1) / np.maximum(trained.sum(-1), 1)
    else:
        mean = advantage[..., 0]
    rows = [[_rounded(value) for value in row] for row in mean.tolist()]
    found = {"step": step, "rollout_step": rollout_step, "part": part, "advantages": rows}
    s.outputs.rollouts.write("train", [found])


def keep_evaluation(
    s: TrainingRun, step: int, split: str, answered: Sequence[Answered], verdicts: Sequence[Verdict]
) -> None:
    """Keep the answers to a held-out split at `step`, each by itself; its reward is its score."""
    examples, rule = s.questions.evals[split].examples, s.questions.rules[split]
    shown = list(zip(examples, answered, verdicts, strict=True))
    for example, said, verdict in shown[: s.config.run.samples_per_step]:
        text, score = whole_text(_response(said)), verdict.scores.get(rule, 0.0)
        s.write_sample(step, f"eval/{split}", example, text, _reason(said), verdict.sql, verdict.status, score)
    if s.outputs.rollouts.keeps:
        s.outputs.rollouts.write("eval", [_evaluated(step, f"eval/{split}", rule, *one) for one in shown])


def keep_tokens(s: TrainingRun) -> None:
    """Keep what the tokens say, where they are not kept yet."""
    if not s.outputs.rollouts.has_tokens:
        s.outputs.rollouts.write_tokens([one.decode(errors="replace") for one in token_bytes(s.task.tokenizer)])


def question_of(example: Example) -> Record:
    """Return what of a question its answers are read and judged with again; a server's URL without its password."""
    found = {
        "uid": example.uid,
        "db_id": example.db_id,
        "db_path": example.db_path,
        "db": told_url(example.engine_url),
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
    return {name: value for name, value in found.items() if value not in ("", [], {}, False) or name == "answerable"}


def _group(step: int, phase: str, group: Group, chosen: int | None) -> Record:
    answers = [
        {
            "turns": [_turn(turn) for turn in trajectory.turns],
            "sql": one.sql,
            "status": one.status,
            "gold_status": one.gold_status,
            "stop": one.stop,
            "reward": _rounded(one.reward.total),
            "parts": plain(one.reward.parts),
            "weight": weight,
            "finish_reason": trajectory.finish_reason,
        }
        for trajectory, one, weight in zip(group.trajectories, group.scored, group.weights, strict=True)
    ]
    return {"step": step, "phase": phase, "chosen": chosen, **question_of(group.example), "answers": answers}


def _evaluated(step: int, phase: str, rule: str, example: Example, said: Answered, verdict: Verdict) -> Record:
    response = _response(said)
    turns = [["assistant", response]] if isinstance(response, str) else [[role, text] for role, text in response]
    answer = {
        "turns": turns,
        "finish_reason": _reason(said),
        "sql": verdict.sql,
        "status": verdict.status,
        "gold_status": verdict.gold_status,
        "stop": verdict.stop,
        "reward": _rounded(verdict.scores.get(rule, 0.0)),
        **({"fault": said.fault} if said.fault else {}),
    }
    return {"step": step, "phase": phase, "rule": rule, **question_of(example), "answers": [answer]}


def _response(said: Answered) -> Response:
    return said.responses[0] if said.responses else ""


def _reason(answered: Answered) -> str:
    return answered.finish_reasons[0] if answered.finish_reasons else ""


def _turn(turn: Turn) -> list[Any]:
    """Return [role, text], and of what was sampled its token ids and the log-probabilities it was sampled with."""
    logprobs = turn.behavior_logprobs or turn.logprobs
    if not logprobs:
        return [turn.role, turn.text]
    return [turn.role, turn.text, pack_ids(turn.token_ids), pack_logprobs(logprobs)]


def _rounded(value: Any) -> float | None:
    number = float(value)
    return round(number, _DIGITS) + 0.0 if math.isfinite(number) else None
