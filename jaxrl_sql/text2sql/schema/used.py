"""Find the tables and columns that a query reads, which a training prompt must include.

Names are resolved in sqlglot's tree, through aliases, subqueries and stars (`SELECT *`). The result includes all reads
that SQLite's authorizer reports, and sometimes more; tests verify this. An ambiguous name counts for all tables that
have it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlglot import exp

from jaxrl_sql.text2sql.env.parse import none_if_it_fails, parse_statements
from jaxrl_sql.text2sql.schema.read import Schema, Table

Name = tuple[str, str]
"""A table and a column in the schema's spelling."""

_ROWID = frozenset(("rowid", "oid", "_rowid_"))


class UsedColumns(NamedTuple):
    """The reads of a query: tables, including those without a named column, and (table, column) pairs."""

    tables: frozenset[str]
    columns: frozenset[Name]


class _AliasedTable(NamedTuple):
    """A source of rows in a FROM clause: its alias, and its table; None for a subquery or CTE."""

    alias: str
    table: Table | None


@none_if_it_fails
def find_used_columns(sql: str, schema: Schema) -> UsedColumns | None:
    """Return the reads of a SQLite query; None if they are not known.

    This is the case if sqlglot cannot parse the SQL, if it is not a single query, and if it reads objects that are not
    tables of the schema: views, SQLite's internal tables and table-valued functions.
    """
    trees = parse_statements(sql) or ()
    if len(trees) != 1 or not isinstance(trees[0], exp.Query):
        return None
    return _NameResolver(trees[0], schema).resolve()


class _NameResolver:
    """The resolution of names in one query.

    `sources` has the tables in the FROM clause of each SELECT, by the `id` of its node. `is_in_schema` becomes false if
    the query reads anything but tables of the schema and its own CTEs.
    """

    def __init__(self, tree: exp.Query, schema: Schema) -> None:
        self.tree = tree
        self.tables = {table.name.lower(): table for table in schema.tables}
        self.cte_names = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
        self.sources: dict[int, list[_AliasedTable]] = {}
        self.columns: set[Name] = set()
        self.read_tables: dict[str, Table] = {}
        self.is_in_schema = True

    def resolve(self) -> UsedColumns | None:
        """Return the tables and columns that the query reads; None if it reads objects outside of the schema."""
        for table in self.tree.find_all(exp.Table):
            self._add_table(table)
        for derived in self.tree.find_all(exp.Subquery):
            if derived.alias:
                self._sources_of(derived).append(_AliasedTable(derived.alias.lower(), None))
        for select in self.tree.find_all(exp.Select):
            if any(isinstance(output, exp.Star) for output in select.expressions):
                self._add_all(self.sources.get(id(select), []))
        for join in self.tree.find_all(exp.Join):
            self._add_join(join)
        for in_node in self.tree.find_all(exp.In):
            self._add_in_table(in_node)
        for column in self.tree.find_all(exp.Column):
            self._add_column(column)
        if not self.is_in_schema:
            return None
        return UsedColumns(frozenset(table.name for table in self.read_tables.values()), frozenset(self.columns))

    def _sources_of(self, node: exp.Expression) -> list[_AliasedTable]:
        """Return the sources of the SELECT that a node belongs to, a list to which callers append."""
        return self.sources.setdefault(id(node.find_ancestor(exp.Select)), [])

    def _add_table(self, node: exp.Table) -> None:
        """Add a table of a FROM clause to the sources of its query, and to the tables read unless it is a CTE."""
        name = node.name.lower()
        table = self.tables.get(name)
        if table is None:
            self.is_in_schema &= name in self.cte_names
        else:
            self.read_tables[name] = table
        # A CTE may have the name of the table that it reads.
        for alias in {node.alias_or_name.lower(), name}:
            self._sources_of(node).append(_AliasedTable(alias, table))

    def _add_join(self, join: exp.Join) -> None:
        """Add the columns that a NATURAL join or USING compares."""
        sources = self.sources.get(id(join.find_ancestor(exp.Select)), [])
        if join.args.get("method") == "NATURAL":
            self._add_all(sources)
        for name in join.args.get("using") or ():
            self._add_named(sources, name.name)

    def _add_in_table(self, node: exp.In) -> None:
        """Add the table that `x IN name` reads."""
        field = node.args.get("field")
        if isinstance(field, exp.Column) and (table := self.tables.get(field.name.lower())):
            self.read_tables[table.name.lower()] = table
            self._add_all([_AliasedTable("", table)])

    def _add_column(self, node: exp.Column) -> None:
        """Add what a column's name refers to: its alias's column, or the column of the innermost query that has one."""
        scopes = list(self._scopes(node))
        if node.table:
            sources = self._of_alias(scopes, node.table.lower())
            if isinstance(node.this, exp.Star):
                self._add_all(sources)
            else:
                self._add_named(sources, node.name)
        elif not any(self._add_named(scope, node.name) for scope in scopes):
            # The ORDER BY of a compound query belongs to none of its members.
            self._add_named([_AliasedTable("", table) for table in self.read_tables.values()], node.name)

    def _of_alias(self, scopes: list[list[_AliasedTable]], alias: str) -> list[_AliasedTable]:
        """Return the sources with an alias in the innermost scope that has any, else in the whole query."""
        for scope in scopes:
            if sources := [source for source in scope if source.alias == alias]:
                return sources
        return [source for scope in self.sources.values() for source in scope if source.alias == alias]

    def _scopes(self, node: exp.Expression) -> Iterator[list[_AliasedTable]]:
        """Yield the sources of the queries around a node, from inner to outer."""
        select = node.find_ancestor(exp.Select)
        while select is not None:
            yield self.sources.get(id(select), [])
            select = select.find_ancestor(exp.Select)

    def _add_all(self, sources: list[_AliasedTable]) -> None:
        """Add all columns of the sources."""
        self.columns |= {
            (source.table.name, column.name) for source in sources if source.table for column in source.table.columns
        }

    def _add_named(self, sources: list[_AliasedTable], name: str) -> bool:
        """Add the column `name` of each source that has it, and return whether any has it.

        SQLite's implicit row id counts as the primary key.
        """
        lowered = name.lower()
        columns = {
            (source.table.name, column.name)
            for source in sources
            if source.table
            for column in source.table.columns
            if column.name.lower() == lowered or (lowered in _ROWID and column.primary_key)
        }
        self.columns |= columns
        return bool(columns)
