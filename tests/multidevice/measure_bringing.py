"""Script: repeatedly gather weights of many layers, sharded over two devices, into a replica on each."""

from __future__ import annotations

import dataclasses

import jax
import steps

from jaxrl_sql.models import init_params, shard_params
from jaxrl_sql.parallel import make_mesh
from jaxrl_sql.parallel.mesh import replica_grid
from jaxrl_sql.rollout import EngineConfig, ReplicatedEngine, SamplingParams

CONFIG = dataclasses.replace(steps.CONFIG, n_layers=24, d_model=256, d_ff=512)


def main() -> None:
    """Sample with new weights in each call."""
    mesh = make_mesh(1, 2, 1)
    with jax.set_mesh(mesh):
        params = shard_params(init_params(CONFIG, jax.random.key(0)), CONFIG, mesh)
        engine = ReplicatedEngine(CONFIG, params, steps.Letters(), EngineConfig(8), replica_grid(mesh, 2, 1))
        for _ in range(20):
            engine.params = jax.tree.map(lambda leaf: leaf * 1.01, engine.params)
            print(len(list(engine.generate(steps.make_prompts(), SamplingParams(max_new_tokens=1)))))


if __name__ == "__main__":
    main()
