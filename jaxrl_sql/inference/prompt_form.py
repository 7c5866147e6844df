"""Download the model of a command if it is a hub name, and choose the form of its prompts (`data.prompt`).

The form is `chat`, with the tokenizer's chat template, or `compact`, plain text.
"""

from __future__ import annotations

from pathlib import Path

from jaxrl_sql.config import RootConfig, check_config, replace_values
from jaxrl_sql.config.check import values_by_key
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.model_locator import MODEL, Settings, with_downloads
from jaxrl_sql.runtime.tokenizer_files import has_chat_template


def resolve_settings(config: Settings, with_weights: bool = True) -> Settings:
    """Return a command's settings with folders in place of hub names, and with the form of prompts.

    A `data.prompt` of `auto` becomes `chat` for an endpoint, or if the tokenizer has a chat template. Otherwise it
    becomes `compact`, also for a run that trains its own tokenizer. A missing model is reported later. Raises
    InputError for a failed download, and for settings that contradict the form.
    """
    config = with_downloads(config, with_weights)
    values = values_by_key(config)
    if values["data.prompt"] != "auto":
        return config
    tokenizer_source = Path(values["data.tokenizer.path"] or values.get("model.checkpoint", ""))
    is_run = (tokenizer_source / CONFIG).is_file() and (tokenizer_source / MODEL).is_dir()
    tokenizer = tokenizer_source / MODEL if is_run else tokenizer_source
    trains_tokenizer = not (values["data.tokenizer.path"] or values.get("model.checkpoint"))
    is_chat = values.get("evaluate.base_url") or (not trains_tokenizer and _has_chat_template(tokenizer))
    config = replace_values(config, {"data.prompt": "chat" if is_chat else "compact"})
    if isinstance(config, RootConfig):
        check_config(config)
    return config


def _has_chat_template(tokenizer: Path) -> bool:
    """Return whether the tokenizer of a folder or GGUF file has a chat template; True if the path does not exist."""
    if not tokenizer.is_file():
        return has_chat_template(tokenizer) or not tokenizer.exists()
    from jaxrl_sql.models.formats.gguf_header import read_header  # noqa: PLC0415 (needs JAX)

    return bool(read_header(tokenizer).metadata.get("tokenizer.chat_template"))
