"""How published systems were evaluated, as settings of the command `evaluate`: `--as NAME`.

Each is what its paper says of its main table; what a paper leaves open is said beside it. They lie above what a model
was trained with, and beneath `--config` and `key.sub=value`.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import Any

from jaxrl_sql.types import InputError

# Of a run's own prompt nothing is left: a system's words are its template's, through the model's chat template.
_CHAT = {
    "prompt": "chat", "thinking": "template", "assistant_prefill": "", "template": "", "schema": "recipe",
    "max_prompt_tokens": 8192, "retrieve": 0, "matched": "examples", "synonyms": "", "shots": 0, "schema_budget": 0,
}  # fmt: skip
_GREEDY = {
    "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "repetition_penalty": 1.0,
    "samples": 1, "runs": 1, "turns": 1, "max_new_tokens": 2048, "max_total_tokens": 0,
}  # fmt: skip
_QWEN3 = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "runs": 3, "rule": "refined", "max_new_tokens": 4096}
_QWEN3_THINKING = {**_QWEN3, "temperature": 0.6, "top_p": 0.95}


def _system(recipe: str, data: Mapping[str, Any] | None = None, **evaluate: Any) -> dict[str, Any]:
    return {"recipe": recipe, "data": {**_CHAT, **(data or {})}, "evaluate": {**_GREEDY, **evaluate}}


PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    # Li et al. 2025 (arXiv:2503.02240): greedy, and votes of 8 at 0.8; prompts show values that the question names.
    "omnisql": _system("omnisql", {"retrieve": 20}),
    # Yao et al. 2025, section 5.2: one greedy answer, no schema linking; values are found in an ablation alone.
    "arctic": _system("arctic", max_new_tokens=4096),
    # Ma et al. 2025, Table 1: a vote of 8. The temperature is its script's.
    "sql_r1": _system("sql_r1", temperature=0.8, samples=8, vote="result"),
    # Hao et al. 2025, section III-A: the set's own EX, EX_b and EX_f of a greedy answer.
    "paverl": _system("paverl", rules=["bird", "refined", "test_suite", "ex_b", "paverl"]),
    # Papicchio et al. 2025, section 4.1: refined EX, the mean of three sampled runs. Sampling of the trained models is
    # taken to be their training's, which the paper calls the same environment.
    "think2sql": _system(
        "think2sql", {"thinking": "no_think"}, temperature=0.6, top_p=0.95, top_k=20, repetition_penalty=1.1, runs=3,
        rule="refined", max_new_tokens=4096,
    ),
    # The same, its baselines: a prompt after OmniSQL's, Qwen3's own sampling without thinking and with it.
    "qwen3": _system("omnisql", {"thinking": "no_think"}, **_QWEN3),
    "qwen3_thinking": _system("omnisql", {"thinking": "think"}, **_QWEN3_THINKING),
    # Liu et al. 2025, section 5: greedy, up to 5 turns, EX by exact rows. A mean of 5 runs where no temperature can be
    # sent (o4-mini): evaluate.send_temperature=false evaluate.runs=5.
    "skyrl_sql": _system("skyrl_sql", turns=5, max_new_tokens=3072, max_total_tokens=20480, rule="bird"),
}  # fmt: skip
"""The settings of each system's published evaluation, nested by section."""


def as_published(system: str, beneath: Mapping[str, Any], judged_only: bool = False) -> dict[str, Any]:
    """Return a command's defaults with those of a system's published evaluation over them, section by section.

    With `judged_only` these are the rules alone, for answers that are there already. Raises InputError for a system
    that is none.
    """
    if system not in PUBLISHED:
        (nearest,) = difflib.get_close_matches(system, PUBLISHED, n=1, cutoff=0.0)
        raise InputError(f"--as {system}: none of {', '.join(PUBLISHED)}; the nearest is {nearest}")
    published = PUBLISHED[system]
    if judged_only:
        rules = {name: value for name, value in published["evaluate"].items() if name in ("rule", "rules")}
        published = {"evaluate": rules}
    found = {name: value for name, value in beneath.items() if name != "sampling"}  # its strings end a run's own form
    for section, values in published.items():
        found[section] = {**found.get(section, {}), **values} if isinstance(values, Mapping) else values
    return found
