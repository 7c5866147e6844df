"""Collect rollouts: sample groups of answers, execute each while others are still decoded, reward them.

`generate_groups` is one round. `collect_batch` collects a step's batch: the rounds that dynamic sampling needs, and the
groups with the widest spread of rewards.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from flax.serialization import to_state_dict
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxrl_sql.algo.advantage import choose_groups, zero_variance
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import GrpoConfig
from jaxrl_sql.inference.policy_client import EnvStates, check_sample, make_sampling_params, response
from jaxrl_sql.parallel.processes import exchange, share
from jaxrl_sql.rollout import AnyEngine, Sample
from jaxrl_sql.rollout.replicated import pack_samples, unpack_samples
from jaxrl_sql.rollout.sampling import ASSISTANT
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.rollout.stop_strings import cut_after_stop
from jaxrl_sql.runtime import signals
from jaxrl_sql.runtime.control_tokens import ControlTokens
from jaxrl_sql.runtime.progress import ProgressCallback
from jaxrl_sql.text2sql.prompts.dialects import escape_answer
from jaxrl_sql.text2sql.rewards.score import ScoredResponse, TextJob
from jaxrl_sql.training.batching.order import AnyOrder
from jaxrl_sql.training.build import make_client
from jaxrl_sql.training.training_run import PreemptedError, TrainingRun
from jaxrl_sql.types import (
    DEMONSTRATION,
    Example,
    Fields,
    InputError,
    Prompt,
    Response,
    Reward,
    Trajectory,
    Turn,
    response_text,
)

_RIGHT = "correct"
"""The part of a reward that is positive if the answer is right."""


class Demonstration(NamedTuple):
    """An answer to imitate, from the question's demonstration or its gold, and its score."""

    trajectory: Trajectory
    scored: ScoredResponse


class ScoredGroup(NamedTuple):
    """G answers to one question, with the score of each.

    `by_accuracy` is whether `grpo.dynamic_sampling.filter_groups` is `accuracy`.

    `demonstration` is set if `grpo.demonstrations` is on and the demonstration is right.
    """

    example: Example
    trajectories: list[Trajectory]
    responses: list[Response]
    scored: list[ScoredResponse]
    by_accuracy: bool = False
    demonstration: Demonstration | None = None

    @property
    def rewards(self) -> list[float]:
        """Return the reward of each answer."""
        return [response.reward.total for response in self.scored]

    @property
    def weights(self) -> list[float]:
        """Return 1 for each answer whose reward may be learned, 0 for the others.

        It is 0 for all if a gold failed, and by accuracy if all are right or all are wrong.
        """
        gold_ok = all(response.gold_ok for response in self.scored)
        if self.by_accuracy and len({_is_right(response) for response in self.scored if response.trusted}) < 2:
            return [0.0] * len(self.scored)
        return [float(gold_ok and response.trusted) for response in self.scored]

    def with_demonstration(self) -> ScoredGroup:
        """Return the group to learn: if no answer is right and rewarded, the demonstration replaces the last one."""
        demonstration = self.demonstration
        trusted = [answer for answer in self.scored if answer.trusted]
        if demonstration is None or any(_is_right(answer) and answer.reward.total > 0 for answer in trusted):
            return self
        if demonstration.scored.reward.total <= max((answer.reward.total for answer in trusted), default=-math.inf):
            return self
        text = demonstration.trajectory.turns[0].text
        return self._replace(
            trajectories=[*self.trajectories[:-1], demonstration.trajectory],
            responses=[*self.responses[:-1], text],
            scored=[*self.scored[:-1], demonstration.scored],
        )


def _is_right(response: ScoredResponse) -> bool:
    if _RIGHT not in response.reward.parts:
        raise InputError(
            "grpo.dynamic_sampling.filter_groups=accuracy, grpo.demonstrations: the recipe's reward has no part "
            f"{_RIGHT!r}, which they require"
        )
    return response.reward.parts[_RIGHT] >= 1


