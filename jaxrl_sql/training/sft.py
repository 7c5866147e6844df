"""Supervised fine-tuning: alone (`sft`), or as the first phase of a training run (`run_sft`).

Questions on one database share its schema. A batch has `sft.databases` schemas with up to `sft.questions` questions
each. The model computes a schema once for all its questions. The loss covers answers only, unless `sft.loss_on=text`.
With `sft.packing` several (question, answer) sequences of a schema share one row of tokens.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from jaxrl_sql.algo.loss import sft_loss
from jaxrl_sql.algo.step import StepFn, init_state, make_step
from jaxrl_sql.batch import GroupBatch, TrainState, bucket
from jaxrl_sql.models.lora import policy_params
from jaxrl_sql.models.ops.micro_batches import order_for_parts, row_counts
from jaxrl_sql.runtime.metrics import reduce_metrics
from jaxrl_sql.text2sql.benchmarks import summarize_skipped
from jaxrl_sql.training.batching.pack import pack_rows, score_learned_only, width_by_schema, with_packed_rows
from jaxrl_sql.training.batching.sft_batches import SftRow, word_tokens
from jaxrl_sql.training.batching.sft_dataset import SftDataset, rows_of_step
from jaxrl_sql.training.build import export_model, make_optimizer, make_params, make_policy
from jaxrl_sql.training.evaluation import evaluate_all
from jaxrl_sql.training.lifecycle import Snapshot, report_end, restore, run_phase
from jaxrl_sql.training.resume import ResumePoint, resume
from jaxrl_sql.training.training_run import TrainingRun


@dataclass
class EarlyStopping:
    """Early stopping on the held-out loss.

    `best` is the lowest loss. `waited` counts the measurements since the last that was lower than the best before it by
    more than `min_delta`. Training ends when `waited` reaches `patience`; a `patience` of 0 disables this.
    """

    patience: int
    min_delta: float = 0.0
    best: float = math.inf
    waited: int = 0

    def update(self, loss: float) -> bool:
        """Record a loss; return whether it is the best so far."""
        is_best = loss < self.best
        self.waited = 0 if is_best and self.best - loss > self.min_delta else self.waited + 1
        self.best = min(self.best, loss)
        return is_best

    @property
    def is_over(self) -> bool:
        """Return whether `patience` measurements in a row brought no improvement."""
        return 0 < self.patience <= self.waited

    def state_dict(self) -> dict[str, Any]:
        """Return the values for a checkpoint: JSON has no infinity."""
        return {"best": self.best if math.isfinite(self.best) else None, "waited": self.waited}

    def load_state_dict(self, values: dict[str, Any]) -> None:
        """Restore the values of a checkpoint."""
        self.best, self.waited = math.inf if values["best"] is None else values["best"], values["waited"]


@dataclass
class LogWindow:
    """Counts since the last logged line of metrics, which began at the time `since` (`time.perf_counter`).

    `tokens` counts tokens without padding, `positions` computed positions including padding.
    """

    steps: int = 0
    tokens: int = 0
    positions: float = 0.0
    since: float = field(default_factory=time.perf_counter)

    def metrics(self) -> dict[str, float]:
        """Return the mean step time, tokens per second, and the share of padding in the window."""
        seconds = time.perf_counter() - self.since
        return {
            "time/step": seconds / self.steps,
            "speed/tokens_per_s": self.tokens / seconds,
            "sft/padding": 1 - self.tokens / self.positions,
        }


@dataclass
class SftPhase:
    """The supervised phase as `lifecycle.run_phase` drives it.

    `update` is the jitted training step. `word_ids` are the tokens that may replace names (`sft.shuffle_identifiers`).
    `last_metrics` are the last step's, still on the devices.
    """

    run: TrainingRun
    dataset: SftDataset
    state: TrainState
    early_stopping: EarlyStopping
    update: StepFn
    held_out_loss: Callable[[TrainState], float]
    word_ids: tuple[int, ...]
    window: LogWindow = field(default_factory=LogWindow)
    steps_before: int = 0
    last_metrics: Any = None

    @property
    def name(self) -> str:
        """Return the phase's name in the metrics."""
        return "sft"

    @property
    def last(self) -> int:
        """Return the last step of the phase."""
        return self.run.config.sft.steps

    @property
    def evaluate_every(self) -> int:
        """Return the number of steps between evaluations."""
        return self.run.config.sft.eval_every

    @property
    def is_over(self) -> bool:
        """Return whether the held-out loss has not improved for too long."""
        return self.early_stopping.is_over

    def step(self, step: int) -> None:
        """Run step `step`; log it every `sft.log_every` steps and when the held-out loss is measured."""
        run, cfg = self.run, self.run.config.sft
        rows = rows_of_step(cfg, run.config.seed, self.dataset, self.word_ids, step - 1)
        batch = pack(run, rows, self.dataset.max_schema_tokens)
        self.window.steps += 1
        self.window.tokens += sum(
            len(row.prompt) + sum(len(answer.token_ids) for answer in row.answers) for row in rows
        )
        self.window.positions += cfg.databases * positions_per_prompt(batch, cfg.gradient_accumulation_steps)
        # Wait for the previous update: JAX dispatches asynchronously, and a queued update would also hold its memory.
        jax.block_until_ready(self.last_metrics)
        self.state, self.last_metrics = self.update(self.state, run.to_mesh(batch, cfg.databases))
        is_measured = step == self.last or (cfg.eval_every > 0 and step % cfg.eval_every == 0)
        if step % cfg.log_every == 0 or is_measured:
            metrics = self.metrics()
            if is_measured and self.dataset.held_out:
                with run.display.task("measuring the held-out loss", is_announced=False):
                    metrics["sft/held_out_loss"] = self.held_out_loss(self.state)
                if self.early_stopping.update(metrics["sft/held_out_loss"]) and cfg.patience:
                    self.state = dataclasses.replace(self.state, best=_copy(self.state.trainable))
            run.record(step, "sft", metrics)
            self.window = LogWindow()

    def metrics(self) -> dict[str, float]:
        """Return the metrics of the last step, and the means since the last logged line."""
        return reduce_metrics(jax.device_get(self.last_metrics)) | self.window.metrics()

    def log_rest(self) -> None:
        """Log the last step of a stopped run.

        A resumed run removes this line from the metrics, because it was written after the checkpoint.
        """
        if self.window.steps:
            self.run.record(int(self.state.step), "sft", self.metrics())
            self.window = LogWindow()

    def policy_params(self, step: int) -> Any:
        """Return the current parameters; after the last step, those of `result`."""
        return policy_params(self.result if step == self.last else self.state.trainable, self.state.frozen)

    @property
    def result(self) -> Any:
        """Return the phase's final parameters, or with early stopping those of the lowest held-out loss."""
        return self.state.best if self.run.config.sft.patience else self.state.trainable

    def record_evaluation(self, _step: int, _metrics: Mapping[str, float]) -> None:
        """Start a new window of counts, so that its time excludes the evaluation."""
        self.window = LogWindow()

    def snapshot(self) -> Snapshot:
        """Return the contents of a checkpoint."""
        return Snapshot(self.state, {"phase": "sft", "watch": self.early_stopping.state_dict()})


