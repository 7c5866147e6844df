"""Parameters of a request that the server ignores or refuses; it reads those that are fields of `protocol.ApiRequest`.

The names are those of OpenAI's API and of the extensions of vLLM and SGLang. Unknown names are refused with the nearest
known name, because ignoring it could change the meaning of the request.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Mapping
from typing import Any

from jaxrl_sql.types import Fields, JaxrlSqlError, Record

IGNORED = frozenset({
    "cache_prompt", "cache_salt", "custom_labels", "metadata", "parallel_tool_calls", "prediction", "priority",
    "prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "request_id", "rid", "safety_identifier",
    "service_tier", "session_id", "spaces_between_special_tokens", "store", "user",
})  # fmt: skip
"""Names whose values do not affect answers."""

Refused = Mapping[str, tuple[Any, ...]]
"""Names of refused parameters, each with its neutral values, which are accepted because they change nothing.

null is neutral, too.
"""

REFUSED: Refused = {
    # OpenAI
    "audio": (), "best_of": (), "echo": (False,), "frequency_penalty": (0,), "function_call": ("none", "auto"),
    "functions": ([],), "logit_bias": ({},), "modalities": (["text"],), "moderation": (), "presence_penalty": (0,),
    "reasoning_effort": ("none",), "response_format": ({"type": "text"},), "suffix": ("",),
    "tool_choice": ("none", "auto"), "tools": ([],), "top_logprobs": (0,), "verbosity": ("medium",),
    "web_search_options": ({},),
    # vLLM, and SGLang under the same name
    "add_generation_prompt": (True,), "add_special_tokens": (False,), "allowed_token_ids": (), "bad_words": ([],),
    "chat_template": (), "continue_final_message": (False,), "data_parallel_rank": (),
    "documents": ([],), "ec_transfer_params": (), "guided_choice": (), "guided_decoding_backend": (),
    "guided_grammar": (), "guided_json": (), "guided_regex": (), "guided_whitespace_pattern": (),
    "ignore_eos": (False,), "include_reasoning": (True,), "include_stop_str_in_output": (False,),
    "kv_transfer_params": (), "length_penalty": (1,), "logits_processors": ([],), "logprob_token_ids": (),
    "media_io_kwargs": ({},), "min_tokens": (0,), "mm_processor_kwargs": ({},),
    "prompt_embeds": (), "prompt_logprobs": (), "reasoning": (), "repetition_detection": (),
    "return_mm_kwargs": (True,), "return_prompt_text": (False,), "return_token_offsets": (False,),
    "return_tokens_as_token_ids": (False,), "routed_experts_prompt_start": (0,), "skip_special_tokens": (False, True),
    "stop_token_ids": ([],), "stream_interval": (), "structural_tag": (), "structured_outputs": (),
    "thinking_token_budget": (), "truncate_prompt_tokens": (), "truncation_side": (), "use_beam_search": (False,),
    "vllm_xargs": ({},), "watermarking": (False,),
    # SGLang
    "bootstrap_host": (), "bootstrap_port": (), "bootstrap_room": (), "custom_logit_processor": (),
    "custom_params": (), "disagg_prefill_dp_rank": (), "ebnf": (), "extra_key": (), "images_config": (),
    "input_ids": (), "json_schema": (), "lora_path": (), "max_dynamic_patch": (), "min_dynamic_patch": (),
    "ngram_corpus_id": (), "no_stop_trim": (False,), "regex": (), "return_cached_tokens_details": (False,),
    "return_hidden_states": (False,), "return_meta_info": (False,), "return_prompt_token_ids": (False,),
    "return_routed_experts": (False,), "routed_dp_rank": (), "routed_experts_start_len": (0,),
    "separate_reasoning": (False, True), "session_params": (), "stop_regex": ([],), "stream_reasoning": (True,),
    "task": (), "typical_p": (1,), "use_audio_in_video": (False,),
    # llama.cpp and others
    "detokenize": (True,), "extra_body": ({},), "grammar": ("",),
}  # fmt: skip

REFUSED_IN: Mapping[str, Refused] = {
    "stream_options": {"continuous_usage_stats": (False,), "include_obfuscation": (False, True)},
    "chat_template_kwargs": {},
    "messages": {
        "annotations": ([],), "audio": (), "function_call": (), "name": ("",), "reasoning": ("",),
        "reasoning_content": ("",), "refusal": (), "tool_call_id": (), "tool_calls": ([],), "tools": ([],),
        "type": ("text",),
    },
    "content": {},
}  # fmt: skip
"""Refused members of `stream_options`, of `chat_template_kwargs`, of a message, and of a part of its content."""

IGNORED_IN_CONTENT = frozenset({"cache_control", "prompt_cache_breakpoint"})
"""Members of a content part that do not affect answers."""

IGNORED_QUERY = frozenset({"api-version"})
"""Query parameters that are accepted and ignored."""


class RefusedError(JaxrlSqlError):
    """A request that cannot be served, as OpenAI's error object reports it.

    `code` is a short name of the problem, `param` the parameter that caused it, and `status` the HTTP status.
    """

    def __init__(self, message: str, code: str | None = None, param: str | None = None, status: int = 400) -> None:
        super().__init__(message)
        self.code, self.param, self.status = code, param, status

    def body(self) -> Record:
        """Return the error object."""
        types = {429: "rate_limit_error", 503: "server_error", 500: "server_error"}
        error_type = types.get(self.status, "invalid_request_error")
        return {"error": {"message": str(self), "type": error_type, "param": self.param, "code": self.code}}


def check_parameters(
    parameters: Fields,
    supported: Collection[str],
    refused: Refused,
    ignored: Collection[str] = (),
    where: str = "",
) -> None:
    """Raise RefusedError for an unknown name, and for a refused one whose value is not neutral.

    `parameters` are those that the server does not read, with their values. `supported` are the names that it reads,
    for suggestions. `where` is the path of the object that holds the parameters, such as `messages.0.`.
    """
    for name, value in parameters.items():
        path = f"{where}{name}"
        if name in ignored:
            continue
        if name not in refused:
            matches = difflib.get_close_matches(name, [*supported, *ignored, *refused], n=1)
            hint = f"; the nearest is {where}{matches[0]}" if matches else ""
            raise RefusedError(f"unknown parameter {path}{hint}", "unknown_parameter", path)
        if value is not None and not any(_is_same(value, neutral) for neutral in refused[name]):
            allowed = " or ".join(json.dumps(neutral) for neutral in refused[name])
            restriction = f" with another value than {allowed}" if allowed else ""
            raise RefusedError(f"{path} is not supported by this server{restriction}", "unsupported_parameter", path)


def check_query(names: Collection[str]) -> None:
    """Raise RefusedError for a query parameter that is not ignored."""
    for name in names:
        if name not in IGNORED_QUERY:
            raise RefusedError(f"query parameter {name} is not supported by this server", "unsupported_parameter", name)


def check_names(body: bytes) -> None:
    """Raise RefusedError for JSON with a duplicate name in an object, of which one value would be ignored.

    Raises ValueError for text that is no JSON.
    """

    def check_unique(pairs: list[tuple[str, Any]]) -> None:
        names = set[str]()
        for name, _ in pairs:
            if name in names:
                raise RefusedError(f"duplicate name {name} in a JSON object", param=name)
            names.add(name)

    json.loads(body, object_pairs_hook=check_unique, parse_int=str)


def _is_same(value: Any, neutral: Any) -> bool:
    """Return whether two values are equal in JSON, where true is not 1."""
    return bool(value == neutral) and isinstance(value, bool) == isinstance(neutral, bool)
