"""Replicated engines: the assignment of prompts, and samples that do not depend on the replica.

tests/multidevice covers several devices and processes. Here a grid has one device or none.
"""

from __future__ import annotations

import dataclasses
from itertools import chain
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxrl_sql.models import ModelConfig, Norms, Rope, init_params
from jaxrl_sql.models.lora import init_adapters, policy_params
from jaxrl_sql.parallel import make_mesh
from jaxrl_sql.parallel.mesh import local_replicas, replica_grid
from jaxrl_sql.rollout import Engine, EngineConfig, ReplicatedEngine, Sample, SamplingParams
from jaxrl_sql.rollout.replicated import deal, pack_samples, unpack_samples
from jaxrl_sql.rollout.sampling import GenerationRequest, RequestGroup
from jaxrl_sql.types import InputError, Prompt, Turn

CONFIG = ModelConfig("qwen3", 24, 32, 1, 4, 2, 8, 48, Rope(1e4), Norms(), True, True, False, 128)
PARAMS = init_params(CONFIG, jax.random.key(3))


class Letters:
    """A tokenizer of 24 letters; one of them ends an answer."""

    eos_token = "f"  # noqa: S105 (a letter, no password)

    def get_vocab(self) -> dict[str, int]:
        return {chr(97 + i): i for i in range(24)}

    def decode(self, ids: Any, **_: Any) -> str:
        return "".join(chr(97 + i) for i in ids)


def make_prompts(*lengths: int) -> list[Prompt]:
    r = np.random.default_rng(0)
    return [Prompt(f"p{i}", tuple(r.integers(0, 24, n).tolist()), "") for i, n in enumerate(lengths)]


def request(counts: list[int], lengths: list[int]) -> GenerationRequest:
    return GenerationRequest(make_prompts(*lengths), [SamplingParams(n=n) for n in counts], 0, None)


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 5)), max_size=12), st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_each_sample_is_assigned_once(requests: list[tuple[int, int]], replicas: int) -> None:
    counts = [n for n, _ in requests]
    dealt = deal(request(counts, [length for _, length in requests]), replicas)
    assert len(dealt) == replicas
    places = sorted((p.prompt, i) for p in chain(*dealt) for i in range(p.first, p.last))
    assert places == [(i, g) for i, n in enumerate(counts) for g in range(n)]
    loads = [sum(p.last - p.first for p in local) for local in dealt]
    if len(counts) < replicas:
        assert max(loads) - min(loads) <= 1, "the loads differ by more than one answer"
    else:
        assert all((p.first, p.last) == (0, counts[p.prompt]) for p in chain(*dealt)), "a prompt is split"
        assert max(loads) <= sum(counts) / replicas + max(counts, default=0)


def test_prompts_with_a_common_prefix_are_assigned_together() -> None:
    texts = [(1, 9), (2, 7), (1, 8), (2, 6)]
    prompts = [Prompt(str(i), text, "") for i, text in enumerate(texts)]
    dealt = deal(GenerationRequest(prompts, [SamplingParams(n=2)] * 4, 0, None), 2)
    assert [{part.prompt for part in local} for local in dealt] == [{0, 2}, {1, 3}]


def test_part_of_a_call_has_the_samples_of_the_whole_call() -> None:
    """Sampling keys depend on the position in the call: any replica draws the same sample of a prompt."""
    prompts, sampling = make_prompts(5, 9, 3), SamplingParams(n=4, max_new_tokens=6)
    engine = Engine(CONFIG, PARAMS, Letters(), EngineConfig(8))
    whole = {(s.prompt_index, s.index): s for s in engine.generate(prompts, sampling, 7)}
    part = GenerationRequest(prompts, [sampling] * 3, 7, None).restrict([RequestGroup(1, 2, 4), RequestGroup(0, 1, 2)])
    result = {(s.prompt_index, s.index): s for s in engine.begin(part).run()}
    assert sorted(result) == [(0, 1), (1, 2), (1, 3)]
    assert all(item.token_ids == whole[place].token_ids for place, item in result.items())


