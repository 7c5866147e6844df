"""A completion that is being written, as the host has read it so far."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jaxrl_sql.rollout.sampling import ASSISTANT
from jaxrl_sql.text2sql.env.turns import Environment
from jaxrl_sql.types import Turn


@dataclass
class PartialSample:
    """The tokens that were read of a completion: the pieces of its current turn, and the turns before."""

    tokens: list[np.ndarray] = field(default_factory=list)
    logprobs: list[np.ndarray] = field(default_factory=list)
    behavior_logprobs: list[np.ndarray] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)
    environment: Environment | None = None
    text: str = ""

    def end_turn(self, detokenize: Callable[[tuple[int, ...]], str]) -> str:
        """End the current turn and return its text."""
        ids, logprobs, behavior_logprobs = self.so_far()
        for piece in (self.tokens, self.logprobs, self.behavior_logprobs):
            piece.clear()
        self.text = detokenize(ids)
        self.turns.append(Turn(ASSISTANT, ids, logprobs, behavior_logprobs, self.text))
        return self.text

    def so_far(self) -> tuple[tuple[Any, ...], ...]:
        """Return the tokens of the current turn, and their log-probabilities, full and as they were sampled."""
        pieces = (self.tokens, self.logprobs, self.behavior_logprobs)
        return tuple(tuple(np.concatenate(piece).tolist()) if piece else () for piece in pieces)

    def length(self) -> int:
        """Return the tokens of all ended turns."""
        return sum(len(turn.token_ids) for turn in self.turns)

    def token_ids(self) -> tuple[int, ...]:
        """Return all tokens, those of the current turn too."""
        ended = (token for turn in self.turns for token in turn.token_ids)
        return (*ended, *(token for piece in self.tokens for token in piece.tolist()))
