"""Time the engine against a fixed batch that repeats each prompt, and measure reused and wasted work.

`python scripts/bench_rollout.py`: 4 layers, width 256, vocabulary 4,096, float32, random weights. The reference is the
usual method with the same model code. It computes a copy of the prompt for every sample, and a batch decodes until its
slowest row ends. Both generate the same number of tokens per answer. The reuse of prompts is counted on the 972
questions of Spider's dev set if `--data` (or JAXRL_SQL_DATA) names the folder with `spider_dev`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from jaxrl_sql.inference.process import prepare_process

prepare_process()  # before JAX is imported, as the commands do

import jax
import jax.numpy as jnp
import numpy as np
from harness import Goal, Report, make_parser, ratios, run_turns, seconds

from jaxrl_sql.batch import GroupBatch, pad_tokens
from jaxrl_sql.datagen.synth.tokenizer import train_tokenizer
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params, unembed
from jaxrl_sql.models.ops import rng
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.rollout import Engine, EngineConfig, Sample, SamplingParams
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.prompts.prompts import make_prompts, prompt_texts
from jaxrl_sql.text2sql.prompts.styles import compact_style
from jaxrl_sql.training.batching.pack import pack_groups
from jaxrl_sql.types import Prompt, Trajectory, Turn

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from plain_decode import decode_step, init_decode_cache, prefill

MODEL = ModelConfig("qwen3", 4096, 256, 4, 4, 2, 64, 768, Rope(1e4), Norms(), True, True, False, 4096)
CHUNK = 16
# Prompts, tokens per prompt, and the goal for the speed-up over the fixed batch.
LOADS = ((8, 256, Goal(1.7)), (8, 1024, Goal(3.0)))
QUICK = ((2, 64, None),)


class Endless:
    """A tokenizer whose end token the model does not have, so that an answer ends at its given length."""

    eos_token = "end"  # noqa: S105 (a token's name)

    def get_vocab(self) -> dict[str, int]:
        """Return a token for each of the model's ids, and the end token."""
        return {**{str(i): i for i in range(MODEL.vocab_size)}, "end": MODEL.vocab_size}

    def decode(self, ids: Sequence[int], **_: Any) -> str:
        """Return the ids as text."""
        return " ".join(map(str, ids))


class Load(NamedTuple):
    """Prompts, G samples of each, and the length of each sample."""

    prompts: list[Prompt]
    lengths: np.ndarray


def make_load(prompts: int, tokens: int, lengths: np.ndarray) -> Load:
    """Sample prompts of random tokens for answers of these lengths [B,G]."""
    r = np.random.default_rng(1)
    sampled = r.integers(0, MODEL.vocab_size, (prompts, tokens))
    return Load([Prompt(f"p{i}", tuple(row.tolist()), "") for i, row in enumerate(sampled)], lengths)


@partial(jax.jit, static_argnames="width")
def _start(params: Any, tokens: jax.Array, length: jax.Array, width: int) -> Any:
    prefix, last = prefill(params, MODEL, tokens, length)
    return prefix, (last[:, None], init_decode_cache(MODEL, tokens.shape[0], 1, width, last.dtype))


@partial(jax.jit, donate_argnames="carry")
def _chunk(params: Any, prefix: Any, carry: Any, limit: jax.Array, keys: jax.Array) -> Any:
    """Decode up to 16 tokens in every row [N,1] below its limit -> carry, tokens [16,N], and the finished rows."""

    def body(state: Any) -> Any:
        count, (hidden, cache), out = state
        logits = unembed(params, MODEL, hidden)[:, 0]
        sampled = jax.vmap(jax.random.categorical)(jax.vmap(rng.fold)(keys, cache.length[:, 0]), logits)
        token = sampled.astype(jnp.int32)
        out = out.at[count].set(token)
        return count + 1, decode_step(params, MODEL, prefix, cache, token[:, None], cache.length < limit), out

    def is_running(state: Any) -> jax.Array:
        count, (_, cache), _ = state
        return (count < CHUNK) & jnp.any(cache.length < limit)

    out = jnp.zeros((CHUNK, limit.shape[0]), jnp.int32)
    _, carry, out = jax.lax.while_loop(is_running, body, (jnp.zeros((), jnp.int32), carry, out))
    return carry, out, jnp.all(carry[1].length >= limit)


def generate_fixed_batches(params: Any, load: Load, slots: int) -> list[np.ndarray]:
    """Generate all samples in batches of `slots` rows, each with its own prompt -> tokens [N,T] of each batch.

    Tokens beyond a row's length are undefined.
    """
    requests = [
        (prompt.token_ids, n) for prompt, lengths in zip(load.prompts, load.lengths, strict=True) for n in lengths
    ]
    width = int(load.lengths.max())
    keys = jax.random.split(jax.random.key(0), slots)
    written = []
    for first in range(0, len(requests), slots):
        batch = requests[first : first + slots]
        tokens, length = pad_tokens([ids for ids, _ in batch], len(batch[0][0]))
        limit = jnp.array([[n] for _, n in batch])
        prefix, carry = _start(params, tokens, length, width)
        carry, out, done = _chunk(params, prefix, carry, limit, keys)
        chunks = [out]
        while True:
            # One chunk ahead, like the engine.
            carry, out, ahead = _chunk(params, prefix, carry, limit, keys)
            if done:
                break
            chunks.append(out)
            done = ahead
        written.append(np.concatenate([np.asarray(out) for out in chunks])[:width].T)
    return written


