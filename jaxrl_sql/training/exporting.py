"""Export of models: a Hugging Face folder with a card, and a GGUF file for llama.cpp and ollama."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxrl_sql.config.reading import PROMPT_FILE
from jaxrl_sql.inference.ends import ends_of_generation
from jaxrl_sql.inference.questions import model_config
from jaxrl_sql.models import ModelConfig, load_checkpoint, load_tokenizer, save_checkpoint
from jaxrl_sql.models import load_config as load_model_config
from jaxrl_sql.models.formats.checksums import refuse_damaged_weights
from jaxrl_sql.models.formats.gguf_header import read_header
from jaxrl_sql.models.formats.gguf_tokenizer import TOKENIZER_JSON
from jaxrl_sql.models.formats.gguf_write import KINDS, save_gguf
from jaxrl_sql.models.formats.hf import hf_tensors, read_tensors, stop_tokens
from jaxrl_sql.models.frozen import merge_params, split
from jaxrl_sql.runtime.folder import CHECKPOINTS, CONFIG, list_saved_steps
from jaxrl_sql.runtime.hub import is_hub_name, local_folder
from jaxrl_sql.runtime.model_locator import TEMPLATE, TrainedModel, find_model, find_trained, read_trained
from jaxrl_sql.runtime.tokenizer_files import misreading_class
from jaxrl_sql.training.checkpoint import Checkpoints
from jaxrl_sql.training.inputs import base_hashes, hash_files, refuse_other_inputs
from jaxrl_sql.training.model_card import CARD, save_prompt_settings, write_card
from jaxrl_sql.training.trained_chat import (
    MODELFILE,
    TrainedChat,
    missing_prefill_warning,
    modelfile,
    prefilled_template,
    save_chat_template,
    trained_chat,
)
from jaxrl_sql.types import InputError


class ModelSource(NamedTuple):
    """A model to export.

    - `params` are its weights; None if they are those in `source`.
    - `source` is the folder or file of the model, or of the base model of a run's checkpoint; None without one.
    - `run` is the folder of its run, and `trained` has its prompt settings; None if unknown.
    - `others` are the other models whose weights are averaged in `params`.
    """

    model: ModelConfig
    params: Any
    tokenizer: Any
    source: Path | None
    run: Path | None
    trained: TrainedModel | None
    others: tuple[Path, ...] = ()

    def tensors(self) -> Iterator[tuple[str, np.ndarray]]:
        """Yield (Hugging Face's name, tensor) without rounding the weights."""
        if self.params is not None:
            return hf_tensors(self.model, self.params, np.float32)
        assert self.source is not None
        return read_tensors(self.source)


def policy_parameters(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return the policy's parameters as a nested dict, from a checkpoint's arrays by name (`a.b.c` becomes a[b][c])."""
    prefixes = ("trainable.policy.", "trainable.")  # with a value head, and without
    prefix = next(prefix for prefix in prefixes if any(name.startswith(prefix) for name in arrays))
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        if name.startswith(prefix):
            *keys, leaf = name.removeprefix(prefix).split(".")
            node = tree
            for key in keys:
                node = node.setdefault(key, {})
            node[leaf] = array
    return tree


def source_of_step(run: Path, step: int) -> ModelSource:
    """Read the policy of a run's checkpoint of a step.

    Raises InputError without such a checkpoint, if it contains only adapters, and if the files of a frozen base have
    changed since the run started.
    """
    if not (run / CONFIG).is_file():
        raise InputError(f"{run}: not a run folder: it has no {CONFIG}; --step is for runs")
    trained = read_trained(run / CONFIG)
    data, base = trained.data, trained.model
    if base.lora.rank:
        raise InputError(f"{run}: its checkpoints contain only adapters; omit --step to export the merged model/")
    if step not in (steps := list_saved_steps(run)):
        raise InputError(f"{run}: no checkpoint of step {step}; it has {', '.join(map(str, steps)) or 'none'}")
    base = replace(base, checkpoint=local_folder(base.checkpoint))
    folder, tokenizer_path = run / "tokenizer", local_folder(data.tokenizer.path) or base.checkpoint
    tokenizer = load_tokenizer(tokenizer_path or (folder if folder.exists() else Path(data.dir) / "tokenizer"))
    with Checkpoints(run / CHECKPOINTS, is_read_only=True) as checkpoints:
        params = policy_parameters(checkpoints.arrays(step))
        at_start = checkpoints.host(step)["run"]["inputs"]
    if base.frozen:  # checkpoints lack these parameters; they are read from the base model again
        if not base.checkpoint:
            raise InputError(f"{run}: its checkpoints lack model.frozen; omit --step to export the complete model/")
        current_inputs = hash_files(trained.recipe, data, base.checkpoint)
        refuse_other_inputs(run, base_hashes(at_start), base_hashes(current_inputs))
        base_config, weights = load_checkpoint(base.checkpoint, base.dtype)
        params = merge_params(params, split(weights, base_config, base.frozen)[1])
    source = Path(base.checkpoint) if base.checkpoint else None
    return ModelSource(model_config(base, tokenizer), params, tokenizer, source, run, trained)


def source_of_model(name: str) -> ModelSource:
    """Open a model by its name: a run's folder (the model at its end), a model's folder, or a name on the hub.

    Raises InputError for anything else.
    """
    source, run = _weights_folder(name), find_model(name)[1]
    trained = find_trained(str(source) if is_hub_name(name) else name)[1]
    run = run.resolve() if run is not None else None
    return ModelSource(load_model_config(source), None, load_tokenizer(source), source, run, trained)


def _weights_folder(name: str) -> Path:
    """Return the folder of a model's weights, after downloading a hub model."""
    source = Path(local_folder(name)) if is_hub_name(name) else find_model(name)[0]
    refuse_damaged_weights(source)
    return source


def average_models(exported: ModelSource, others: Sequence[str]) -> ModelSource:
    """Return the model with the mean of its weights and those of other models of the same shapes, in float32.

    The mean of several fine-tuned models is a model soup (Wortsman et al. 2022). The mean with the model that RL
    started from is the last step of WARP (Ramé et al. 2024). Raises InputError for a model of other shapes or tokens.
    """
    params = exported.params if exported.params is not None else load_checkpoint(str(exported.source), "float32")[1]
    mean = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), params)
    sources = tuple(map(_weights_folder, others))
    for count, (name, source) in enumerate(zip(others, sources, strict=True), start=2):
        model, params = load_checkpoint(source, "float32")
        shapes = [jax.tree.map(np.shape, tree) for tree in (params, mean)]
        if model.family != exported.model.family or shapes[0] != shapes[1]:
            raise InputError(
                f"--average {name}: its weights have other shapes than those of {exported.run or exported.source}"
            )
        if load_tokenizer(source).get_vocab() != exported.tokenizer.get_vocab():
            raise InputError(f"--average {name}: its tokens are not those of {exported.run or exported.source}")
        # A running mean holds only two models in memory.
        mean = jax.tree.map(
            lambda mean_leaf, leaf, n=count: mean_leaf + (np.asarray(leaf) - mean_leaf) / n, mean, params
        )
    return exported._replace(params=mean, others=sources)


