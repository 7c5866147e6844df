"""What a model's folder says of how the model is asked, so that it is asked as it was taught wherever it lies."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import yaml

from jaxrl_sql.config import TrainConfig
from jaxrl_sql.runtime.hub import ASKED
from jaxrl_sql.runtime.model_locator import ASKED_TOO, TEMPLATE, asked_by
from jaxrl_sql.text2sql.prompts.template import template_file, template_names


def keep_asked(folder: Path, config: TrainConfig) -> None:
    """Write to a model's folder how it is asked: recipe, prompt, stops, turns and lengths, as its run had them.

    `model_locator.find_asked` reads it. No path of this machine goes along: a template of one's own is copied, and of a
    recipe that is code, and of the folders that shown examples and word vectors come from, the last name stays.
    """
    data = asked_by(config.data) | {"tokenizer": ""}
    data |= {name: Path(data[name]).name for name in ("dir", "include_ids", "synonyms") if name in data}
    if data["template"] and data["template"] not in template_names():
        shutil.copyfile(template_file(data["template"]), folder / TEMPLATE)
        data["template"] = TEMPLATE
    place, colon, name = config.recipe.rpartition(":")
    kept: dict[str, Any] = {"recipe": f"{Path(place).name}:{name}" if colon else config.recipe, "data": data}
    for section, names in ASKED_TOO.items():
        kept[section] = {name: getattr(getattr(config, section), name) for name in names}
    said = "# How the model of this folder is asked, as it was trained: jaxrl-sql reads it.\n"
    (folder / ASKED).write_text(said + yaml.safe_dump(kept, sort_keys=False), encoding="utf-8")