AnswerIndex = tuple[int, int]
"""A question's number in the rollout, and the number of one of its answers."""


class RolloutBatch(NamedTuple):
    """All groups, the chosen ones as they are learned, the cursor after them, and metrics.

    `carried`: the next rollout's samples so far, by their index in it.
    """

    groups: list[ScoredGroup]
    chosen: list[ScoredGroup]
    cursor: int
    numbers: dict[str, float]
    carried: list[Sample]


class SampledGroups(NamedTuple):
    """A round of groups, the seconds of waiting for SQL after the last answer, and samples of the next rollout."""

    groups: list[ScoredGroup]
    sql_wait_s: float
    carried: list[Sample]


def collect_batch(
    run: TrainingRun,
    engine: AnyEngine,
    order: AnyOrder,
    cursor: int,
    number: int,
    prompts: int,
    carried: Sequence[Sample] = (),
    starts_next: bool = False,
) -> RolloutBatch:
    """Generate groups for rollout `number` from the order's `cursor` on and choose `prompts` of them.

    Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476): while fewer than `prompts` groups have answers of
    different reward (by `grpo.dynamic_sampling.filter_groups`, right and wrong ones), further rounds are generated, up
    to `grpo.dynamic_sampling.max_extra_generations`. The groups with the widest spread of rewards are chosen, so that a
    batch keeps its size when the cap is reached.

    `carried` are this rollout's samples from the rollout before; if it `starts_next`, this one begins the next one's.
    """
    grpo, start_time, before = run.config.grpo, time.perf_counter(), run.executor.stats()
    rounds = _generate_rounds(run, engine, order, cursor, number, prompts, carried, starts_next)
    seconds = time.perf_counter() - start_time
    groups, trained_groups = rounds.groups, [group.with_demonstration() for group in rounds.groups]
    chosen = _choose(grpo, trained_groups, prompts)
    tokens = sum(len(turn.token_ids) for turn in _sampled_turns(groups))
    numbers = {
        **group_metrics(groups),
        "reward/zero_variance": float(np.mean(has_equal_rewards(trained_groups))),
        **rounds.stats.metrics(),
        "rollout/rounds": float(rounds.attempts),
        "rollout/tokens": float(tokens),
        "data/epoch": rounds.cursor / order.n,
        "time/rollout": seconds - rounds.sql_wait_s,
        "time/sql_wait": rounds.sql_wait_s,
        "speed/tokens_per_s": tokens / seconds,
        "speed/sql_per_s": sum(len(group.rewards) for group in groups) / seconds,
        **reuse_metrics(before, run.executor.stats()),
    }
    if grpo.demonstrations:
        has_demonstration = [trained_groups[i].trajectories[-1].finish_reason == DEMONSTRATION for i in chosen]
        numbers["rollout/demonstrations"] = float(np.mean(has_demonstration))
    if run.config.rollout.ahead:
        stale = sum(len(sample.token_ids) for sample in carried) / max(tokens, 1)
        numbers["rollout/stale_tokens"] = stale
        numbers["rollout/staleness"] = stale * grpo.steps_per_generation * grpo.num_iterations * grpo.minibatches
    for i in chosen:
        groups[i] = trained_groups[i]
    return RolloutBatch(groups, [groups[i] for i in sorted(chosen)], rounds.cursor, numbers, rounds.carried)


class _Rounds(NamedTuple):
    """The groups of all rounds of a rollout; `sql_wait_s` is in seconds."""

    groups: list[ScoredGroup]
    attempts: int
    cursor: int
    sql_wait_s: float
    stats: RolloutStats
    carried: list[Sample]


