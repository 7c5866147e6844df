"""Requests and samples of the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from jaxrl_sql.text2sql.env.turns import Turns
from jaxrl_sql.types import InputError, Prompt, Turn

ASSISTANT, ENVIRONMENT = "assistant", "environment"
UNFINISHED = "unfinished"
_SMALLEST = 2.0**-126
"""The smallest number above 0 that float32 holds in full."""


class NotFiniteError(InputError):
    """A model whose log-probabilities, computed in `dtype`, are NaN or infinite: it cannot be sampled from."""

    def __init__(self, dtype: object) -> None:
        super().__init__(
            "model: its log-probabilities are not finite numbers: the weights are broken, or too large to be computed "
            f"with in {dtype}"
        )


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to sample `n` completions of a prompt.

    temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 leave the distribution whole (the
    penalty is on tokens of prompt and completion, before the temperature). A completion ends with the tokenizer's end
    token, with one of the strings in `stop`, at any position in a token, or after `max_new_tokens`. If `stop` is
    `stop_strings.STATEMENT_END` alone, it ends with the semicolon that ends a SQL statement. These hold for each of
    several turns, and `max_total_tokens` bounds all turns and observations together (0: the bound of one turn).
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
        """Refuse values outside their range, among them what float32 does not hold or makes logits infinite."""
        if isinstance(self.stop, str):
            raise InputError(f"sampling: stop is a tuple of strings, such as ({self.stop!r},)")
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
            (all(self.stop), "stop must hold no empty string"),
        )
        for holds, message in checks:
            if not holds:
                raise InputError(f"sampling: {message}")

    def within(self, room: int) -> SamplingParams:
        """Return the same with completions of at most `room` tokens (or 1): the positions that a model has left."""
        most = max(room, 1)
        return replace(
            self,
            max_new_tokens=min(self.max_new_tokens, most),
            max_total_tokens=min(self.max_total_tokens, most),
        )

    @property
    def longest(self) -> int:
        """Return the tokens of a longest completion, all of its turns together."""
        return max(self.max_new_tokens, self.max_total_tokens)

    @property
    def truncates(self) -> bool:
        """Return whether tokens are left out of the distribution that is sampled from."""
        return self.temperature > 0 and (self.top_k > 0 or self.top_p < 1 or self.min_p > 0)


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion.

    `finish_reason` is `stop`, `length`, `refused` (the request cannot be served, and there are no tokens), `failed`
    (the environment could not answer a turn), or UNFINISHED for samples that the next call continues. After `stop` the
    `token_ids` end with the stop token or the token that completes a stop string; `text` leaves the token out, and ends
    with the string. `error` is the reason of `refused` and `failed`. `logprobs` are under the full distribution at the
    temperature, `behavior_logprobs` under the one that the token was sampled from; `text` is the policy's last turn.

    `turns` hold the same tokens by role (`assistant`, `environment`). Over several turns `token_ids` are all of them,
    in order, and the log-probabilities of the environment's tokens are 0; `written` marks the policy's.
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
    def written(self) -> tuple[bool, ...]:
        """Return for each token whether it is the policy's."""
        return tuple(turn.role == ASSISTANT for turn in self.turns for _ in turn.token_ids)


class RequestGroup(NamedTuple):
    """A prompt of a call and those of its samples, `first` to before `last`, that one engine or prompt slot serves."""

    prompt: int
    first: int
    last: int

    @property
    def samples(self) -> range:
        """Return their numbers."""
        return range(self.first, self.last)


class GenerationRequest(NamedTuple):
    """A call of an engine: prompts, the sampling parameters of each, the step that keys are derived from, and turns.

    `turns` makes the environment of each completion, None if completions have one turn. If several engines share a
    call, `parts` are the prompts and samples of the whole call that this request has. Environments, samples and random
    keys use the numbers of the whole call, so that a sample does not depend on its engine. If several clients share a
    call, `numbers` are the numbers of the prompts among their client's. Random keys use these, so that other clients'
    prompts do not change a client's samples.

    The call's prompts from number `ahead` on are the first of the next call, at the next step: they take the slots that
    the others leave, and the call ends without them. `begun` has such samples of the call before, by their place in
    this one: finished ones stay as they are, and the others continue from their tokens.
    """

    prompts: Sequence[Prompt]
    samplings: Sequence[SamplingParams]
    step: int
    turns: Turns | None
    parts: Sequence[RequestGroup] = ()
    numbers: Sequence[int] = ()
    ahead: int | None = None
    begun: Mapping[tuple[int, int], Sample] = {}

    def part(self, parts: Sequence[RequestGroup]) -> GenerationRequest:
        """Return the request for these parts of it."""
        samplings = [replace(self.samplings[part.prompt], n=len(part.samples)) for part in parts]
        return self._replace(prompts=[self.prompts[part.prompt] for part in parts], samplings=samplings, parts=parts)

    def place(self, prompt: int, sample: int) -> tuple[int, int]:
        """Return the numbers in the whole call of a prompt of this request and of one of its samples."""
        if not self.parts:
            return prompt, sample
        part = self.parts[prompt]
        return part.prompt, part.first + sample

    def is_ahead(self, prompt: int) -> bool:
        """Return whether a prompt of this request is the next call's."""
        return self.ahead is not None and self.place(prompt, 0)[0] >= self.ahead

    def begun_sample(self, prompt: int, sample: int) -> Sample | None:
        """Return a sample as the call before left it, if it began it."""
        return self.begun.get(self.place(prompt, sample))

    def unfinished_samples(self, group: RequestGroup) -> list[int]:
        """Return the samples of a group that the call before did not finish."""
        begun = {g: self.begun_sample(group.prompt, g) for g in group.samples}
        return [g for g, sample in begun.items() if sample is None or sample.finish_reason == UNFINISHED]

    def key_place(self, prompt: int) -> tuple[int, int, int]:
        """Return the step, prompt and sample that the random keys of a prompt's first sample are derived from."""
        number, first = self.place(prompt, 0)
        if self.ahead is not None and number >= self.ahead:
            return self.step + 1, number - self.ahead, first
        return self.step, self.numbers[number] if self.numbers else number, first