def run_sft(run: TrainingRun, resume_point: ResumePoint) -> tuple[Any, Any]:
    """Run the supervised steps up to `sft.steps`; return the parameters (trainable, frozen).

    Without supervised steps these are the initial parameters; if a stop was requested, those of the last step.
    """
    cfg = run.config.sft
    if cfg.steps == 0:
        return make_params(run)
    phase = open_sft(run, resume_point)
    if not run_phase(run, phase, resume_point):
        phase.log_rest()
    if phase.is_over:
        best = phase.early_stopping.best
        run.note(f"sft: ended at step {int(phase.state.step)}: held-out loss {best:.4f} has not improved since")
    return phase.result, phase.state.frozen


def open_sft(run: TrainingRun, resume_point: ResumePoint) -> SftPhase:
    """Create the state and programs of the supervised phase, new or from the checkpoint of a resumed run."""
    cfg, dataset = run.config.sft, run.questions.sft
    for line in summarize_skipped(dataset.skipped):
        run.note(f"sft: {line}")
    optimizer = make_optimizer(run, cfg.optim, cfg.steps)
    trainable, frozen = make_params(run)
    state = init_state(trainable, optimizer, frozen)
    state = dataclasses.replace(state, best=_copy(trainable) if cfg.patience else None)
    early_stopping = EarlyStopping(cfg.patience, cfg.min_delta)
    if resume_point.is_within(0, cfg.steps):
        state, host, _ = restore(run, resume_point.step, state)
        early_stopping.load_state_dict(host["watch"])
    # Tags and instructions stay as they are.
    word_ids = tuple(word for word in word_tokens(run.prompt_format.tokenizer) if word not in dataset.format_tokens)
    return SftPhase(
        run=run,
        dataset=dataset,
        state=state,
        early_stopping=early_stopping,
        update=make_step(make_policy(run), sft_loss, optimizer, cfg.gradient_accumulation_steps),
        held_out_loss=make_held_out_loss(run, dataset),
        word_ids=word_ids if cfg.shuffle_identifiers else (),
    )


