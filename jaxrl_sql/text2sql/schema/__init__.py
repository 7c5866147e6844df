"""Schemas: read from a database (`read`), rendered as prompt text (`render`), reduced to fit (`prune`, `link`).

Prompts also show column values (`values`) and column descriptions (`describe`), and values that a question names
(`retrieve`) or refers to by a synonym (`synonyms`). These are computed once per content of a database file (`cache`).
"""

from jaxrl_sql.text2sql.schema.describe import Descriptions, read_descriptions
from jaxrl_sql.text2sql.schema.link import link
from jaxrl_sql.text2sql.schema.prune import prune
from jaxrl_sql.text2sql.schema.quote import quote_name, quote_text
from jaxrl_sql.text2sql.schema.read import Column, ForeignKey, Schema, Table, read_schema
from jaxrl_sql.text2sql.schema.render import RENDERERS, compact, ddl, names_only, omnisql, profile
from jaxrl_sql.text2sql.schema.retrieve import find_values
from jaxrl_sql.text2sql.schema.synonyms import find_alike
from jaxrl_sql.text2sql.schema.used import UsedColumns, find_used_columns
from jaxrl_sql.text2sql.schema.values import Values, read_values

__all__ = [
    "RENDERERS",
    "Column",
    "Descriptions",
    "ForeignKey",
    "Schema",
    "Table",
    "UsedColumns",
    "Values",
    "compact",
    "ddl",
    "find_alike",
    "find_used_columns",
    "find_values",
    "link",
    "names_only",
    "omnisql",
    "profile",
    "prune",
    "quote_name",
    "quote_text",
    "read_descriptions",
    "read_schema",
    "read_values",
]
