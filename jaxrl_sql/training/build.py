"""Make a run's parameters, policy, optimizer and engine from its configuration; export its model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxrl_sql.algo import optim
from jaxrl_sql.algo.step import LogprobFn
from jaxrl_sql.config import OptimConfig
from jaxrl_sql.inference.policy_client import PolicyClient
from jaxrl_sql.models import count_params, init_params, shard_params
from jaxrl_sql.models.formats.checksums import SUMS, refuse_damaged_weights, seal_weights
from jaxrl_sql.models.formats.hf import count_tensors, load_checkpoint, save_checkpoint
from jaxrl_sql.models.frozen import split
from jaxrl_sql.models.induction_init import init_induction
from jaxrl_sql.models.lora import Adapters, init_adapters, merge, save_adapters
from jaxrl_sql.models.ops import rng
from jaxrl_sql.models.policy import make_policy as make_policy_fn
from jaxrl_sql.models.value import decay_mask, policy_part
from jaxrl_sql.parallel.processes import is_first
from jaxrl_sql.parallel.rules import num_batch_shards
from jaxrl_sql.planning.workload import engine_config, rollout_grid
from jaxrl_sql.rollout import AnyEngine
from jaxrl_sql.rollout.replicated import make_engine as engine_on
from jaxrl_sql.rollout.stop_strings import missing_ids
from jaxrl_sql.runtime.hub import find_name_and_revision
from jaxrl_sql.runtime.model_locator import TrainedModel
from jaxrl_sql.runtime.progress import ProgressCallback
from jaxrl_sql.text2sql.prompts.prompts import PromptSet
from jaxrl_sql.training.model_card import save_prompt_settings
from jaxrl_sql.training.trained_chat import missing_prefill_warning, save_chat_template, trained_chat
from jaxrl_sql.training.training_run import TrainingRun


def make_params(run: TrainingRun) -> tuple[Any, Any]:
    """Return the initial parameters of the run, on the mesh, as (trainable, frozen).

    - With LoRA, new adapters are trainable, and the model's parameters are their frozen base.
    - With `model.frozen`, the parameters with these names are frozen and the others trainable.
    - Otherwise all parameters are trainable, and `frozen` is None.
    """
    source, lora = run.config.model.checkpoint, run.config.model.lora
    task, count = (
        (f"reading the weights of {source}", count_tensors(run.model)) if source else ("making new weights", 0)
    )
    with run.display.task(task, count, "tensors") as on_progress:
        base = _base_params(run, on_progress)
    if not lora.rank:
        return split(base, run.model, run.config.model.frozen)
    key = rng.base_key(run.config.seed, rng.Purpose.ADAPTERS)
    adapters = init_adapters(run.model, lora.rank, lora.alpha, lora.targets, key, run.mesh)
    count = sum(leaf.size for leaf in jax.tree.leaves(adapters))
    run.note(f"lora: training {count:,} adapter parameters; the {count_params(run.model):,} of the base are frozen")
    return adapters, base


def _base_params(run: TrainingRun, on_progress: ProgressCallback) -> Any:
    """Return the checkpoint's parameters, or new ones from the seed."""
    model = run.config.model
    if model.checkpoint:
        refuse_damaged_weights(model.checkpoint)
        return load_checkpoint(model.checkpoint, model.dtype, run.mesh, on_progress=on_progress)[1]
    key = rng.base_key(run.config.seed, rng.Purpose.INIT)
    params = init_params(run.model, key, jnp.dtype(model.dtype))
    if model.init == "copying":  # some heads start as induction heads, which copy tokens of the prompt
        params = init_induction(params, run.model, key)
    return shard_params(params, run.model, run.mesh)


def make_policy(run: TrainingRun, temperature: float = 1.0) -> LogprobFn:
    """Return the function that computes the log-probabilities of a batch's completions; made once per temperature."""
    model = run.config.model

    def make() -> LogprobFn:
        return make_policy_fn(
            run.model,
            temperature,
            model.remat,
            _compute_dtype(run),
            model.attention,
            model.kept_logits,
            missing_ids(run.prompt_format.tokenizer, run.model.vocab_size, run.prompt_format.ends),
        )

    return run.status.policy(temperature, make)


def make_optimizer(run: TrainingRun, cfg: OptimConfig, steps: int) -> optax.GradientTransformation:
    """Return the optimizer of a phase of `steps` updates.

    Weight decay excludes norms and biases. Adapters are all matrices, so they need no mask.
    """
    model = run.config.model
    return optim.make_optimizer(cfg, steps, None if model.lora.rank else decay_mask(run.model, model.frozen))