def _generate_rounds(
    run: TrainingRun,
    engine: AnyEngine,
    order: AnyOrder,
    cursor: int,
    number: int,
    prompts: int,
    carried: Sequence[Sample],
    starts_next: bool,
) -> _Rounds:
    """Generate rounds of groups until `prompts` differ in reward, `max_extra_generations` more than one at most."""
    sampling = run.config.grpo.dynamic_sampling
    groups: list[ScoredGroup] = []
    sql_wait_s, stats = 0.0, RolloutStats()
    for attempt in range(sampling.max_extra_generations + 1):
        numbers, cursor = order.take(cursor, prompts * sampling.oversample)
        following = order.take(cursor, prompts * sampling.oversample)[0] if starts_next else ()
        round_number = number * (sampling.max_extra_generations + 1) + attempt
        sampled = generate_groups(run, engine, numbers, round_number, following, carried)
        groups += sampled.groups
        sql_wait_s += sampled.sql_wait_s
        stats = stats.plus(engine.gather_stats())
        if np.count_nonzero(~has_equal_rewards([group.with_demonstration() for group in groups])) >= prompts:
            break
    return _Rounds(groups, attempt + 1, cursor, sql_wait_s, stats, sampled.carried)


def _choose(grpo: GrpoConfig, trained_groups: Sequence[ScoredGroup], prompts: int) -> list[int]:
    """Return the numbers of the `prompts` groups with the widest spread of rewards."""
    rewards, weights = [group.rewards for group in trained_groups], [group.weights for group in trained_groups]
    groups_per_schema = grpo.questions * grpo.dynamic_sampling.oversample if grpo.questions > 1 else 1
    return choose_groups(np.array(rewards), np.array(weights), prompts, grpo.questions, groups_per_schema)


