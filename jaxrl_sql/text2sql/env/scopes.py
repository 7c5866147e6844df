"""Where the columns of SQLite's query come from, and what kind of value an expression has, by a database's schema.

Names are looked up as SQLite does: without regard to case, first in the FROM clause that a column stands in and then in
those around it, through subqueries and common table expressions to the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import tables_of

NUMBERS = frozenset({"integer", "real"})
"""The kinds of expressions that are numbers."""

_TEXTS = (exp.Concat, exp.DPipe, exp.Lower, exp.Upper, exp.Substring, exp.Trim, exp.TimeToStr, exp.Group)
_WHOLE = (exp.Count, exp.Length, exp.CountIf, exp.RowNumber, exp.Rank)
_SAME = (exp.Paren, exp.Max, exp.Min, exp.Abs, exp.Neg, exp.Alias, exp.Distinct, exp.Coalesce)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)


class EngineColumn(NamedTuple):
    """A column as an engine has it: its name, its kind there, and the affinity that SQLite compares it by, or "".

    Kinds are `integer`, `real`, `text`, `date`, `timestamp`, `blob`, or "" where it is unknown.
    """

    name: str
    kind: str = ""
    affinity: str = ""


class EngineTable(NamedTuple):
    """A table as an engine has it: its name, and columns and primary key by their names in SQLite, in lower case."""

    name: str
    columns: Mapping[str, EngineColumn]
    primary_key: tuple[str, ...] = ()


EngineSchema = Mapping[str, EngineTable]
"""Tables by their names in SQLite, in lower case."""


class FromItem(NamedTuple):
    """An item of a FROM clause: the node, the name that columns use for it, and its table or its query."""

    node: exp.Expression
    alias: str
    table: EngineTable | None = None
    query: exp.Expression | None = None


class Origin(NamedTuple):
    """Where a column is from."""

    source: FromItem
    column: EngineColumn


class Scopes:
    """The names of one query's tree."""

    def __init__(self, schema: EngineSchema) -> None:
        self.schema = schema

    def origin(self, column: exp.Expression) -> Origin | None:
        """Return where a column is from; None for one that is in no FROM clause around it."""
        name, table = column.name.lower(), column.table.lower()
        select = column.find_ancestor(exp.Select)
        while select is not None:
            for source in self.sources(select):
                if not table or source.alias.lower() == table:
                    found = self._column(source, name)
                    if found is not None:
                        return Origin(source, found)
            select = select.find_ancestor(exp.Select)
        return None

    def sources(self, select: exp.Expression) -> Iterator[FromItem]:
        """Yield what a SELECT reads from."""
        for node in tables_of(select):
            if isinstance(node, exp.Table):
                query = self._common_table(node)
                table = None if query is not None else self.schema.get(node.name.lower())
                yield FromItem(node, node.alias_or_name, table, query)
            elif isinstance(node, exp.Subquery):
                yield FromItem(node, node.alias, None, node.this)

    def kind(self, node: exp.Expression | None) -> str:
        """Return the kind of value that an expression has at an engine, or "" where it is unknown."""
        if isinstance(node, exp.Column):
            found = self.origin(node)
            return found.column.kind if found else ""
        if isinstance(node, exp.Literal):
            return "text" if node.is_string else "integer" if node.name.isdigit() else "real"
        if isinstance(node, exp.Subquery | exp.Select):
            shown = node.selects
            return self.kind(shown[0]) if shown else ""
        return self._computed_kind(node)

    def affinity(self, node: exp.Expression | None) -> str:
        """Return the affinity that SQLite compares an expression by: that of a column or a cast, else ""."""
        if isinstance(node, exp.Column):
            found = self.origin(node)
            return found.column.affinity if found else ""
        if isinstance(node, exp.Cast):
            return self.kind(node)
        if isinstance(node, exp.Paren | exp.Collate | exp.Alias):
            return self.affinity(node.this)
        if isinstance(node, exp.Subquery | exp.Select):
            shown = node.selects
            return self.affinity(shown[0]) if shown else ""
        return ""

    def _computed_kind(self, node: exp.Expression | None) -> str:
        if isinstance(node, _WHOLE):
            return "integer"
        if isinstance(node, _TEXTS):
            return "text"
        if isinstance(node, exp.Avg):
            return "real"
        if isinstance(node, exp.Sum):
            return "real" if self.kind(node.this) == "real" else "integer"
        return self._combined_kind(node)

    def _combined_kind(self, node: exp.Expression | None) -> str:
        if isinstance(node, _SAME):
            return self.kind(node.expressions[0] if isinstance(node, exp.Distinct) else node.this)
        if isinstance(node, _ARITHMETIC):
            kinds = {self.kind(node.this), self.kind(node.expression)}
            if kinds <= {"integer"}:
                return "integer"
            return "real" if "real" in kinds else ""
        if isinstance(node, exp.Cast):
            kind = node.args["to"].this
            if kind in exp.DataType.INTEGER_TYPES:
                return "integer"
            if kind in exp.DataType.REAL_TYPES:
                return "real"
            return "text" if kind in exp.DataType.TEXT_TYPES else ""
        if isinstance(node, exp.Case):
            branches = {self.kind(branch.args["true"]) for branch in node.args["ifs"]}
            return branches.pop() if len(branches) == 1 else ""
        return ""

    def _common_table(self, table: exp.Expression) -> exp.Expression | None:
        """Return the query of the common table expression that a name means, if it means one."""
        name, node = table.name.lower(), table.parent
        while node is not None:
            found = node.args.get("with_")
            for common in found.expressions if found is not None else ():
                if common.alias.lower() == name:
                    return common.this
            node = node.parent
        return None

    def _column(self, source: FromItem, name: str) -> EngineColumn | None:
        if source.table is not None:
            return source.table.columns.get(name)
        if source.query is None:
            return None
        for shown in source.query.selects:
            if shown.is_star:
                inner = self._starred(source.query, shown, name)
                if inner is not None:
                    return inner
            elif shown.alias_or_name.lower() == name:
                if isinstance(shown, exp.Column):
                    found = self.origin(shown)
                    return found.column if found else None
                return EngineColumn(shown.alias_or_name, self.kind(shown), self.affinity(shown))
        return None

    def _starred(self, query: exp.Expression, star: exp.Expression, name: str) -> EngineColumn | None:
        """Return the column that a `*` in a query gives, if it gives one of this name."""
        select = query if isinstance(query, exp.Select) else query.find(exp.Select)
        wanted = star.table.lower() if isinstance(star, exp.Column) else ""
        for source in self.sources(select) if select is not None else ():
            if not wanted or source.alias.lower() == wanted:
                found = self._column(source, name)
                if found is not None:
                    return found
        return None
