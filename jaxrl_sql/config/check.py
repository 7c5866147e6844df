"""What a configuration must satisfy: the rules of its fields, and what has to hold between values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import date
from typing import Any

from jaxrl_sql.config.fields import OneOf, Rule, sections_of
from jaxrl_sql.config.roots import TrainConfig
from jaxrl_sql.types import InputError

_ROUNDING = 1e-6
REMAT_NAMES = ("query", "key", "value", "attended", "gate", "up")
"""What of a layer may be kept for the backward pass (`model.remat`)."""
TRACKERS = ("tensorboard", "wandb", "trackio")
_PASSWORDS = {"postgresql": "PGPASSWORD", "mysql": "MYSQL_PWD", "duckdb": "nothing"}
RULES: Mapping[str, Rule] = {
    field.key: field.rule for section in sections_of(TrainConfig()) for field in section.fields if field.rule
}
"""The rule of each key that has one."""

CHOICES: Mapping[str, tuple[str, ...]] = {key: rule for key, rule in RULES.items() if isinstance(rule, OneOf)}
"""The names that a key may hold."""


def check_config(config: TrainConfig) -> None:
    """Refuse what no run could use, with one InputError that names the key and what it may be."""
    values = dict(flatten(dataclasses.asdict(config)))
    for key, rule in RULES.items():
        if fault := rule.fault(values[key]):
            raise InputError(f"config: {key}{fault}")
    for claim, words in _claims(config):
        if not claim:
            raise InputError(f"config: {words}")


def _claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold between values, each with the line that says so."""
    data, model, grpo, sampling = config.data, config.model, config.grpo, config.sampling
    yield bool(data.dir), "data.dir is empty; it names the folder with the questions and databases"
    yield bool(data.evals), "data.evals is empty; name at least one split to evaluate on"
    yield not data.date or _is_day(data.date), f"data.date={data.date!r} must be a day such as 2026-11-29, or empty"
    unknown = [name for name in config.run.trackers if name not in TRACKERS]
    yield not unknown, f"run.trackers holds {', '.join(map(repr, unknown))}, which is none of {', '.join(TRACKERS)}"
    yield (
        not (model.frozen and model.lora.rank),
        "model.frozen and model.lora.rank: beside adapters no weight is trained, so leave model.frozen empty",
    )
    odd = [name.strip() for name in model.remat.split(",") if name.strip() not in REMAT_NAMES]
    yield (
        model.remat in ("none", "full") or not odd,
        (
            f"model.remat={model.remat!r}: {', '.join(map(repr, odd))} is none of none, full, or of what may be kept, "
            f"as in query,key: {', '.join(REMAT_NAMES)}"
        ),
    )
    version = config.executor.sqlite_version
    yield (
        not version or re.fullmatch(r"3\.[4-9]\d(\.\d+)?", version) is not None,
        f"executor.sqlite_version={version!r} must be 3.40.0 or later, of three parts: YAML reads 3.40 as 3.4",
    )
    yield bool(config.run.dir), "run.dir is empty; it names the folder that the run writes"
    memory = config.rollout.memory
    yield memory <= 1, f"rollout.memory={memory} is a share of a device's memory: above 0 and at most 1"
    yield from _objective_claims(config)
    yield (
        grpo.prompts % grpo.minibatches == 0,
        f"grpo.minibatches={grpo.minibatches} must divide grpo.prompts={grpo.prompts}",
    )
    yield (
        grpo.prompts // grpo.minibatches % (grpo.gradient_accumulation_steps or 1) == 0,
        (
            f"grpo.gradient_accumulation_steps={grpo.gradient_accumulation_steps} must divide the "
            f"{grpo.prompts // grpo.minibatches} prompts of an update"
        ),
    )
    yield (
        grpo.prompts // grpo.minibatches % ((grpo.gradient_accumulation_steps or 1) * grpo.questions) == 0,
        (
            f"grpo.questions={grpo.questions} of a database stay together and must divide the prompts of each part of "
            f"an update, {grpo.prompts // grpo.minibatches // (grpo.gradient_accumulation_steps or 1)}"
        ),
    )
    yield (
        not grpo.max_tokens_per_device or grpo.gradient_accumulation_steps <= 1,
        (
            f"grpo.max_tokens_per_device={grpo.max_tokens_per_device} says how much is computed at a time: leave "
            f"grpo.gradient_accumulation_steps={grpo.gradient_accumulation_steps} at 1"
        ),
    )
    yield (
        config.sft.databases % (config.sft.gradient_accumulation_steps or 1) == 0,
        (
            f"sft.gradient_accumulation_steps={config.sft.gradient_accumulation_steps} must divide "
            f"sft.databases={config.sft.databases}"
        ),
    )
    yield from _turn_claims(config)
    yield (
        not data.synonyms or data.retrieve > 0,
        f"data.synonyms={data.synonyms} finds more of the values that are shown: set data.retrieve, such as to 20",
    )
    turns = max(sampling.turns, config.validation.turns, config.evaluate.turns)
    yield (
        not data.shots or turns == 1,
        (
            f"data.shots={data.shots} shows answers of one turn: sampling.turns, validation.turns and evaluate.turns "
            f"must be 1, not {turns}"
        ),
    )
    yield 0 < sampling.top_p <= 1, f"sampling.top_p={sampling.top_p} must be above 0 and at most 1"
    yield sampling.min_p <= 1, f"sampling.min_p={sampling.min_p} must be at most 1"
    yield all(sampling.stop), "sampling.stop holds an empty text: no answer would be begun"
    for name, optim in (("sft", config.sft.optim), ("grpo", grpo.optim)):
        for beta in ("beta1", "beta2"):
            value = getattr(optim, beta)
            yield 0 <= value < 1, f"{name}.optim.{beta}={value} must be at least 0 and below 1"
        yield (
            optim.kind == "adamw" or optim.moments == "float32",
            f"{name}.optim.moments={optim.moments} is for adamw: adafactor's are small already",
        )
    axes = {name: size for name, size in dataclasses.asdict(config.mesh).items() if name != "processes"}
    yield (
        all(size == -1 or size >= 1 for size in axes.values()),
        f"mesh {axes}: a size is 1 or more, or -1 for the rest",
    )
    yield list(axes.values()).count(-1) <= 1, f"mesh {axes}: only one axis can take the rest (-1)"
    yield (
        re.fullmatch(r"auto|training|[1-9]\d*x[1-9]\d*", config.rollout.mesh) is not None,
        f"rollout.mesh={config.rollout.mesh!r} is none of auto, training, or replicas x tensor such as 8x1",
    )
    yield (
        config.mesh.processes >= 0,
        f"mesh.processes={config.mesh.processes} must be 1 or more, or 0 to ask the cluster",
    )
    yield from _sft_claims(config)
    yield from _filter_claims(config)
    yield from _evaluate_claims(config)
    if not (model.checkpoint or model.shape or config.evaluate.base_url):
        yield from _shape_claims(config)


