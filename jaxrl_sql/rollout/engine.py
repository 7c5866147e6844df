"""The engine: prompts in, finished samples out, in the order they finish.

Prompts go through in waves of `slots // n` prompts. A wave is prefilled once a prompt, then decoded in jitted chunks
with a donated carry. The host asks for the next chunk before it reads the last one, so the device never waits for
the host to decode text or to hand SQL on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxrl_sql import rng
from jaxrl_sql.batch import bucket, pad_tokens
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.rollout.sampling import Draws, Sample, Sampling, Written, decode_chunk, start
from jaxrl_sql.types import InputError, Prompt

CHUNK = 16
# ChatML (Qwen), Llama 3, Gemma.
END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")


class Engine:
    """Draw answers to prompts from a policy.

    `params` may be replaced between calls of `generate` (the trainer's own arrays are read in place). `slots` is the
    number of rows decoded side by side.
    """

    def __init__(
        self,
        config: ModelConfig,
        params: Any,
        tokenizer: Any,
        slots: int = 64,
        purpose: rng.Purpose = rng.Purpose.ROLLOUT,
    ) -> None:
        if slots < 1:
            raise InputError(f"an engine needs at least one slot, not {slots}")
        self.config = config
        self.params = params
        self.tokenizer = tokenizer
        self.slots = slots
        self.purpose = purpose
        self._stop_ids = np.array(stop_ids(tokenizer), np.int32)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling, step: int = 0) -> Iterator[Sample]:
        """Yield `sampling.n` samples a prompt as they finish.

        A sample's random numbers depend on (seed, step, prompt index, sample index, position) alone.
        """
        if sampling.n > self.slots:
            raise InputError(f"{sampling.n} samples a prompt do not fit {self.slots} slots")
        width = bucket(sampling.max_new_tokens, 16)
        for prompt in prompts:
            total = len(prompt.token_ids) + sampling.max_new_tokens
            if not prompt.token_ids or total > self.config.max_positions:
                raise InputError(
                    f"prompt {prompt.uid}: {len(prompt.token_ids)} tokens and {sampling.max_new_tokens} new ones "
                    f"need 1 to {self.config.max_positions} positions (max_positions)"
                )
        per_wave = self.slots // sampling.n
        order = sorted(range(len(prompts)), key=lambda i: len(prompts[i].token_ids))
        for first in range(0, len(order), per_wave):
            wave = order[first : first + per_wave]
            yield from self._wave(prompts, wave, per_wave, sampling, width, step)

    def _wave(
        self, prompts: Sequence[Prompt], wave: list[int], rows: int, sampling: Sampling, width: int, step: int
    ) -> Iterator[Sample]:
        """Prefill and decode one wave, padded to `rows` prompts so that every wave has one compiled shape."""
        tokens, length = _padded([prompts[i].token_ids for i in wave], rows)
        active = np.zeros((rows, sampling.n), bool)
        active[: len(wave)] = True
        numbers = np.array(wave + [0] * (rows - len(wave)), np.int32)
        keys = _row_keys(rng.fold(rng.base_key(sampling.seed, self.purpose), step), numbers, sampling.n)
        draws = Draws(sampling.temperature, sampling.top_k, sampling.top_p)
        limit = np.asarray(sampling.max_new_tokens, np.int32)
        prefix, carry = start(self.params, self.config, tokens, length, active, sampling.n, width)
        told = ~active
        carry, snapshot = self._chunk(prefix, carry, keys, limit, draws)
        while True:
            ahead = self._chunk(prefix, carry, keys, limit, draws)
            seen: Written = jax.device_get(snapshot)
            for b, g in zip(*np.nonzero(seen.done & ~told), strict=True):
                yield self._sample(seen, int(b), int(g), wave[b])
            told |= seen.done
            if told.all():
                return
            carry, snapshot = ahead

    def _chunk(self, prefix: Any, carry: Any, keys: jax.Array, limit: np.ndarray, draws: Draws) -> Any:
        return decode_chunk(self.params, self.config, prefix, carry, keys, limit, self._stop_ids, draws, CHUNK)

    def _sample(self, seen: Written, b: int, g: int, prompt_index: int) -> Sample:
        n = int(seen.length[b, g])
        ids = tuple(int(t) for t in seen.tokens[b, g, :n])
        stopped = ids[-1] in self._stop_ids
        return Sample(
            prompt_index=prompt_index,
            index=g,
            token_ids=ids,
            logprobs=tuple(float(x) for x in seen.full[b, g, :n]),
            drawn_logprobs=tuple(float(x) for x in seen.drawn[b, g, :n]),
            text=self.tokenizer.decode(ids[:-1] if stopped else ids, skip_special_tokens=False),
            finish_reason="stop" if stopped else "length",
        )


def stop_ids(tokenizer: Any) -> list[int]:
    """Return the ids that end an answer: the tokenizer's end token and those that end a chat's turn, where it has them.

    They are in ascending order; where a tokenizer has an end of text and an end of turn, the turn's is the last.
    """
    names = [tokenizer.eos_token, *END_OF_TURN]
    known = tokenizer.get_vocab()
    ids = sorted({known[name] for name in names if name in known})
    if not ids:
        raise InputError("the tokenizer has no end token: set eos_token")
    return ids


def _padded(prompts: Sequence[Sequence[int]], rows: int) -> tuple[np.ndarray, np.ndarray]:
    width = bucket(max(len(prompt) for prompt in prompts))
    return pad_tokens([*prompts, *[(0,)] * (rows - len(prompts))], width)


@jax.jit
def _fold_rows(key: jax.Array, prompt: jax.Array, sample: jax.Array) -> jax.Array:
    over_samples = jax.vmap(rng.fold, in_axes=(None, None, 0))
    return jax.vmap(over_samples, in_axes=(None, 0, None))(key, prompt, sample)


def _row_keys(key: jax.Array, prompts: np.ndarray, n: int) -> jax.Array:
    """Derive the keys of a wave's rows, [B,G], from the prompts' numbers."""
    return _fold_rows(key, prompts, np.arange(n, dtype=np.int32))