def engine_run(engine: Engine, load: Load) -> tuple[int, list[Sample]]:
    """Generate all samples with the engine -> number of tokens, and the samples."""
    # Each run computes all prompts, like the fixed batch.
    engine.reset_prefix_cache()
    sampling = SamplingParams(n=load.lengths.shape[1], max_new_tokens=int(load.lengths.max()))
    samples = list(engine.generate(load.prompts, sampling))
    return sum(len(sample.token_ids) for sample in samples), samples


def long_tail(params: Any, prompts: int, slots: int, end: float) -> tuple[Engine, Load]:
    """Create an engine whose answers end at random with probability `end` per token, and the load of these lengths.

    The random model is nearly uniform, so a share `end` of the vocabulary are end tokens.
    """
    engine = Engine(MODEL, params, Endless(), EngineConfig(slots))
    engine.vocabulary.end_tokens = list(range(int(MODEL.vocab_size * end)))
    load = make_load(prompts, 128, np.full((prompts, 8), 256))
    lengths = load.lengths.copy()
    for sample in engine_run(engine, load)[1]:
        lengths[sample.prompt_index, sample.index] = len(sample.token_ids)
    return engine, Load(load.prompts, lengths)


def compare(report: Report, engine: Engine, name: str, load: Load, goal: Goal | None) -> RolloutStats:
    """Compare the tokens per second of engine and fixed batch; return the engine's counts."""
    params, slots = engine.params, engine.config.max_num_seqs
    variants = {
        "engine": lambda: seconds(lambda: engine_run(engine, load)),
        "fixed batch": lambda: seconds(lambda: generate_fixed_batches(params, load, slots)),
    }
    taken = run_turns(variants, report.turns)
    total = int(load.lengths.sum())
    for variant, values in taken.items():
        report.add(name, [total / value for value in values], "tokens/s", column=variant)
    report.add(name, ratios(taken["fixed batch"], taken["engine"]), "x", goal, column="engine / fixed batch")
    return engine.stats


def pack_samples(load: Load, samples: Sequence[Sample]) -> GroupBatch:
    """Pack samples as training does, with weight 1 each."""
    groups: list[list[Trajectory]] = [[] for _ in load.prompts]
    for s in sorted(samples, key=lambda s: (s.prompt_index, s.index)):
        turn = Turn("assistant", s.token_ids, s.logprobs, s.behavior_logprobs)
        groups[s.prompt_index].append(Trajectory(load.prompts[s.prompt_index], s.index, (turn,), s.finish_reason))
    ones = np.ones(load.lengths.shape, np.float32)
    return pack_groups(groups, ones, ones, int(load.lengths.max()))


def mismatch(params: Any, load: Load) -> float:
    """Return the mean |difference| of the sampler's and the trainer's log-probabilities."""
    engine = Engine(MODEL, params, Endless())
    batch = pack_samples(load, engine_run(engine, load)[1])
    trained = jax.jit(make_policy(MODEL))(params, None, batch).logprob
    mask = np.asarray(batch.policy_mask())
    return float(np.abs(np.asarray(trained) - np.asarray(batch.rollout_logprobs))[mask].mean())


def spider_reuse(report: Report, params: Any, data: str) -> None:
    """Answer Spider's dev questions with a few tokens each, and count the prompt tokens that were reused."""
    style = compact_style()
    examples = load_split(data, "spider_dev", 0).examples
    texts = ["".join(prompt_texts(example, style, None)) for example in examples]
    tokenizer = train_tokenizer(texts, MODEL.vocab_size)
    prompts = make_prompts(examples, style, tokenizer, 3000).prompts
    engine = Engine(MODEL, params, tokenizer)
    list(engine.generate(prompts, SamplingParams(temperature=0.0, max_new_tokens=8)))
    name = f"prompt tokens reused, {len(prompts)} questions of Spider dev, {engine.stats.prompt_tokens:,} tokens"
    report.add(name, engine.stats.reuse, "", Goal(0.5))


def main() -> int:
    """Measure the loads; return the exit code."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", default=os.environ.get("JAXRL_SQL_DATA", ""))
    options = parser.parse_args()
    t = 16 if options.quick else 128
    params = init_params(MODEL, jax.random.key(0))
    report = Report(options)
    for prompts, tokens, goal in QUICK if options.quick else LOADS:
        load = make_load(prompts, tokens, np.full((prompts, 8), t))
        engine = Engine(MODEL, params, Endless(), EngineConfig(prompts * 8))
        compare(report, engine, f"P={tokens} G=8 T={t}, {prompts} prompts", load, goal)
    engine, tail = long_tail(params, 4, 8, 0.1) if options.quick else long_tail(params, 64, 64, 1 / 41)
    mean, longest = tail.lengths.mean(), tail.lengths.max()
    name = f"{tail.lengths.size} answers (mean {mean:.0f}, longest {longest}) on {engine.config.max_num_seqs} slots"
    stats = compare(report, engine, name, tail, Goal(2.5))
    report.add("occupancy of slots while completions wait", stats.occupancy, "", Goal(0.9))
    report.add("host's share of that time", stats.host_seconds / stats.seconds, "", Goal(0.05, at_most=True))
    small = make_load(2, 64, np.full((2, 8), 16))
    name = "mean difference of sampler's and trainer's log-probabilities"
    report.add(name, mismatch(params, small), "", Goal(1e-5, at_most=True))
    if options.data:
        spider_reuse(report, params, options.data)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
