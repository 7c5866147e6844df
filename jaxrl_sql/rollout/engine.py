"""The engine: prompts in, finished samples out, in the order in which they finish.

A prompt is prefilled once and read by all of its samples; completions are decoded in parallel, and a slot whose
completion has ended takes the next one in the following step.
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
from jaxrl_sql.text2sql.env.turns import Turns
from jaxrl_sql.types import InputError, Prompt, Tokenizer

DEFAULT = EngineConfig()
BUSY = "the engine is generating: read the other call to its end, or close it"


class Engine:
    """Sample completions of prompts from a policy.

    `params` may be replaced between calls of `generate`: their layers are split once for all calls, and prefixes of
    prompts are cached from call to call until they are replaced. `stats` are those of the last call.
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
        """Replace the parameters and reset the prefix cache; a call under way finishes with those it began with."""
        if params is not self.runner.params:
            self.runner.params = params
            self.reset_prefix_cache()
            self.runner.prefix_cache.capacity = 0  # a call under way caches no more blocks of the old ones

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
        turns: Turns | None = None,
        ahead: int | None = None,
        begun: Sequence[Sample] = (),
    ) -> Iterator[Sample]:
        """Yield `sampling.n` samples per prompt as they finish; `sampling` is one for all prompts, or one for each.

        A request that cannot be served is a sample of its own, first of all, with finish reason `refused`. A sample's
        random numbers depend on (seed, step, prompt index, sample index, position) alone. `turns` makes the environment
        of a completion that has several turns (`env.turns`); the engine waits for observations, so that batches never
        depend on the speed of SQL. One call at a time: raises InputError while another is being read.

        Prompts from number `ahead` on are the first of the next call, at `step` + 1: they are sampled in the slots that
        the others leave, and the call ends without them. Their samples then come last, UNFINISHED or not. The next
        call, with any parameters, takes them as `begun`, by their place in it, and continues from their tokens; each
        token's log-probabilities stay those of the policy that wrote it. Completions of one turn only.
        """
        request = make_request(self.tokenizer, prompts, sampling, step, turns, ahead, begun)
        if turns is not None and jax.process_count() > 1:
            raise InputError(
                "several turns on several processes need replicas of the model (rollout.mesh): observations would "
                "arrive at different times"
            )
        if self._is_generating:
            raise InputError(BUSY)
        began = time.perf_counter()
        call = self.begin(request)
        self._is_generating = True
        try:
            yield from call.run()
        finally:
            self._is_generating = False
            self.stats.seconds = time.perf_counter() - began

    def begin(self, request: GenerationRequest) -> EngineCall:
        """Return a new call and make its counts `stats`."""
        self.stats = RolloutStats(slots=self.config.max_num_seqs)
        return EngineCall(self.runner, self.vocabulary, request, self.stats)

    def gather(self, samples: Sequence[Sample]) -> list[Sample]:
        """Return the samples of a call, which every process has."""
        return list(samples)

    def gather_stats(self) -> RolloutStats:
        """Return the counts of the last call, which are those of all processes."""
        return self.stats


def make_request(
    tokenizer: Tokenizer,
    prompts: Sequence[Prompt | str | Sequence[int]],
    sampling: SamplingParams | Sequence[SamplingParams],
    step: int,
    turns: Turns | None,
    ahead: int | None = None,
    begun: Sequence[Sample] = (),
) -> GenerationRequest:
    """Return a call of an engine, its prompts as tokens; raises InputError if it is invalid."""
    if isinstance(prompts, str | Prompt):
        raise InputError("prompts is a list: put a single prompt into one")
    samplings = [sampling] * len(prompts) if isinstance(sampling, SamplingParams) else list(sampling)
    if len(samplings) != len(prompts):
        raise InputError(f"{len(samplings)} samplings for {len(prompts)} prompts: one for all, or one for each")

    def encoded(index: int, prompt: Prompt | str | Sequence[int]) -> Prompt:
        if isinstance(prompt, Prompt):
            return prompt
        ids = prompt_ids(tokenizer, prompt) if isinstance(prompt, str) else prompt
        return Prompt(str(index), tuple(ids), prompt if isinstance(prompt, str) else "")

    if turns is not None and (ahead is not None or begun):
        raise InputError("completions of several turns are not sampled ahead: their environments would wait for a call")
    num_own = len(prompts) if ahead is None else ahead
    if not all(0 <= sample.prompt_index < num_own for sample in begun):
        raise InputError(f"begun samples are of this call's own prompts, of which there are {num_own}")
    whole = GenerationRequest([encoded(i, prompt) for i, prompt in enumerate(prompts)], samplings, step, turns)
    return whole._replace(ahead=ahead, begun={(sample.prompt_index, sample.index): sample for sample in begun})
