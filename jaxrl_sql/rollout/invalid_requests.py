"""Prompts that the engine cannot serve: too long for the model or the KV budget, or with unusable tokens."""

from __future__ import annotations

from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.rollout.engine_config import EngineConfig
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.rollout.stop_strings import Stops, Vocabulary


def find_invalid_prompts(
    request: GenerationRequest, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig
) -> tuple[Stops, dict[int, str]]:
    """Return the automata that find all stop strings, and the reason for each invalid prompt, by prompt index."""
    invalid: dict[int, str] = {}
    for i, (prompt, sampling) in enumerate(zip(request.prompts, request.samplings, strict=True)):
        num_tokens = len(prompt.token_ids)
        if not num_tokens:
            invalid[i] = f"prompt {prompt.uid} is empty"
        elif num_tokens + sampling.longest > model.max_positions:
            invalid[i] = (
                f"prompt {prompt.uid}: {num_tokens} prompt tokens and {sampling.longest} new ones exceed "
                f"max_positions={model.max_positions}: lower max_new_tokens or shorten the prompt "
                "(data.schema, data.schema_budget)"
            )
        elif too_large := _over_budget(config, num_tokens, sampling.longest):
            invalid[i] = f"prompt {prompt.uid}: {too_large}"
        elif not all(0 <= token < model.vocab_size for token in prompt.token_ids):
            invalid[i] = f"prompt {prompt.uid}: a token id is outside the model's vocabulary of {model.vocab_size}"
    stops_by_prompt = [tuple(sampling.stop) for sampling in request.samplings]
    stops, invalid_stops = vocabulary.find_stops(tuple(dict.fromkeys(stops_by_prompt)), model.vocab_size)
    by_stops = {i: invalid_stops[strings] for i, strings in enumerate(stops_by_prompt) if strings in invalid_stops}
    return stops, by_stops | invalid


def _over_budget(config: EngineConfig, prompt: int, completion: int) -> str:
    """Return why the KV budget never has room for a prompt and a completion of these lengths, or "" if it has room."""
    budget = config.budget
    for noun, kind, tokens, size, available in (
        ("the prompt", "prompts", prompt, config.block_size, budget and budget.prompt_blocks),
        (
            "its completion",
            "completions",
            completion,
            config.completion_block_size,
            budget and budget.completion_blocks,
        ),
    ):
        if available is not None and -(-tokens // size) > available:
            return f"{noun} of {tokens} tokens needs more than the {available} KV blocks for {kind}"
    return ""
