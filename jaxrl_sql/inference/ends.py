"""End tokens of answers: those that a model's files declare, and the token that training teaches as the end."""

from __future__ import annotations

from typing import Any

from jaxrl_sql.config import DataConfig
from jaxrl_sql.models.formats.hf import stop_tokens
from jaxrl_sql.rollout.stop_strings import end_tokens
from jaxrl_sql.text2sql.prompts.chat import turn_end
from jaxrl_sql.types import InputError


def ends_of_generation(data: DataConfig, checkpoint: str, tokenizer: Any) -> tuple[int, ...]:
    """Return the ids of the tokens that end an answer; the last token also ends the targets of training.

    They are declared by a checkpoint's files, the tokenizer and its chat template. The token that ends targets is
    `data.tokenizer.eos_token`, else the end of a turn in the chat template, else the tokenizer's `eos_token`. Raises
    InputError if there is no end token, for a name that is not a token, and as `stop_tokens` does.
    """
    declared = stop_tokens(checkpoint) if checkpoint else []
    turn_end_token = turn_end(tokenizer)
    target = _target_token(data, tokenizer, turn_end_token)
    ends = end_tokens(tokenizer, [*declared, *(token for token in (turn_end_token, target) if token is not None)])
    target = ends[-1] if target is None else target
    return (*(token for token in ends if token != target), target)


def _target_token(data: DataConfig, tokenizer: Any, turn_end_token: int | None) -> int | None:
    vocabulary, chosen = tokenizer.get_vocab(), data.tokenizer.eos_token
    if chosen and chosen not in vocabulary:
        raise InputError(f"data.tokenizer.eos_token={chosen!r} is not a token of the tokenizer")
    if data.is_chat and not chosen and turn_end_token is not None:
        return turn_end_token
    target: int | None = vocabulary.get(chosen or tokenizer.eos_token)
    return target
