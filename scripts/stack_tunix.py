"""Tunix's GRPOLearner as a worker of bench_stacks.py: its own sampler, one mesh for everything, all in float32.

The group's prompts, their number and length, the length of answers, the coefficient of KL and one update a batch are
as for the others.
"""

from __future__ import annotations

import importlib.metadata
import os
import random
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import optax
import stack_turns as work
from flax import nnx
from tunix.models.qwen3.model import ModelConfig, Qwen3
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig

PAD, START, END = 0, 1, work.VOCABULARY


class Words:
    """A tokenizer of numbers as words, whose end token is none of the model's, so that answers have full length."""

    def encode(self, text: str, **_: Any) -> list[int]:
        """Return the numbers."""
        return [int(word) for word in text.split()]

    def decode(self, ids: Any, **_: Any) -> str:
        """Return them as text."""
        return " ".join(map(str, ids))

    def bos_id(self) -> int:
        """Return the token that begins a prompt."""
        return START

    def eos_id(self) -> int:
        """Return the token that never comes."""
        return END

    def pad_id(self) -> int:
        """Return the token that is told from others by its value."""
        return PAD


class InTurns(GRPOLearner):
    """The learner, waiting for its turn before each step; the first one warms up."""

    def in_turns(self) -> None:
        """Put clocks on the parts, and begin to take turns."""
        self.turns, self.made, self.seconds = work.Turns(), 0, {}
        for part, name in (("rollout", "generate"), ("reference", "get_ref_per_token_logps")):
            setattr(self.rl_cluster, name, self._timed(part, getattr(self.rl_cluster, name)))

    def _timed(self, part: str, method: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            made = jax.block_until_ready(method(*args, **kwargs))
            self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began
            return made

        return timed

    def _run_global_step(self, *args: Any, **kwargs: Any) -> None:
        if self.made == 1:
            self.turns.ready(f"tunix {importlib.metadata.version('google-tunix')}, jax {jax.__version__}")
        if self.made and not self.turns.wait():
            os._exit(0)
        self.seconds = {}
        began = time.perf_counter()
        super()._run_global_step(*args, **kwargs)
        jax.block_until_ready(nnx.state(self.rl_cluster.actor_trainer.model))
        seconds = {**self.seconds, "step": time.perf_counter() - began}
        seconds["update"] = seconds["step"] - seconds.get("rollout", 0.0) - seconds.get("reference", 0.0)
        if self.made:
            self.turns.tell(seconds)
        self.made += 1


def prompts() -> Iterator[dict[str, np.ndarray]]:
    """Yield batches of prompts of random tokens; with the token that begins each they have the length asked for."""
    rng = random.Random(1)
    while True:
        texts = [
            [rng.randrange(2, work.VOCABULARY) for _ in range(work.PROMPT_TOKENS - 1)] for _ in range(work.PROMPTS)
        ]
        yield {"prompts": np.array([" ".join(map(str, text)) for text in texts])}


def new_model(mesh: Any) -> Qwen3:
    """Return a model of random weights, the same each time."""
    config = ModelConfig(
        num_layers=work.LAYERS,
        vocab_size=work.VOCABULARY,
        embed_dim=work.WIDTH,
        hidden_dim=work.FEED_FORWARD,
        num_heads=work.HEADS,
        head_dim=work.HEAD_SIZE,
        num_kv_heads=work.KV_HEADS,
        rope_theta=10_000,
        norm_eps=1e-6,
        use_tied_embedding=True,
    )
    with mesh:
        return Qwen3(config, rngs=nnx.Rngs(0))


def main() -> None:
    """Make steps as asked."""
    mesh = jax.make_mesh((1, 1), ("fsdp", "tp"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    rng = random.Random(2)
    cluster = rl_cluster.RLCluster(
        actor=new_model(mesh),
        reference=new_model(mesh),
        tokenizer=Words(),
        cluster_config=rl_cluster.ClusterConfig(
            role_to_mesh=dict.fromkeys(
                (rl_cluster.Role.ACTOR, rl_cluster.Role.REFERENCE, rl_cluster.Role.ROLLOUT), mesh
            ),
            rollout_engine="vanilla",
            training_config=rl_cluster.RLTrainingConfig(
                actor_optimizer=optax.adamw(1e-5), eval_every_n_steps=1_000_000, max_steps=1_000
            ),
            rollout_config=RolloutConfig(
                max_tokens_to_generate=work.NEW_TOKENS,
                max_prompt_length=work.PROMPT_TOKENS,
                kv_cache_size=work.PROMPT_TOKENS + work.NEW_TOKENS + 16,
                temperature=1.0,
                top_p=1.0,
                eos_tokens=[END],
            ),
        ),
    )
    learner = InTurns(
        rl_cluster=cluster,
        algo_config=GRPOConfig(num_generations=work.GROUP, num_iterations=1, beta=work.KL),
        reward_fns=lambda completions, **_: [rng.random() for _ in completions],
    )
    learner.in_turns()
    learner.train(prompts())


if __name__ == "__main__":
    main()
