"""A configuration is loaded completely or rejected with one line that names the place, the error and the fix."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from jaxrl_sql.config import (
    AugmentConfig,
    DistillConfig,
    EvaluateConfig,
    FilterConfig,
    PlanConfig,
    RootConfig,
    TrainConfig,
    load_config,
    replace_values,
    to_yaml,
)
from jaxrl_sql.config.check import flatten
from jaxrl_sql.config.fields import OneOf, fields_of
from jaxrl_sql.config.prepare import load_prepare
from jaxrl_sql.types import InputError

SMALL = Path(__file__).parents[2] / "small.yaml"


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def refusal(path: Path | None, *overrides: str, root: type[RootConfig] = TrainConfig) -> str:
    with pytest.raises(InputError) as caught:
        load_config(root, SMALL if path is None else [SMALL, path], overrides)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_missing_file_gives_the_defaults() -> None:
    values = {"model.checkpoint": "m", "data.dir": "d"}
    assert load_config(TrainConfig, None, [values]) == replace_values(TrainConfig(), values)


RUN = ("model.checkpoint=m", "data.dir=d")


def test_run_without_settings_uses_common_defaults() -> None:
    config = load_config(TrainConfig, None, RUN)
    assert (config.data.prompt, config.data.max_prompt_tokens, config.sampling.max_new_tokens) == ("auto", 2048, 1024)
    assert (config.model.compute_dtype, config.grpo.optim.lr, config.grpo.optim.beta2) == ("bfloat16", 1e-6, 0.999)
    assert (config.grpo.group_std_ddof, config.grpo.advantage, config.sft.steps) == (1, "group", 0)


@pytest.mark.parametrize(
    ("overrides", "key", "value"),
    [
        (["model.lora.rank=8"], "grpo.optim.lr", 1e-5),
        (["model.lora.rank=8"], "sft.optim.lr", 2e-4),
        (["model.lora.rank=8", "grpo.optim.lr=3e-6"], "grpo.optim.lr", 3e-6),
        (["sampling.max_new_tokens=77"], "validation.sampling.max_new_tokens", 77),
        (
            ["sampling.max_new_tokens=77", "validation.sampling.max_new_tokens=5"],
            "validation.sampling.max_new_tokens",
            5,
        ),
        (["data.source=synth", "data.dir=", "data.seed=4"], "data.dir", "data-cache/synth-4"),
    ],
)
def test_default_may_depend_on_another_value(
    overrides: list[str], key: str, value: float | str, tmp_path: Path
) -> None:
    config = load_config(TrainConfig, None, [*RUN, *overrides])
    assert dict(flatten(dataclasses.asdict(config)))[key] == value
    assert load_config(TrainConfig, write(tmp_path, "c.yaml", to_yaml(config))) == config


def test_model_and_folder_are_required() -> None:
    for arguments, missing in ((RUN[0], "data.dir is empty"), (RUN[1], "model.checkpoint is empty")):
        with pytest.raises(InputError, match=missing):
            load_config(TrainConfig, None, [arguments])
    assert load_config(PlanConfig, None, [RUN[0]]).model.checkpoint == "m"


def test_command_line_overrides_file_and_file_overrides_base(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    write(tmp_path, "base.yaml", "seed: 1\ngrpo: {num_generations: 4, steps: 7}\ndata: {evals: [a, b]}\n")
    path = write(tmp_path / "sub", "run.yaml", "base: ../base.yaml\ngrpo: {num_generations: 16, optim: {lr: 1e-5}}\n")
    config = load_config(TrainConfig, [SMALL, path], ["grpo.steps=9", "data.evals=[c]", "run.dir=2024"])
    assert (config.seed, config.grpo.num_generations, config.grpo.steps) == (1, 16, 9)
    assert (config.grpo.optim.lr, config.grpo.optim.schedule) == (1e-5, "constant")
    assert (config.data.evals, config.run.dir) == (["c"], "2024")


def test_later_files_override_earlier_ones_and_the_command_line_overrides_all(tmp_path: Path) -> None:
    recipe = write(tmp_path, "recipe.yaml", "seed: 1\ngrpo: {steps: 7}\nrollout: {memory: 0.5}\n")
    machine = write(tmp_path, "machine.yaml", "rollout: {memory: 0.1}\nmesh: {fsdp: 2}\nseed: 3\n")
    config = load_config(TrainConfig, [SMALL, recipe, machine], ["seed=4"])
    assert (config.seed, config.grpo.steps, config.rollout.memory, config.mesh.fsdp) == (4, 7, 0.1, 2)
    assert load_config(TrainConfig, [SMALL, machine, recipe]).rollout.memory == 0.5
    write(tmp_path, "machine.yaml", "mesh: {fsdb: 2}\n")
    with pytest.raises(InputError, match=r"machine\.yaml: unknown key mesh\.fsdb"):
        load_config(TrainConfig, [SMALL, recipe, machine])


CHOICES = {key: field.rule for key, field in fields_of(TrainConfig).items() if isinstance(field.rule, OneOf)}
TEXTS = [
    key
    for key, value in flatten(dataclasses.asdict(TrainConfig()))
    if isinstance(value, str | list) and key != "model.init"  # required without a checkpoint
]
NEEDED = {"data.evals", "run.dir", "model.remat", "rollout.mesh"}


@pytest.mark.parametrize("key", TEXTS)
def test_key_without_a_value_is_an_empty_text_or_list(key: str) -> None:
    if key in CHOICES or key in NEEDED:
        assert f"config: {key}" in refusal(None, f"{key}=")
        return
    values = dict(flatten(dataclasses.asdict(load_config(TrainConfig, SMALL, [f"{key}="]))))
    assert values[key] in ("", []) or key == "data.dir"  # derived from data.seed


def test_key_without_a_value_is_empty_for_a_merge_too() -> None:
    prepare = load_prepare(None, ["out=x", "sources.s.dir=d", "sources.s.prefix=", "sources.s.exclude=", "subsets="])
    assert (prepare.sources["s"].prefix, prepare.sources["s"].exclude, prepare.subsets) == ("", [], [])


def test_number_without_a_value_is_refused() -> None:
    assert refusal(None, "grpo.steps=") == "command line: grpo.steps must be a whole number, not ''"
    assert refusal(None, "run.resume= ") == "command line: run.resume must be true or false, not ''"


def test_empty_mapping_is_an_empty_section_but_no_value(tmp_path: Path) -> None:
    assert refusal(None, "grpo.steps={}") == "command line: grpo.steps must be a whole number, not {}"
    (tmp_path / "a.yaml").write_text("grpo: {}\nseed: 3\n")
    assert load_config(TrainConfig, [SMALL, tmp_path / "a.yaml"]).seed == 3


@pytest.mark.parametrize(
    "override",
    [
        {"grpo": {"optim": {"lr": 2e-6}, "steps": 3}, "data": {"evals": ["a", "b"], "dir": "d"}},
        {"grpo.optim.lr": 2e-6, "grpo.steps": 3, "data.evals": ("a", "b"), "data.dir": Path("d")},
        {"grpo.optim": {"lr": 2e-6}, "grpo": {"steps": 3}, "data": {"evals": (Path("a"), "b")}, "data.dir": "d"},
    ],
    ids=["nested", "dotted", "mixed"],
)
def test_override_may_be_a_mapping(override: dict[str, Any]) -> None:
    message = ["grpo.optim.lr=2.0e-6", "grpo.steps=3", "data.evals=[a,b]", "data.dir=d"]
    assert load_config(TrainConfig, SMALL, [override]) == load_config(TrainConfig, SMALL, message)


def test_overrides_of_both_kinds_apply_in_order() -> None:
    assert load_config(
        TrainConfig, SMALL, ["seed=1", {"seed": 2}, "grpo.steps=3", {"grpo": {"steps": 4}}]
    ) == load_config(TrainConfig, SMALL, ["seed=2", "grpo.steps=4"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ({"grpo": {"step": 3}}, "overrides: unknown key grpo.step; the nearest is grpo.steps"),
        ({"grpo.step": 3}, "overrides: unknown key grpo.step; the nearest is grpo.steps"),
        ("grpo.step=3", "overrides: unknown key grpo.step; the nearest is grpo.steps"),
        ({"grpo": 3}, "overrides: grpo is a section and needs keys below it, not 3"),
        ({"grpo": 3, "grpo.steps": 4}, "overrides: grpo is a section and needs keys below it, not 3"),
        ({"grpo.steps": "3"}, "overrides: grpo.steps must be a whole number, not '3'"),
        ({"grpo.steps": None}, "overrides: grpo.steps must be a whole number, not None"),
        ("seed", "overrides: 'seed' is not of the form key.sub=value"),
        (["seed=3"], "overrides: ['seed=3'] is neither a mapping nor a text of the form key.sub=value"),
    ],
)
def test_invalid_override_from_python_is_named_as_an_override(override: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        load_config(TrainConfig, SMALL, [override], origin="overrides")
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("override", "key", "nearest"),
    [
        ("grpo.num_generation=3", "grpo.num_generation", "; the nearest is grpo.num_generations"),
        ("gpro.num_generations=3", "gpro.num_generations", "; the nearest is grpo.num_generations"),
        ("vm_steps=3", "vm_steps", "; the nearest is executor.vm_steps"),
        ("lr=3", "lr", "; the nearest are sft.optim.lr and grpo.optim.lr"),
        ("steps=3", "steps", "; the nearest are sft.steps, grpo.steps and second_stage.steps"),
        ("grpo.num_generations.size=3", "grpo.num_generations.size", "; the nearest is grpo.num_generations"),
        ("sft.optim.learning_rate=3", "sft.optim.learning_rate", ", which is TRL's name for sft.optim.lr"),
        ("learning_rate=3", "learning_rate", ", which is TRL's name for sft.optim.lr and grpo.optim.lr"),
        ("grad_clip=3", "grad_clip", ", which is verl's name for sft.optim.max_grad_norm and grpo.optim.max_grad_norm"),
        ("xq=3", "xq", "; --help lists the keys"),
    ],
)
def test_unknown_key_error_suggests_the_nearest_key(override: str, key: str, nearest: str) -> None:
    assert f"unknown key {key}{nearest}" in refusal(None, override)


def test_unknown_key_error_names_its_file(tmp_path: Path) -> None:
    base = write(tmp_path, "base.yaml", "grpo: {num_generation: 4}\n")
    path = write(tmp_path, "run.yaml", "base: base.yaml\n")
    assert refusal(path) == f"{base}: unknown key grpo.num_generation; the nearest is grpo.num_generations"


def test_dotted_key_in_a_file_is_refused_with_its_file(tmp_path: Path) -> None:
    base = write(tmp_path, "base.yaml", '"grpo.steps": 3\n')
    path = write(tmp_path, "run.yaml", "base: base.yaml\nseed: 1\n")
    assert refusal(path) == f"{base}: unknown key grpo.steps: in a file, sections are nested: write grpo: {{steps: …}}"


@pytest.mark.parametrize(
    ("override", "text"),
    [
        ("grpo.num_generations=many", "a whole number"),
        ("grpo.num_generations=1.5", "a whole number"),
        ("grpo.num_generations=true", "a whole number"),
        ("grpo.optim.lr=fast", "a finite number"),
        ("grpo.optim.lr=null", "a finite number"),
        ("grpo.optim.lr=.inf", "a finite number"),
        ("run.resume=1", "true or false"),
        ("data.evals=dev", "a list of texts"),
        ("data.dir=[a]", "text"),
        ("grpo=3", "a section"),
        ("seed", "key.sub=value"),
        ("data.evals=[a", "data.evals=[a"),
        ("executor.sqlite_version=3.40", "with three parts"),
        ("executor.sqlite_version=3.39.1", "3.40.0 or later"),
    ],
)
def test_wrong_type_error_names_the_expected_type(override: str, text: str) -> None:
    message = refusal(None, override)
    assert text in message
    assert override.split("=", maxsplit=1)[0] in message


@pytest.mark.parametrize("key", sorted(CHOICES))
def test_invalid_choice_error_lists_valid_choices(key: str) -> None:
    message = refusal(None, f"{key}=nonsense")
    assert key in message
    assert all(choice in message for choice in CHOICES[key])


@pytest.mark.parametrize("key", sorted(CHOICES))
def test_every_choice_is_accepted(key: str) -> None:
    for choice in CHOICES[key]:
        load_config(TrainConfig, None, ["model.checkpoint=m", "data.dir=d", f"{key}={choice}"])


ANSWER_OVER_300 = ["validation.sampling.max_new_tokens=301"]
TOTAL_OF_300 = ["validation.sampling.max_total_tokens=300"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["grpo.num_generations=1"], "2 or more"),
        (
            [
                "executor.sqlite_version=3.40.1",
                "data.dialects={sqlite: 0.5, mysql: 0.5}",
                "executor.databases.mysql=translated",
            ],
            "executor.sqlite_version=3.40.1 is incompatible with data.dialects.mysql=0.5 and executor.databases.mysql=",
        ),
        (["grpo.prompts=8", "grpo.minibatches=3"], "must divide"),
        (["sampling.top_p=0"], "sampling.top_p"),
        (["sampling.top_p=1.5"], "sampling.top_p"),
        (["sampling.temperature=0"], "sampling.temperature=0.0 must be above 0"),
        (["sampling.turns=0"], "sampling.turns=0 must be above 0"),
        (["validation.sampling.temperature=-1"], "validation.sampling.temperature=-1.0 must be 0 or more"),
        (["validation.sampling.top_p=0"], "validation.sampling.top_p=0.0 must be above 0"),
        (
            ["data.prompt=tagged", "validation.sampling.turns=3"],
            "sampling.max_total_tokens=0 limits all 3 turns: it must be above sampling.max_new_tokens=96",
        ),
        (
            ["data.prompt=tagged", "sampling.turns=3", "sampling.max_total_tokens=300", *ANSWER_OVER_300],
            "validation.sampling.max_new_tokens=301 must be at most sampling.max_total_tokens=300",
        ),
        (
            ["data.prompt=tagged", "validation.sampling.turns=3", *ANSWER_OVER_300, *TOTAL_OF_300],
            "validation.sampling.max_new_tokens=301 must be at most validation.sampling.max_total_tokens=300",
        ),
        (["grpo.kl.coef=-1"], "0 or more"),
        (["grpo.optim.beta2=1"], "below 1"),
        (["grpo.clip.dual=0.5"], "grpo.clip.dual"),
        (["grpo.num_generations=1", "grpo.advantage=batch"], "grpo.algorithm=ppo"),
        (["grpo.group_std_ddof=2"], "grpo.group_std_ddof=2 must be 0 or 1"),
        (
            ["grpo.kl.coef=0.1", "grpo.kl.estimator=k1"],
            "grpo.kl.estimator=k1 as a loss has zero expected gradient: use k2 or k3",
        ),
        (["grpo.loss.tis_clip_max=0.5"], "must be 1 or more, or 0"),
        (["rollout.ahead=2"], "rollout.ahead=2 must be 0 or 1"),
        (
            ["rollout.ahead=1", "rollout.exact=true"],
            "rollout.exact=true, because an answer may include tokens of an older policy",
        ),
        (
            ["rollout.ahead=1", "grpo.dynamic_sampling.max_extra_generations=1"],
            "rollout.ahead=1 is incompatible with grpo.dynamic_sampling.",
        ),
        (
            ["rollout.ahead=1", "grpo.loss.tis_clip_max=0"],
            "rollout.ahead=1 is incompatible with grpo.loss.tis_clip_max=0",
        ),
        (
            ["rollout.ahead=1", "recipe=skyrl_sql", "sampling.turns=3", "sampling.max_total_tokens=900"],
            "rollout.ahead=1 is incompatible with sampling.turns=3",
        ),
        (
            ["grpo.demonstrations=true", "rollout.exact=true"],
            "grpo.demonstrations is incompatible with rollout.exact=true",
        ),
        (
            ["grpo.demonstrations=true", "recipe=skyrl_sql", "sampling.turns=3", "sampling.max_total_tokens=900"],
            "grpo.demonstrations is incompatible with sampling.turns=3",
        ),
        (
            ["grpo.demonstrations=true", "grpo.algorithm=ppo"],
            "grpo.demonstrations is incompatible with grpo.algorithm=ppo",
        ),
        (["sampling.top_k=20", "grpo.loss.tis_clip_max=0"], "sampling.top_k=20 samples from another distribution"),
        (["sampling.top_p=0.9", "grpo.loss.tis_clip_max=0"], "grpo.loss.tis_clip_max=0 must be above 0"),
        (["sampling.min_p=0.1", "grpo.loss.tis_clip_max=0"], "sampling.min_p=0.1"),
        (["sampling.repetition_penalty=1.1", "grpo.loss.tis_clip_max=0"], "sampling.repetition_penalty=1.1"),
        (["grpo.num_iterations=0"], "grpo.num_iterations=0 must be above 0"),
        (["grpo.ppo.gae_lambda=1.1"], "grpo.ppo.gae_lambda=1.1 must be from 0 to 1"),
        (["mesh.data=0"], "mesh"),
        (["mesh.data=-1"], "only one axis"),
        (["data.evals=[]"], "data.evals"),
        (
            ["grpo.prompts=8", "grpo.minibatches=2", "grpo.gradient_accumulation_steps=3"],
            "grpo.gradient_accumulation_steps=3 must divide the 4 prompts",
        ),
        (
            ["sft.databases=8", "sft.gradient_accumulation_steps=3"],
            "sft.gradient_accumulation_steps=3 must divide sft.databases=8",
        ),
        (["grpo.optim.kind=adafactor", "grpo.optim.moments=bfloat16"], "grpo.optim.moments=bfloat16 requires adamw"),
        (["model.lora.rank=-1"], "model.lora.rank"),
        (["model.lora.alpha=0"], "model.lora.alpha=0"),
        (["sft.steps=2", "sft.epochs=2"], "are exclusive"),
        (["sft.held_out=1"], "sft.held_out=1.0 must be 0 or more and below 1"),
        (["sft.patience=2", "sft.held_out=0.1"], "sft.patience=2 needs sft.held_out and sft.eval_every"),
        (["sft.formats=[arctic]"], "need data.prompt=tagged or chat"),
        (["model.n_kv_heads=4"], "model.n_kv_heads=4 must divide model.n_heads=6"),
        (["model.head_dim=31"], "even"),
        (["model.max_positions=479"], "480 tokens"),
        *(
            ([f"data.chat.date={day}"], "must be a day such as 2026-11-29")
            for day in ("today", "20260229", "2026-02-29")
        ),
    ],
)
def test_numbers_unusable_for_a_run_are_refused(overrides: list[str], message: str) -> None:
    more = ["data.max_prompt_tokens=384", "sampling.max_new_tokens=96", "sft.max_completion_tokens=96"]
    assert message in refusal(None, *more, *overrides)


@pytest.mark.parametrize(
    ("root", "overrides", "message"),
    [
        (FilterConfig, ["filter.low=0.6", "filter.high=0.5"], "must be at most filter.high"),
        (FilterConfig, ["filter.samples=4"], "set model.checkpoint"),
        (FilterConfig, ["sampling.temperature=0"], "sampling.temperature=0.0 must be above 0"),
        (FilterConfig, ["sampling.turns=0"], "sampling.turns=0 must be above 0"),
        (
            FilterConfig,
            ["filter.min_sql_characters=9", "filter.max_sql_characters=8"],
            "is below filter.min_sql_characters=9",
        ),
        (DistillConfig, ["distill.wanted=2"], "must be at most distill.samples"),
        (AugmentConfig, ["augment.correct=1"], "set distill.base_url and distill.model"),
        (
            EvaluateConfig,
            ["evaluate.base_url=http://bob:s3cret@there/v1"],
            "set evaluate.key_env to the name of the key's variable",
        ),
        (
            EvaluateConfig,
            ["data.prompt=compact", "evaluate.sampling.turns=2", "evaluate.sampling.max_total_tokens=9999"],
            "in one turn",
        ),
        (EvaluateConfig, ["evaluate.sampling.turns=0"], "evaluate.sampling.turns=0 must be above 0"),
        (EvaluateConfig, ["evaluate.sampling.stop=['']"], "evaluate.sampling.stop holds an empty text"),
        (
            EvaluateConfig,
            ["evaluate.samples=2"],
            "evaluate.samples=2 at evaluate.sampling.temperature=0 would all be equal",
        ),
    ],
)
def test_numbers_unusable_for_a_command_are_refused(root: type[RootConfig], overrides: list[str], message: str) -> None:
    assert message in refusal(None, *overrides, root=root)


def test_file_may_have_sections_unused_by_the_command(tmp_path: Path) -> None:
    path = write(
        tmp_path, "run.yaml", "seed: 3\ngrpo: {steps: 7}\nevaluate: {samples: 2, sampling: {temperature: 0.8}}\n"
    )
    assert load_config(EvaluateConfig, path).evaluate.samples == 2
    assert load_config(TrainConfig, [SMALL, path]).grpo.steps == 7
    write(tmp_path, "run.yaml", "evaluate: {sample: 2}\n")
    assert refusal(path) == f"{path}: unknown key evaluate.sample; the nearest is evaluate.samples"


@pytest.mark.parametrize("override", ["evaluate.samples=2", {"evaluate": {"samples": 2}}])
def test_override_of_an_unused_section_is_refused(override: Any) -> None:
    with pytest.raises(InputError) as caught:
        load_config(TrainConfig, SMALL, [override])
    assert str(caught.value) == (
        "command line: this command does not read evaluate, which applies to: evaluate, ask, serve, mcp"
    )


@pytest.mark.parametrize(
    ("root", "override", "suggestion"),
    [
        (EvaluateConfig, "sampling.max_new_tokens=24", "evaluate.sampling.max_new_tokens"),
        (EvaluateConfig, "validation.sampling.max_new_tokens=24", "evaluate.sampling.max_new_tokens"),
        (TrainConfig, "evaluate.sampling.top_k=5", "validation.sampling.top_k"),
        (FilterConfig, "evaluate.sampling.top_k=5", "sampling.top_k"),
    ],
)
def test_refusal_of_an_unused_sampling_names_the_key_to_set(
    root: type[RootConfig], override: str, suggestion: str
) -> None:
    message = refusal(None, override, root=root)
    assert f"this command does not read {override.partition('.')[0]}, which applies to: " in message
    assert message.endswith(f"; set {suggestion}")


@pytest.mark.parametrize(
    "overrides", [["grpo.steps", "=", "3"], ["grpo.steps=", "3"], ["grpo.steps", "=3"]], ids=" ".join
)
def test_spaces_around_an_equals_sign_are_explained(overrides: list[str]) -> None:
    assert refusal(None, *overrides) == ("command line: write grpo.steps=VALUE without spaces around the equals sign")


@pytest.mark.parametrize(
    "overrides",
    [
        ["grpo.num_generations=1", "grpo.algorithm=ppo"],
        ["grpo.kl.coef=0.1", "grpo.kl.estimator=k1", "grpo.kl.placement=reward"],
        ["grpo.loss.tis_clip_max=0"],
        ["sampling.top_k=20", "sampling.top_p=0.95", "sampling.repetition_penalty=1.1"],
        ["sampling.top_k=20", "grpo.loss.tis_clip_max=0", "grpo.steps=0"],
        ["validation.sampling.temperature=0.8", "validation.sampling.top_k=20", "grpo.loss.tis_clip_max=0"],
        ["data.prompt=tagged", "validation.sampling.turns=3", *TOTAL_OF_300],
    ],
)
def test_values_refused_in_combination_are_accepted_alone(overrides: list[str]) -> None:
    load_config(TrainConfig, SMALL, overrides)


def test_model_shape_is_not_checked_with_a_checkpoint() -> None:
    assert load_config(TrainConfig, SMALL, ["model.checkpoint=folder", "model.n_kv_heads=4"]).model.n_kv_heads == 4


def test_unreadable_files_are_refused_by_name(tmp_path: Path) -> None:
    missing = tmp_path / "missing.yaml"
    assert str(missing) in refusal(missing)
    broken = write(tmp_path, "broken.yaml", "seed: 1\ngrpo: [1\n")
    assert refusal(broken).startswith(f"{broken}:")
    assert "key: value" in refusal(write(tmp_path, "list.yaml", "- a\n- b\n"))
    assert load_config(TrainConfig, [SMALL, write(tmp_path, "empty.yaml", "")]) == load_config(TrainConfig, SMALL)
    write(tmp_path, "a.yaml", "seed: 1\ngrpo: {num_generations: 4}\n")
    write(tmp_path, "b.yaml", "seed: 2\n")
    both = load_config(TrainConfig, [SMALL, write(tmp_path, "both.yaml", "base: [a.yaml, b.yaml]\n")])
    assert (both.seed, both.grpo.num_generations) == (2, 4)
    loop = write(tmp_path, "loop.yaml", "base: loop.yaml\n")
    assert "itself" in refusal(loop)
    assert "base" in refusal(write(tmp_path, "number.yaml", "base: 3\n"))
    assert "gone.yaml" in refusal(write(tmp_path, "orphan.yaml", "base: gone.yaml\n"))


def test_configs_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        load_config(TrainConfig, SMALL).grpo.num_generations = 3  # type: ignore[misc]
