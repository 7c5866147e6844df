"""The sections `sampling`, `validation.sampling` and `evaluate.sampling`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from jaxrl_sql.config.fields import Above, AtLeast, PositiveFloat, PositiveInt, Share, Synonyms, Texts

_ROLLOUT = "actor_rollout_ref.rollout"


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling of answers; the defaults of `top_k` to `repetition_penalty` do not restrict the tokens."""

    temperature: Annotated[
        float,
        AtLeast(0),
        "Divisor of the logits before sampling; 0 is greedy, which training does not allow.",
        Synonyms(
            trl="temperature",
            verl=f"{_ROLLOUT}.temperature",
            note="in validation, verl's val_kwargs.temperature; so are top_k and top_p",
        ),
    ] = 1.0
    top_k: Annotated[
        int,
        "Number of most likely tokens to sample from; 0 samples from all.",
        Synonyms(trl="top_k", verl=f"{_ROLLOUT}.top_k", note="verl's -1 is 0 here"),
    ] = 0
    top_p: Annotated[
        float,
        Above(0, maximum=1),
        "Cumulative probability of the most likely tokens to sample from; 1 samples from all.",
        Synonyms(trl="top_p", verl=f"{_ROLLOUT}.top_p"),
    ] = 1.0
    min_p: Annotated[
        Share,
        "Minimum probability of a token, as a share of the most likely token's; 0 samples from all.",
        Synonyms(trl="min_p"),
    ] = 0.0
    repetition_penalty: Annotated[
        PositiveFloat,
        "Penalty for tokens that already occur in prompt or answer; 1 disables it.",
        Synonyms(trl="repetition_penalty"),
    ] = 1.0
    stop: Annotated[
        list[str],
        Texts("every answer would be empty"),  # empty texts are an error; this ends its message
        "Strings that end an answer or a turn, in addition to the recipe's. If the list is empty, an answer "
        "to a `compact` prompt (`data.prompt`) ends with the semicolon of its statement, and "
        "validation uses training's strings.",
        Synonyms(trl="generation_kwargs", note="their entry stop, with vLLM"),
    ] = field(default_factory=list)
    max_new_tokens: Annotated[
        PositiveInt,
        "Maximum number of tokens of an answer; with several turns, of each turn. Validation's default is training's.",
        Synonyms(trl="max_completion_length", verl="data.max_response_length", note="theirs count all turns"),
    ] = 1024
    turns: Annotated[
        int,
        "Maximum number of turns of an answer, for a multi-turn recipe; in validation, 0 is training's.",
        Synonyms(
            trl="max_tool_calling_iterations",
            verl=f"{_ROLLOUT}.multi_turn.max_assistant_turns",
            note="TRL counts tool calls: one less",
        ),
    ] = 1
    max_total_tokens: Annotated[
        int,
        "Maximum number of tokens of all turns and observations together, with several turns; in validation, 0 is "
        "training's. Endpoints ignore it.",
    ] = 0
