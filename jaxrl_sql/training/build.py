"""Make a run's parameters, policy, optimizer and engine from its configuration; export its model."""

from __future__ import annotations

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
from jaxrl_sql.runtime.model_locator import TrainedModel
from jaxrl_sql.runtime.progress import ProgressCallback
from jaxrl_sql.training.model_card import save_prompt_settings
from jaxrl_sql.training.training_run import TrainingRun


def make_params(s: TrainingRun) -> tuple[Any, Any]:
    """Return the first parameters of the run, on the mesh, as (trainable, frozen).

    These are the parameters and None, or the trained ones and `model.frozen`; with LoRA, new adapters and the
    parameters as their base.
    """
    source, lora = s.config.model.checkpoint, s.config.model.lora
    doing, count = (f"reading the weights of {source}", count_tensors(s.model)) if source else ("making new weights", 0)
    with s.display.task(doing, count, "tensors") as on_progress:
        base = _base_params(s, on_progress)
    if not lora.rank:
        return split(base, s.model, s.config.model.frozen)
    key = rng.base_key(s.config.seed, rng.Purpose.ADAPTERS)
    adapters = init_adapters(s.model, lora.rank, lora.alpha, lora.targets, key, s.mesh)
    count = sum(leaf.size for leaf in jax.tree.leaves(adapters))
    s.note(f"lora: {count:,} parameters are trained next to {count_params(s.model):,}")
    return adapters, base


def _base_params(s: TrainingRun, on_progress: ProgressCallback) -> Any:
    """Return the checkpoint's parameters, or new ones from the seed."""
    model = s.config.model
    if model.checkpoint:
        refuse_damaged_weights(model.checkpoint)
        return load_checkpoint(model.checkpoint, model.dtype, s.mesh, on_progress=on_progress)[1]
    key = rng.base_key(s.config.seed, rng.Purpose.INIT)
    params = init_params(s.model, key, jnp.dtype(model.dtype))
    if model.init == "copying":
        params = init_induction(params, s.model, key)
    return shard_params(params, s.model, s.mesh)


def make_policy(s: TrainingRun, temperature: float = 1.0) -> LogprobFn:
    """Return the function that scores a batch's completions under the policy, made once for each temperature."""
    model = s.config.model

    def make() -> LogprobFn:
        return make_policy_fn(
            s.model,
            temperature,
            model.remat,
            _compute_dtype(s),
            model.attention,
            model.kept_logits_mib << 20,
            missing_ids(s.prompt_format.tokenizer, s.model.vocab_size, s.prompt_format.ends),
        )

    return s.status.policy(temperature, make)


def make_optimizer(s: TrainingRun, cfg: OptimConfig, steps: int) -> optax.GradientTransformation:
    """Return a phase's optimizer; norms and biases do not decay (all adapters are matrices)."""
    model = s.config.model
    return optim.make_optimizer(cfg, steps, None if model.lora.rank else decay_mask(s.model, model.frozen))


def make_engine(
    s: TrainingRun, params: Any, max_num_seqs: int, purpose: rng.Purpose = rng.Purpose.ROLLOUT
) -> AnyEngine:
    """Return an engine of `max_num_seqs` decode slots that samples from `params` as the trainer computes them."""
    config = engine_config(s.config.rollout, max_num_seqs, s.max_prompt_bucket, num_batch_shards(s.mesh.shape))
    config = replace(config, purpose=purpose, compute_dtype=_compute_dtype(s), end_tokens=s.prompt_format.ends)
    return engine_on(s.model, params, s.prompt_format.tokenizer, config, s.mesh, rollout_grid(s.config.rollout))


def make_client(s: TrainingRun, engine: AnyEngine) -> PolicyClient:
    """Return a client that prompts an engine's policy as the run does."""
    return PolicyClient(engine, s.prompt_format.recipe, s.prompt_format.style, s.executor)


def export_model(s: TrainingRun, trainable: Any, frozen: Any) -> Path:
    """Write the policy as a Hugging Face folder, `model/` of the run; adapters are merged into its weights.

    They are also written to `adapters/`, in PEFT's format.
    """
    folder, source = s.folder / "model", s.config.model.checkpoint
    with s.display.task(f"writing the model to {folder}", count_tensors(s.model), "tensors") as on_progress:
        if is_first():  # new weights have no checksums if the process is killed before they are sealed
            (s.folder / SUMS).unlink(missing_ok=True)
        save_checkpoint(
            folder,
            s.model,
            merge(trainable, frozen),
            s.prompt_format.tokenizer,
            dtype=s.config.model.dtype,
            source=source or None,
            ends=s.prompt_format.ends,
            on_progress=on_progress,
        )
        if is_first():
            config = s.config
            save_prompt_settings(
                folder,
                TrainedModel(config.recipe, config.data, config.model, config.sampling, config.validation),
            )
            seal_weights(folder)
        if isinstance(adapters := policy_part(trainable), Adapters):
            save_adapters(s.folder / "adapters", s.model, adapters, source)
    return folder


def _compute_dtype(s: TrainingRun) -> str | None:
    name = s.config.model.compute_dtype
    return None if name == "same" else name
