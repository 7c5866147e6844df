"""What every training command opens before its loop and closes after it: data, policy, executor, run folder.

The loops themselves stand in `train.py` and `sft.py`; here is what they would otherwise repeat.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import LogprobFn
from jaxrl_sql.batch import GroupBatch, TrainState, bucket
from jaxrl_sql.config import OptimConfig, TrainConfig
from jaxrl_sql.data.prompts import PromptSet, PromptStyle
from jaxrl_sql.data.sft_dataset import SftDataset, make_sft_dataset
from jaxrl_sql.models import ModelConfig, count_params, init_params, shard_params
from jaxrl_sql.models.formats.hf import load_checkpoint, save_checkpoint
from jaxrl_sql.models.induction_init import init_induction
from jaxrl_sql.models.lora import init_adapters, merge, save_adapters
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.value import decay_mask, policy_part
from jaxrl_sql.ops import rng
from jaxrl_sql.parallel import mesh as meshes
from jaxrl_sql.parallel import processes, rules
from jaxrl_sql.recipes import Recipe, find_recipe
from jaxrl_sql.report.html import write_report
from jaxrl_sql.rollout import Engine
from jaxrl_sql.rollout.stop_strings import end_tokens
from jaxrl_sql.run.policy_client import PolicyClient
from jaxrl_sql.run.preflight import preflight
from jaxrl_sql.run.questions import load_questions, model_config, open_tokenizer, prompts_of
from jaxrl_sql.runtime.checkpoint import Arrays, Checkpoints
from jaxrl_sql.runtime.display import Display, make_display
from jaxrl_sql.runtime.finite_check import refuse_broken
from jaxrl_sql.runtime.folder import DISK_FULL, cannot_write, open_folder
from jaxrl_sql.runtime.health import UNHEALTHY, Health, HealthError
from jaxrl_sql.runtime.metrics import MetricsWriter, SampleWriter, best_by
from jaxrl_sql.runtime.signals import StopRequest, stop_on_signals
from jaxrl_sql.runtime.trackers import open_boards
from jaxrl_sql.sqlenv.executor import Executor, make_executor
from jaxrl_sql.types import Example, InputError, JaxrlSqlError


class PreemptedError(JaxrlSqlError):
    """A step was left while its answers were drawn, with nothing changed: a machine about to go does not wait."""


@dataclass
class Session:
    """A run that is open. Loops ask `agree_to_stop` between steps and end by `stopped` when it says so (`stop`).

    `evaluation` is the last one's (step, numbers), which rates the checkpoint of that step and is made but once.
    """

    config: TrainConfig
    folder: Path
    recipe: Recipe
    style: PromptStyle
    tokenizer: Any
    model: ModelConfig
    mesh: jax.sharding.Mesh
    executor: Executor
    train: PromptSet
    evals: dict[str, PromptSet]
    metrics: MetricsWriter
    samples: SampleWriter
    checkpoints: Checkpoints
    display: Display
    health: Health
    request: StopRequest = dataclasses.field(default_factory=StopRequest)
    evaluation: tuple[int, dict[str, float]] | None = None
    stop_reason: str = ""
    stop: bool = False
    policies: dict[float, LogprobFn] = dataclasses.field(default_factory=dict)

    @cached_property
    def sft_dataset(self) -> SftDataset:
        """Return what the supervised phase teaches."""
        data, end = self.config.data, end_tokens(self.tokenizer)[-1]
        recipes = [find_recipe(name) for name in self.config.sft.formats] or [self.recipe]
        made = ((one, one.style_for(data)) for one in recipes)
        plain = [(one, one.opened(style, self.tokenizer)) for one, style in made]
        styles = [one.in_dialogues(style, self.executor, self.config.sampling.turns) for one, style in plain]
        return make_sft_dataset(self.config, self.train.examples, styles, self.tokenizer, end, bucket)

    def count_epochs(self) -> None:
        """Turn `sft.epochs`, where they are asked for, into `sft.steps` of this run's configuration."""
        sft = self.config.sft
        if sft.epochs:
            sft = dataclasses.replace(sft, steps=self.sft_dataset.order.batches(sft.epochs))
            self.config = dataclasses.replace(self.config, sft=sft)

    def note(self, text: str) -> None:
        """Tell the user something, once, outside the progress display."""
        self.display.note(text)

    def fresh_params(self) -> tuple[Any, Any]:
        """Return what the run starts from, on the mesh, as (trainable, frozen).

        That is the parameters and None; or new adapters, and the parameters as the base that they are trained beside.
        """
        base, lora = self._base_params(), self.config.model.lora
        if not lora.rank:
            return base, None
        key = rng.base_key(self.config.seed, rng.Purpose.ADAPTERS)
        adapters = init_adapters(self.model, lora.rank, lora.alpha, lora.targets, key, self.mesh)
        count = sum(leaf.size for leaf in jax.tree.leaves(adapters))
        self.note(f"lora: {count:,} parameters are trained beside {count_params(self.model):,}")
        return adapters, base

    def _base_params(self) -> Any:
        """Return the checkpoint's parameters, or new ones from the seed."""
        model = self.config.model
        if model.checkpoint:
            return load_checkpoint(model.checkpoint, model.dtype, self.mesh)[1]
        key = rng.base_key(self.config.seed, rng.Purpose.INIT)
        params = init_params(self.model, key, jnp.dtype(model.dtype))
        if model.init == "copying":
            params = init_induction(params, self.model, key)
        return shard_params(params, self.model, self.mesh)

    def policy(self, temperature: float = 1.0) -> LogprobFn:
        """Return the function that scores a batch's completions under the policy, one for each temperature."""
        if temperature not in self.policies:
            how = self.config.model
            made = make_policy(self.model, temperature, how.remat, self._compute_dtype(), how.attention)
            self.policies[temperature] = made
        return self.policies[temperature]

    def engine(self, params: Any, slots: int, purpose: rng.Purpose = rng.Purpose.ROLLOUT) -> Engine:
        """Return an engine that draws answers from `params` as the trainer computes them."""
        dtype = self._compute_dtype()
        return Engine(
            self.model,
            params,
            self.tokenizer,
            slots,
            purpose,
            compute_dtype=dtype,
            is_exact=True,
            max_prompt_bucket=self.max_prompt_bucket,
        )

    @cached_property
    def max_prompt_bucket(self) -> int:
        """Return the tokens of the longest prompt, which all are padded to; 0 where each is to its own bucket."""
        if not self.config.run.pad_to_max:
            return 0
        return max(length for made in (self.train, *self.evals.values()) for length in made.lengths())

    def answerer(self, engine: Engine) -> PolicyClient:
        """Return what answers by an engine's policy, asked as the run asks."""
        return PolicyClient(engine, self.recipe, self.style, self.executor)

    def _compute_dtype(self) -> str | None:
        name = self.config.model.compute_dtype
        return None if name == "same" else name

    def optimizer(self, cfg: OptimConfig, steps: int) -> optax.GradientTransformation:
        """Return a phase's optimizer; norms and biases do not decay (adapters are matrices all of them)."""
        return make_optimizer(cfg, steps, None if self.config.model.lora.rank else decay_mask(self.model))

    def score(self, numbers: Mapping[str, float]) -> float:
        """Return what an evaluation says by `run.best_by`; 0 of one that was cut short.

        Raises InputError when no number has that name and the best checkpoints are to be kept.
        """
        found = best_by(self.config.run.best_by, numbers)
        if found is None and numbers and self.config.run.keep_best:
            raise InputError(f"run.best_by={self.config.run.best_by!r} names no number of an evaluation")
        return found or 0.0

    def save(self, step: int, state: TrainState, host: Mapping[str, Any], arrays: Arrays | None = None) -> None:
        """Start to save a checkpoint, without the frozen base: it is where the run's start is, and never changes.

        `host` is what the loop must know to go on, and `arrays` are its own, such as groups in flight. An evaluation of
        this step goes with it and rates it. Raises HealthError, and saves nothing, when parameters are broken.
        """
        refuse_broken(step, str(host.get("phase", "")), state.trainable)
        evaluation = self.evaluation if self.evaluation and self.evaluation[0] == step else None
        known = {
            "config": dataclasses.asdict(self.config),
            "questions": _digest(self.train),
            "lines": {"metrics": self.metrics.position, "samples": self.samples.position},
            "health": self.health.counts,
            "evaluation": evaluation,
        }
        is_rated = evaluation is not None and (host.get("phase") != "sft" or not self.config.grpo.steps)
        score = best_by(self.config.run.best_by, evaluation[1]) if evaluation and is_rated else None
        metrics = None if score is None else {"best_by": score}
        self.checkpoints.save(step, dataclasses.replace(state, frozen=None), {**host, "run": known}, arrays, metrics)

    def save_if_due(
        self, step: int, state: TrainState, host: Mapping[str, Any], arrays: Arrays | None = None, is_last: bool = False
    ) -> bool:
        """Save where one is due (every so often, at a phase's end, for a stop, to keep the best); say whether to stop.

        The steps before it must have been agreed on (`agree_to_stop`), so that all processes save or none.
        """
        run = self.config.run
        is_rated = run.keep_best > 0 and self.evaluation is not None and self.evaluation[0] == step
        if is_last or self.stop or is_rated or step % run.checkpoint_every == 0:
            self.save(step, state, host, arrays)
        return self.stop

    def restore(self, step: int, like: TrainState) -> tuple[TrainState, dict[str, Any], dict[str, np.ndarray]]:
        """Return (state, host, arrays) of a checkpoint, each array where it is in `like`, with its frozen base."""
        state, host, arrays = self.checkpoints.restore(step, dataclasses.replace(like, frozen=None))
        return dataclasses.replace(state, frozen=like.frozen), host, arrays

    def rows_here(self, rows: int) -> list[int]:
        """Return which of B = `rows` prompts this process packs: all, when it is alone."""
        return rules.rows_here(self.mesh, rows)

    def to_mesh(self, batch: GroupBatch, rows: int) -> GroupBatch:
        """Put a packed batch, this process's part of B = `rows` prompts, on the devices, split along B."""
        return rules.shard_batch(batch, self.mesh, rows)

    def agree_to_stop(self) -> bool:
        """Let a wish to stop that one process has seen stop all of them after the same step; say whether they stop."""
        codes = [code for code in processes.exchange([self.request.exit_code]) if code is not None]
        if codes:
            self.stop, self.request.exit_code = True, min(codes)
        return self.stop

    def should_abort(self, code: int | None = None) -> bool:
        """Say whether what can be made again later is better left: somebody waits for the end (of exit code `code`).

        Only of a run of one process, which may do so whenever it likes.
        """
        is_meant = self.request.is_made and code in {None, self.request.exit_code}
        return is_meant and jax.process_count() == 1

    def stopped(self) -> int:
        """Say how the run ends after a stop and return its exit code; raises HealthError for a run that is not well."""
        if self.stop_reason:
            raise HealthError(self.stop_reason)
        self.note(f"stopped; go on with --resume {self.folder}")
        return self.request.exit_code or 0

    def resume_step(self) -> int:
        """Return the step this run goes on from (0: the start) and drop what was written after it."""
        step = self.checkpoints.latest() if self.config.run.resume else None
        if step is None:
            self.metrics.rewind(0, 0)
            self.samples.rewind(0)
            return 0
        if step > _steps(self.config):
            raise InputError(f"{self.folder}: step {step} is made already, and the run would end before it")
        known = self.checkpoints.host(step)["run"]
        if known["questions"] != _digest(self.train):
            raise InputError(
                f"{self.folder}: {self.config.data.dir}/{self.config.data.train} holds other questions or prompts than "
                "the run began with: name another run.dir to begin a run with them"
            )
        self.metrics.rewind(known["lines"]["metrics"], step)
        self.samples.rewind(known["lines"]["samples"])
        self.health.counts |= known["health"]
        if known["evaluation"]:
            self.evaluation = (known["evaluation"][0], known["evaluation"][1])
        self.note(f"going on from step {step}")
        return step

    def record(self, step: int, phase: str, numbers: Mapping[str, float]) -> None:
        """Write the numbers of a step, show them, and see whether the run is well.

        Raises HealthError when they are no numbers; a run that learns nothing any more is asked to stop.
        """
        self.metrics.write(step, {"phase": phase, **numbers})
        self.display.update(step, {"phase": phase, **numbers})
        if stop_reason := self.health.check(step, phase, numbers):
            self.stop_reason, self.request.exit_code = stop_reason, UNHEALTHY

    def write_sample(
        self, step: int, phase: str, example: Example, text: str, sql: str | None, status: str, reward: float
    ) -> None:
        """Keep an answer with its SQL, status and reward."""
        self.samples.write(
            {
                "step": step,
                "phase": phase,
                "uid": example.uid,
                "question": example.question,
                "gold": example.gold_sql,
                "text": text,
                "sql": sql,
                "status": status,
                "reward": reward,
            }
        )

    def export(self, trainable: Any, frozen: Any) -> Path:
        """Write the policy as a Hugging Face folder, `model/` of the run; adapters are merged into its weights.

        Alone they are written to `adapters/`, in PEFT's form.
        """
        folder = self.folder / "model"
        weights = merge(trainable, frozen)
        save_checkpoint(folder, self.model, weights, self.tokenizer, source=self.config.model.checkpoint or None)
        if frozen is not None:
            save_adapters(self.folder / "adapters", self.model, policy_part(trainable), self.config.model.checkpoint)
        return folder


