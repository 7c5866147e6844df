"""End tokens of answers: the union of those that a model's files declare, and the one that training teaches."""

from __future__ import annotations

from typing import Any

from jaxrl_sql.config import DataConfig
from jaxrl_sql.models.formats.hf import stop_tokens
from jaxrl_sql.rollout.stop_strings import end_tokens
from jaxrl_sql.text2sql.prompts.chat import turn_end
from jaxrl_sql.types import InputError


def ends_of_generation(data: DataConfig, checkpoint: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the tokens that end an answer: the last one ends training targets, the others only end generation.

    They are declared by a checkpoint's files, the tokenizer and its chat template. The end of targets is
    `data.tokenizer.eos_token`, else the end of a turn in the chat template, else the tokenizer's `eos_token`. Raises
    InputError if there is no end token, for a name that is not a token, and as `stop_tokens` does.
    """
    declared = stop_tokens(checkpoint) if checkpoint else []
    of_turn = turn_end(tokenizer)
    target = _target_token(data, tokenizer, of_turn)
    ends = end_tokens(tokenizer, [*declared, *(token for token in (of_turn, target) if token is not None)])
    target = ends[-1] if target is None else target
    return (*(token for token in ends if token != target), target)


def _target_token(data: DataConfig, tokenizer: Any, of_turn: int | None) -> int | None:
    vocabulary, chosen = tokenizer.get_vocab(), data.tokenizer.eos_token
    if chosen and chosen not in vocabulary:
        raise InputError(f"data.tokenizer.eos_token={chosen!r} is not a token of the tokenizer")
    if data.is_chat and not chosen and of_turn is not None:
        return of_turn
    target: int | None = vocabulary.get(chosen or tokenizer.eos_token)
    return target