@pytest.mark.parametrize(
    ("lora", "dtype"),
    [
        pytest.param(True, "bfloat16", marks=pytest.mark.slow),
        pytest.param(False, "bfloat16", marks=pytest.mark.nightly),
        pytest.param(True, None, marks=pytest.mark.nightly),
        pytest.param(False, None, marks=pytest.mark.nightly),
    ],
)
def test_replica_samples_like_the_trainers_own_weights(lora: bool, dtype: str | None) -> None:
    """The replica has compute-dtype weights per layer; its log-probabilities are bit-equal."""
    params = PARAMS
    if lora:
        adapters = init_adapters(CONFIG, 4, 8.0, ("q", "down"), jax.random.key(1))
        noisy = jax.tree.map(lambda x: x + 0.1 * jax.random.normal(jax.random.key(2), x.shape), adapters)
        params = policy_params(noisy, PARAMS)
    mesh, config = make_mesh(1, 1, 1), EngineConfig(4, compute_dtype=dtype)
    sampling = SamplingParams(n=2, max_new_tokens=8)
    with jax.set_mesh(mesh):
        engines = [
            Engine(CONFIG, params, Letters(), config),
            ReplicatedEngine(CONFIG, params, Letters(), config, replica_grid(mesh, 1, 1)),
        ]
        local, copy = (sorted(engine.generate(make_prompts(5, 12), sampling), key=sample_index) for engine in engines)
    assert [dataclasses.astuple(item) for item in copy] == [dataclasses.astuple(entry) for entry in local]


def sample_index(sample: Sample) -> tuple[int, int]:
    return sample.prompt_index, sample.index


def test_replicas_follow_the_parameters_and_are_freed() -> None:
    mesh, prompts = make_mesh(1, 1, 1), make_prompts(5)
    sampling = SamplingParams(temperature=0.0, max_new_tokens=8)
    with jax.set_mesh(mesh):
        engine = ReplicatedEngine(CONFIG, PARAMS, Letters(), EngineConfig(4), replica_grid(mesh, 1, 1))
        first = next(iter(engine.generate(prompts, sampling)))
        engine.params = jax.tree.map(lambda x: x + 0.2, PARAMS)
        (second,) = engine.generate(prompts, sampling)
        assert second.token_ids != first.token_ids
        engine.params = PARAMS
        (third,) = engine.generate(prompts, sampling)
        assert dataclasses.astuple(third) == dataclasses.astuple(first)
        engine.release()
    assert all(replica.engine.params is None for replica in engine.replicas)
    assert engine.replicas[0].engine.runner.completion_pool is None


def test_sample_is_unchanged_by_transfer_to_another_process() -> None:
    logprobs = tuple(np.asarray(jnp.log(jnp.array([0.1, 0.7]))).tolist())
    turns = (
        Turn("assistant", (3, 4), logprobs, (-0.5, -1.25), "dé\0"),
        Turn("environment", (7,), text="rows"),
        Turn("assistant", (), (), (), ""),
    )
    samples = [
        Sample(2, 1, (3, 4, 7), (*logprobs, 0.0), (-0.5, -1.25, 0.0), "dé", "stop", turns),
        Sample(0, 0, (), (), (), "", "invalid", error="too long"),
    ]
    assert unpack_samples(pack_samples(samples)) == samples
    assert unpack_samples(pack_samples([])) == []


def test_grid_that_does_not_match_the_devices_is_refused() -> None:
    mesh = make_mesh(1, 1, 1)
    with pytest.raises(InputError, match=r"rollout\.mesh=2x1: .* to 1 device; try rollout\.mesh=1x1"):
        replica_grid(mesh, 2, 1)
    assert [(number, local.shape) for number, local in local_replicas(replica_grid(mesh, 1, 1))] == [(0, mesh.shape)]
