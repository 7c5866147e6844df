"""Collect rollouts: sample groups of answers, execute each while others are still decoded, reward them.

A *group* has G answers to one question. A *rollout* collects the groups of one or several steps. `generate_groups` is
one round of a rollout: it samples a group for each of some questions. `collect_batch` is a whole rollout: it repeats
rounds as dynamic sampling needs, and chooses the groups with the widest spread of rewards.

With `rollout.ahead=1`, decode slots that are free at the end of a rollout begin answers to the next rollout's
questions. These answers, finished or not, are the *carried* samples, which the next rollout continues.
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
"""The part of a reward that is 1 if the answer is right."""


class Demonstration(NamedTuple):
    """An answer to imitate and its score; its SQL is the question's demonstration (a teacher's answer) or its gold."""

    trajectory: Trajectory
    scored: ScoredResponse


class ScoredGroup(NamedTuple):
    """G answers to one question, with the score of each.

    `filters_by_accuracy` is True if `grpo.dynamic_sampling.filter_groups` is `accuracy`. `demonstration` is set if
    `grpo.demonstrations` is on and the demonstration is right.
    """

    example: Example
    trajectories: list[Trajectory]
    responses: list[Response]
    scored: list[ScoredResponse]
    filters_by_accuracy: bool = False
    demonstration: Demonstration | None = None

    @property
    def rewards(self) -> list[float]:
        """Return the reward of each answer."""
        return [response.reward.total for response in self.scored]

    @property
    def weights(self) -> list[float]:
        """Return the weight of each answer in the update, 1 or 0.

        The weight is 1 if the reward is trusted: it depends on the answer's text alone, not on a time limit or a failed
        server (`ScoredResponse.trusted`). All weights are 0 if the gold failed. With `filters_by_accuracy` all are 0 if
        the answers are all right or all wrong.
        """
        gold_ok = all(response.gold_ok for response in self.scored)
        if self.filters_by_accuracy and len({_is_right(response) for response in self.scored if response.trusted}) < 2:
            return [0.0] * len(self.scored)
        return [float(gold_ok and response.trusted) for response in self.scored]

    def with_demonstration(self) -> ScoredGroup:
        """Return the group to learn.

        The demonstration replaces the last answer if no trusted answer is right with a positive reward, and none has a
        reward as high as the demonstration's.
        """
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
"""The index of a question in its round, and the index of an answer in the question's group."""


class RolloutBatch(NamedTuple):
    """The result of a rollout.

    - `groups` are all groups, and `chosen` those that are learned, both in the order of their questions. A chosen group
      may have a demonstration in place of its last answer.
    - `cursor` is the position in the order of the training questions after the rollout.
    - `carried` are the samples of the next rollout that this one began, with the prompt indices of the next rollout.
    """

    groups: list[ScoredGroup]
    chosen: list[ScoredGroup]
    cursor: int
    metrics: dict[str, float]
    carried: list[Sample]


class SampledGroups(NamedTuple):
    """The groups of a round, the seconds of waiting for SQL after the last answer, and the next rollout's samples."""

    groups: list[ScoredGroup]
    sql_wait_s: float
    carried: list[Sample]