def reuse_metrics(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Return the shares of this process's queries that the executor did not run, by its counts.

    Their results were cached (`sql_cache_hits`), or shared with an equal query that ran at the same time
    (`sql_shared`). A gold counts as a query only until its result is cached as a gold's.
    """
    requests, golds, cache_hits, *shared = (
        after[name] - before[name] for name in ("requests", "gold_hits", "cache_hits", "duplicates", "joined")
    )
    queries = max(requests - golds, 1)
    return {"speed/sql_cache_hits": cache_hits / queries, "speed/sql_shared": sum(shared) / queries}


def generate_groups(
    run: TrainingRun,
    engine: AnyEngine,
    current: Sequence[int],
    number: int,
    following: Sequence[int] = (),
    carried: Sequence[Sample] = (),
) -> SampledGroups:
    """Sample a group of answers to each of the `current` training questions, and begin those to the `following` ones.

    Each finished answer goes to the executor at once, while the others are still decoded. Each of several processes
    executes the answers of its share of the questions, or of its own replicas, and receives all results in the end. The
    rollout's `number` determines the random keys.
    """
    cfg, client = run.config.sampling, make_client(run, engine)
    recipe, style = run.prompt_format.recipe, run.prompt_format.style
    sampling = make_sampling_params(cfg, run.config.grpo.num_generations, run.config.seed, client.stops(cfg.stop))
    examples = [run.questions.train.examples[i] for i in (*current, *following)]
    prompts = [run.questions.train.prompts[i] for i in (*current, *following)]
    ahead = len(current) if following else None
    samples: list[Sample] = []
    jobs: dict[AnswerIndex, TextJob] = {}
    local = share(len(current)) if engine.yields_all else range(len(current))
    has_demonstrations, own_examples = run.config.grpo.demonstrations, examples[: len(current)]
    demonstrations = _make_demonstrations(run, own_examples, prompts, sampling.stop) if has_demonstrations else {}
    for index in sorted(demonstrations.keys() & set(share(len(current)))):
        text = demonstrations[index].turns[0].text
        jobs[index, sampling.n] = recipe.submit(run.executor, [examples[index]], [text], style)
    env_states, answered = EnvStates(), 0
    with run.display.task("sampling", len(current) * sampling.n, "answers", is_announced=False) as on_progress:
        stream = client.generate(examples, prompts, sampling, number, cfg.turns, env_states, ahead, carried)
        for sample in map(check_sample, stream):
            if run.should_abort(signals.EXIT_ENDED):
                raise PreemptedError
            samples.append(sample)
            index = sample.prompt_index
            answered += index < len(current)
            on_progress(answered)
            if index in local:
                job = recipe.submit(run.executor, [examples[index]], [response(sample)], style)
                jobs[index, sample.index] = job
    start_time = time.perf_counter()
    with run.display.task("waiting for SQL", len(jobs), "answers", is_announced=False) as on_progress:
        verdicts = _collect_rewards(run, jobs, env_states, on_progress)
        by_key = {(sample.prompt_index, sample.index): sample for sample in engine.gather(samples)}
    sql_wait_s = time.perf_counter() - start_time
    groups, by_accuracy = [], run.config.grpo.dynamic_sampling.filter_groups == "accuracy"
    for i, example in enumerate(own_examples):
        keys = [(i, g) for g in range(sampling.n)]
        ordered = [by_key[key] for key in keys]
        trajectories = [Trajectory(prompts[i], sample.index, sample.turns, sample.finish_reason) for sample in ordered]
        scored = [verdicts[key] for key in keys]
        demonstration = Demonstration(demonstrations[i], verdicts[i, sampling.n]) if i in demonstrations else None
        if demonstration and not (demonstration.scored.trusted and _is_right(demonstration.scored)):
            demonstration = None
        groups.append(ScoredGroup(example, trajectories, [*map(response, ordered)], scored, by_accuracy, demonstration))
    following_samples = [by_key[i, g] for i, g in sorted(by_key) if i >= len(current)]
    return SampledGroups(groups, sql_wait_s, [_carry(sample, len(current)) for sample in following_samples])


def _carry(sample: Sample, num_prompts: int) -> Sample:
    """Return a sample of the following rollout with the index of its prompt there."""
    return dataclasses.replace(sample, prompt_index=sample.prompt_index - num_prompts)


def _make_demonstrations(
    run: TrainingRun, examples: Sequence[Example], prompts: Sequence[Prompt], stops: Sequence[str]
) -> dict[int, Trajectory]:
    """Return the demonstration of each question, by number, if it could be sampled as an answer.

    It may be too long, or continue after a stop string. In a chat, whose answers begin with a thought, a question
    without one (`reasoning`) has none: it would teach not to think.
    """
    end, demonstrations = run.prompt_format.ends[-1], dict[int, Trajectory]()
    control = ControlTokens(run.prompt_format.tokenizer)
    for i, (example, prompt) in enumerate(zip(examples, prompts, strict=False)):
        if not example.answerable or (run.prompt_format.style.is_chat and not example.reasoning):
            continue
        text = run.prompt_format.style.answer(example)
        if isinstance(text, str) and cut_after_stop(text, stops) == text:
            tokens = (*control.encode(response_text(escape_answer(text, example, control))), end)
            if len(tokens) <= run.config.sampling.max_new_tokens:
                turn = Turn(ASSISTANT, tokens, text=text)
                demonstrations[i] = Trajectory(prompt, run.config.grpo.num_generations - 1, (turn,), DEMONSTRATION)
    return demonstrations


_CARRIED = "begun"


def to_arrays(batches: Sequence[GroupBatch], carried: Sequence[Sample] = ()) -> dict[str, np.ndarray]:
    """Name the arrays of sampled batches that are not learned yet, and of carried samples, for a checkpoint."""
    arrays = flatten_dict({str(i): to_state_dict(batch) for i, batch in enumerate(batches)}, sep="/")
    stored = {name: value for name, value in arrays.items() if value is not None}
    return stored | ({_CARRIED: np.frombuffer(pack_samples(carried), np.uint8)} if carried else {})


def samples_from_arrays(arrays: Fields) -> list[Sample]:
    """Return the samples that `to_arrays` wrote."""
    return unpack_samples(bytes(arrays[_CARRIED])) if _CARRIED in arrays else []


def batches_from_arrays(arrays: Fields, prompts_per_schema: int = 1) -> list[GroupBatch]:
    """Restore the batches of `to_arrays`, in which each `prompts_per_schema` prompts share a schema."""
    nested = unflatten_dict({name: value for name, value in arrays.items() if name != _CARRIED}, sep="/")
    batches = [nested[str(i)] for i in range(len(nested))]
    shared = [
        tuple(Segment(**fields["shared"][str(part)]) for part in range(len(fields["shared"]))) for fields in batches
    ]
    static_fields = {"prompts_per_schema": prompts_per_schema}
    return [
        GroupBatch(**{**fields, "shared": parts, **static_fields})
        for fields, parts in zip(batches, shared, strict=True)
    ]


def has_equal_rewards(groups: Sequence[ScoredGroup]) -> np.ndarray:
    """Return for each group whether all its rewards are equal: [B] bool; False for a single answer."""
    rewards, weights = (np.array([getattr(group, field) for group in groups]) for field in ("rewards", "weights"))
    return np.asarray(zero_variance(rewards, weights)) & (rewards.shape[1] > 1)


def _collect_rewards(
    run: TrainingRun, jobs: Mapping[AnswerIndex, TextJob], env_states: EnvStates, on_progress: ProgressCallback
) -> dict[AnswerIndex, ScoredResponse]:
    """Wait for the results of this process's executor, and return those of all processes.

    A time limit that stopped a dialogue's observation counts as the answer's own. `on_progress` is called with the
    number of results.
    """
    rewards = []
    for done, (key, job) in enumerate(jobs.items()):
        on_progress(done)
        score = run.prompt_format.recipe.collect(job)[0]
        score = score._replace(stop=env_states.stop(*key) or score.stop)
        rewards.append((key, *dataclasses.astuple(score.reward), *score[1:]))
    on_progress(len(jobs))
    exchanged = exchange(rewards)
    return {(at, g): ScoredResponse(Reward(total, parts), *rest) for (at, g), total, parts, *rest in exchanged}


def _sampled_turns(groups: Sequence[ScoredGroup]) -> list[Turn]:
    return [turn for g in groups for t in g.trajectories for turn in t.turns if turn.role == ASSISTANT]


def _mean_std(groups: Sequence[ScoredGroup]) -> float:
    """Return the mean over groups of the standard deviation of their trusted rewards; 0 without any."""
    trusted = [[answer.reward.total for answer in group.scored if answer.trusted] for group in groups]
    stds = [float(np.std(rewards)) for rewards in trusted if rewards]
    return float(np.mean(stds)) if stds else 0.0


def group_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Average rewards and their parts over the trusted answers, and statuses, lengths and turns over all.

    `reward/untrusted` is the share of answers that are not trusted (`ScoredResponse.trusted`).
    """
    scored = [response for group in groups for response in group.scored]
    trusted = [answer for answer in scored if answer.trusted] or scored
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    parts: Counter[str] = Counter()
    for answer in trusted:
        parts.update(answer.reward.parts)
    statuses = Counter(response.status for response in scored)
    written = [
        sum(len(turn.token_ids) for turn in trajectory.turns if turn.role == ASSISTANT) for trajectory in trajectories
    ]
    turns = [sum(turn.role == ASSISTANT for turn in trajectory.turns) for trajectory in trajectories]
    return {
        "reward/mean": sum(answer.reward.total for answer in trusted) / len(trusted),
        "reward/untrusted": sum(not answer.trusted for answer in scored) / len(scored),
        "reward/std_within_group": _mean_std(groups),
        "reward/zero_variance": float(np.mean(has_equal_rewards(groups))),
        "reward/nonzero": float(np.mean([answer.reward.total > 0 for answer in trusted])),
        "reward/well_formed": sum(response.well_formed for response in scored) / len(scored),
        **{f"reward/{name}": value / len(trusted) for name, value in parts.items()},
        **{f"status/{name}": count / len(scored) for name, count in statuses.items()},
        "length/mean": float(np.mean(written)),
        "length/truncated": float(np.mean([trajectory.finish_reason == "length" for trajectory in trajectories])),
        "length/turns": float(np.mean(turns)),
    }
