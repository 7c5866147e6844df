"""Script: the sampler's and the trainer's log-probabilities by type and mesh, for the shipped model."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxrl_sql.algo.loss import sampler_metrics
from jaxrl_sql.algo.step import make_scorer
from jaxrl_sql.datagen.synth import SynthSpec, generate
from jaxrl_sql.models import load_checkpoint, load_tokenizer
from jaxrl_sql.models.policy import make_policy
from jaxrl_sql.parallel import make_mesh, shard_batch
from jaxrl_sql.rollout import Engine, EngineConfig, SamplingParams
from jaxrl_sql.runtime.metrics import reduce_metrics
from jaxrl_sql.text2sql.benchmarks import load_split
from jaxrl_sql.text2sql.prompts.prompts import make_prompts
from jaxrl_sql.text2sql.recipes import RECIPES
from jaxrl_sql.training.batching.pack import pack_groups
from jaxrl_sql.types import Prompt, Trajectory

START = Path(__file__).parents[2] / "configs" / "quickstart_start"
B, G, T = 4, 4, 48


def make_prompt_set(data: Path, tokenizer: Any) -> list[Prompt]:
    """Render the prompts of generated questions."""
    generate(data, SynthSpec(train_dbs=2, dev_dbs=2, unseen_dbs=2, train_questions=8, dev_questions=8))
    examples = load_split(data, "train", 0).examples
    return list(make_prompts(examples, RECIPES["arctic"].style("compact"), tokenizer, 320).prompts)[:B]


def measure(mesh: jax.sharding.Mesh, dtype: str, prompts: list[Prompt]) -> dict[str, float]:
    """Return the metrics of one rollout with weights, activations and caches of one type."""
    with jax.set_mesh(mesh):
        model, params = load_checkpoint(START, dtype, mesh)
        engine = Engine(model, params, load_tokenizer(START), EngineConfig(B * G, compute_dtype=jnp.dtype(dtype)))
        answers = list(engine.generate(prompts, SamplingParams(temperature=1.0, max_new_tokens=T, n=G)))
        groups: list[list[Trajectory]] = [[] for _ in prompts]
        for s in sorted(answers, key=lambda s: (s.prompt_index, s.index)):
            groups[s.prompt_index].append(Trajectory(prompts[s.prompt_index], s.index, s.turns, s.finish_reason))
        ones = np.ones((B, G), np.float32)
        batch = shard_batch(pack_groups(groups, ones, ones, T), mesh, B)
        old, _ = make_scorer(make_policy(model, compute_dtype=jnp.dtype(dtype)))(params, None, batch)
        result = sampler_metrics(old, batch.rollout_logprobs, batch.policy_mask())
        return reduce_metrics(jax.device_get(result))


def main(folder: Path, shape: str) -> None:
    """Write `sampler.json`: metrics by type, on a mesh such as `1x2x2`."""
    prompts = make_prompt_set(folder / "data", load_tokenizer(START))
    sizes = [int(size) for size in shape.split("x")]
    mesh = make_mesh(*sizes, jax.devices()[: math.prod(sizes)])
    metrics = {dtype: measure(mesh, dtype, prompts) for dtype in ("float32", "bfloat16")}
    (folder / "sampler.json").write_text(json.dumps(metrics, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
