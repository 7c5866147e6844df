"""Chat settings of served models: the date that their chat template prints, and the prefill, as in their training.

The prefill is the start of each answer, such as `<think>`, which the prompt includes.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.config import DataConfig
from jaxrl_sql.runtime.folder import CONFIG
from jaxrl_sql.runtime.model_locator import read_trained
from jaxrl_sql.training.trained_chat import trained_prefill
from jaxrl_sql.types import InputError


class ChatSettings(NamedTuple):
    """The date in a model's prompts ("": that of the request), and the prefill of its answers.

    Replies do not repeat the prefill, as with other servers whose chat template includes it.
    """

    date: str = ""
    prefill: str = ""


DEFAULT_CHAT_SETTINGS = ChatSettings()


def served_chat(recipe: str, data: DataConfig) -> ChatSettings:
    """Return the chat settings of a model that was trained with a recipe and the settings `data` of its run.

    Raises InputError for an unreadable recipe or template.
    """
    return ChatSettings(data.chat.date, trained_prefill(recipe, data))


def adapters_chat(adapters: Path, otherwise: ChatSettings) -> ChatSettings:
    """Return the chat settings of the run that wrote adapters; `otherwise` if they are not in a run's folder."""
    with suppress(InputError):
        trained = read_trained(adapters.resolve().parent / CONFIG)
        return served_chat(trained.recipe, trained.data)
    return otherwise
