"""Resolve the columns of a query for SQLite and the kinds of its expressions, by the schema of a copy.

An engine (PostgreSQL, MariaDB or DuckDB) has a copy of the SQLite database, whose names and types may differ.

Name lookup follows SQLite: it ignores case and searches the FROM clauses from inner to outer queries, through
subqueries and common table expressions to the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import tables_of

NUMBERS = frozenset({"integer", "real"})
"""The numeric kinds."""

# Expressions by the kind of their value: text, integer, the kind of their argument, or arithmetic.
_TEXTS = (exp.Concat, exp.DPipe, exp.Lower, exp.Upper, exp.Substring, exp.Trim, exp.TimeToStr, exp.Group)
_INTEGERS = (exp.Count, exp.Length, exp.CountIf, exp.RowNumber, exp.Rank)
_KIND_OF_ARGUMENT = (exp.Paren, exp.Max, exp.Min, exp.Abs, exp.Neg, exp.Alias, exp.Distinct, exp.Coalesce)
_ARITHMETIC = (exp.Add, exp.Sub, exp.Mul, exp.Div, exp.Mod)


class EngineColumn(NamedTuple):
    """A column on an engine: its name there, its kind there, and its affinity in SQLite's comparisons.

    Kinds are `integer`, `real`, `text`, `date`, `timestamp`, `boolean`, `blob`, or "" if unknown. The affinity is the
    type that SQLite converts the other side of a comparison to: `integer`, `real`, `numeric`, `text`, or "" for no
    conversion.
    """

    name: str
    kind: str = ""
    affinity: str = ""


class EngineTable(NamedTuple):
    """A table on an engine: its name there, and its columns by their names in SQLite, in lower case.

    `primary_key` has the key's columns, also by their names in SQLite.
    """

    name: str
    columns: Mapping[str, EngineColumn]
    primary_key: tuple[str, ...] = ()


EngineSchema = Mapping[str, EngineTable]
"""Tables by their names in SQLite, in lower case."""


class FromItem(NamedTuple):
    """An item of a FROM clause: the node, the name that columns use for it, and its contents.

    The contents are a `table` of the schema, or a `query`: a subquery or a common table expression. Both are None for
    an unknown table.
    """

    node: exp.Expression
    alias: str
    table: EngineTable | None = None
    query: exp.Expression | None = None


class Origin(NamedTuple):
    """The origin of a column: the item of a FROM clause, and the column of the schema."""

    source: FromItem
    column: EngineColumn


class Scopes:
    """Name resolution in one query's tree."""

    def __init__(self, schema: EngineSchema) -> None:
        self.schema = schema

    def origin(self, column: exp.Expression) -> Origin | None:
        """Return the source of a column; None if no enclosing FROM clause has it."""
        name, table = column.name.lower(), column.table.lower()
        select = column.find_ancestor(exp.Select)
        while select is not None:
            for source in self.sources(select):
                if not table or source.alias.lower() == table:
                    engine_column = self._column(source, name)
                    if engine_column is not None:
                        return Origin(source, engine_column)
            select = select.find_ancestor(exp.Select)
        return None

    def sources(self, select: exp.Expression) -> Iterator[FromItem]:
        """Yield the items of a SELECT's FROM clause."""
        for node in tables_of(select):
            if isinstance(node, exp.Table):
                query = self._common_table(node)
                table = None if query is not None else self.schema.get(node.name.lower())
                yield FromItem(node, node.alias_or_name, table, query)
            elif isinstance(node, exp.Subquery):
                yield FromItem(node, node.alias, None, node.this)

    def kind(self, node: exp.Expression | None) -> str:
        """Return the kind of an expression on an engine, or "" if unknown."""
        if isinstance(node, exp.Column):
            origin = self.origin(node)
            return origin.column.kind if origin else ""
        if isinstance(node, exp.Literal):
            return "text" if node.is_string else "integer" if node.name.isdigit() else "real"
        if isinstance(node, exp.Subquery | exp.Select):
            output_columns = node.selects
            return self.kind(output_columns[0]) if output_columns else ""
        return self._computed_kind(node)

    def affinity(self, node: exp.Expression | None) -> str:
        """Return an expression's affinity in SQLite's comparisons: that of a column or a cast, else ""."""
        if isinstance(node, exp.Column):
            origin = self.origin(node)
            return origin.column.affinity if origin else ""
        if isinstance(node, exp.Cast):
            return self.kind(node)
        if isinstance(node, exp.Paren | exp.Collate | exp.Alias):
            return self.affinity(node.this)
        if isinstance(node, exp.Subquery | exp.Select):
            output_columns = node.selects
            return self.affinity(output_columns[0]) if output_columns else ""
        return ""

    def _computed_kind(self, node: exp.Expression | None) -> str:
        if isinstance(node, _INTEGERS):
            return "integer"
        if isinstance(node, _TEXTS):
            return "text"
        if isinstance(node, exp.Avg):
            return "real"
        if isinstance(node, exp.Sum):
            return "real" if self.kind(node.this) == "real" else "integer"
        return self._combined_kind(node)

    def _combined_kind(self, node: exp.Expression | None) -> str:
        if isinstance(node, _KIND_OF_ARGUMENT):
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
        """Return the query of the common table expression with a table's name, if there is one."""
        name, node = table.name.lower(), table.parent
        while node is not None:
            with_clause = node.args.get("with_")
            for common in with_clause.expressions if with_clause is not None else ():
                if common.alias.lower() == name:
                    return common.this
            node = node.parent
        return None

    def _column(self, source: FromItem, name: str) -> EngineColumn | None:
        """Return the column that an item of a FROM clause has by a name; None if it has none."""
        if source.table is not None:
            return source.table.columns.get(name)
        if source.query is None:
            return None
        for column in source.query.selects:
            if column.is_star:
                inner = self._find_star_column(source.query, column, name)
                if inner is not None:
                    return inner
            elif column.alias_or_name.lower() == name:
                if isinstance(column, exp.Column):
                    origin = self.origin(column)
                    return origin.column if origin else None
                return EngineColumn(column.alias_or_name, self.kind(column), self.affinity(column))
        return None

    def _find_star_column(self, query: exp.Expression, star: exp.Expression, name: str) -> EngineColumn | None:
        """Return the column with a name that a `*` in a query includes, if any."""
        select = query if isinstance(query, exp.Select) else query.find(exp.Select)
        table_name = star.table.lower() if isinstance(star, exp.Column) else ""
        for source in self.sources(select) if select is not None else ():
            if not table_name or source.alias.lower() == table_name:
                engine_column = self._column(source, name)
                if engine_column is not None:
                    return engine_column
        return None
