"""Recipes: five published systems as values in one plain dict."""

from jaxrl_sql.recipes.arctic import ARCTIC
from jaxrl_sql.recipes.recipe import Recipe

__all__ = ["RECIPES", "Recipe"]

RECIPES: dict[str, Recipe] = {ARCTIC.name: ARCTIC}
