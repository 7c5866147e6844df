"""Counts and seconds of a call of the engine.

A chunk is a number of decode steps that one program runs. Completions are decoded in slots, and wait for a free slot.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace


@dataclass
class RolloutStats:
    """Counts and seconds of one call.

    slots: number of completions that an engine decodes at once.
    prompt_tokens: tokens of all prompts.
    reused_tokens: prompt tokens whose keys and values were copied from the prefix cache.
    padded_tokens: positions that prefill computed, including padding.
    tokens: decoded tokens.
    steps: decode steps of all engines.
    full_tokens, full_steps: tokens and steps while completions waited for a slot.
    chunks: launched chunks of decode steps.
    preemptions: completions that were computed again because of too few KV blocks.
    seconds: duration of the call.
    host_seconds: work of the host, without waits for the device or an environment, and without the caller's work.
    wait_seconds: waits for the device.
    prefill_seconds: the part of `wait_seconds` for chunks that follow a prefill.
    observation_wait_seconds: waits for observations of environments.
    engines: number of engines.
    """

    slots: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    padded_tokens: int = 0
    tokens: int = 0
    steps: int = 0
    full_tokens: int = 0
    full_steps: int = 0
    chunks: int = 0
    preemptions: int = 0
    seconds: float = 0.0
    host_seconds: float = 0.0
    wait_seconds: float = 0.0
    prefill_seconds: float = 0.0
    observation_wait_seconds: float = 0.0
    engines: int = 1

    def add_chunk(self, steps: int, tokens: int, is_full: bool) -> None:
        """Add a chunk of `tokens` in `steps`; `is_full`: whether completions still waited for a slot after it."""
        self.steps += steps
        self.tokens += tokens
        if is_full:
            self.full_steps += steps
            self.full_tokens += tokens

    def plus(self, other: RolloutStats) -> RolloutStats:
        """Return the sums over two calls with the same slots."""
        names = [f.name for f in fields(self) if f.name not in {"slots", "engines"}]
        sums = {name: getattr(self, name) + getattr(other, name) for name in names}
        return RolloutStats(slots=other.slots, engines=other.engines, **sums)

    def merge(self, other: RolloutStats) -> RolloutStats:
        """Return the sums of this call and of a call that another engine made at the same time."""
        engines, seconds = self.engines + other.engines, max(self.seconds, other.seconds)
        return replace(self.plus(other), engines=engines, seconds=seconds)

    @property
    def occupancy(self) -> float:
        """Return the share of busy slots, over the chunks after which completions still waited for a slot."""
        return self.full_tokens / (self.full_steps * self.slots) if self.full_steps else 1.0

    @property
    def reuse(self) -> float:
        """Return the share of prompt tokens that were copied from the prefix cache."""
        return self.reused_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def metrics(self) -> dict[str, float]:
        """Return the metrics of a training step, by name; times are in seconds."""
        engine_seconds = self.host_seconds + self.wait_seconds
        return {
            "rollout/occupancy": self.occupancy,
            "rollout/prefix_reuse": self.reuse,
            "time/host_share": self.host_seconds / engine_seconds if engine_seconds else 0.0,
            "rollout/steps": self.steps / self.engines,
            "rollout/preemptions": float(self.preemptions),
            "time/prefill": self.prefill_seconds,
            "time/decode": max(self.wait_seconds - self.prefill_seconds, 0.0),
            "time/host": self.host_seconds,
            "time/observation_wait": self.observation_wait_seconds,
        }