def collect_batch(
    run: TrainingRun,
    engine: AnyEngine,
    order: AnyOrder,
    cursor: int,
    rollout_index: int,
    num_groups: int,
    carried: Sequence[Sample] = (),
    starts_next: bool = False,
) -> RolloutBatch:
    """Generate the groups of rollout `rollout_index` from the order's `cursor` on and choose `num_groups` of them.

    Dynamic sampling (DAPO, Yu et al. 2025, arXiv:2503.14476): while fewer than `num_groups` groups have answers with
    different rewards, further rounds are generated, up to `grpo.dynamic_sampling.max_extra_generations`. With
    `filter_groups=accuracy` a group must have right and wrong answers instead. The groups with the widest spread of
    rewards are chosen, so that a batch keeps its size when the maximum is reached.

    `carried` are samples of this rollout that the previous rollout began. With `starts_next`, free decode slots of this
    rollout begin samples of the next.
    """
    grpo, start_time, executor_counts = run.config.grpo, time.perf_counter(), run.executor.stats()
    rounds = _generate_rounds(run, engine, order, cursor, rollout_index, num_groups, carried, starts_next)
    seconds = time.perf_counter() - start_time
    groups, trained_groups = rounds.groups, [group.with_demonstration() for group in rounds.groups]
    chosen = _choose(grpo, trained_groups, num_groups)
    tokens = sum(len(turn.token_ids) for turn in _sampled_turns(groups))
    metrics = {
        **group_metrics(groups),
        "reward/zero_variance": float(np.mean(has_equal_rewards(trained_groups))),  # with demonstrations
        **rounds.stats.metrics(),
        "rollout/rounds": float(rounds.num_rounds),
        "rollout/tokens": float(tokens),
        "data/epoch": rounds.cursor / order.n,
        "time/rollout": seconds - rounds.sql_wait_s,
        "time/sql_wait": rounds.sql_wait_s,
        "speed/tokens_per_s": tokens / seconds,
        "speed/sql_per_s": sum(len(group.rewards) for group in groups) / seconds,
        **reuse_metrics(executor_counts, run.executor.stats()),
    }
    if grpo.demonstrations:
        has_demonstration = [trained_groups[i].trajectories[-1].finish_reason == DEMONSTRATION for i in chosen]
        metrics["rollout/demonstrations"] = float(np.mean(has_demonstration))
    if run.config.rollout.ahead:
        # The policy before the last updates sampled the carried tokens. The mean over all tokens of the number of
        # updates since then is the share of these tokens times the updates between two rollouts.
        stale_share = sum(len(sample.token_ids) for sample in carried) / max(tokens, 1)
        updates_per_rollout = grpo.steps_per_generation * grpo.num_iterations * grpo.minibatches
        metrics["rollout/stale_tokens"] = stale_share
        metrics["rollout/staleness"] = stale_share * updates_per_rollout
    for i in chosen:
        groups[i] = trained_groups[i]
    return RolloutBatch(groups, [groups[i] for i in sorted(chosen)], rounds.cursor, metrics, rounds.carried)


class _Rounds(NamedTuple):
    """The groups of all rounds of a rollout; `sql_wait_s` are the seconds of waiting for SQL, of all rounds."""

    groups: list[ScoredGroup]
    num_rounds: int
    cursor: int
    sql_wait_s: float
    stats: RolloutStats
    carried: list[Sample]


def _generate_rounds(
    run: TrainingRun,
    engine: AnyEngine,
    order: AnyOrder,
    cursor: int,
    rollout_index: int,
    num_groups: int,
    carried: Sequence[Sample],
    starts_next: bool,
) -> _Rounds:
    """Generate rounds until `num_groups` groups have different rewards, at most `max_extra_generations` + 1 rounds."""
    sampling = run.config.grpo.dynamic_sampling
    groups: list[ScoredGroup] = []
    sql_wait_s, stats = 0.0, RolloutStats()
    max_rounds = sampling.max_extra_generations + 1
    questions_per_round = num_groups * sampling.oversample
    for round_index in range(max_rounds):
        question_indices, cursor = order.take(cursor, questions_per_round)
        # The configuration permits the next rollout's questions only with a single round, so they follow directly.
        following = order.take(cursor, questions_per_round)[0] if starts_next else ()
        run_round = rollout_index * max_rounds + round_index  # unique over the run, as random keys depend on it
        sampled = generate_groups(run, engine, question_indices, run_round, following, carried)
        groups += sampled.groups
        sql_wait_s += sampled.sql_wait_s
        stats = stats.plus(engine.gather_stats())
        if np.count_nonzero(~has_equal_rewards([group.with_demonstration() for group in groups])) >= num_groups:
            break
    return _Rounds(groups, round_index + 1, cursor, sql_wait_s, stats, sampled.carried)


def _choose(grpo: GrpoConfig, trained_groups: Sequence[ScoredGroup], num_groups: int) -> list[int]:
    """Return the indices of the `num_groups` groups with the widest spread of rewards.

    If `grpo.questions` groups of a batch share a schema, either that number of its sampled groups is chosen or none.
    """
    rewards, weights = [group.rewards for group in trained_groups], [group.weights for group in trained_groups]
    sampled_per_schema = grpo.questions * grpo.dynamic_sampling.oversample if grpo.questions > 1 else 1
    return choose_groups(np.array(rewards), np.array(weights), num_groups, grpo.questions, sampled_per_schema)


