"""Download the model of a command if it is a hub name, and choose the form of its prompts (`data.prompt`).

The form is `chat`, with the tokenizer's chat template, or `compact`, plain text.
"""

from __future__ import annotations

from pathlib import Path

from jaxrl_sql.config import RootConfig, check_config, replace_values
from jaxrl_sql.config.check import values_by_key
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.model_locator import MODEL, Settings, with_downloads
from jaxrl_sql.runtime.tokenizer_files import TOKENIZER_FILE, has_chat_template
from jaxrl_sql.text2sql.prompts.chat import NO_TEMPLATE
from jaxrl_sql.types import InputError


def resolve_settings(config: Settings, with_weights: bool = True) -> Settings:
    """Return a command's settings with folders in place of hub names, and with the form of prompts.

    A `data.prompt` of `auto` becomes `chat` for an endpoint, or if the tokenizer has a chat template. Otherwise it
    becomes `compact`, also for a run that trains its own tokenizer. A missing model is reported later. Raises
    InputError for a failed download, for settings that contradict the form, and for a chat without a template.
    """
    config = with_downloads(config, with_weights)
    values = values_by_key(config)
    tokenizer_source = Path(values["data.tokenizer.path"] or values.get("model.checkpoint", ""))
    is_run = (tokenizer_source / CONFIG).is_file() and (tokenizer_source / MODEL).is_dir()
    tokenizer = tokenizer_source / MODEL if is_run else tokenizer_source
    trains_tokenizer = not (values["data.tokenizer.path"] or values.get("model.checkpoint"))
    if values["data.prompt"] != "auto":
        is_local_chat = values["data.prompt"] in ("chat", "given") and not values.get("evaluate.base_url")
        is_readable = tokenizer.is_file() or (tokenizer / TOKENIZER_FILE).is_file()
        if is_local_chat and not trains_tokenizer and is_readable and not _has_chat_template(tokenizer):
            raise InputError(NO_TEMPLATE)
        return config
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
