"""The supervised cold start: `python -m jaxrl_sql.sft --config FILE`, and the first phase of `jaxrl_sql.train`.

Questions on one database share its schema, so a batch is `sft.databases` schemas with up to `sft.questions` questions
each, and a schema runs once for all of them: that is how examples are packed here, and `sft/padding` says what share
of a batch's positions holds nothing all the same. The loss is on answers only.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import optax

from jaxrl_sql.algo.loss import sft_loss
from jaxrl_sql.algo.step import init_state, make_step
from jaxrl_sql.batch import GroupBatch, TrainState, bucket
from jaxrl_sql.config import TrainConfig
from jaxrl_sql.data.pack import pack_rows
from jaxrl_sql.data.sft_batches import Row, word_tokens
from jaxrl_sql.data.sft_dataset import SftDataset, rows_of
from jaxrl_sql.models.lora import policy_params
from jaxrl_sql.run.command import run_command
from jaxrl_sql.run.evaluation import evaluate_all
from jaxrl_sql.run.session import Session, open_session
from jaxrl_sql.runtime.metrics import merge_metrics, reduce_metrics
from jaxrl_sql.types import InputError


@dataclass
class Watch:
    """The best held-out loss so far and how many measurements in a row were no better; `patience` of 0 never ends."""

    patience: int
    best: float = math.inf
    waited: int = 0

    def see(self, loss: float) -> bool:
        """Take a measurement; say whether it is the best."""
        is_best = loss < self.best
        self.best, self.waited = (loss, 0) if is_best else (self.best, self.waited + 1)
        return is_best

    @property
    def is_over(self) -> bool:
        """Return whether the wait for a better one is over."""
        return 0 < self.patience <= self.waited

    def host(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: JSON knows no infinity."""
        return {"best": self.best if math.isfinite(self.best) else None, "waited": self.waited}

    def restore(self, host: dict[str, Any]) -> None:
        """Go on from what a checkpoint kept."""
        self.best, self.waited = math.inf if host["best"] is None else host["best"], host["waited"]


@dataclass
class Window:
    """What was done since the last record: steps, tokens, and the positions that were computed for them."""

    steps: int = 0
    tokens: int = 0
    positions: int = 0
    since: float = field(default_factory=time.perf_counter)

    def numbers(self) -> dict[str, float]:
        """Return the means of the window."""
        seconds = time.perf_counter() - self.since
        return {
            "time/step": seconds / self.steps,
            "speed/tokens_per_s": self.tokens / seconds,
            "sft/padding": 1 - self.tokens / self.positions,
        }


def run_sft(s: Session, begin: int) -> tuple[Any, Any]:
    """Teach the answers from step `begin` to `sft.steps`; return (trainable, frozen), when stopped early too."""
    cfg = s.config.sft
    if cfg.steps == 0:
        return s.fresh_params()
    sft_dataset = s.sft_dataset
    optimizer = s.optimizer(cfg.optim, cfg.steps)
    update = make_step(s.policy(), sft_loss, optimizer, cfg.gradient_accumulation_steps)
    held_out_loss = make_held_out_loss(s, sft_dataset)
    state, watch = begin_at(s, begin, optimizer)
    if s.agree_to_stop():
        return state.trainable, state.frozen
    words = (
        tuple(word for word in word_tokens(s.tokenizer) if word not in sft_dataset.form)
        if cfg.shuffle_identifiers
        else ()
    )
    max_prompt_bucket, window = bucket(sft_dataset.longest), Window()
    for step in range(begin, cfg.steps):
        if watch.is_over:
            break
        rows = rows_of(s.config, sft_dataset, words, step)
        batch = pack(s, rows, max_prompt_bucket)
        window.steps += 1
        window.tokens += sum(len(row.prompt) + sum(len(answer.token_ids) for answer in row.answers) for row in rows)
        window.positions += cfg.databases * (max_prompt_bucket + cfg.questions * batch.completion.shape[-1])
        state, metrics = update(state, s.to_mesh(batch, cfg.databases))
        at = step + 1
        is_last = at == cfg.steps
        is_measured = is_last or (cfg.eval_every > 0 and at % cfg.eval_every == 0)
        if at % cfg.log_every == 0 or is_measured:
            numbers = reduce_metrics(jax.device_get(metrics)) | window.numbers()
            if is_measured and sft_dataset.held:
                numbers["sft/held_out_loss"] = held_out_loss(state)
                if watch.see(numbers["sft/held_out_loss"]) and cfg.patience:
                    state = dataclasses.replace(state, reference=_copy(state.trainable))
            s.record(at, "sft", numbers)
            window = Window()
        if is_measured and not s.agree_to_stop():
            evaluate_all(s, _taught(s, state, is_last), at)
            window = Window()
        s.agree_to_stop()
        if s.save_if_due(at, state, {"phase": "sft", "watch": watch.host()}, is_last=is_last or watch.is_over):
            break
    if watch.is_over:
        s.note(f"sft: ended at step {int(state.step)}: held-out loss {watch.best:.4f} was not bettered since")
    return state.reference if cfg.patience else state.trainable, state.frozen


