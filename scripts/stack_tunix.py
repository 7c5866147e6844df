"""Tunix's GRPOLearner with its own sampler as a worker of bench_stacks.py, on one device."""

from __future__ import annotations

import importlib
import importlib.metadata
import itertools
import json
import os
import random
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from stack_worker import Step, Turns, peak_resident
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig


class NumberTokenizer:
    """A tokenizer of numbers whose end token the model does not have, so that every completion has its full length."""

    def __init__(self, vocab_size: int) -> None:
        self._end = vocab_size

    def encode(self, text: str, **_: Any) -> list[int]:
        """Return the numbers of a text."""
        return [int(part) for part in text.split()]

    def decode(self, ids: Any, **_: Any) -> str:
        """Return the ids as text."""
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        """Return 0, for no token at the start of a prompt."""
        return 0

    def eos_id(self) -> int:
        """Return the end token."""
        return self._end

    def pad_id(self) -> int:
        """Return the padding, which no prompt has."""
        return 0


class TimedLearner(GRPOLearner):
    """The learner, which waits for its turn before each step and measures the phases."""

    def take_turns(self, turns: Turns) -> None:
        """Measure the phases from now on, and wait for turns after the warm-up."""
        self.turns, self.number = turns, 0
        self.seconds: dict[str, float] = {}
        for phase, name in (("rollout", "generate"), ("reference", "get_ref_per_token_logps")):
            setattr(self.rl_cluster, name, self._timed(phase, getattr(self.rl_cluster, name)))

    def _timed(self, phase: str, method: Callable[..., Any]) -> Callable[..., Any]:
        work = self.turns.work

        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            result = jax.block_until_ready(method(*args, **kwargs))
            self.seconds[phase] += time.perf_counter() - began
            if phase == "rollout":
                lengths, shape = [len(ids) for ids in result.tokens], np.shape(result.left_padded_prompt_tokens)
                if set(lengths) != {work.new_tokens} or shape[1] != work.prompt_tokens:
                    raise RuntimeError(f"prompts or lengths differ from the work: {shape}, {lengths}")
            return result

        return timed

    def _run_global_step(self, *args: Any, **kwargs: Any) -> None:
        turns = self.turns
        if self.number == turns.work.warm_up:
            turns.ready()
        if self.number >= turns.work.warm_up and not turns.wait():
            os._exit(0)  # the learner cannot leave out a step that has begun
        self.seconds = {"rollout": 0.0, "reference": 0.0}
        began = time.perf_counter()
        super()._run_global_step(*args, **kwargs)
        jax.block_until_ready(nnx.state(self.rl_cluster.actor_trainer.model))
        step = time.perf_counter() - began
        self.seconds |= {"update": step - self.seconds["rollout"] - self.seconds["reference"], "step": step}
        if self.number >= turns.work.warm_up:
            turns.answer(Step(self.seconds, peak_resident()))
        self.number += 1


def load_model(turns: Turns, mesh: Any) -> Any:
    """Return the model of the folder."""
    work = turns.work
    fields = json.loads((turns.model / "config.json").read_text(encoding="utf-8"))
    family = f"tunix.models.{fields['model_type']}"
    module = importlib.import_module(f"{family}.model")
    config = module.ModelConfig(
        num_layers=fields["num_hidden_layers"],
        vocab_size=fields["vocab_size"],
        embed_dim=fields["hidden_size"],
        hidden_dim=fields["intermediate_size"],
        num_heads=fields["num_attention_heads"],
        head_dim=fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"],
        num_kv_heads=fields["num_key_value_heads"],
        rope_theta=int((fields.get("rope_parameters") or fields)["rope_theta"]),
        norm_eps=fields["rms_norm_eps"],
        use_tied_embedding=fields["tie_word_embeddings"],
        remat_config=module.RematConfig.DECODER if work.checkpointing else module.RematConfig.NONE,
        dtype=jnp.dtype(work.product_dtype),
        param_dtype=jnp.dtype(work.weight_dtype),
    )
    load = importlib.import_module(f"{family}.params").create_model_from_safe_tensors
    return load(str(turns.model), config, mesh, jnp.dtype(work.weight_dtype))


def batches(turns: Turns) -> Iterator[dict[str, np.ndarray]]:
    """Yield the prompts of each step."""
    for step in itertools.count():
        yield {"prompts": np.array([" ".join(map(str, ids)) for ids in turns.prompts(step)])}


def main() -> None:
    """Do the steps; raises ValueError for adapters, which this worker does not have."""
    turns = Turns()
    turns.begin("cpu", "cpu", f"tunix {importlib.metadata.version('google-tunix')}, jax {jax.__version__}")
    work = turns.work
    if work.lora:
        raise ValueError("the worker of Tunix trains all weights: use --lora 0")
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    r = random.Random(2)
    cluster = rl_cluster.RLCluster(
        actor=load_model(turns, mesh),
        reference=load_model(turns, mesh) if work.kl else None,
        tokenizer=NumberTokenizer(turns.vocab_size),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(rl_cluster.Role, mesh),
            rollout_engine="vanilla",
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-6, weight_decay=0.0)),
                eval_every_n_steps=1_000_000,
                max_steps=work.steps,
                mini_batch_size=work.prompts,
                train_micro_batch_size=work.prompts // work.micro_batches,
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=work.new_tokens,
                max_prompt_length=work.prompt_tokens,
                kv_cache_size=work.prompt_tokens + work.new_tokens + 16,
                temperature=1.0,
                eos_tokens=[turns.vocab_size],
            ),
        ),
    )
    learner = TimedLearner(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=work.group, num_iterations=1, beta=work.kl, loss_agg_mode="token-mean"),
        reward_fns=lambda completions, **_: [r.random() for _ in completions],
    )
    learner.take_turns(turns)
    learner.train(batches(turns))


if __name__ == "__main__":
    main()
