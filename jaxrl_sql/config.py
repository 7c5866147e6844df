"""The numbers of a run: frozen dataclasses that YAML and `key.sub=value` fill, checked once at the start.

Code names the choices, YAML picks among them and gives the numbers. `load_config` refuses an unknown key with the
nearest valid name, a value of the wrong type, and a choice that does not exist, each in one line.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from jaxrl_sql.types import InputError


@dataclass(frozen=True)
class DataConfig:
    """Where questions and databases come from.

    `source` is `synth` (generated into `dir` from `seed`; splits train, dev, dev_unseen) or `folder` (each split is a
    folder of `dir` with questions.jsonl and databases/). `limit_train` and `limit_eval` of 0 mean all.
    `prompt` is `compact`, or `chat`, which goes through the tokenizer's chat template: `thinking` is `think` or
    `no_think` where a template has that switch, and `begin` the first words of every answer, which are not the model's.
    Without a `tokenizer` folder the checkpoint's is taken, or the synthetic data's, or one of `vocab_size` is trained.
    """

    source: str = "synth"
    dir: str = "data-cache/synth"
    seed: int = 0
    train: str = "train"
    evals: list[str] = field(default_factory=lambda: ["dev_unseen"])
    tokenizer: str = ""
    vocab_size: int = 4096
    prompt: str = "compact"
    thinking: str = "template"
    begin: str = ""
    max_prompt_tokens: int = 384
    limit_train: int = 0
    limit_eval: int = 0
    drop_empty_gold: bool = True


@dataclass(frozen=True)
class LoraConfig:
    """Low-rank adapters, trained beside weights that stay as they are; `rank` 0 trains the weights themselves.

    `targets`: the weights that get adapters, by name or pattern: q, k, v, o, gate, up, down, or * for all of them.
    What is added to a weight is alpha / rank times the product of its two small matrices.
    """

    rank: int = 0
    alpha: float = 16.0
    targets: list[str] = field(default_factory=lambda: ["*"])


@dataclass(frozen=True)
class ModelConfigSection:
    """The policy: a Hugging Face folder or GGUF file in `checkpoint`, or else the shape of a model made from scratch.

    `init` is `plain` or `copying` (attention that copies from the start, see `models/copying.py`). Weights are kept in
    `dtype`, activations and products are in `compute_dtype` (`same`: as weights). `remat`: what the backward pass
    computes again instead of keeping it: `none`, `full`, or all but values named as in `models/transformer.py`.
    `attention` is the backend of prompts and updates (`models/attention/`): `auto` takes the platform's fused one where
    it serves.
    """

    checkpoint: str = ""
    init: str = "plain"
    family: str = "qwen3"
    d_model: int = 192
    n_layers: int = 4
    n_heads: int = 6
    n_kv_heads: int = 2
    head_dim: int = 32
    d_ff: int = 512
    max_positions: int = 2048
    tie_embeddings: bool = True
    rope_theta: float = 10_000.0
    dtype: str = "float32"
    compute_dtype: str = "same"
    remat: str = "none"
    attention: str = "auto"
    lora: LoraConfig = field(default_factory=LoraConfig)


@dataclass(frozen=True)
class OptimConfig:
    """AdamW or Adafactor with a warm-up and a `constant`, `cosine` or `linear` schedule after it; `lr` is the peak.

    `moments` is the type that AdamW's are kept in. Norms and biases do not decay. Adafactor (Shazeer and Stern 2018,
    arXiv:1804.04235) keeps no first moment and factors the second; betas and eps are not for it.
    """

    kind: str = "adamw"
    moments: str = "float32"
    lr: float = 1e-3
    schedule: str = "cosine"
    warmup_steps: int = 50
    final_lr_ratio: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_grad_norm: float = 1.0


@dataclass(frozen=True)
class SftConfig:
    """The supervised cold start: `databases` x `questions` a batch; 0 steps skip it.

    `loss_on` is `answer` (completions only) or `text` (the question too: for a model made from scratch, which has yet
    to learn the language). `accumulate` cuts a batch into that many parts, computed one after another. `rename` is the
    share of schemas whose words are replaced by random others, so that names are copied and not remembered.
    """

    steps: int = 0
    databases: int = 16
    questions: int = 16
    max_completion_tokens: int = 160
    loss_on: str = "answer"
    accumulate: int = 1
    rename: float = 0.0
    log_every: int = 20
    eval_every: int = 0
    optim: OptimConfig = field(default_factory=OptimConfig)


@dataclass(frozen=True)
class SamplingConfig:
    """How answers are drawn in training, `slots` side by side.

    top_k 0, top_p 1, min_p 0 and repetition_penalty 1 mean the full distribution; strings in `stop` end an answer.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    stop: list[str] = field(default_factory=list)
    max_new_tokens: int = 96
    slots: int = 128


