"""Which tables and columns a query reads: what a training prompt has to show for its gold to be findable.

Names are found in sqlglot's tree, through aliases, subqueries and stars, and never too few: what SQLite's own
authorizer says is read is among them (the tests ask it). Where a name could be of several tables, all are meant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import none_if_it_fails, parse_statements
from jaxrl_sql.text2sql.schema.read import Schema, Table

Name = tuple[str, str]
"""A table and a column, as the schema spells them."""

_ROWID = frozenset(("rowid", "oid", "_rowid_"))


class Used(NamedTuple):
    """What a query reads: tables, also those of which no column is named, and (table, column)."""

    tables: frozenset[str]
    columns: frozenset[Name]


class _Source(NamedTuple):
    """What stands in a FROM clause: its name there, and the table if it is one and no subquery."""

    alias: str
    table: Table | None


@none_if_it_fails
def used_by(sql: str, schema: Schema) -> Used | None:
    """Return what a SQLite query reads; None where it is no single query or reads what the schema does not hold.

    That is what sqlglot cannot parse, and views, SQLite's own tables and functions that return tables, whose columns
    are not in the schema.
    """
    trees = parse_statements(sql) or ()
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        return None
    return _Reader(trees[0], schema).read()


class _Reader:
    """One query and where its names may come from."""

    def __init__(self, tree: exp.Query, schema: Schema) -> None:
        self.tree = tree
        self.tables = {table.name.lower(): table for table in schema.tables}
        self.views = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        self.sources: dict[int, list[_Source]] = {}
        self.columns: set[Name] = set()
        self.read_tables: dict[str, Table] = {}
        self.is_known = True

    def read(self) -> Used | None:
        """Go through the tree once for tables and once for columns."""
        for table in self.tree.find_all(exp.Table):
            self._add_table(table)
        for derived in self.tree.find_all(exp.Subquery):
            if derived.alias:
                self._at(derived).append(_Source(derived.alias.lower(), None))
        for select in self.tree.find_all(exp.Select):
            if any(isinstance(shown, exp.Star) for shown in select.expressions):
                self._add_all(self.sources.get(id(select), []))
        for join in self.tree.find_all(exp.Join):
            self._add_join(join)
        for listed in self.tree.find_all(exp.In):
            self._add_listed(listed)
        for column in self.tree.find_all(exp.Column):
            self._add_column(column)
        if not self.is_known:
            return None
        return Used(frozenset(table.name for table in self.read_tables.values()), frozenset(self.columns))

    def _at(self, node: exp.Expression) -> list[_Source]:
        """Return the sources of the query that a node of a FROM clause belongs to."""
        return self.sources.setdefault(id(node.find_ancestor(exp.Select)), [])

    def _add_table(self, node: exp.Table) -> None:
        name = node.name.lower()
        table = self.tables.get(name)
        if table is None:
            self.is_known &= name in self.views
        else:
            self.read_tables[name] = table
        # A CTE may have the name of the table that it reads.
        for alias in {node.alias_or_name.lower(), name}:
            self._at(node).append(_Source(alias, table))

    def _add_join(self, join: exp.Join) -> None:
        beside = self.sources.get(id(join.find_ancestor(exp.Select)), [])
        if join.args.get("method") == "NATURAL":
            self._add_all(beside)
        for name in join.args.get("using") or ():
            self._add_named(beside, name.name)

    def _add_listed(self, node: exp.In) -> None:
        """`x IN name` reads the table of that name."""
        field = node.args.get("field")
        if isinstance(field, exp.Column) and (table := self.tables.get(field.name.lower())):
            self.read_tables[table.name.lower()] = table
            self._add_all([_Source("", table)])

    def _add_column(self, node: exp.Column) -> None:
        scopes = list(self._scopes(node))
        if node.table:
            found = self._of_alias(scopes, node.table.lower())
            if isinstance(node.this, exp.Star):
                self._add_all(found)
            else:
                self._add_named(found, node.name)
        elif not any(self._add_named(scope, node.name) for scope in scopes):
            # What orders a compound of queries stands in none of them.
            self._add_named([_Source("", table) for table in self.read_tables.values()], node.name)

    def _of_alias(self, scopes: list[list[_Source]], alias: str) -> list[_Source]:
        for scope in scopes:
            if found := [source for source in scope if source.alias == alias]:
                return found
        return [source for scope in self.sources.values() for source in scope if source.alias == alias]

    def _scopes(self, node: exp.Expression) -> Iterator[list[_Source]]:
        """Yield the sources of the queries round a node, from the inside out."""
        select = node.find_ancestor(exp.Select)
        while select is not None:
            yield self.sources.get(id(select), [])
            select = select.find_ancestor(exp.Select)

    def _add_all(self, sources: list[_Source]) -> None:
        self.columns |= {
            (source.table.name, column.name) for source in sources if source.table for column in source.table.columns
        }

    def _add_named(self, sources: list[_Source], name: str) -> bool:
        """Add the column of a name in each source that has it; a row's number is its key. Return whether one has."""
        wanted = name.lower()
        found = {
            (source.table.name, column.name)
            for source in sources
            if source.table
            for column in source.table.columns
            if column.name.lower() == wanted or (wanted in _ROWID and column.primary_key)
        }
        self.columns |= found
        return bool(found)