@contextmanager
def open_session(config: TrainConfig) -> Iterator[Session]:
    """Open everything a run needs, and on leaving write its report and close what was opened.

    Raises RunFolderError when the folder's disk is full, and HealthError for a run that is not well.
    """
    processes.start_processes(config.mesh.processes)
    is_first = processes.is_first()
    folder = open_folder(config, is_first)
    if config.run.compilation_cache:
        jax.config.update("jax_compilation_cache_dir", config.run.compilation_cache)
    try:
        with _opened(config, folder, is_first) as session:
            yield session
        if is_first:
            write_report(folder)
    except HealthError:
        if is_first:
            write_report(folder)
        raise
    except OSError as error:
        if error.errno in DISK_FULL:
            raise cannot_write(folder, error) from error
        raise


@contextmanager
def _opened(config: TrainConfig, folder: Path, is_first: bool) -> Iterator[Session]:
    boards = open_boards(folder, config.run.wandb, dataclasses.asdict(config)) if is_first else ()
    with (
        make_display(config.run.display if is_first else "none", _steps(config), title=folder.name) as display,
        make_executor(config.executor) as executor,
        MetricsWriter(folder if is_first else None, boards) as metrics,
        SampleWriter(folder if is_first else None) as samples,
        Checkpoints(folder / "checkpoints", config.run.keep_checkpoints, config.run.keep_best) as checkpoints,
    ):
        recipe, data = find_recipe(config.recipe), config.data
        if max(config.sampling.turns, config.validation.turns) > 1 and (
            recipe.turns is None or data.prompt == "compact"
        ):
            single = f"recipe {recipe.name}" if recipe.turns is None else "data.prompt=compact"
            raise InputError(f"{single} answers in one turn: sampling.turns and validation.turns must be 1")
        style = recipe.style_for(data)
        with processes.first_process_first("data"):
            train, evals = load_questions(config, executor, display)
            tokenizer = open_tokenizer(config, folder, train, style)
            style = recipe.opened(style, tokenizer)
        session = Session(
            config=config,
            folder=folder,
            recipe=recipe,
            style=style,
            tokenizer=tokenizer,
            model=model_config(config, tokenizer),
            mesh=meshes.make_mesh(config.mesh.data, config.mesh.fsdp, config.mesh.tensor),
            executor=executor,
            train=prompts_of("train", train, style, tokenizer, config, display, is_training=True),
            evals={name: prompts_of(name, found, style, tokenizer, config, display) for name, found in evals.items()},
            metrics=metrics,
            samples=samples,
            checkpoints=checkpoints,
            display=display,
            health=Health(config.health),
        )
        session.count_epochs()
        preflight(session)
        with jax.set_mesh(session.mesh), stop_on_signals(display.note) as session.request:
            yield session


def _steps(config: TrainConfig) -> int:
    return config.sft.steps + config.grpo.steps + config.second_stage.steps


def _digest(questions: PromptSet) -> str:
    """Return a short word for what is trained on: other questions, or others in another order, give another."""
    whole = hashlib.sha256()
    if questions.streamed:
        whole.update(questions.streamed[0].encode())
    for prompt in questions.sample(16):
        whole.update(json.dumps([prompt.uid, len(prompt.token_ids), prompt.text]).encode())
    return whole.hexdigest()[:16]
