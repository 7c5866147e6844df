"""The main path: `python -m jaxrl_sql.train --config configs/quickstart.yaml`.

One GRPO step, in order: take questions, draw a group of answers to each, run every finished answer's SQL while the
others are still being written, turn the verdicts into rewards, compare each answer with its group, and push the
policy toward the better ones. Before the first step there may be a supervised cold start (`sft.py`), and after the
last a second stage that begins again from the best checkpoint of the first.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxrl_sql.algo.optim import make_schedule
from jaxrl_sql.algo.step import init_state
from jaxrl_sql.algo.updates import OldLogprobFn, Updates, make_old_logprob_fn, make_updates
from jaxrl_sql.batch import GroupBatch, TrainState
from jaxrl_sql.config import TrainConfig
from jaxrl_sql.data.order import Order
from jaxrl_sql.models.lora import policy_params
from jaxrl_sql.models.value import add_value_head
from jaxrl_sql.parallel.processes import to_host
from jaxrl_sql.planning.workload import drawn_answer
from jaxrl_sql.rollout import Engine
from jaxrl_sql.run.collect import collect_batch, from_arrays, pack, to_arrays
from jaxrl_sql.run.command import run_command
from jaxrl_sql.run.evaluation import evaluate_all
from jaxrl_sql.run.policy_client import whole_text
from jaxrl_sql.run.session import PreemptedError, Session, open_session
from jaxrl_sql.run.stages import Progress, Stage, has_risen
from jaxrl_sql.runtime.metrics import reduce_metrics
from jaxrl_sql.sft import run_sft
from jaxrl_sql.types import InputError


@dataclass
class StageState:
    """What a stage's steps read and leave for the next; `rollout_buffer` holds the batches that are not learned yet."""

    stage: Stage
    update: Updates
    store: OldLogprobFn
    engine: Engine
    order: Order
    state: TrainState
    progress: Progress
    rollout_buffer: list[GroupBatch] = field(default_factory=list)


def train(config: TrainConfig) -> int:
    """Run a whole training: cold start, evaluation, GRPO, evaluation; return the exit code."""
    with open_session(config) as s:
        config = s.config  # epochs are steps by now
        begin, first = s.resume_step(), config.sft.steps
        trainable, frozen = run_sft(s, begin) if begin <= first else s.fresh_params()
        if s.stop:
            return s.stopped()
        progress = Progress()
        if config.grpo.algorithm == "ppo":
            trainable = add_value_head(trainable, s.model, s.mesh)
        if begin <= first:
            progress.before = evaluate_all(s, policy_params(trainable, frozen), first)
            if s.agree_to_stop():
                return s.stopped()
            progress.history.append([first, s.score(progress.before)])
        stage = Stage("grpo", first, config.grpo.steps, config.grpo.optim)
        loop = open_stage(s, stage, trainable, frozen, progress, begin)
        if not run_stage(s, loop, begin):
            return s.stopped()
        if config.second_stage.steps:
            loop = open_second_stage(s, loop, begin)
            if not run_stage(s, loop, begin):
                return s.stopped()
        state, before = loop.state, loop.progress.before
        after = evaluate_all(s, policy_params(state.trainable, frozen), loop.stage.last)
        if not after:
            return s.stopped()
        s.note(f"model: {s.export(state.trainable, frozen)}")
        for name in s.evals:
            old, new = (numbers[f"eval/{name}/accuracy"] for numbers in (before, after))
            s.note(f"{name}: greedy accuracy {100 * old:.1f} % before GRPO, {100 * new:.1f} % after")
    return 0


def open_stage(s: Session, stage: Stage, trainable: Any, frozen: Any, progress: Progress, begin: int) -> StageState:
    """Make what a stage's steps need; where the run goes on from inside of it, its state is the checkpoint's."""
    grpo = s.config.grpo
    optimizer = s.optimizer(stage.optim, stage.steps * grpo.num_iterations * grpo.minibatches)
    policy = s.policy(s.config.sampling.temperature)
    loop = StageState(
        stage=stage,
        update=make_updates(policy, grpo, optimizer, s.recipe.loss, s.recipe.advantage),
        store=make_old_logprob_fn(policy, grpo.minibatches * grpo.gradient_accumulation_steps),
        engine=s.engine(None, s.config.rollout.max_num_seqs),
        order=Order(len(s.train.prompts), s.config.seed),
        state=init_state(trainable, optimizer, frozen, _reference(s, trainable, stage)),
        progress=progress,
    )
    if stage.first < begin <= stage.last:
        loop.state, host, arrays = s.restore(begin, loop.state)
        loop.progress = Progress(**host["progress"])
        loop.rollout_buffer = from_arrays(arrays)
    return loop


def open_second_stage(s: Session, first: StageState, begin: int) -> StageState:
    """Begin again from the best checkpoint of the first stage, at the rate that its evaluations suggest."""
    second_stage, optim, trainable = s.config.second_stage, first.stage.optim, first.state.trainable
    progress = first.progress
    if begin > first.stage.last:
        progress = Progress(**s.checkpoints.host(begin)["progress"])
    else:
        best = s.checkpoints.best()
        if best is None:
            raise InputError(f"{s.folder}: no evaluated checkpoint for the second stage: validation.every is too large")
        trainable = s.restore(best, first.state)[0].trainable
        updates = s.config.grpo.num_iterations * s.config.grpo.minibatches
        rate = float(make_schedule(optim, first.stage.steps * updates)((best - first.stage.first) * updates))
        rose = has_risen([score for _, score in progress.history])
        progress.rate = optim.lr if rose else rate / 2
        trend = "rose" if rose else "fluctuated"
        s.note(f"second stage from step {best}: accuracy {trend}, the rate begins at {progress.rate:.2g}")
    again = dataclasses.replace(
        optim,
        lr=progress.rate,
        schedule="cosine",
        flat_steps=0,
        warmup_steps=0,
        final_lr_ratio=second_stage.final_lr_ratio,
    )
    stage = Stage("grpo2", first.stage.last, second_stage.steps, again)
    return open_stage(s, stage, trainable, first.state.frozen, progress, begin)


