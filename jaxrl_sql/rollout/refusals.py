"""Requests that the engine cannot serve: too long for the model or the KV budget, or with unusable tokens."""

from __future__ import annotations

from jaxrl_sql.models.spec import ModelConfig
from jaxrl_sql.rollout.engine_config import EngineConfig
from jaxrl_sql.rollout.sampling import GenerationRequest
from jaxrl_sql.rollout.stop_strings import Stops, Vocabulary


def find_refused(
    request: GenerationRequest, vocabulary: Vocabulary, model: ModelConfig, config: EngineConfig
) -> tuple[Stops, dict[int, str]]:
    """Return the automata of all stop strings, and the reason for each request that cannot be served."""
    refused: dict[int, str] = {}
    for i, (prompt, sampling) in enumerate(zip(request.prompts, request.samplings, strict=True)):
        available = len(prompt.token_ids)
        if not available or available + sampling.longest > model.max_positions:
            refused[i] = (
                f"prompt {prompt.uid}: {available} tokens and {sampling.longest} new ones need 1 to "
                f"{model.max_positions} positions (max_positions): lower max_new_tokens or shorten the prompt "
                "(data.schema, data.schema_budget)"
            )
        elif too_large := _over_budget(config, available, sampling.longest):
            refused[i] = f"prompt {prompt.uid}: {too_large}"
        elif not all(0 <= token < model.vocab_size for token in prompt.token_ids):
            refused[i] = f"prompt {prompt.uid}: a token id is outside the model's {model.vocab_size}"
    stops_by_prompt = [tuple(sampling.stop) for sampling in request.samplings]
    stops, never = vocabulary.find_stops(tuple(dict.fromkeys(stops_by_prompt)), model.vocab_size)
    return stops, {i: never[strings] for i, strings in enumerate(stops_by_prompt) if strings in never} | refused


def _over_budget(config: EngineConfig, prompt: int, completion: int) -> str:
    """Return why the KV budget never has room for a prompt and a completion of these lengths; "" if it has."""
    budget = config.budget
    for noun, tokens, size, available in (
        ("the prompt", prompt, config.block_size, budget and budget.prompt_blocks),
        ("its completion", completion, config.completion_block_size, budget and budget.completion_blocks),
    ):
        if available is not None and -(-tokens // size) > available:
            return f"{noun} of {tokens} tokens needs more than the {available} KV blocks that there are for such"
    return ""
