"""Our GRPO step as a worker of bench_stacks.py, with the functions of `training/grpo.py` and a random reward.

`stack_ours.py FOLDER --make` instead writes the model of random weights that all stacks load.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxrl_sql.inference.process import prepare_process

prepare_process()  # before JAX is imported, as the commands do

import jax
import jax.numpy as jnp
import numpy as np
from stack_worker import MIB, MODEL, Step, Turns, Work, peak_resident, read_work
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from jaxrl_sql.algo.optim import make_optimizer
from jaxrl_sql.algo.step import init_state
from jaxrl_sql.algo.updates import make_advantage_fn, make_updates
from jaxrl_sql.batch import GroupBatch, TrainState, bucket
from jaxrl_sql.config import GrpoConfig, KlConfig, ModelConfigSection, OptimConfig, RolloutConfig
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.formats.hf import load_checkpoint, save_checkpoint
from jaxrl_sql.models.lora import init_adapters, policy_params
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.models.shapes import published_config
from jaxrl_sql.planning.workload import engine_config
from jaxrl_sql.rollout import Engine, Sample, SamplingParams
from jaxrl_sql.training.batching.pack import pack_groups
from jaxrl_sql.types import Prompt, Trajectory, Turn


def qwen3(vocab: int, width: int, layers: int, heads: int, feed_forward: int) -> ModelConfig:
    """Return a small Qwen3 with two key heads and tied embeddings."""
    return ModelConfig(
        "qwen3", vocab, width, layers, heads, 2, 64, feed_forward, Rope(1e4), Norms(), True, True, False, 4096
    )


SHAPES = {"tiny": qwen3(512, 64, 2, 4, 128), "small": qwen3(4096, 256, 4, 4, 768)}


class NumberTokenizer:
    """A tokenizer whose end token the model does not have, so that every completion has its full length."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def __init__(self, vocab_size: int) -> None:
        self._end = vocab_size

    def get_vocab(self) -> dict[str, int]:
        """Return a token for each of the model's ids, and the end token."""
        return {**{f"t{i}": i for i in range(self._end)}, "end": self._end}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Return the ids as text."""
        return " ".join(f"t{i}" for i in ids)


def save_model(folder: Path) -> None:
    """Write the model of a folder's work: random weights, and a tokenizer of the same tokens for transformers."""
    work = read_work(folder)
    config = SHAPES.get(work.shape) or published_config(work.shape)
    # Its end token is the model's last id; vLLM and transformers expect it in the vocabulary.
    inner = Tokenizer(models.WordLevel(NumberTokenizer(config.vocab_size - 1).get_vocab(), unk_token="t0"))  # noqa: S106
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="end", pad_token="t0", unk_token="t0")  # noqa: S106
    params = init_params(config, jax.random.key(0), jnp.dtype(work.product_dtype))
    save_checkpoint(folder / MODEL, config, params, tokenizer, dtype=work.product_dtype)


def pack_samples(work: Work, prompts: Sequence[Prompt], samples: Sequence[Sample], rewards: np.ndarray) -> GroupBatch:
    """Pack a rollout with its rewards [B,G], as training does."""
    groups: list[list[Trajectory]] = [[] for _ in prompts]
    for s in sorted(samples, key=lambda s: (s.prompt_index, s.index)):
        if len(s.token_ids) != work.new_tokens:
            raise RuntimeError(f"a completion has {len(s.token_ids)} tokens")
        turn = Turn("assistant", s.token_ids, s.logprobs, s.behavior_logprobs)
        groups[s.prompt_index].append(Trajectory(prompts[s.prompt_index], s.index, (turn,), s.finish_reason))
    return pack_groups(groups, rewards, np.ones_like(rewards), work.new_tokens)