def reuse_metrics(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, float]:
    """Return the shares of this process's queries that the executor did not run.

    `before` and `after` are the executor's counts (`Executor.stats`) at the start and end of the rollout. The result of
    such a query was cached (`sql_cache_hits`), or shared with an equal query that ran at the same time (`sql_shared`).
    A gold counts as a query only until its result is in the executor's cache of golds.
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
    round_index: int,
    following: Sequence[int] = (),
    carried: Sequence[Sample] = (),
) -> SampledGroups:
    """Sample a group of answers to each of the `current` training questions, and begin answers to the `following`.

    `current` and `following` are indices of training questions: those of this round, and those of the next rollout.
    `carried` are answers to the current questions that the previous rollout began. `round_index` counts the rounds of
    the run and determines the random keys.

    Each finished answer goes to the executor at once, while the others are still decoded. Each of several processes
    executes the answers of its share of the questions, or of its replicas of the engine, and receives all results.
    """
    cfg, client = run.config.sampling, make_client(run, engine)
    recipe, style = run.prompt_format.recipe, run.prompt_format.style
    sampling = make_sampling_params(cfg, run.config.grpo.num_generations, run.config.seed, client.stops(cfg.stop))
    examples = [run.questions.train.examples[i] for i in (*current, *following)]
    prompts = [run.questions.train.prompts[i] for i in (*current, *following)]
    num_current = len(current)
    first_following = num_current if following else None  # the index of the first prompt of the next rollout
    samples: list[Sample] = []
    jobs: dict[AnswerIndex, TextJob] = {}
    # An engine over all processes yields every sample to each of them; a replica yields its own process's alone.
    local = share(num_current) if engine.yields_all else range(num_current)
    has_demonstrations, current_examples = run.config.grpo.demonstrations, examples[:num_current]
    demonstrations = _make_demonstrations(run, current_examples, prompts, sampling.stop) if has_demonstrations else {}
    # A demonstration has the index after the last sample's.
    for index in sorted(demonstrations.keys() & set(share(num_current))):
        text = demonstrations[index].turns[0].text
        jobs[index, sampling.n] = recipe.submit(run.executor, [examples[index]], [text], style)
    env_states, num_answered = EnvStates(), 0
    with run.display.task("sampling", num_current * sampling.n, "answers", is_announced=False) as on_progress:
        stream = client.generate(
            examples, prompts, sampling, round_index, cfg.turns, env_states, first_following, carried
        )
        for sample in map(check_sample, stream):
            if run.should_abort(signals.EXIT_ENDED):
                raise PreemptedError
            samples.append(sample)
            index = sample.prompt_index
            num_answered += index < num_current
            on_progress(num_answered)
            if index in local:
                job = recipe.submit(run.executor, [examples[index]], [response(sample)], style)
                jobs[index, sample.index] = job
    start_time = time.perf_counter()
    with run.display.task("waiting for SQL", len(jobs), "answers", is_announced=False) as on_progress:
        verdicts = _collect_rewards(run, jobs, env_states, on_progress)
        by_key = {(sample.prompt_index, sample.index): sample for sample in engine.gather(samples)}
    sql_wait_s = time.perf_counter() - start_time
    groups = []
    for i, example in enumerate(current_examples):
        group = [by_key[i, g] for g in range(sampling.n)]
        groups.append(_make_group(run, example, prompts[i], group, verdicts, demonstrations.get(i)))
    following_samples = [by_key[i, g] for i, g in sorted(by_key) if i >= num_current]
    return SampledGroups(groups, sql_wait_s, [_carry(sample, num_current) for sample in following_samples])


def _make_group(
    run: TrainingRun,
    example: Example,
    prompt: Prompt,
    samples: Sequence[Sample],
    verdicts: Mapping[AnswerIndex, ScoredResponse],
    demonstrated: Trajectory | None,
) -> ScoredGroup:
    """Return the group of a question's samples, with the demonstration `demonstrated` if it is right."""
    scored = [verdicts[sample.prompt_index, sample.index] for sample in samples]
    trajectories = [Trajectory(prompt, sample.index, sample.turns, sample.finish_reason) for sample in samples]
    demonstration = None
    if demonstrated is not None:
        verdict = verdicts[samples[0].prompt_index, len(samples)]
        demonstration = Demonstration(demonstrated, verdict) if verdict.trusted and _is_right(verdict) else None
    filters_by_accuracy = run.config.grpo.dynamic_sampling.filter_groups == "accuracy"
    return ScoredGroup(example, trajectories, [*map(response, samples)], scored, filters_by_accuracy, demonstration)


