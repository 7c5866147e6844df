"""Requests and samples of the engine.

A completion has one turn, or several turns of the policy (role `assistant`) with observations of an environment between
them, such as the rows of a query. "Carried" samples are those that the previous call began in free slots.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxrl_sql.text2sql.env.turns import EnvironmentFactory
from jaxrl_sql.types import InputError, Prompt, Turn

ASSISTANT, ENVIRONMENT = "assistant", "environment"
UNFINISHED = "unfinished"
_SMALLEST = 2.0**-126
"""The smallest positive normal number of float32."""


class NotFiniteError(InputError):
    """The model's log-probabilities, computed in `dtype`, are NaN or infinite."""

    def __init__(self, dtype: object) -> None:
        super().__init__(
            "model: its log-probabilities are not finite numbers: the weights are broken, or too large for computation "
            f"in {dtype}"
        )


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Parameters for sampling `n` completions of a prompt.

    temperature 0 is greedy. top_k 0, top_p 1, min_p 0 and repetition_penalty 1 do not change the distribution; the
    penalty applies to tokens of prompt and completion, before the temperature. A completion ends with the tokenizer's
    end token, with a string in `stop` (at any position in a token), or after `max_new_tokens`. If `stop` is only
    `stop_strings.STATEMENT_END`, a completion ends with the semicolon that ends a SQL statement. These limits apply to
    each turn; `max_total_tokens` limits all turns and observations together (0: the limit of one turn). `seed` is the
    seed of the random numbers.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    max_new_tokens: int = 256
    max_total_tokens: int = 0
    n: int = 1
    stop: Sequence[str] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        """Check the ranges; they exclude values that float32 cannot represent or that make logits infinite."""
        if isinstance(self.stop, str):
            raise InputError(f"sampling: stop must be a tuple of strings, such as ({self.stop!r},)")
        object.__setattr__(self, "stop", tuple(self.stop))
        checks = (
            (self.temperature >= 0, "temperature must be at least 0"),
            (
                self.temperature == 0 or 1e-6 <= self.temperature <= 1e6,
                "temperature must be 0, or at least 1e-6 and at most 1e6",
            ),
            (0 <= self.top_k < 2**31, "top_k must be at least 0 and below 2 to the 31"),
            (_SMALLEST <= self.top_p <= 1, "top_p must be at least 1.2e-38 and at most 1"),
            (self.min_p == 0 or _SMALLEST <= self.min_p <= 1, "min_p must be 0, or at least 1.2e-38 and at most 1"),
            (1e-6 <= self.repetition_penalty <= 1e6, "repetition_penalty must be at least 1e-6 and at most 1e6"),
            (self.max_new_tokens >= 1, "max_new_tokens must be at least 1"),
            (
                self.max_total_tokens == 0 or self.max_total_tokens >= self.max_new_tokens,
                "max_total_tokens must be 0 or at least max_new_tokens",
            ),
            (0 <= self.seed < 2**31, "seed must be at least 0 and below 2 to the 31"),
            (self.n >= 1, "n must be at least 1"),
            (all(self.stop), "stop must not contain empty strings"),
        )
        for is_valid, message in checks:
            if not is_valid:
                raise InputError(f"sampling: {message}")

    def within(self, free_positions: int) -> SamplingParams:
        """Return parameters with at most `free_positions` tokens (at least 1) per turn and per completion."""
        limit = max(free_positions, 1)
        return replace(
            self,
            max_new_tokens=min(self.max_new_tokens, limit),
            max_total_tokens=min(self.max_total_tokens, limit),
        )

    @property
    def longest(self) -> int:
        """Return the maximum number of tokens of a completion over all turns."""
        return max(self.max_new_tokens, self.max_total_tokens)


