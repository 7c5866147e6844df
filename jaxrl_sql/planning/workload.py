"""What a run computes, in numbers: the batch of an update, and the rows, lanes and pages of an engine.

From these follow the bytes and operations that `memory` and `work` compute by formula, and the abstract arrays that
`programs` compiles, so that both speak of the same arrays. Everything is at its longest: prompts of the most tokens,
answers of the most tokens, pools grown for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from jaxrl_sql.batch import bucket
from jaxrl_sql.config import OptimConfig, TrainConfig
from jaxrl_sql.models import ModelConfig
from jaxrl_sql.ops.token_distribution import KEPT_BYTES
from jaxrl_sql.parallel.rules import RULES
from jaxrl_sql.rollout.prefill_queue import MAX_GROUP

PAGE, ROW_PAGE, CHUNK, PREFILL, KEPT = 64, 32, 16, 1024, 32_768  # the engine's own


class Update(NamedTuple):
    """A batch that an update learns: B prompts [B,P] with G answers [B,G,T] each, in `parts` one after another."""

    prompts: int
    group: int
    prompt: int
    answer: int
    parts: int
    optim: OptimConfig

    @property
    def tokens(self) -> int:
        """Return the tokens of the whole batch, padding included, each prompt once."""
        return self.prompts * (self.prompt + self.group * self.answer)


class Draw(NamedTuple):
    """What an engine holds: N = slots rows, E lanes, and pages, when all prompts and answers are of the longest.

    questions: prompts that are drawn for in a step; group: answers of each; readers: rows that may read one lane.
    """

    slots: int
    questions: int
    group: int
    prompt: int
    answer: int
    readers: int
    shared_pages: int
    own_pages: int
    kept_pages: int

    @property
    def lanes(self) -> int:
        """Return E, the prompts that may be answered at a time."""
        return 2 * self.slots

    @property
    def prompt_columns(self) -> int:
        """Return J, the pages of a longest prompt."""
        return -(-self.prompt // PAGE)

    @property
    def row_columns(self) -> int:
        """Return the pages of a longest answer."""
        return -(-self.answer // ROW_PAGE)

    @property
    def prefilled(self) -> tuple[int, int]:
        """Return (rows X, tokens T) of the program that runs a stretch of the longest prompts."""
        width = min(self.prompt, PREFILL)
        return max(PREFILL // width, 1), width

    @property
    def cached_tokens(self) -> int:
        """Return the tokens that all pages have room for."""
        return (self.shared_pages + self.kept_pages) * PAGE + self.own_pages * ROW_PAGE


class Workload(NamedTuple):
    """The phases of a run; None where it has no such phase.

    updates: made on each draw's batch; scored: how often a batch is scored before them (old policy, reference).
    """

    sft_dataset: Update | None
    update: Update | None
    draw: Draw | None
    greedy: Draw
    updates: int
    scored: int


def batch_ways(sizes: Mapping[str, int]) -> int:
    """Return into how many parts a mesh of these sizes cuts a batch."""
    return math.prod(sizes[name] for name in RULES["batch"].mesh_axes)


def head_ways(model: ModelConfig, tensor: int) -> int:
    """Return into how many parts decoding cuts a row's heads: by key heads, else by the queries of each, else none."""
    per_key = model.n_heads // model.n_kv_heads
    return tensor if model.n_kv_heads % tensor == 0 or per_key % tensor == 0 else 1


def parts_here(draw: Draw, ways: int) -> list[tuple[int, int, int]]:
    """Return (pages, owners, readers) of both pools on a chip, whose pages are merged by owner (`attention.paged`)."""
    pools = (draw.shared_pages // ways, draw.lanes, draw.readers), (draw.own_pages // ways, draw.slots, 1)
    return [(pages, min(owners + 1, pages), readers) for pages, owners, readers in pools]


def longest_answer(config: TrainConfig) -> tuple[str, int]:
    """Return (key, tokens) of the longest answer that is drawn to be learned from, all of its turns together."""
    sampling = config.sampling
    if sampling.turns > 1 and sampling.max_total_tokens > sampling.max_new_tokens:
        return "sampling.max_total_tokens", sampling.max_total_tokens
    return "sampling.max_new_tokens", sampling.max_new_tokens


def needs_old(config: TrainConfig) -> bool:
    """Say whether the old policy's log-probabilities are found apart, before the updates (`algo.updates`)."""
    grpo = config.grpo
    in_reward = grpo.kl_coef > 0 and grpo.kl_in == "reward"
    return (
        grpo.algorithm == "ppo"
        or in_reward
        or grpo.num_iterations * grpo.minibatches > 1
        or grpo.steps_per_generation > 1
    )


def logit_pieces(model: ModelConfig, work: Update, ways: int) -> int:
    """Return into how many pieces a part's logits are cut, so that few are held (`distribution.token_logprobs`)."""
    rows = work.prompts // work.parts * work.group
    fitting = max(KEPT_BYTES * ways // (4 * rows * model.vocab_size), 1)
    return -(-work.answer // fitting)


def find_workload(config: TrainConfig, longest: int, ways: int) -> Workload:
    """Return what a run computes with prompts of up to `longest` tokens on a mesh that cuts batches into `ways`."""
    grpo, sft, width = config.grpo, config.sft, bucket(longest)
    sft_dataset = Update(
        sft.databases, sft.questions, width, bucket(sft.max_completion_tokens),
        sft.gradient_accumulation_steps, sft.optim
    )  # fmt: skip
    answer = bucket(longest_answer(config)[1])
    update = Update(
        grpo.prompts // grpo.minibatches,
        grpo.num_generations,
        width,
        answer,
        grpo.gradient_accumulation_steps,
        grpo.optim,
    )
    asked = grpo.prompts * grpo.oversample * grpo.steps_per_generation
    has_grpo = grpo.steps > 0
    return Workload(
        sft_dataset=sft_dataset if sft.steps else None,
        update=update if has_grpo else None,
        draw=_draw(config.rollout.max_num_seqs, asked, grpo.num_generations, width, answer, ways) if has_grpo else None,
        greedy=_draw(
            config.validation.max_num_seqs,
            config.validation.max_num_seqs,
            1,
            width,
            bucket(config.validation.max_new_tokens),
            ways,
        ),
        updates=grpo.num_iterations * grpo.minibatches if has_grpo else 0,
        scored=(needs_old(config) + (grpo.kl_coef > 0)) if has_grpo else 0,
    )


def _draw(slots: int, questions: int, group: int, prompt: int, answer: int, ways: int) -> Draw:
    """Return what an engine of so many slots holds; pools are of the sizes that it rounds to."""
    readers = min(group, slots, MAX_GROUP)
    tickets = questions * -(-group // readers)
    open_lanes = min(2 * slots, tickets, 1 + -(-3 * slots // readers))
    unit = 8 * ways
    return Draw(
        slots=slots,
        questions=questions,
        group=group,
        prompt=prompt,
        answer=answer,
        readers=readers,
        shared_pages=bucket(open_lanes * -(-prompt // PAGE), unit),
        own_pages=bucket(slots * -(-answer // ROW_PAGE), unit),
        kept_pages=bucket(KEPT // PAGE, unit),
    )