def _carry(sample: Sample, num_current: int) -> Sample:
    """Return a sample of the next rollout, with the index of its prompt in the next rollout's prompts."""
    return dataclasses.replace(sample, prompt_index=sample.prompt_index - num_current)


def _make_demonstrations(
    run: TrainingRun, examples: Sequence[Example], prompts: Sequence[Prompt], stops: Sequence[str]
) -> dict[int, Trajectory]:
    """Return the demonstrations by the index of their question; not every question has one.

    The policy could not sample a demonstration that is too long, or continues after a stop string. In a chat, answers
    begin with a thought. A question without a `reasoning` has no thought to show, and its demonstration would teach the
    policy not to think.
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
"""The name of the carried samples in a checkpoint."""


def to_arrays(batches: Sequence[GroupBatch], carried: Sequence[Sample] = ()) -> dict[str, np.ndarray]:
    """Return the arrays of sampled batches that are not learned yet, and of carried samples, by name in a checkpoint.

    The arrays of batch i are named `i/field`, and the carried samples are the bytes of one array.
    """
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
    """Return whether all trusted rewards of each of B groups are equal, [B] bool; False for groups of one answer."""
    rewards, weights = (np.array([getattr(group, field) for group in groups]) for field in ("rewards", "weights"))
    return np.asarray(zero_variance(rewards, weights)) & (rewards.shape[1] > 1)


def _collect_rewards(
    run: TrainingRun, jobs: Mapping[AnswerIndex, TextJob], env_states: EnvStates, on_progress: ProgressCallback
) -> dict[AnswerIndex, ScoredResponse]:
    """Wait for the results of this process's executor, and return those of all processes.

    A time limit that stopped an observation of a dialogue counts as a limit of the answer, whose reward is then not
    trusted. `on_progress` is called with the number of results.
    """
    rewards = []
    for done, (key, job) in enumerate(jobs.items()):
        on_progress(done)
        scored = run.prompt_format.recipe.collect(job)[0]
        scored = scored._replace(stop=env_states.stop(*key) or scored.stop)
        # Processes exchange JSON, so the reward is flattened to its total and parts.
        rewards.append((key, *dataclasses.astuple(scored.reward), *scored[1:]))
    on_progress(len(jobs))
    exchanged = exchange(rewards)
    return {(prompt, g): ScoredResponse(Reward(total, parts), *rest) for (prompt, g), total, parts, *rest in exchanged}


def _sampled_turns(groups: Sequence[ScoredGroup]) -> list[Turn]:
    """Return the policy's turns, without those of the environment."""
    return [turn for g in groups for t in g.trajectories for turn in t.turns if turn.role == ASSISTANT]


def _mean_std(groups: Sequence[ScoredGroup]) -> float:
    """Return the mean over groups of the standard deviation of their trusted rewards; 0 without any."""
    trusted = [[answer.reward.total for answer in group.scored if answer.trusted] for group in groups]
    stds = [float(np.std(rewards)) for rewards in trusted if rewards]
    return float(np.mean(stds)) if stds else 0.0


def group_metrics(groups: Sequence[ScoredGroup]) -> dict[str, float]:
    """Return metrics: means of rewards and their parts over the trusted answers, and of statuses and lengths over all.

    `reward/untrusted` is the share of answers whose reward is not trusted, for example because a time limit decided.
    """
    scored = [response for group in groups for response in group.scored]
    trusted = [answer for answer in scored if answer.trusted] or scored
    trajectories = [trajectory for group in groups for trajectory in group.trajectories]
    parts: Counter[str] = Counter()
    for answer in trusted:
        parts.update(answer.reward.parts)
    statuses = Counter(response.status for response in scored)
    lengths = [
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
        "length/mean": float(np.mean(lengths)),
        "length/truncated": float(np.mean([trajectory.finish_reason == "length" for trajectory in trajectories])),
        "length/turns": float(np.mean(turns)),
    }