def remove_earlier(out: Path, source: Path | None) -> None:
    """Remove files of an earlier export from the folder `out`, if the card there lists them.

    `source` is never removed, because it is read afterwards.
    """
    card = out / CARD
    card_text = card.read_text(encoding="utf-8", errors="replace") if card.is_file() else ""
    for name in (
        *(gguf_path(out, kind).name for kind in KINDS),
        *(path.name for path in out.glob("model*.safetensors*")),  # shards and their index included
        PROMPT_FILE,
        TEMPLATE,
        MODELFILE,
        "chat_template.jinja",
    ):
        path = out / name
        if f"| `{name}` |" in card_text and (source is None or path.resolve() != source.resolve()):
            path.unlink(missing_ok=True)


def gguf_path(out: Path, kind: str) -> Path:
    """Return the path of the GGUF file in an exported folder; `kind` is its type of weights, such as `q8_0`."""
    return out / f"{out.resolve().name}-{kind}.gguf"


def export(
    exported: ModelSource, out: Path, dtype: str, gguf: str, step: int | None, warn: Callable[[str], object]
) -> list[Path]:
    """Write a model to the folder `out`, in place of an earlier export; return the written paths.

    `dtype` is the type of the weights. `gguf` is the type of weights of a GGUF file, written instead of safetensors, or
    "". `step` is that of the exported checkpoint, for the card. `warn` is called with a line for each respect in which
    other programs read the model differently.
    """
    model_folders = list(exported.others)
    if exported.source is not None and (exported.params is None or exported.others):
        model_folders.append(exported.source)
    if out.resolve() in [folder.resolve() for folder in model_folders]:
        raise InputError(f"--out {out}: is the model's own folder; choose another folder")
    params = exported.params
    if gguf:
        params = None
    elif params is None:
        params = load_checkpoint(str(exported.source), dtype)[1]
    # If the model was trained elsewhere, `save_checkpoint` takes the end tokens from its files.
    ends: tuple[int, ...] = ()
    if exported.run is not None and exported.trained is not None:
        ends = ends_of_generation(exported.trained.data, exported.trained.model.checkpoint, exported.tokenizer)
    remove_earlier(out, exported.source)
    save_checkpoint(out, exported.model, params, exported.tokenizer, dtype=dtype, source=exported.source, ends=ends)
    if class_name := misreading_class(out, exported.tokenizer):
        warn(
            f"{out}: transformers' AutoTokenizer loads class {class_name}, which tokenizes "
            "differently from tokenizer.json: load the tokenizer by PreTrainedTokenizerFast.from_pretrained"
        )
    chat = _chat(exported, warn)
    if exported.trained is not None:
        save_prompt_settings(out, exported.trained)
        if chat is not None and not save_chat_template(out, chat):
            warn(missing_prefill_warning(out.name))
    written = [out, *(_write_gguf(exported, chat, out, gguf, warn) if gguf else ())]
    written.append(write_card(out, exported.run, step, tuple(map(str, exported.others))))
    return written


