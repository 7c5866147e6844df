"""The section `rollout`: the engine that samples training answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from jaxrl_sql.config.fields import OneOf, PositiveFloat, PositiveInt


@dataclass(frozen=True)
class RolloutConfig:
    """What the engine that samples training answers has: `max_num_seqs` decode slots, answers written side by side.

    Its KV cache takes at most the share `memory` of a device's memory (of the machine's, where devices are processors).
    At the start of a run that becomes KV blocks, of prompts, completions and cached prefixes, which its `config.yaml`
    keeps: a run that goes on has as many on any machine. 0 leaves them to be found; what has no room waits.

    `exact`: the policy is compared with the engine's own log-probabilities of its tokens (under the full distribution)
    in place of the trainer's under the same policy. Both numbers are then one program's: nothing is scored for it, and
    what sampler and trainer differ by is in the ratio, where the clip sees it, and no longer in `policy/sampler_…`.

    `attention`: what reads the cache in a decode step, `xla`, or on one GPU or TPU a kernel of ours, `pallas`
    (`models/attention/paged_kernel.py`).

    `mesh`: how the run's devices lie while answers are sampled. `training`: as they train. `8x4`, replicas x tensor:
    eight copies of the weights, each over four devices of one process, with its share of the slots; nothing crosses
    copies, and several turns may have several processes. `auto`: what samples fastest by formula, of the copies that
    fit and `training`, which it is on processors. KV blocks are then a copy's.

    `ahead` of 1: slots that a rollout's last answers leave free take those to the next rollout's questions, which go on
    there under the newer policy. Each token keeps the log-probability that it was drawn by, and `grpo.tis_clip_max`
    bounds the weight that makes up for it; `rollout/stale_tokens` is their share, `rollout/staleness` the updates that
    a token was behind in the mean when its rollout ended. (What the sampler and the trainer differ by,
    `policy/sampler_…`, then has the policy's own way in it.) For answers of one turn, and worth it where few answers
    wait for the longest.
    """

    max_num_seqs: PositiveInt = 128
    memory: PositiveFloat = 0.4
    prompt_blocks: int = 0
    completion_blocks: int = 0
    prefix_blocks: int = 0
    exact: bool = False
    attention: Annotated[str, OneOf("xla", "pallas")] = "xla"
    mesh: str = "auto"
    ahead: int = 0