@dataclass(frozen=True)
class GrpoConfig:
    """The objective and its numbers (RL steps of `prompts` x `group` answers; `minibatches` updates a step).

    `accumulate` cuts each update's batch into that many parts, computed one after another for less memory.

    `oversample` times as many questions are answered as the update takes: those whose answers differ in reward first.
    aggregation: sequence_mean | token_mean | constant; advantage: group | batch | none | leave_one_out;
    kl_kind: k2 | k3 (as a loss, with coefficient `kl`); `max_importance_weight` caps exp(old - drawn).
    """

    steps: int = 100
    prompts: int = 16
    oversample: int = 1
    group: int = 8
    minibatches: int = 1
    accumulate: int = 1
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float = 0.0
    kl: float = 0.0
    kl_kind: str = "k3"
    entropy_bonus: float = 0.0
    aggregation: str = "token_mean"
    advantage: str = "group"
    mask_truncated: bool = False
    max_importance_weight: float = 2.0
    optim: OptimConfig = field(default_factory=lambda: OptimConfig(lr=1e-4, schedule="constant", warmup_steps=5))


@dataclass(frozen=True)
class ExecutorConfig:
    """Limits of the SQL executor; training verdicts come from `vm_steps`, so that they do not depend on the clock."""

    threads: int = 0
    timeout_ms: int = 30_000
    vm_steps: int = 20_000_000
    max_rows: int = 100_000
    max_bytes: int = 64 << 20


@dataclass(frozen=True)
class EvalConfig:
    """Greedy evaluation before and after training, and every `every` steps (0: never in between)."""

    every: int = 0
    max_new_tokens: int = 96
    slots: int = 128


@dataclass(frozen=True)
class MeshConfig:
    """Devices along each mesh axis, of all processes together; -1 takes what is left.

    `processes` is how many processes the run has; 0 asks the cluster that started them.
    """

    data: int = 1
    fsdp: int = -1
    tensor: int = 1
    processes: int = 1


@dataclass(frozen=True)
class RunConfig:
    """The run folder and what is kept in it."""

    dir: str = "runs/run"
    resume: bool = False
    checkpoint_every: int = 50
    keep_checkpoints: int = 2
    samples_per_step: int = 4
    display: str = "auto"
    compilation_cache: str = ""