def make_rollout_engine(run: TrainingRun) -> AnyEngine:
    """Return the engine of a run's rollouts; the caller sets its parameters before each rollout."""
    grpo = run.config.grpo
    questions = grpo.prompts * grpo.dynamic_sampling.oversample * grpo.steps_per_generation
    questions *= 1 + run.config.rollout.ahead  # a call may also have the next rollout's questions
    return _make_engine(
        run, None, run.config.rollout.max_num_seqs, rng.Purpose.ROLLOUT, [run.questions.train], questions,
        grpo.num_generations,
    )  # fmt: skip


def make_validation_engine(run: TrainingRun, params: Any) -> AnyEngine:
    """Return an engine with the parameters `params`, for one answer to each question of a held-out set per call."""
    sets = list(run.questions.evals.values())
    questions = max(len(questions.prompts) for questions in sets)
    return _make_engine(run, params, run.config.validation.max_num_seqs, rng.Purpose.EVAL, sets, questions, 1)


def _make_engine(
    run: TrainingRun,
    params: Any,
    max_num_seqs: int,
    purpose: rng.Purpose,
    sets: Sequence[PromptSet],
    questions: int,
    samples: int,
) -> AnyEngine:
    """Return an engine of `max_num_seqs` decode slots, which computes in the trainer's types.

    `purpose` makes its random numbers differ from those of other engines. Its calls have up to `questions` questions of
    the `sets`, with `samples` samples each.
    """
    rollout, pads_to_max = run.config.rollout, run.config.run.pad_to_max
    config = engine_config(rollout, max_num_seqs, run.longest_prompt, num_batch_shards(run.mesh.shape), pads_to_max)
    lengths = [length for prompts in sets for length in prompts.lengths()]
    # A question's samples are split into groups that the decode slots hold at once. `groups` counts those of a replica:
    # its share of the questions, times the groups of a question.
    replicas = (rollout_grid(rollout) or (1, 1))[0]
    groups = -(-questions // replicas) * -(-samples // config.group_size(samples))
    config = config.for_calls([run.longest_prompt] if pads_to_max else lengths, groups, samples)
    config = replace(config, purpose=purpose, compute_dtype=_compute_dtype(run), end_tokens=run.prompt_format.ends)
    return engine_on(run.model, params, run.prompt_format.tokenizer, config, run.mesh, rollout_grid(run.config.rollout))


def make_client(run: TrainingRun, engine: AnyEngine) -> PolicyClient:
    """Return a client that samples answers from an engine, with the run's recipe, prompt style and executor."""
    return PolicyClient(engine, run.prompt_format.recipe, run.prompt_format.style, run.executor)


def export_model(run: TrainingRun, trainable: Any, frozen: Any) -> Path:
    """Write the policy as a Hugging Face folder, `model/` of the run, and return its path.

    Adapters are merged into the weights, and also written to `adapters/` in PEFT's format.
    """
    folder, source = run.folder / "model", run.config.model.checkpoint
    with run.display.task(f"writing the model to {folder}", count_tensors(run.model), "tensors") as on_progress:
        # Remove the checksums of earlier weights: a killed process may leave new weights without theirs.
        if is_first():
            (run.folder / SUMS).unlink(missing_ok=True)
        save_checkpoint(
            folder,
            run.model,
            merge(trainable, frozen),
            run.prompt_format.tokenizer,
            dtype=run.config.model.dtype,
            source=source or None,
            ends=run.prompt_format.ends,
            on_progress=on_progress,
        )
        if is_first():
            config = run.config
            trained = TrainedModel(config.recipe, config.data, config.model, config.sampling, config.validation)
            save_prompt_settings(folder, trained)
            chat = trained_chat(run.prompt_format.tokenizer, trained)
            if chat is not None and not save_chat_template(folder, chat):
                run.display.note(missing_prefill_warning(str(folder)))
            seal_weights(folder)
        if isinstance(adapters := policy_part(trainable), Adapters):
            save_adapters(run.folder / "adapters", run.model, adapters, *find_name_and_revision(source))
    return folder


def _compute_dtype(run: TrainingRun) -> str | None:
    """Return the type of activations; None for that of the weights."""
    name = run.config.model.compute_dtype
    return None if name == "same" else name
