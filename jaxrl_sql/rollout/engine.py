"""The engine: generates samples for prompts and yields them in order of completion (continuous batching).

A prompt is prefilled once, and all its samples read its KV blocks (pieces of the KV cache with a fixed number of
tokens). Completions are decoded in parallel, each in a slot. When a completion ends, its slot takes the next completion
in the following step.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import jax

from jaxrl_sql.batch import PyTree
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.rollout.call import EngineCall
from jaxrl_sql.rollout.engine_config import EngineConfig
from jaxrl_sql.rollout.model_runner import ModelRunner
from jaxrl_sql.rollout.sampling import GenerationRequest, Sample, SamplingParams
from jaxrl_sql.rollout.stats import RolloutStats
from jaxrl_sql.rollout.stop_strings import Vocabulary
from jaxrl_sql.runtime.control_tokens import prompt_ids
from jaxrl_sql.text2sql.env.turns import EnvironmentFactory
from jaxrl_sql.types import InputError, Prompt, Tokenizer

DEFAULT = EngineConfig()
BUSY = "the engine is generating: exhaust or close the other iterator first"


class Engine:
    """Sample completions of prompts from a policy.

    `params` may be replaced between calls of `generate`. This empties the prefix cache, which calls share: it has the
    blocks of earlier prompts, which later prompts with the same first tokens copy. `stats` are the counts of the last
    call.
    """

    def __init__(
        self, model: ModelConfig, params: PyTree, tokenizer: Tokenizer, config: EngineConfig = DEFAULT
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.config = config
        self.vocabulary = Vocabulary(tokenizer, config.end_tokens)
        self.runner = ModelRunner(model, params, config)
        self.stats = RolloutStats()
        self._is_generating = False

    # Every process's call yields the samples of all processes.
    yields_all = True

    @property
    def params(self) -> PyTree:
        """Return the parameters that the next call samples from."""
        return self.runner.params

    @params.setter
    def params(self, params: PyTree) -> None:
        """Replace the parameters and reset the prefix cache; a running call finishes with the old parameters."""
        if params is not self.runner.params:
            self.runner.params = params
            self.reset_prefix_cache()
            self.runner.prefix_cache.capacity = 0  # a running call caches no more blocks of the old parameters

    def reset_prefix_cache(self) -> None:
        """Evict all cached prefixes."""
        self.runner.prefix_cache.reset()

    def release(self) -> None:
        """Free the memory of the KV cache until the next call."""
        self.runner.release()

    def generate(
        self,
        prompts: Sequence[Prompt | str | Sequence[int]],
        sampling: SamplingParams | Sequence[SamplingParams],
        step: int = 0,
        turns: EnvironmentFactory | None = None,
        ahead: int | None = None,
        carried: Sequence[Sample] = (),
    ) -> Iterator[Sample]:
        """Yield `sampling.n` samples per prompt in order of completion; `sampling` is shared, or one per prompt.

        An invalid request yields one sample with finish reason `invalid`, before all others. A sample's
        random numbers depend only on (seed, step, prompt index, sample index, position). `turns` creates the
        environment of a multi-turn completion, which answers each turn of the policy with an observation, such as the
        rows of its query (`env.turns`). The engine waits for observations, so batches do not depend on the speed of
        SQL. Raises InputError while another call is running.

        Prompts from index `ahead` on are the first prompts of the next call, at `step` + 1. They fill slots that become
        free, and the call does not wait for them. Their samples are yielded last, possibly UNFINISHED. Pass these
        samples to the next call as `carried`, with the prompt indices of that call. The next call continues from their
        tokens, also with new parameters. The log-probabilities of each token stay those of the policy that sampled it.
        Only for single-turn completions.
        """
        request = make_request(self.tokenizer, prompts, sampling, step, turns, ahead, carried)
        if turns is not None and jax.process_count() > 1:
            raise InputError(
                "several turns on several processes need replicas of the model (rollout.mesh): observations would "
                "arrive at different times"
            )
        if self._is_generating:
            raise InputError(BUSY)
        start = time.perf_counter()
        call = self.begin(request)
        self._is_generating = True
        try:
            yield from call.run()
        finally:
            self._is_generating = False
            self.stats.seconds = time.perf_counter() - start

    def begin(self, request: GenerationRequest) -> EngineCall:
        """Start a call and return it; from now on, `stats` counts this call."""
        self.stats = RolloutStats(slots=self.config.max_num_seqs)
        return EngineCall(self.runner, self.vocabulary, request, self.stats)

    def gather(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples of a call unchanged, because every process has all of them (unlike `ReplicatedEngine`)."""
        return list(samples)

    def gather_stats(self) -> RolloutStats:
        """Return the counts of the last call over all processes."""
        return self.stats


def make_request(
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt | str | Sequence[int]],
    sampling: SamplingParams | Sequence[SamplingParams],
    step: int,
    turns: EnvironmentFactory | None,
    ahead: int | None = None,
    carried: Sequence[Sample] = (),
) -> GenerationRequest:
    """Return the request with tokenized prompts; raises InputError if it is invalid."""
    if isinstance(prompts, str | Prompt):
        raise InputError("prompts must be a list, also for a single prompt")
    samplings = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
    if len(samplings) != len(prompts):
        raise InputError(f"{len(samplings)} samplings for {len(prompts)} prompts: pass one for all, or one per prompt")

    def as_prompt(index: int, prompt: Prompt | str | Sequence[int]) -> Prompt:
        if isinstance(prompt, Prompt):
            return prompt
        ids = prompt_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt
        return Prompt(str(index), tuple(ids), prompt if isinstance(prompt, str) else "")

    if turns is not None and (ahead is not None or carried):
        raise InputError("multi-turn completions cannot be sampled ahead: their environments would wait between calls")
    num_call_prompts = len(prompts) if ahead is None else ahead
    if not all(0 <= sample.prompt_index < num_call_prompts for sample in carried):
        raise InputError(
            f"carried samples must have a prompt_index below {num_call_prompts}, the number of this call's prompts"
        )
    request = GenerationRequest([as_prompt(i, prompt) for i, prompt in enumerate(prompts)], samplings, step, turns)
    return request._replace(ahead=ahead, carried={(sample.prompt_index, sample.index): sample for sample in carried})