def _is_day(text: str) -> bool:
    with suppress(ValueError):
        return date.fromisoformat(text).isoformat() == text
    return False


def _sft_claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold for the supervised phase."""
    sft = config.sft
    yield (
        not (sft.steps and sft.epochs),
        f"sft.steps={sft.steps} and sft.epochs={sft.epochs} both say how long: leave one at 0",
    )
    yield (
        not sft.formats or config.data.prompt != "compact",
        f"sft.formats={sft.formats} need data.prompt=tagged or chat: compact answers with SQL alone",
    )
    yield sft.held_out < 1, f"sft.held_out={sft.held_out} is a share below 1"
    yield (
        not sft.patience or (sft.held_out > 0 and sft.eval_every > 0),
        f"sft.patience={sft.patience} needs sft.held_out and sft.eval_every above 0: there is nothing to measure",
    )


def _filter_claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold for the choice of questions and for a teacher."""
    chosen, teacher = config.filter, config.distill
    yield (
        chosen.low <= chosen.high <= 1,
        f"filter.low={chosen.low} and filter.high={chosen.high}: low is at most high, and high at most 1",
    )
    yield (
        not chosen.max_sql_characters or chosen.min_sql_characters <= chosen.max_sql_characters,
        f"filter.max_sql_characters={chosen.max_sql_characters} is below the least, {chosen.min_sql_characters}",
    )
    yield (
        not chosen.samples or bool(config.model.checkpoint),
        f"filter.samples={chosen.samples} answers are sampled from a model: name model.checkpoint",
    )
    yield (
        teacher.wanted <= teacher.samples,
        f"distill.wanted={teacher.wanted} right answers of distill.samples={teacher.samples}: ask at least as often",
    )
    asks = config.augment.correct or config.augment.reword or config.augment.fill_tries
    yield (
        not asks or bool(teacher.base_url and teacher.model),
        "augment.correct, augment.reword and augment.fill_tries ask a model: name distill.base_url and distill.model",
    )
    yield (
        not config.augment.fill_tries or config.augment.fill != "none",
        f"augment.fill_tries={config.augment.fill_tries} needs augment.fill=empty or trivial",
    )
    for name, endpoint in (("distill", config.distill), ("verbal", config.verbal), ("evaluate", config.evaluate)):
        yield (
            not endpoint.max_cost or endpoint.prompt_price + endpoint.completion_price > 0,
            f"{name}.max_cost={endpoint.max_cost} needs {name}.prompt_price and {name}.completion_price",
        )
        yield (
            "@" not in endpoint.base_url.partition("://")[2].partition("/")[0],
            f"{name}.base_url holds a user or password, and is written down: name the key's variable in {name}.key_env",
        )


