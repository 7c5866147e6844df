"""Recipes: five published systems in one dict, and the import of user-defined recipes.

A recipe defines the prompts, the answer format and the reward of a text-to-SQL system (`recipe.Recipe`).
"""

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
from jaxrl_sql.text2sql.recipes.sql_r1 import SQL_R1, SQL_R1_ABLATIONS
from jaxrl_sql.text2sql.recipes.think2sql import (
    THINK2SQL,
    THINK2SQL_ARCTIC,
    THINK2SQL_EXFM,
    THINK2SQL_QAFM,
    THINK2SQL_SQL_R1,
)
from jaxrl_sql.types import InputError

__all__ = ["RECIPES", "Observe", "Recipe", "find_recipe"]

_SYSTEMS = (ARCTIC, SQL_R1, PAVERL, THINK2SQL, SKYRL_SQL)
_VARIANTS = (
    PAVERL_MONOTONE, THINK2SQL_EXFM, THINK2SQL_QAFM, THINK2SQL_ARCTIC, THINK2SQL_SQL_R1, *SQL_R1_ABLATIONS,
    SKYRL_SQL_NO_SCHEMA, SKYRL_SQL_SINGLE, SKYRL_SQL_LOOSE, OMNISQL,
)  # fmt: skip
RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (*_SYSTEMS, *_VARIANTS)}
"""The recipes by name: the five systems, variants of four of them, and OmniSQL, from whose models several start."""


def find_recipe(name: str) -> Recipe:
    """Return the recipe of a name, or import a user-defined one from `FILE.py:NAME` or `module:NAME`.

    Raises InputError with the nearest name for an unknown one, for a failed import, and for other types than Recipe.
    """
    if ":" in name:
        return _import_recipe(name)
    if name not in RECIPES:
        (nearest,) = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.0)
        raise InputError(
            f"config: recipe={name!r} is not one of {', '.join(RECIPES)}, nor FILE.py:NAME of your own recipe; "
            f"the nearest is {nearest}"
        )
    return RECIPES[name]


@functools.cache
def _import_recipe(name: str) -> Recipe:
    source, _, attribute = name.rpartition(":")
    try:
        module = _import_file(Path(source)) if source.endswith(".py") else importlib.import_module(source)
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise InputError(f"config: recipe={name!r} cannot be imported: {error}") from error
    recipe = vars(module).get(attribute)
    if not isinstance(recipe, Recipe):
        available = ", ".join(key for key, value in vars(module).items() if isinstance(value, Recipe))
        recipes = available or "it has no recipe"
        raise InputError(f"config: recipe={name!r}: {attribute!r} is not a Recipe of {source} ({recipes})")
    return recipe


def _import_file(path: Path) -> ModuleType:
    """Import a Python file under a unique module name, so that it cannot shadow a package."""
    spec = importlib.util.spec_from_file_location(f"_recipe_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # a dataclass in the file looks its module up there
    spec.loader.exec_module(module)
    return module