@dataclass(frozen=True)
class TrainConfig:
    """A whole run; `configs/*.yaml` are overlays of this."""

    seed: int = 0
    recipe: str = "arctic"
    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfigSection = field(default_factory=ModelConfigSection)
    sft: SftConfig = field(default_factory=SftConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    executor: ExecutorConfig = field(default_factory=ExecutorConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    mesh: MeshConfig = field(default_factory=MeshConfig)
    run: RunConfig = field(default_factory=RunConfig)


CHOICES: Mapping[str, tuple[str, ...]] = {
    "data.source": ("synth", "folder"),
    "data.prompt": ("compact", "chat"),
    "data.thinking": ("template", "think", "no_think"),
    "model.family": ("gemma3_text", "llama", "qwen2", "qwen3"),
    "model.dtype": ("float32", "bfloat16"),
    "model.compute_dtype": ("same", "float32", "bfloat16"),
    "sft.optim.kind": ("adamw", "adafactor"),
    "grpo.optim.kind": ("adamw", "adafactor"),
    "sft.optim.moments": ("float32", "bfloat16"),
    "grpo.optim.moments": ("float32", "bfloat16"),
    "sft.optim.schedule": ("constant", "cosine", "linear"),
    "grpo.optim.schedule": ("constant", "cosine", "linear"),
    "grpo.aggregation": ("sequence_mean", "token_mean", "constant"),
    "grpo.advantage": ("group", "batch", "none", "leave_one_out"),
    "grpo.kl_kind": ("k2", "k3"),
    "model.init": ("plain", "copying"),
    "model.attention": ("auto", "xla", "cudnn", "splash"),
    "sft.loss_on": ("answer", "text"),
    "run.display": ("auto", "rich", "plain", "none"),
}
"""The names that a key may hold; the code behind each stands in the room that its section is for."""

POSITIVE = (
    "data.max_prompt_tokens model.d_model model.n_layers model.n_heads model.n_kv_heads model.head_dim model.d_ff "
    "model.max_positions model.rope_theta model.lora.alpha sft.databases sft.questions sft.max_completion_tokens "
    "sft.log_every sft.accumulate sampling.temperature sampling.repetition_penalty sampling.max_new_tokens "
    "sampling.slots grpo.prompts grpo.oversample grpo.minibatches grpo.accumulate grpo.max_importance_weight "
    "executor.timeout_ms executor.vm_steps executor.max_rows executor.max_bytes eval.max_new_tokens eval.slots "
    "run.checkpoint_every run.keep_checkpoints "
    "sft.optim.lr sft.optim.eps sft.optim.max_grad_norm grpo.optim.lr grpo.optim.eps grpo.optim.max_grad_norm"
).split()
"""Every other number but those of `mesh` is 0 or more."""


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read a run's configuration: the defaults, the YAML file and its bases, then `key.sub=value` in order.

    A file may begin with `base: other.yaml` (relative to itself), which is read first.
    Raises InputError, in one line, for a file that cannot be read, an unknown key, a wrong type or a bad choice.
    """
    merged = OmegaConf.structured(TrainConfig)
    sources = _read_files(Path(path)) if path is not None else []
    for origin, values in [*sources, *map(_read_override, overrides)]:
        _check_keys(values, origin)
        try:
            merged = OmegaConf.merge(merged, values)
        except OmegaConfBaseException as error:
            raise InputError(f"{origin}: {_first_line(error)}") from None
    try:
        config = OmegaConf.to_object(merged)
    except OmegaConfBaseException as error:
        raise InputError(f"{path or 'command line'}: {_first_line(error)}") from None
    assert isinstance(config, TrainConfig)
    check_config(config)
    return config


def to_yaml(config: TrainConfig) -> str:
    """Write every value of a configuration as YAML that `load_config` reads back to an equal one."""
    return OmegaConf.to_yaml(OmegaConf.structured(config), resolve=True)


def check_config(config: TrainConfig) -> None:
    """Refuse what no run could use, with one InputError that names the key and what it may be."""
    values = dict(_flatten(dataclasses.asdict(config)))
    for key, choices in CHOICES.items():
        if values[key] not in choices:
            raise InputError(f"config: {key}={values[key]!r} is none of {', '.join(choices)}")
    for key in POSITIVE:
        if not values[key] > 0:
            raise InputError(f"config: {key}={values[key]} must be above 0")
    for key, value in values.items():
        if isinstance(value, int | float) and value < 0 and not key.startswith("mesh."):
            raise InputError(f"config: {key}={value} must be 0 or more")
    for claim, words in _claims(config):
        if not claim:
            raise InputError(f"config: {words}")


def _claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold between values, each with the line that says so."""
    data, model, grpo, sampling = config.data, config.model, config.grpo, config.sampling
    yield bool(data.dir), "data.dir is empty; it names the folder with the questions and databases"
    yield bool(data.evals), "data.evals is empty; name at least one split to evaluate on"
    yield bool(config.run.dir), "run.dir is empty; it names the folder that the run writes"
    yield (
        grpo.group >= 2 or grpo.steps == 0,
        f"grpo.group={grpo.group} must be 2 or more: an advantage compares answers",
    )
    yield (
        grpo.prompts % grpo.minibatches == 0,
        f"grpo.minibatches={grpo.minibatches} must divide grpo.prompts={grpo.prompts}",
    )
    yield (
        grpo.prompts // grpo.minibatches % grpo.accumulate == 0,
        f"grpo.accumulate={grpo.accumulate} must divide the {grpo.prompts // grpo.minibatches} prompts of an update",
    )
    yield (
        config.sft.databases % config.sft.accumulate == 0,
        f"sft.accumulate={config.sft.accumulate} must divide sft.databases={config.sft.databases}",
    )
    yield grpo.clip_low <= 1, f"grpo.clip_low={grpo.clip_low} must be at most 1"
    yield (
        grpo.dual_clip == 0 or grpo.dual_clip > 1,
        f"grpo.dual_clip={grpo.dual_clip} must be above 1, or 0 to leave it out",
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
        config.mesh.processes >= 0,
        f"mesh.processes={config.mesh.processes} must be 1 or more, or 0 to ask the cluster",
    )
    if not model.checkpoint:
        yield from _shape_claims(config)


def _shape_claims(config: TrainConfig) -> Iterator[tuple[bool, str]]:
    """Yield what must hold for a model that is made from scratch."""
    model = config.model
    yield (
        model.n_heads % model.n_kv_heads == 0,
        f"model.n_kv_heads={model.n_kv_heads} must divide model.n_heads={model.n_heads}",
    )
    yield model.head_dim % 2 == 0, f"model.head_dim={model.head_dim} must be even: rotary positions turn pairs"
    answer = max(config.sampling.max_new_tokens, config.sft.max_completion_tokens, config.eval.max_new_tokens)
    need = config.data.max_prompt_tokens + answer
    yield (
        need <= model.max_positions,
        f"model.max_positions={model.max_positions} is below the longest prompt and completion together, {need} tokens",
    )


def _read_files(path: Path, above: tuple[Path, ...] = ()) -> list[tuple[str, Mapping[str, Any]]]:
    """Return (file name, its values) of a file's bases and of itself, the base first."""
    if path.resolve() in above:
        raise InputError(f"{path}: its `base` leads back to itself")
    try:
        values = OmegaConf.to_container(OmegaConf.load(path))
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark else ""
        raise InputError(f"{path}{line}: not YAML: {error.problem or _first_line(error)}") from None
    except (yaml.YAMLError, OmegaConfBaseException, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not YAML: {_first_line(error)}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    if not isinstance(values, dict):
        raise InputError(f"{path}: expected `key: value` lines at the top, found a list or a word")
    own = {str(key): value for key, value in values.items() if key != "base"}
    base = values.get("base")
    if base is None:
        return [(str(path), own)]
    if not isinstance(base, str):
        raise InputError(f"{path}: base must name a file, not {base!r}")
    return [*_read_files(path.parent / base, (*above, path.resolve())), (str(path), own)]


def _read_override(text: str) -> tuple[str, Mapping[str, Any]]:
    """Return (origin, nested values) of one `key.sub=value`."""
    key, equals, _ = text.partition("=")
    if not equals or not key.strip():
        raise InputError(f"command line: {text!r} is no key.sub=value")
    try:
        values = OmegaConf.to_container(OmegaConf.from_dotlist([text]))
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise InputError(f"command line: {text!r}: {_first_line(error)}") from None
    assert isinstance(values, dict)
    return "command line", {str(name): value for name, value in values.items()}


def _flatten(values: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of everything that is not a section."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _check_keys(values: Mapping[str, Any], origin: str) -> None:
    """Refuse a key of one source that is none, with the nearest that is, and a value that is not of its key's type."""
    known = dict(_flatten(dataclasses.asdict(TrainConfig())))
    for key, value in _flatten(values):
        if key not in known:
            if any(name.startswith(f"{key}.") for name in known):
                raise InputError(f"{origin}: {key} is a section and needs keys below it, not {value!r}")
            raise InputError(f"{origin}: unknown key {key}; the nearest is {_nearest_key(key, list(known))}")
        is_reference = isinstance(value, str) and "${" in value
        if not is_reference and not _has_type_of(known[key], value):
            raise InputError(f"{origin}: {key} must be {_type_words(known[key])}, not {value!r}")


def _nearest_key(key: str, known: list[str]) -> str:
    """Return the valid key that `key` most likely meant: the same section first, then the same last word."""
    section, _, name = key.rpartition(".")
    siblings = [other for other in known if other.rpartition(".")[0] == section]
    namesakes = [other for other in known if other.rpartition(".")[2] == name]
    close = difflib.get_close_matches(key, siblings, n=1, cutoff=0.8)
    inner = difflib.get_close_matches(key, namesakes, n=1, cutoff=0.0)
    return (close or inner or difflib.get_close_matches(key, known, n=1, cutoff=0.0))[0]


def _has_type_of(default: object, value: object) -> bool:
    """Tell whether `value` may stand where `default` does; whole numbers are fine as floats, words are no numbers."""
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, float):
        return isinstance(value, int | float) and math.isfinite(value)
    if isinstance(default, list):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if isinstance(default, str):
        return isinstance(value, str | int | float)
    return isinstance(value, type(default))


def _type_words(default: object) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a finite number", str: "text"}
    return names.get(type(default), "a list of texts, as in [a, b]")


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
