"""The main path: one step of GRPO, as `grpo_step` makes it.

1. Sample a group of answers to each question, and execute every finished answer's SQL while others are being written.
2. Reward each answer by its verdict (`training/collect.py` does both; `collect_rollouts` packs the results).
3. Compare each answer with its group: the advantage.
4. Update the policy toward the better answers.

`trainer.py` runs the whole training, with the cold start of `sft.py` before it: supervised steps that teach the answer
format. `lifecycle.py` stops, resumes, evaluates and saves.

A *rollout* answers the questions of `grpo.steps_per_generation` steps. *Carried* samples are answers to the next
rollout's questions that free decode slots began early (`rollout.ahead`); the next rollout continues them.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxrl_sql.algo.step import init_state
from jaxrl_sql.algo.updates import (
    AdvantageFn,
    OldLogprobFn,
    Updates,
    make_advantage_fn,
    make_old_logprob_fn,
    make_updates,
    micro_batches_of,
)
from jaxrl_sql.batch import GroupBatch, TrainState
from jaxrl_sql.config import replace_values
from jaxrl_sql.models.lora import policy_params
from jaxrl_sql.parallel.processes import to_host
from jaxrl_sql.parallel.rules import num_batch_shards
from jaxrl_sql.planning.workload import longest_answer
from jaxrl_sql.rollout import AnyEngine, Sample
from jaxrl_sql.runtime.metrics import reduce_metrics
from jaxrl_sql.runtime.progress import no_progress
from jaxrl_sql.training.batching.order import AnyOrder, Order, SchemaOrder
from jaxrl_sql.training.batching.pack import order_by_rows, pack, share_schemas, with_packed_rows
from jaxrl_sql.training.build import make_optimizer, make_policy, make_rollout_engine
from jaxrl_sql.training.collect import batches_from_arrays, collect_batch, samples_from_arrays, to_arrays
from jaxrl_sql.training.keep import keep_advantages, keep_groups
from jaxrl_sql.training.lifecycle import Snapshot, rating_of, restore
from jaxrl_sql.training.resume import ResumePoint
from jaxrl_sql.training.stages import Progress, Stage, has_risen
from jaxrl_sql.training.training_run import TrainingRun
from jaxrl_sql.types import InputError


@dataclass
class GrpoPhase:
    """A stage of GRPO as `lifecycle.run_phase` drives it; a run has one stage, or two with `second_stage.steps`.

    - `advantage(state, batch)` computes the advantages of a batch, and `update(state, batch, on_progress)` makes the
      updates of a step. `old_logprobs(state, batch)` adds the log-probabilities under the policy before them.
    - `engine` samples answers; it has parameters only during a rollout.
    - `order` is the order of the training questions, and `progress.cursor` the number that were taken from it.
    - `rollout_buffer` holds the sampled batches that are not learned yet, `carried` the next rollout's samples so far.
    - `is_over` is always False: no stage of GRPO ends early.
    """

    run: TrainingRun
    stage: Stage
    advantage: AdvantageFn
    update: Updates
    old_logprobs: OldLogprobFn
    engine: AnyEngine
    order: AnyOrder
    state: TrainState
    progress: Progress
    rollout_buffer: list[GroupBatch] = field(default_factory=list)
    carried: list[Sample] = field(default_factory=list)
    is_over: bool = False

    @property
    def name(self) -> str:
        """Return the stage's name in the metrics."""
        return self.stage.name

    @property
    def steps_before(self) -> int:
        """Return the number of the run's steps before the stage."""
        return self.stage.steps_before

    @property
    def last(self) -> int:
        """Return the last step of the stage, counted over the run."""
        return self.stage.last

    @property
    def evaluate_every(self) -> int:
        """Return the number of steps between evaluations."""
        return self.run.config.validation.every

    def step(self, step: int) -> None:
        """Run step `step`."""
        grpo_step(self.run, self, step)

    def policy_params(self, _step: int) -> Any:
        """Return the parameters of the current policy."""
        return policy_params(self.state.trainable, self.state.frozen)

    def record_evaluation(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the step's rating to the history of evaluations, from which a second stage derives its learning rate."""
        if self.progress.history[-1][0] != step:
            self.progress.history.append([step, rating_of(self.run, metrics)])

    def snapshot(self) -> Snapshot:
        """Return the checkpoint's contents, with the batches that are not learned yet and carried samples."""
        host_data = {"phase": self.stage.name, "progress": dataclasses.asdict(self.progress)}
        return Snapshot(self.state, host_data, to_arrays(self.rollout_buffer, self.carried))


def grpo_step(run: TrainingRun, phase: GrpoPhase, step: int) -> None:
    """Run step `step` of the run, a step of GRPO, and record its metrics; steps of the cold start count, too.

    If no sampled batch is left, the step first samples those of the next `grpo.steps_per_generation` steps.
    """
    grpo, stage = run.config.grpo, phase.stage
    start_time = time.perf_counter()
    metrics = {}
    if not phase.rollout_buffer:
        # The stage's last rollout has no successor.
        starts_next = run.config.rollout.ahead > 0 and step - 1 + grpo.steps_per_generation < stage.last
        metrics = collect_rollouts(run, phase, step - 1 - run.config.sft.steps, starts_next)
    collected_at = time.perf_counter()
    batch = on_mesh(run, phase.rollout_buffer.pop(0))
    updates_per_step = grpo.num_iterations * grpo.minibatches
    # A single update is one program, which reports no progress: 0 means an unknown total.
    total = updates_per_step if updates_per_step > 1 else 0
    with run.display.task("updating the policy", total, "updates" if total else "", is_announced=False) as on_progress:
        batch, advantage_metrics = phase.advantage(phase.state, batch)
        batch_index = (step - 1 - stage.steps_before) % grpo.steps_per_generation  # in its rollout
        keep_advantages(run, step, step - batch_index, batch_index, batch)
        phase.state, update_metrics = phase.update(phase.state, batch, on_progress if total else no_progress)
        metrics |= reduce_metrics(jax.device_get({**update_metrics, **advantage_metrics}))
        if total:
            on_progress(total)
    updated_at = time.perf_counter()
    # The rate of the step's first update.
    rate = stage.rate((step - 1 - stage.steps_before) * updates_per_step, updates_per_step)
    metrics |= {"optim/lr": rate, "time/update": updated_at - collected_at, "time/step": updated_at - start_time}
    run.record(step, stage.name, metrics)


def collect_rollouts(run: TrainingRun, phase: GrpoPhase, steps_done: int, starts_next: bool) -> dict[str, float]:
    """Sample, execute and reward the answers for the next `grpo.steps_per_generation` steps; return their metrics.

    The batches go to `phase.rollout_buffer`, one per step. `steps_done` is the number of GRPO steps before. With
    `starts_next`, free decode slots begin the samples of the next rollout.
    """
    grpo, state, progress = run.config.grpo, phase.state, phase.progress
    phase.engine.params = policy_params(state.trainable, state.frozen)
    steps = grpo.steps_per_generation
    rollout = collect_batch(
        run,
        phase.engine,
        phase.order,
        progress.cursor,
        steps_done // steps,
        grpo.prompts * steps,
        phase.carried,
        starts_next,
    )
    phase.carried = rollout.carried
    phase.engine.params = None  # the update donates these arrays, so the engine must not read them
    phase.engine.release()  # the update may use the KV cache's memory
    progress.cursor = rollout.cursor
    longest, chosen = longest_answer(run.config.sampling)[1], rollout.chosen
    if grpo.packing:  # several completions share a row: parts of a batch should need similar numbers of rows
        groups_per_update = grpo.prompts // grpo.minibatches
        micro_batches = micro_batches_of(grpo, num_batch_shards(run.mesh.shape))
        groups = [group.trajectories for group in chosen]
        order = order_by_rows(groups, longest, run.max_prompt_bucket, groups_per_update, micro_batches, grpo.questions)
        chosen = [chosen[i] for i in order]
    keep_groups(run, run.config.sft.steps + steps_done + 1, phase.stage.name, rollout.groups, chosen)
    for start in range(0, len(chosen), grpo.prompts):
        batch = pack(chosen[start : start + grpo.prompts], longest, run.max_prompt_bucket, grpo.demonstrations)
        batch = share_schemas(batch, grpo.questions) if grpo.questions > 1 else batch
        batch = with_packed_rows(batch) if grpo.packing else batch
        if run.config.rollout.exact:  # the engine's log-probabilities are those of the trainer, bit by bit
            batch = dataclasses.replace(batch, old_logprobs=batch.rollout_logprobs)
        # PPO also needs the value head's output, which the engine does not compute.
        is_known = batch.old_logprobs is not None and grpo.algorithm != "ppo"
        # With several steps per rollout, the policy changes before its later batches are learned.
        if steps > 1 and not is_known:
            scored_batch = phase.old_logprobs(state, on_mesh(run, batch))
            old = {"old_logprobs": scored_batch.old_logprobs, "old_values": scored_batch.old_values}
            batch = dataclasses.replace(batch, **jax.tree.map(to_host, old))
        phase.rollout_buffer.append(batch)
    return rollout.metrics


def on_mesh(run: TrainingRun, batch: GroupBatch) -> GroupBatch:
    """Put a host's batch on the devices, split along B; every process passes the whole batch."""
    rows = len(batch.completion)
    local = np.array(run.local_rows(rows))
    return run.to_mesh(jax.tree.map(lambda x: x[local], batch), rows)


def open_stage(
    run: TrainingRun, stage: Stage, trainable: Any, frozen: Any, progress: Progress, resume_point: ResumePoint
) -> GrpoPhase:
    """Make a stage's optimizer, state and engine.

    A run that resumes inside the stage continues from the checkpoint's state instead of `trainable` and `progress`.
    """
    grpo = run.config.grpo
    # Losses that divide by a maximum length use that of sampling, unless it is set.
    longest = grpo.loss.max_completion_tokens or longest_answer(run.config.sampling)[1]
    grpo = replace_values(grpo, {"loss.max_completion_tokens": longest})
    optimizer = make_optimizer(run, stage.optim, stage.steps * grpo.num_iterations * grpo.minibatches)
    policy, num_shards = make_policy(run, run.config.sampling.temperature), num_batch_shards(run.mesh.shape)
    phase = GrpoPhase(
        run=run,
        stage=stage,
        advantage=make_advantage_fn(policy, grpo, run.prompt_format.recipe.advantage, num_shards),
        update=make_updates(policy, grpo, optimizer, run.prompt_format.recipe.loss, num_shards),
        old_logprobs=make_old_logprob_fn(policy, micro_batches_of(grpo, num_shards, grpo.minibatches)),
        engine=make_rollout_engine(run),
        order=_order(run),
        state=init_state(trainable, optimizer, frozen, _reference(run, trainable, stage)),
        progress=progress,
    )
    if resume_point.is_within(stage.steps_before, stage.last):
        phase.state, host_data, arrays = restore(run, resume_point.step, phase.state)
        phase.progress = Progress(**host_data["progress"])
        phase.rollout_buffer, phase.carried = batches_from_arrays(arrays, grpo.questions), samples_from_arrays(arrays)
    return phase


def _order(run: TrainingRun) -> AnyOrder:
    """Return the order of the training questions.

    With `grpo.questions` above 1, that many consecutive questions are on one database, and share its schema.
    """
    grpo, seed = run.config.grpo, run.config.seed
    if grpo.questions == 1:
        return Order(len(run.questions.train.prompts), seed)
    prompts_per_schema = grpo.questions * grpo.dynamic_sampling.oversample
    return SchemaOrder([example.db_path for example in run.questions.train.examples], prompts_per_schema, seed)


def open_second_stage(run: TrainingRun, first: GrpoPhase, resume_point: ResumePoint) -> GrpoPhase:
    """Open the second stage, which restarts from the best checkpoint of the stage `first`.

    Its learning rate begins at the peak rate if the first stage's evaluations rose. If they fluctuated, it begins at
    half the rate that the best checkpoint was trained with (PaVeRL-SQL's restart).
    """
    second_stage, optim, trainable = run.config.second_stage, first.stage.optim, first.state.trainable
    progress = first.progress
    if resume_point.is_after(first.last):
        progress = Progress(**run.outputs.checkpoints.host(resume_point.step)["progress"])
    else:
        best = run.outputs.checkpoints.best()
        if best is None:
            raise InputError(
                f"{run.folder}: no evaluated checkpoint for the second stage: validation.every is too large"
            )
        trainable = restore(run, best, first.state)[0].trainable
        updates_per_step = run.config.grpo.num_iterations * run.config.grpo.minibatches
        last_update = (best - first.steps_before) * updates_per_step - 1  # the best checkpoint's, counted from 0
        rate = first.stage.rate(last_update, updates_per_step)
        is_rising = has_risen([rating for _, rating in progress.history])
        progress.rate = optim.lr if is_rising else rate / 2
        trend = "rose" if is_rising else "fluctuated"
        run.note(f"second stage from step {best}: accuracy {trend}, the rate begins at {progress.rate:.2g}")
    second_optim = dataclasses.replace(
        optim,
        lr=progress.rate,
        schedule="cosine",
        flat_steps=0,
        warmup_steps=0,
        final_lr_ratio=second_stage.final_lr_ratio,
    )
    stage = Stage("grpo2", first.last, second_stage.steps, second_optim)
    return open_stage(run, stage, trainable, first.state.frozen, progress, resume_point)


def _reference(run: TrainingRun, trainable: Any, stage: Stage) -> Any:
    """Return a copy of a stage's first policy as the reference of the KL penalty; None if no copy is needed.

    New adapters need no copy: the frozen base without them is the reference. Trained adapters are copied without the
    base.
    """
    has_new_adapters = run.config.model.lora.rank > 0 and stage.steps_before == 0
    needs_copy = run.config.grpo.kl.coef > 0 and not has_new_adapters
    return jax.tree.map(lambda x: x.copy(), trainable) if needs_copy else None
