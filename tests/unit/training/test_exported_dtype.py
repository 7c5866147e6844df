"""A run's model is saved in the dtype of its stored weights, with adapters merged or without."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.config import TrainConfig, load_config
from jaxrl_sql.models import ModelConfig, Norms, Rope, init_adapters, init_params, load_checkpoint, load_tokenizer
from jaxrl_sql.runtime.display import make_display
from jaxrl_sql.training.build import export_model

SMALL = Path(__file__).parents[2] / "small.yaml"

START = Path(__file__).parents[3] / "configs" / "recipes_start"
MODEL = ModelConfig("llama", 1038, 16, 1, 2, 1, 8, 16, Rope(1e4), Norms(), True, False, False, 64)


def dtypes(folder: Path) -> tuple[str, str, set[str]]:
    """Return the dtypes in config.json, and those of the tensors."""
    raw = (folder / "model.safetensors").read_bytes()
    header: dict[str, Any] = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
    fields = json.loads((folder / "config.json").read_text())
    return fields["dtype"], fields["torch_dtype"], {tensor["dtype"] for tensor in header.values() if "dtype" in tensor}


@pytest.mark.parametrize("compute", ["same", "bfloat16"])
@pytest.mark.parametrize(("dtype", "tensor_dtype"), [("float32", "F32"), ("bfloat16", "BF16")])
@pytest.mark.parametrize("has_adapters", [False, True])
def test_run_saves_its_own_dtype(
    tmp_path: Path, dtype: str, tensor_dtype: str, compute: str, *, has_adapters: bool
) -> None:
    config = load_config(
        TrainConfig, SMALL, [f"model.dtype={dtype}", f"model.compute_dtype={compute}", f"run.dir={tmp_path}"]
    )
    params = jax.tree.map(lambda leaf: leaf.astype(dtype), init_params(MODEL, jax.random.key(0)))
    pairs = init_adapters(MODEL, 2, 4.0, ["q"], jax.random.key(1))
    trainable, frozen = (pairs, params) if has_adapters else (params, {})
    run: Any = SimpleNamespace(
        folder=tmp_path,
        config=config,
        model=MODEL,
        prompt_format=SimpleNamespace(tokenizer=load_tokenizer(START), ends=(0,)),
        display=make_display("none", 1, ""),
    )
    folder = export_model(run, trainable, frozen)
    assert dtypes(folder) == (dtype, dtype, {tensor_dtype})
    if not has_adapters:
        saved = load_checkpoint(folder, dtype)[1]
        jax.tree.map(np.testing.assert_array_equal, saved, params)
