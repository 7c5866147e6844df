"""Fixtures for the tests of the engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import pytest

from jaxrl_sql.models import ModelConfig, forward

LENGTH = 128
PROGRAM = jax.jit(forward, static_argnums=1, compiler_options={"xla_backend_optimization_level": 0})


@pytest.fixture(scope="session")
def logits_of() -> Callable[[Any, ModelConfig, Sequence[int]], np.ndarray]:
    """Return a function (parameters, config, up to 128 tokens) -> logits [T,V], with one program for all T."""

    def logits(params: Any, config: ModelConfig, tokens: Sequence[int]) -> np.ndarray:
        padded = np.zeros((1, LENGTH), np.int32)
        padded[0, : len(tokens)] = tokens
        return np.asarray(PROGRAM(params, config, padded, np.array([len(tokens)], np.int32)))[0, : len(tokens)]

    return logits


@pytest.fixture(scope="session")
def logprobs_of(logits_of: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Return a function (parameters, config, prompt, completion, temperature) -> log-probabilities [T,V].

    Row t is the model's distribution of the completion's token t.
    """

    def logprobs(
        params: Any, config: ModelConfig, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
    ) -> np.ndarray:
        logits = logits_of(params, config, (*prompt, *completion))[len(prompt) - 1 : -1].astype(np.float64)
        logits /= temperature
        most = logits.max(axis=-1, keepdims=True)
        return logits - most - np.log(np.exp(logits - most).sum(axis=-1, keepdims=True))

    return logprobs