def pack(run: TrainingRun, rows: Sequence[SftRow], longest: int) -> GroupBatch:
    """Pack this process's part of a batch, on the host.

    `longest` is the number of tokens of the longest schema in any batch. With `run.pad_to_max` all batches have one
    shape.
    """
    cfg, local, is_one_shape = run.config.sft, run.local_rows(run.config.sft.databases), run.config.run.pad_to_max
    if not cfg.packing:
        answer = cfg.max_completion_tokens if is_one_shape else 0
        return pack_rows(rows, cfg.databases, cfg.questions, bucket(longest), local, longest=answer)
    width = width_by_schema(longest if is_one_shape else max(len(row.prompt) for row in rows), 0)
    batch = pack_rows(rows, cfg.databases, cfg.questions, width, longest=cfg.max_completion_tokens)
    batch = score_learned_only(with_packed_rows(batch))
    # Order the prompts so that those of each micro-batch need similar numbers of packed rows.
    if batch.packed_length is None:
        order = list(range(cfg.databases) if local is None else local)
    else:
        order = order_for_parts(_count_needed_rows(batch.packed_length), cfg.gradient_accumulation_steps)
        order = order if local is None else [order[i] for i in local]
    return jax.tree.map(lambda x: x[order], batch)


def positions_per_prompt(batch: GroupBatch, parts: int) -> float:
    """Return the mean number of positions that a step computes per prompt with its completions, including padding.

    `parts` is the number of micro-batches. Of a packed batch each runs only as many rows as its prompts need, rounded
    up to one of `row_counts`.
    """
    prompt, width = batch.shared[0].tokens.shape[1], batch.completion.shape[-1]
    if batch.packed_length is None:
        return float(prompt + batch.completion.shape[1] * width)
    max_rows = batch.packed_length.shape[1]
    possible_rows = row_counts(max_rows) if parts > 1 else (max_rows,)
    needed_rows = _count_needed_rows(batch.packed_length)
    computed_rows = [
        next(rows for rows in possible_rows if rows >= max(needed_rows[part::parts]))
        for part in range(min(parts, len(needed_rows)))
    ]
    return prompt + width * sum(computed_rows) / len(computed_rows)


def _count_needed_rows(packed_length: jax.Array) -> list[int]:
    """Return the number of non-empty rows of each of B prompts, from the tokens per row [B,R]."""
    needed: list[int] = (np.asarray(packed_length) > 0).sum(axis=1).tolist()
    return needed


def make_held_out_loss(run: TrainingRun, sft_dataset: SftDataset) -> Callable[[TrainState], float]:
    """Return the function that computes the held-out loss of a state, a mean over the tokens in the loss."""
    policy, rows = make_policy(run), run.config.sft.databases

    @jax.jit
    def measure(trainable: Any, frozen: Any, batch: GroupBatch) -> Any:
        return sft_loss(policy(trainable, frozen, batch), batch).metrics

    def loss(state: TrainState) -> float:
        batches = (
            run.to_mesh(pack(run, held_rows, sft_dataset.max_schema_tokens), rows)
            for held_rows in sft_dataset.held_out_batches()
        )
        measured = [jax.device_get(measure(state.trainable, state.frozen, batch)) for batch in batches]
        # A metric is (sum, weight); the weight of the loss is its number of tokens.
        total, tokens = (sum(part) for part in zip(*(metrics["sft/loss"] for metrics in measured), strict=True))
        return float(total) / float(tokens)

    return loss


def _copy(params: Any) -> Any:
    return jax.tree.map(lambda x: x.copy(), params)


def sft(run: TrainingRun) -> int:
    """Run only the supervised phase of a training run, write the model, and return the exit code."""
    trainable, frozen = run_sft(run, resume(run))
    if run.status.is_stopping:
        return run.report_stop()
    if not evaluate_all(run, policy_params(trainable, frozen), run.config.sft.steps):
        return run.report_stop()
    export_model(run, trainable, frozen)
    report_end(run)
    return 0