def _write_gguf(
    exported: ModelSource, chat: TrainedChat | None, out: Path, gguf: str, warn: Callable[[str], object]
) -> list[Path]:
    """Write the GGUF file and the Modelfile to an exported folder; return both paths."""
    path, template = gguf_path(out, gguf), prefilled_template(chat) if chat is not None else ""
    ends = stop_tokens(out)
    save_gguf(path, exported.model, exported.tensors(), exported.tokenizer, gguf, ends, template)
    texts = exported.tokenizer.convert_ids_to_tokens(ends)
    (out / MODELFILE).write_text(modelfile(path, chat, exported.trained, texts), encoding="utf-8")
    if lost := set(ends) - set(stop_tokens(path)):
        names = ", ".join(str(exported.tokenizer.convert_ids_to_tokens(token)) for token in sorted(lost))
        warn(f"{path.name}: GGUF names three ends of an answer, and the model has more: {names}")
    if TOKENIZER_JSON in read_header(path).metadata:  # the file had to include the whole tokenizer.json
        warn(
            f"{path.name}: its tokenizer cuts text in a way that llama.cpp has no name for: give llama.cpp token "
            "ids, or it formats prompts differently than in training"
        )
    return [path, out / MODELFILE]


def _chat(exported: ModelSource, warn: Callable[[str], object]) -> TrainedChat | None:
    """Return the chat of the model (`trained_chat`), without the prefill if its recipe or template is missing."""
    try:
        return trained_chat(exported.tokenizer, exported.trained)
    except InputError as error:
        warn(f"the chat template lacks the answer's prefill: {error}")
        return trained_chat(exported.tokenizer, None)


def export_folder(
    model: str,
    out: Path | None = None,
    dtype: str = "bfloat16",
    *,
    step: int | None = None,
    average: Sequence[str] = (),
    gguf: str = "",
    warn: Callable[[str], object] = lambda _: None,
) -> list[Path]:
    """Export a model and return the written paths; the first is the folder.

    `model` is a run's folder, a model's folder or a name on the hub. `step` selects the run's checkpoint of a step, and
    `average` names models whose mean with this model is exported. `gguf` is the type of weights of a GGUF file, written
    instead of safetensors, or "". Without `out` the folder is `export`, `export-STEP` or `averaged` in the run's or
    model's folder, or for a hub model in a folder with the model's name.
    """
    model_folder = Path(model.partition("@")[0].rpartition("/")[2] if is_hub_name(model) else model)
    exported = source_of_model(model) if step is None else source_of_step(Path(model), step)
    if average:
        exported = average_models(exported, average)
    name = "averaged" if average else "export"
    name = name if step is None else f"{name}-{step}"
    return export(exported, out or (exported.run or model_folder) / name, dtype, gguf, step, warn)