def _evaluate_claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold for the answers that are judged."""
    asked = config.evaluate
    yield 0 < asked.top_p <= 1, f"evaluate.top_p={asked.top_p} must be above 0 and at most 1"
    yield asked.min_p <= 1, f"evaluate.min_p={asked.min_p} must be at most 1"
    for name, count in (("samples", asked.samples), ("runs", asked.runs)):
        yield (
            count == 1 or asked.temperature > 0 or not asked.send_temperature,
            f"evaluate.{name}={count} at evaluate.temperature=0 would all be the same: set a temperature, such as 0.8",
        )
    yield (
        asked.send_temperature or bool(asked.base_url),
        "evaluate.send_temperature=false is for an endpoint (evaluate.base_url): other models need a temperature",
    )
    yield (
        asked.turns == 1 or bool(asked.base_url) or asked.max_total_tokens >= asked.max_new_tokens,
        f"evaluate.max_total_tokens={asked.max_total_tokens} bounds all turns: it is below evaluate.max_new_tokens",
    )
    yield (
        asked.turns == 1 or config.data.prompt != "compact",
        "data.prompt=compact answers with SQL alone, in one turn: evaluate.turns must be 1",
    )


def _turn_claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold of several turns, blocks and a second stage."""
    data, grpo, sampling, second_stage = config.data, config.grpo, config.sampling, config.second_stage
    yield from _dialect_claims(config)
    turns, total, each = (
        max(sampling.turns, config.validation.turns),
        sampling.max_total_tokens,
        sampling.max_new_tokens,
    )
    yield (
        turns == 1 or total > each,
        f"sampling.max_total_tokens={total} bounds all {turns} turns: it must be above sampling.max_new_tokens={each}",
    )
    yield (
        turns == 1 or data.prompt != "compact",
        "data.prompt=compact answers with SQL alone, in one turn: several turns need data.prompt=tagged or chat",
    )
    yield (
        grpo.steps % grpo.steps_per_generation == 0,
        f"grpo.steps_per_generation={grpo.steps_per_generation} must divide grpo.steps={grpo.steps}",
    )
    yield (
        not second_stage.steps or (config.validation.every > 0 and config.run.keep_best > 0),
        (
            f"second_stage.steps={second_stage.steps} goes on from the best evaluated checkpoint: set "
            "validation.every and run.keep_best"
        ),
    )
    yield not second_stage.steps or grpo.steps > 0, "second_stage.steps needs a first stage: grpo.steps must be above 0"
    yield (
        turns == 1 or config.mesh.processes == 1 or config.rollout.mesh != "training",
        (
            f"{turns} turns on mesh.processes={config.mesh.processes} need copies of the model: rollout.mesh must be "
            "auto, or replicas x tensor such as 8x1, not training"
        ),
    )
    yield (
        turns == 1 or config.validation.max_new_tokens <= total,
        (
            f"validation.max_new_tokens={config.validation.max_new_tokens} must be at most "
            f"sampling.max_total_tokens={total}"
        ),
    )
    yield (
        not second_stage.steps or second_stage.steps % grpo.steps_per_generation == 0,
        f"grpo.steps_per_generation={grpo.steps_per_generation} must divide second_stage.steps={second_stage.steps}",
    )