def _taught(s: Session, state: TrainState, is_last: bool) -> Any:
    """Return the policy as it stands, and at the end the one that the phase leaves: the best where that is kept."""
    best = state.reference if s.config.sft.patience and is_last else state.trainable
    return policy_params(best, state.frozen)


def begin_at(s: Session, begin: int, optimizer: optax.GradientTransformation) -> tuple[TrainState, Watch]:
    """Return the state before step `begin`, new or from a checkpoint, and what its held-out loss has been.

    The best parameters so far stand where GRPO has its reference: saved with the rest, and never donated.
    """
    cfg, skipped = s.config.sft, s.sft_dataset.skipped
    for reason, count in Counter(reason for _, reason in skipped).items():
        s.note(f"sft: skipped {count} ({reason}), such as {next(uid for uid, why in skipped if why == reason)}")
    trainable, frozen = s.fresh_params()
    state = init_state(trainable, optimizer, frozen, _copy(trainable) if cfg.patience else None)
    watch = Watch(cfg.patience)
    if begin:
        state, host, _ = s.restore(begin, state)
        watch.restore(host["watch"])
        if begin == cfg.steps or (cfg.eval_every and begin % cfg.eval_every == 0):
            evaluate_all(s, _taught(s, state, begin == cfg.steps), begin)  # where a stop came before it
    return state, watch


def pack(s: Session, rows: Sequence[Row], max_prompt_bucket: int) -> GroupBatch:
    """Pack this process's part of a batch."""
    cfg = s.config.sft
    return pack_rows(rows, cfg.databases, cfg.questions, max_prompt_bucket, s.rows_here(cfg.databases))


def make_held_out_loss(s: Session, sft_dataset: SftDataset) -> Callable[[TrainState], float]:
    """Return the function that measures the loss on the answers of the held-out questions, a mean over tokens."""
    policy, rows = s.policy(), s.config.sft.databases

    @jax.jit
    def measure(trainable: Any, frozen: Any, batch: GroupBatch) -> Any:
        return sft_loss(policy(trainable, frozen, batch), batch).metrics

    def loss(state: TrainState) -> float:
        batches = (s.to_mesh(pack(s, found, bucket(sft_dataset.longest)), rows) for found in sft_dataset.held_rows())
        found = [jax.device_get(measure(state.trainable, state.frozen, batch)) for batch in batches]
        return reduce_metrics(merge_metrics(*found))["sft/loss"]

    return loss


def _copy(params: Any) -> Any:
    return jax.tree.map(lambda x: x.copy(), params)


def sft(config: TrainConfig) -> int:
    """Run the supervised phase alone and write the model; return the exit code.

    Raises InputError where it would have no step: nothing would be taught, and a model written all the same.
    """
    if not (config.sft.steps or config.sft.epochs):
        raise InputError("config: sft.steps=0 and sft.epochs=0 teach nothing: set one of them, such as sft.steps=100")
    config = dataclasses.replace(config, grpo=dataclasses.replace(config.grpo, steps=0))
    with open_session(config) as s:
        trainable, frozen = run_sft(s, s.resume_step())
        if s.stop:
            return s.stopped()
        if not evaluate_all(s, policy_params(trainable, frozen), s.config.sft.steps):
            return s.stopped()
        s.note(f"model: {s.export(trainable, frozen)}")
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, run the supervised phase, and return the exit code."""
    return run_command(sft, __doc__ or "", arguments)


if __name__ == "__main__":
    sys.exit(main())
