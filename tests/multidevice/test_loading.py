"""A folder and a GGUF file of each family, loaded directly to any mesh of eight virtual devices, are bit-equal.

Tests start this file as a script, since JAX fixes the number of devices at start.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.multidevice

MESHES = ((1, 4, 2), (2, 2, 2), (8, 1, 1), (1, 8, 1), (1, 2, 4))


def test_weights_loaded_on_a_mesh_equal_one_device(run_processes: Any) -> None:
    ((out, _),) = run_processes([__file__], 1)
    assert out.split() == ["qwen3", "qwen2", "llama", "gemma3_text"]


def _check() -> None:
    """Compare each family's leaves on each mesh with those on one device, in a process with eight."""
    import jax
    import numpy as np

    from jaxrl_sql.models import ModelConfig, Rope, init_params, load_checkpoint, param_shardings, save_checkpoint
    from jaxrl_sql.models.families import FAMILIES
    from jaxrl_sql.models.formats import hf
    from jaxrl_sql.models.stacked_layers import split_layers
    from jaxrl_sql.parallel.mesh import make_mesh

    spec = importlib.util.spec_from_file_location("gguf_files", Path(__file__).parents[1] / "gguf_files.py")
    assert spec is not None
    assert spec.loader is not None
    gguf_files = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(gguf_files)
    hf.SHARD_BYTES = 20_000
    sizes = (40, 32, 2, 4, 2, 16, 64, Rope(1e6))
    for name in ("qwen3", "qwen2", "llama", "gemma3_text"):
        family = FAMILIES[name]
        config = ModelConfig(name, *sizes, tie_embeddings=name != "llama", max_positions=64, **family.switches)
        config = dataclasses.replace(config, sliding=family.new_sliding(2) if family.new_sliding else None)
        if name == "qwen2":
            config = dataclasses.replace(config, head_dim=8)
        shapes, r = (
            jax.eval_shape(lambda config=config: init_params(config, jax.random.key(0))),
            np.random.default_rng(0),
        )
        params = jax.tree.map(lambda leaf, r=r: r.normal(size=leaf.shape).astype(np.float32), shapes)
        with tempfile.TemporaryDirectory() as folder:
            save_checkpoint(folder, config, params)
            gguf_files.write_gguf(Path(folder) / "m.gguf", config, params, "Q8_0")
            for source in (folder, f"{folder}/m.gguf"):
                _, whole = load_checkpoint(source, "bfloat16")
                for shape in MESHES:
                    mesh = make_mesh(*shape)
                    _, checkpoint = load_checkpoint(source, "bfloat16", mesh)
                    jax.tree.map(
                        lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), checkpoint, whole
                    )
                    assert jax.tree.map(lambda leaf: leaf.sharding, checkpoint) == param_shardings(config, mesh)
                    _, apart = load_checkpoint(source, "bfloat16", mesh, by_layer=True)
                    split = split_layers(checkpoint)
                    jax.tree.map(lambda a, b: np.testing.assert_array_equal(np.asarray(a), np.asarray(b)), apart, split)
                    assert jax.tree.map(lambda leaf: leaf.sharding, apart) == jax.tree.map(
                        lambda leaf: leaf.sharding, split
                    )
        sys.stdout.write(f"{name}\n")


if __name__ == "__main__":
    _check()