def run_stage(s: Session, loop: StageState, begin: int) -> bool:
    """Make a stage's steps from the run's step `begin` on; return False when the run has been asked to stop."""
    stage = loop.stage
    if stage.first < begin <= stage.last:
        evaluate_if_due(s, loop, begin)  # the run may have stopped before it was,
        s.save(begin, loop.state, _host(loop), to_arrays(loop.rollout_buffer))  # and its checkpoint is not rated then
    if s.agree_to_stop():
        return False
    for at in range(max(begin, stage.first) + 1, stage.last + 1):
        try:
            grpo_step(s, loop, at)
        except PreemptedError:  # before the step changed anything
            if at - 1 > stage.first:
                s.save(at - 1, loop.state, _host(loop), to_arrays(loop.rollout_buffer))
            s.agree_to_stop()
            return False
        s.agree_to_stop()
        evaluate_if_due(s, loop, at)
        s.agree_to_stop()
        if s.save_if_due(at, loop.state, _host(loop), to_arrays(loop.rollout_buffer), is_last=at == stage.last):
            return False
    return True


def _host(loop: StageState) -> dict[str, Any]:
    return {"phase": loop.stage.name, "progress": dataclasses.asdict(loop.progress)}


def evaluate_if_due(s: Session, loop: StageState, at: int) -> None:
    """Evaluate after step `at`, where it is one of those, or the last; a run that stops does so when it goes on."""
    stage, history = loop.stage, loop.progress.history
    every = s.config.validation.every
    if s.stop or (at != stage.last and not (every and (at - stage.first) % every == 0)):
        return
    numbers = evaluate_all(s, policy_params(loop.state.trainable, loop.state.frozen), at)
    if numbers and history[-1][0] != at:
        history.append([at, s.score(numbers)])


def grpo_step(s: Session, loop: StageState, at: int) -> None:
    """Make the run's step `at` of GRPO (they count from 1, the cold start's too) and record it."""
    grpo, stage = s.config.grpo, loop.stage
    began = time.perf_counter()
    numbers = {} if loop.rollout_buffer else collect_rollouts(s, loop, at - 1 - s.config.sft.steps)
    drawn = time.perf_counter()
    batch = loop.rollout_buffer.pop(0)
    loop.state, metrics = loop.update(loop.state, on_mesh(s, batch))
    numbers |= reduce_metrics(jax.device_get(metrics))
    ended = time.perf_counter()
    updates = grpo.num_iterations * grpo.minibatches
    rate = make_schedule(stage.optim, stage.steps * updates)((at - 1 - stage.first) * updates)
    numbers |= {"optim/lr": float(rate), "time/update": ended - drawn, "time/step": ended - began}
    s.record(at, stage.name, numbers)


def collect_rollouts(s: Session, loop: StageState, number: int) -> dict[str, float]:
    """Draw what the next `grpo.steps_per_generation` steps learn from; return the numbers of the draw."""
    grpo, state, progress = s.config.grpo, loop.state, loop.progress
    loop.engine.params = policy_params(state.trainable, state.frozen)
    drawn = collect_batch(
        s,
        loop.engine,
        loop.order,
        progress.cursor,
        number // grpo.steps_per_generation,
        grpo.prompts * grpo.steps_per_generation,
    )
    loop.engine.params = None  # the updates donate them
    progress.cursor = drawn.cursor
    for group in drawn.groups[: s.config.run.samples_per_step]:
        one, text = group.scored[0], whole_text(group.responses[0])
        at = s.config.sft.steps + number + 1
        s.write_sample(at, loop.stage.name, group.example, text, one.sql, one.status, one.reward.total)
    longest, max_prompt_bucket = drawn_answer(s.config)[1], s.max_prompt_bucket
    for start in range(0, len(drawn.chosen), grpo.prompts):
        batch = pack(drawn.chosen[start : start + grpo.prompts], longest, max_prompt_bucket)
        if grpo.steps_per_generation > 1:  # the policy that drew them will have moved on
            known = loop.store(state, on_mesh(s, batch))
            old = {"old_logprobs": known.old_logprobs, "old_values": known.old_values}
            batch = dataclasses.replace(batch, **jax.tree.map(to_host, old))
        loop.rollout_buffer.append(batch)
    return drawn.numbers


def on_mesh(s: Session, batch: GroupBatch) -> GroupBatch:
    """Put the host's batch, whole on every process, on the devices, split along B."""
    rows = len(batch.completion)
    here = np.array(s.rows_here(rows))
    return s.to_mesh(jax.tree.map(lambda x: x[here], batch), rows)


def _reference(s: Session, trainable: Any, stage: Stage) -> Any:
    """Keep a copy of what a stage starts from as the reference policy, where the KL penalty needs one.

    New adapters need none: without them the frozen base is the start. Of trained ones the copy is of adapters only.
    """
    is_base = s.config.model.lora.rank > 0 and stage.first == 0
    return jax.tree.map(lambda x: x.copy(), trainable) if s.config.grpo.kl_coef > 0 and not is_base else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, train, and return the exit code."""
    return run_command(train, __doc__ or "", arguments)


if __name__ == "__main__":
    sys.exit(main())