def _dialect_claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold for questions in other dialects."""
    shares, places = dataclasses.asdict(config.data.dialects), dataclasses.asdict(config.executor.databases)
    total = sum(shares.values())
    yield abs(total - 1) < _ROUNDING, f"data.dialects {shares} are shares: they add up to {total:g}, and must to 1"
    version, is_translated = config.executor.sqlite_version, shares["mysql"] > 0 and places["mysql"] == "translated"
    yield (
        not (version and is_translated),
        (
            f"executor.sqlite_version={version} does not go with data.dialects.mysql={shares['mysql']} and "
            "executor.databases.mysql=translated: the translation calls functions of later versions. Leave "
            "executor.sqlite_version empty, or name copies on a server in executor.databases.mysql"
        ),
    )
    for dialect, place in places.items():
        user, _, password = place.partition("://")[2].rpartition("@")[0].partition(":")
        yield (
            not password,
            f"executor.databases.{dialect} holds the password of {user}: leave it out, and set {_PASSWORDS[dialect]}",
        )
    for dialect, share in shares.items():
        yield (
            not share or dialect == "sqlite" or bool(places[dialect]),
            (
                f"data.dialects.{dialect}={share}: executor.databases.{dialect} says where it runs, the --out of "
                f"`jaxrl-sql data copy`{', or translated: by SQLite' if dialect == 'mysql' else ''}"
            ),
        )


def _objective_claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold for the objective to be what it is called."""
    grpo, sampling = config.grpo, config.sampling
    yield (
        grpo.num_generations >= 2 or grpo.steps == 0 or grpo.algorithm == "ppo",
        (
            f"grpo.num_generations={grpo.num_generations} must be 2 or more: an advantage compares answers; "
            "or take grpo.algorithm=ppo"
        ),
    )
    yield grpo.group_std_ddof <= 1, f"grpo.group_std_ddof={grpo.group_std_ddof} must be 0 or 1"
    yield grpo.clip_low <= 1, f"grpo.clip_low={grpo.clip_low} must be at most 1"
    yield (
        grpo.dual_clip == 0 or grpo.dual_clip > 1,
        f"grpo.dual_clip={grpo.dual_clip} must be above 1, or 0 to leave it out",
    )
    yield (
        grpo.kl_coef == 0 or grpo.kl_kind != "k1" or grpo.kl_in == "reward",
        "grpo.kl_kind=k1 as a loss has zero expected gradient: take k2 or k3, or grpo.kl_in=reward",
    )
    cap = grpo.tis_clip_max
    yield cap == 0 or cap >= 1, f"grpo.tis_clip_max={cap} must be 1 or more, or 0 to leave the weight out"
    truncations = {
        f"sampling.top_k={sampling.top_k}": sampling.top_k > 0,
        f"sampling.top_p={sampling.top_p}": sampling.top_p < 1,
        f"sampling.min_p={sampling.min_p}": sampling.min_p > 0,
        f"sampling.repetition_penalty={sampling.repetition_penalty}": sampling.repetition_penalty != 1,
    }
    truncated = ", ".join(name for name, is_on in truncations.items() if is_on)
    yield (
        not truncated or cap > 0 or grpo.steps == 0,
        f"{truncated} samples from another distribution than is trained: grpo.tis_clip_max=0 must be above 0",
    )
    shown_needs = {
        "grpo.algorithm=ppo, which has no groups": grpo.algorithm == "grpo",
        f"sampling.turns={sampling.turns}: a gold is one answer, not a dialogue": sampling.turns == 1,
        "rollout.exact=true: a gold has no log-probabilities of a sampler": not config.rollout.exact,
    }
    yield from (
        (not grpo.demonstrations or holds, f"grpo.demonstrations does not go with {what}")
        for what, holds in shown_needs.items()
    )
    for key, value in (("discount", grpo.discount), ("gae_lambda", grpo.gae_lambda)):
        yield value <= 1, f"grpo.{key}={value} must be at most 1"
    ahead = config.rollout.ahead
    yield ahead in {0, 1}, f"rollout.ahead={ahead} must be 0, or 1 for the next rollout's answers"
    needs = {
        f"sampling.turns={sampling.turns}, whose environments would wait: it must be 1": sampling.turns == 1,
        f"grpo.max_extra_generations={grpo.max_extra_generations}, rounds that nobody can foresee: it must be 0": (
            not grpo.max_extra_generations
        ),
        "rollout.exact=true, since part of an answer is an older policy's: it must be false": not config.rollout.exact,
        "grpo.tis_clip_max=0, which would leave an older policy's tokens as they are: it must be above 0": cap > 0,
    }
    yield from ((not ahead or holds, f"rollout.ahead=1 does not go with {need}") for need, holds in needs.items())


def _shape_claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold for a model that is made from scratch."""
    model = config.model
    yield (
        model.n_heads % model.n_kv_heads == 0,
        f"model.n_kv_heads={model.n_kv_heads} must divide model.n_heads={model.n_heads}",
    )
    yield model.head_dim % 2 == 0, f"model.head_dim={model.head_dim} must be even: rotary positions turn pairs"
    answer = max(config.sampling.max_new_tokens, config.sft.max_completion_tokens, config.validation.max_new_tokens)
    need = config.data.max_prompt_tokens + answer
    yield (
        need <= model.max_positions,
        f"model.max_positions={model.max_positions} is below the longest prompt and completion together, {need} tokens",
    )


def flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything that is not a section; an empty mapping is a value."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
