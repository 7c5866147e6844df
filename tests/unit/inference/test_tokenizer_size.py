"""A tokenizer with more tokens than the model has rows is rejected before compilation."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxrl_sql.api import policy_spec
from jaxrl_sql.batch import GroupBatch, Segment
from jaxrl_sql.config import EvaluateConfig, HealthConfig, load_config
from jaxrl_sql.inference.policy_client import open_policy_client
from jaxrl_sql.inference.questions import model_config
from jaxrl_sql.models import forward, init_params, load_checkpoint, load_tokenizer, save_checkpoint
from jaxrl_sql.models import load_config as load_model_config
from jaxrl_sql.models.ops.rng import Purpose
from jaxrl_sql.runtime.health import Health
from jaxrl_sql.text2sql.env.executor import make_executor
from jaxrl_sql.training.build import make_policy
from jaxrl_sql.training.training_run import RunStatus
from jaxrl_sql.types import InputError

START = Path(__file__).parents[3] / "configs" / "recipes_start"
LARGEST = max(load_tokenizer(START).get_vocab().values())


def checkpoint(folder: Path, rows: int, tokenizer: Any) -> EvaluateConfig:
    shape = dataclasses.replace(load_model_config(START), vocab_size=rows, n_layers=1)
    save_checkpoint(folder, shape, init_params(shape, jax.random.key(0)), tokenizer)
    return load_config(EvaluateConfig, None, [f"model.checkpoint={folder}"])


def test_each_token_needs_a_row(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(START)
    config = checkpoint(tmp_path, LARGEST, tokenizer)
    sizes = f"{tmp_path} has {LARGEST} tokens, the tokenizer {LARGEST + 1}"
    refusal = re.escape(f"{sizes}: name one that fits in data.tokenizer.path") + "$"
    with pytest.raises(InputError, match=refusal):
        model_config(config.model, tokenizer)
    with (
        make_executor(config.executor) as executor,
        pytest.raises(InputError, match=refusal),
        open_policy_client(policy_spec(config), executor, 4, Purpose.EVAL, 96),
    ):
        pass
    config = checkpoint(tmp_path, LARGEST + 1, tokenizer)
    assert model_config(config.model, tokenizer).vocab_size == LARGEST + 1


def test_largest_token_id_counts_if_ids_have_gaps(tmp_path: Path) -> None:
    """Ids may have gaps: fewer tokens than rows do not guarantee that each has a row."""
    fields = json.loads((START / "tokenizer.json").read_text())
    fields["model"]["vocab"]["!"] = 5000
    tokenizer = saved_tokenizer(tmp_path / "gaps", fields)
    assert (len(tokenizer), tokenizer.convert_tokens_to_ids("!")) == (LARGEST + 1, 5000)
    with pytest.raises(InputError, match=rf"has {LARGEST + 1} tokens, the tokenizer 5001: "):
        model_config(checkpoint(tmp_path / "model", LARGEST + 1, tokenizer).model, tokenizer)
    assert model_config(load_config(EvaluateConfig, None, []).model, tokenizer).vocab_size == 5001


def test_image_token_needs_no_row(tmp_path: Path) -> None:
    """Published tokenizers of Gemma 3 text models have an image token after the last row; no text contains it."""
    fields = json.loads((START / "tokenizer.json").read_text())
    fields["added_tokens"].append({**fields["added_tokens"][0], "id": LARGEST + 1, "content": "<image_soft_token>"})
    tokenizer = saved_tokenizer(tmp_path / "pictures", fields, image_token="<image_soft_token>")  # noqa: S106
    assert max(tokenizer.get_vocab().values()) == LARGEST + 1
    config = checkpoint(tmp_path / "model", LARGEST + 1, tokenizer)
    assert model_config(config.model, tokenizer).vocab_size == LARGEST + 1


def saved_tokenizer(folder: Path, arguments: dict[str, Any], **more: str) -> Any:
    folder.mkdir()
    (folder / "tokenizer.json").write_text(json.dumps(arguments))
    fields = json.loads((START / "tokenizer_config.json").read_text()) | more
    (folder / "tokenizer_config.json").write_text(json.dumps(fields))
    return load_tokenizer(folder)


def test_policy_gives_ids_without_a_token_no_probability(tmp_path: Path) -> None:
    """Rows after the tokenizer's last id, and a missing id, have no mass in the scores of the trainer."""
    raw = json.loads((START / "tokenizer.json").read_text())
    gap = raw["model"]["vocab"].pop("!")
    tokenizer = saved_tokenizer(tmp_path / "gaps", raw)
    config = checkpoint(tmp_path / "model", LARGEST + 30, tokenizer)
    shape, params = load_checkpoint(tmp_path / "model")
    params["embed"] = params["embed"].at[gap].mul(30.0).at[LARGEST + 1 :].mul(30.0)
    end = LARGEST + 5  # declared by the model's files, missing in the tokenizer
    prompt_format, status = SimpleNamespace(tokenizer=tokenizer, ends=(1, end)), RunStatus(Health(HealthConfig()))
    run: Any = SimpleNamespace(prompt_format=prompt_format, model=shape, config=config, status=status)
    ones = jnp.ones((1, 1, 3))
    batch = GroupBatch(
        shared=(Segment(jnp.array([[5, 6, 7]]), jnp.array([3])),),
        completion=jnp.array([[[8, 9, 10]]]),
        completion_len=jnp.array([[3]]),
        loss_mask=ones > 0,
        behavior_logprobs=ones,
        rollout_logprobs=ones,
        reward=ones[..., 0],
        weight=ones[..., 0],
        truncated=ones[..., 0] < 0,
    )
    scored = jax.jit(make_policy(run, 1.0))(params, None, batch)
    tokens = jnp.array([[5, 6, 7, 8, 9, 10]])
    logits = forward(params, shape, tokens, jnp.array([6]))[0, 2:5]
    present = np.array(sorted({*tokenizer.get_vocab().values(), end}))
    assert gap not in present
    wanted = jax.nn.log_softmax(logits[:, present])
    places = np.searchsorted(present, [8, 9, 10])
    np.testing.assert_allclose(scored.logprob[0, 0], np.asarray(wanted)[np.arange(3), places], atol=1e-4)
    np.testing.assert_allclose(scored.entropy[0, 0], -jnp.sum(jnp.exp(wanted) * wanted, axis=-1), atol=1e-3)