@dataclass(frozen=True, slots=True)
class Sample:
    """A completion of the prompt with index `prompt_index`, the prompt's sample number `index`.

    `finish_reason` is `stop`, `length`, `invalid` (such as a too long prompt; no tokens), `failed` (the environment
    raised an error), or UNFINISHED for samples that the next call continues. After `stop`, `token_ids` end with the
    stop token or with the token that completes a stop string; `text` excludes the stop token and includes the string.
    `error` is the reason of `invalid` and `failed`. `logprobs` are under the full distribution at the temperature,
    `behavior_logprobs` under the truncated one that was sampled from. `text` is the policy's last turn.

    `turns` contain the same tokens by role (`assistant`, `environment`). With several turns, `token_ids` are the tokens
    of all turns in order. Log-probabilities of environment tokens are 0; `is_sampled` marks the policy's tokens.
    """

    prompt_index: int
    index: int
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    behavior_logprobs: tuple[float, ...]
    text: str
    finish_reason: str
    turns: tuple[Turn, ...] = ()
    error: str = ""

    @property
    def is_sampled(self) -> tuple[bool, ...]:
        """Return for each token whether the policy sampled it."""
        return tuple(turn.role == ASSISTANT for turn in self.turns for _ in turn.token_ids)


class RequestGroup(NamedTuple):
    """A prompt index and the range [first, last) of its samples that one engine or prompt slot serves."""

    prompt: int
    first: int
    last: int

    @property
    def samples(self) -> range:
        """Return the sample indices."""
        return range(self.first, self.last)


class GenerationRequest(NamedTuple):
    """The input of an engine call: prompts, sampling parameters per prompt, and the step that random keys derive from.

    `turns` creates the environment of each completion; None for single-turn completions. If several engines share a
    call, `subset` lists the prompts and samples of this engine. Environments, samples and random keys use the indices
    of the whole call, so a sample does not depend on its engine. If several clients of a server share a call,
    `client_indices` are the indices of the prompts in the requests of their clients. Random keys use these, so other
    clients' prompts do not change a client's samples.

    Prompts from index `ahead` on are the first prompts of the next call, at the next step. They fill slots that become
    free, and the call does not wait for them. `carried` are samples that the previous call started ahead, by (prompt,
    sample) index in this call: finished samples are unchanged, and unfinished ones continue from their tokens.
    """

    prompts: Sequence[Prompt]
    samplings: Sequence[SamplingParams]
    step: int
    turns: EnvironmentFactory | None
    subset: Sequence[RequestGroup] = ()
    client_indices: Sequence[int] = ()
    ahead: int | None = None
    carried: Mapping[tuple[int, int], Sample] = {}

    def restrict(self, subset: Sequence[RequestGroup]) -> GenerationRequest:
        """Return the request of an engine that serves only these samples; prompt i is that of `subset[i]`."""
        samplings = [replace(self.samplings[group.prompt], n=len(group.samples)) for group in subset]
        return self._replace(
            prompts=[self.prompts[group.prompt] for group in subset], samplings=samplings, subset=subset
        )

    def global_index(self, prompt: int, sample: int) -> tuple[int, int]:
        """Return the (prompt, sample) index in the whole call of a sample of this request."""
        if not self.subset:
            return prompt, sample
        group = self.subset[prompt]
        return group.prompt, group.first + sample

    def is_ahead(self, prompt: int) -> bool:
        """Return whether a prompt of this request belongs to the next call."""
        return self.ahead is not None and self.global_index(prompt, 0)[0] >= self.ahead

    def carried_sample(self, prompt: int, sample: int) -> Sample | None:
        """Return the sample of the previous call that this one continues, or None."""
        return self.carried.get(self.global_index(prompt, sample)) if self.carried else None

    def unfinished_samples(self, group: RequestGroup) -> list[int]:
        """Return the samples of a group that the previous call did not finish."""
        carried = {g: self.carried_sample(group.prompt, g) for g in group.samples}
        return [g for g, sample in carried.items() if sample is None or sample.finish_reason == UNFINISHED]

    def key_numbers(self, prompt: int) -> tuple[int, int, int]:
        """Return the (step, prompt, sample) from which the random key of a prompt's first sample derives."""
        prompt_index, first_sample = self.global_index(prompt, 0)
        if self.ahead is not None and prompt_index >= self.ahead:
            return self.step + 1, prompt_index - self.ahead, first_sample
        key_index = self.client_indices[prompt_index] if self.client_indices else prompt_index
        return self.step, key_index, first_sample
