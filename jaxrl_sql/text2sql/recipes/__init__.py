"""Recipes: five published systems as values in one plain dict, and where one of your own is read from."""

from __future__ import annotations

import difflib
import functools
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from jaxrl_sql.text2sql.recipes.arctic import ARCTIC
from jaxrl_sql.text2sql.recipes.omnisql import OMNISQL
from jaxrl_sql.text2sql.recipes.paverl import PAVERL, PAVERL_MONOTONE
from jaxrl_sql.text2sql.recipes.recipe import Observe, Recipe
from jaxrl_sql.text2sql.recipes.skyrl_sql import SKYRL_SQL, SKYRL_SQL_LOOSE, SKYRL_SQL_NO_SCHEMA, SKYRL_SQL_SINGLE
from jaxrl_sql.text2sql.recipes.sql_r1 import SQL_R1
from jaxrl_sql.text2sql.recipes.think2sql import THINK2SQL, THINK2SQL_EXFM, THINK2SQL_QAFM
from jaxrl_sql.types import InputError

__all__ = ["RECIPES", "Observe", "Recipe", "find_recipe"]

_SYSTEMS = (ARCTIC, SQL_R1, PAVERL, THINK2SQL, SKYRL_SQL)
_VARIANTS = (
    PAVERL_MONOTONE, THINK2SQL_EXFM, THINK2SQL_QAFM, SKYRL_SQL_NO_SCHEMA, SKYRL_SQL_SINGLE, SKYRL_SQL_LOOSE, OMNISQL,
)  # fmt: skip
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (*_SYSTEMS, *_VARIANTS)}
"""The five systems, variants of three of them, and OmniSQL, which several start from, by name."""


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a name, or one of your own by `FILE.py:NAME` or `module:NAME`, which is imported.

    Raises InputError with the nearest for a name that is none, and for what cannot be imported or is no Recipe.
    """
    if ":" in name:
        return _own_recipe(name)
    if name not in RECIPES:
        (nearest,) = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.0)
        raise InputError(
            f"config: recipe={name!r} is none of {', '.join(RECIPES)}, nor FILE.py:NAME of one of your own; "
            f"the nearest is {nearest}"
        )
    return RECIPES[name]


@functools.cache
def _own_recipe(name: str) -> Recipe:
    place, _, attribute = name.rpartition(":")
    try:
        module = _module_of(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"config: recipe={name!r} cannot be imported: {error}") from error
    found = vars(module).get(attribute)
    if not isinstance(found, Recipe):
        there = ", ".join(key for key, value in vars(module).items() if isinstance(value, Recipe))
        raise InputError(f"config: recipe={name!r}: {attribute!r} is no Recipe of {place} ({there or 'it has none'})")
    return found


def _module_of(path: Path) -> ModuleType:
    """Import a file under a name of its own, so that it cannot take a package's place."""
    spec = importlib.util.spec_from_file_location(f"_recipe_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