def make_state(work: Work, config: ModelConfig, params: Any, optimizer: Any) -> TrainState:
    """Return the state before the first update: adapters over the weights, or the weights and a copy as reference."""
    if work.lora:
        targets = ModelConfigSection().lora.targets
        adapters = init_adapters(config, work.lora, float(work.lora), targets, jax.random.key(1))
        state = init_state(adapters, optimizer, params)
    else:
        reference = jax.tree.map(lambda x: x.copy(), params) if work.kl else None
        state = init_state(params, optimizer, None, reference)
    # The first update returns arrays with a fixed device; others before it would compile the update twice.
    placed: TrainState = jax.device_put(state, jax.devices()[0])
    return placed


class Stack:
    """Our stack: the engine samples, the reference scores, and one update follows."""

    def __init__(self, turns: Turns) -> None:
        work = turns.work
        config, params = load_checkpoint(turns.model, work.weight_dtype)
        grpo = GrpoConfig(
            prompts=work.prompts,
            num_generations=work.group,
            gradient_accumulation_steps=work.micro_batches,
            kl=KlConfig(coef=work.kl),
        )
        has_small_moments = work.dtype == "bfloat16" and not work.lora  # as torch stores them
        optim = OptimConfig(lr=1e-6, warmup_steps=0, moments="bfloat16" if has_small_moments else "float32")
        optimizer = make_optimizer(optim, work.steps)
        compute = jnp.dtype(work.product_dtype)
        policy = make_policy(
            config, 1.0, "full" if work.checkpointing else "none", compute, "auto",
            ModelConfigSection().kept_logits,
        )  # fmt: skip
        slots = engine_config(RolloutConfig(), work.completions, bucket(work.prompt_tokens), 1)
        tokenizer = NumberTokenizer(config.vocab_size)
        self.turns = turns
        self.engine = Engine(config, None, tokenizer, replace(slots, compute_dtype=compute))
        self.advantage, self.update = make_advantage_fn(policy, grpo), make_updates(policy, grpo, optimizer)
        self.state = make_state(work, config, params, optimizer)
        self.rewards = np.random.default_rng(0)

    def step(self, number: int) -> Step:
        """Do step `number` and measure its phases."""
        work = self.turns.work
        prompts = [Prompt(f"p{i}", tuple(ids), "") for i, ids in enumerate(self.turns.prompts(number))]
        began = time.perf_counter()
        self.engine.params = policy_params(self.state.trainable, self.state.frozen)
        samples = list(
            self.engine.generate(prompts, SamplingParams(n=work.group, max_new_tokens=work.new_tokens), number)
        )
        self.engine.params = None  # the update donates them
        self.engine.release()
        sampled = time.perf_counter()
        rewards = self.rewards.random((work.prompts, work.group), np.float32)
        batch = pack_samples(work, prompts, samples, rewards)
        batch = jax.block_until_ready(self.advantage(self.state, jax.tree.map(jnp.asarray, batch))[0])
        scored = time.perf_counter()
        self.state, metrics = self.update(self.state, batch)
        jax.block_until_ready((self.state, metrics))
        ended = time.perf_counter()
        seconds = {
            "rollout": sampled - began,
            "reference": scored - sampled,
            "update": ended - scored,
            "step": ended - began,
        }
        return Step(seconds, peak_memory())


def peak_memory() -> dict[str, float]:
    """Return the peak of the device's memory in use in MiB, or of the process's resident memory on a CPU."""
    stats = jax.devices()[0].memory_stats()
    return {"peak memory": stats["peak_bytes_in_use"] / MIB} if stats else peak_resident()


def main() -> None:
    """Do the steps, or write the model."""
    if "--make" in sys.argv[2:]:
        save_model(Path(sys.argv[1]))
        return
    turns = Turns()
    device = jax.devices()[0]
    versions = f"jaxrl-sql {importlib.metadata.version('jaxrl-sql')}, jax {jax.__version__}"
    turns.begin(device.platform, device.device_kind, versions)
    turns.serve(Stack(turns).step)


if __name__ == "__main__":
    main()
