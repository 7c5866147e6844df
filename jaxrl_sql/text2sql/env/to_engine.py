"""Translate SQLite's queries to PostgreSQL, MariaDB and DuckDB, for a copy of the database with known names and types.

sqlglot writes the dialect. This module adds the copy's names and the behaviour of SQLite: comparison by affinity (the
type of a column decides how it compares), case-insensitive LIKE, selected columns that GROUP BY does not list, and
floating-point averages. Parts without an equivalent stay unchanged and fail on the engine. To verify that results are
equal, run both queries and compare. Engines are named `postgresql`, `mysql` (MariaDB) and `duckdb`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from sqlglot import exp

from jaxrl_sql.text2sql.env.dialect import SQLGLOT, transpile_or_none
from jaxrl_sql.text2sql.env.reserved import POSTGRESQL_RESERVED
from jaxrl_sql.text2sql.env.scopes import NUMBERS, EngineSchema, FromItem, Scopes
from jaxrl_sql.types import InputError

# Names that need no quotes.
_UNQUOTED_NAME = re.compile(r"[a-z_][a-z0-9_]*")
# The texts that an engine reads as a date or a timestamp.
_DATE_PATTERNS = {"date": r"\d{4}-\d\d-\d\d", "timestamp": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"}
# Affinities by which SQLite converts a text to a number.
_NUMERIC = frozenset({"integer", "real", "numeric"})
_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_TEXT_FUNCTIONS = (
    exp.Substring,
    exp.Length,
    exp.Upper,
    exp.Lower,
    exp.Trim,
    exp.DPipe,
    exp.Like,
    exp.ILike,
    exp.StrPosition,
)


def to_engine(sql: str, engine: str, schema: EngineSchema) -> str | None:
    """Translate SQLite's query to an engine's dialect, for a copy of the database; None if it does not parse.

    Raises InputError for an engine that is not in `dialect.SQLGLOT`.
    """
    if engine not in SQLGLOT:
        raise InputError(f"engine {engine!r}: there are {', '.join(SQLGLOT)}")
    return transpile_or_none(sql, "sqlite", SQLGLOT[engine], lambda tree: _Rewriter(engine, schema).rewrite(tree))


class _Rewriter:
    """The translation of one query to an engine."""

    def __init__(self, engine: str, schema: EngineSchema) -> None:
        self.engine = engine
        self.schema = schema
        self.scopes = Scopes(schema)
        comparisons: dict[type[exp.Expression], Callable[[exp.Expression], exp.Expression | None]] = dict.fromkeys(
            _COMPARISONS, self._rewrite_comparison
        )
        self.rewrites = comparisons | {
            exp.In: self._rewrite_in,
            exp.Between: self._rewrite_between,
            exp.Like: self._rewrite_like,
            exp.Avg: self._rewrite_sum,
            exp.Sum: self._rewrite_sum,
            exp.Div: self._rewrite_division,
            exp.Round: self._rewrite_round,
            exp.Literal: self._rewrite_literal,
            exp.Ordered: self._omit_null_order,
        }

    def rewrite(self, tree: exp.Expression) -> exp.Expression:
        """Rewrite a tree in place; rewrites that read names run before the names change."""
        if not isinstance(tree, exp.Query):
            raise TypeError("not a query")
        self._convert_quoted_words(tree)
        if self.engine != "mysql":
            for select in tree.find_all(exp.Select):
                self._extend_group_by(select)
        for node in reversed(list(tree.walk())):
            if isinstance(node, _TEXT_FUNCTIONS):
                self._cast_arguments_to_text(node)
            rewrite = self.rewrites.get(type(node))
            new = rewrite(node) if rewrite else None  # None: the node stays, perhaps changed in place
            if new is not None and new is not node:
                tree = new if node is tree else tree
                node.replace(new)
        self._rename_to_copy(tree)
        self._alias_subqueries(tree)
        return tree

    def _convert_quoted_words(self, tree: exp.Expression) -> None:
        """Convert double-quoted words that name no column in scope to text."""
        for column in list(tree.find_all(exp.Column)):
            word = column.this
            is_quoted = isinstance(word, exp.Identifier) and word.args.get("quoted") and not column.table
            if is_quoted and self.scopes.origin(column) is None and not _is_alias(column):
                column.replace(exp.Literal.string(word.name))

    def _rename_to_copy(self, tree: exp.Expression) -> None:
        """Rename tables and columns to those of the copy; aliases keep their spelling."""
        known_columns = [column for table in self.schema.values() for column in table.columns.values()]
        origins = [(column, self.scopes.origin(column)) for column in tree.find_all(exp.Column)]
        tables = [
            (source.node, source.table) for select in tree.find_all(exp.Select) for source in self._sources(select)
        ]
        for column, origin in origins:
            if origin is None:
                continue
            is_computed = all(origin.column is not known for known in known_columns)
            column.set("this", self._identifier(origin.column.name, is_alias=is_computed))
            if column.table:
                source = origin.source
                is_alias = source.table is None or bool(source.node.alias)
                name = source.alias if source.table is None or source.node.alias else source.table.name
                column.set("table", self._identifier(name, is_alias=is_alias))
        for join in tree.find_all(exp.Join):
            columns = {key: column.name for table in self.schema.values() for key, column in table.columns.items()}
            using = [
                self._identifier(columns.get(identifier.name.lower(), identifier.name))
                for identifier in join.args.get("using") or ()
            ]
            if using:
                join.set("using", using)
        for node, table in tables:
            if table is not None:
                node.set("this", self._identifier(table.name))

    def _sources(self, select: exp.Expression) -> Iterable[FromItem]:
        """Return the items of a SELECT's FROM clause, as a list, since the caller changes their nodes."""
        return list(self.scopes.sources(select))

    def _identifier(self, name: str, *, is_alias: bool = False) -> exp.Identifier:
        """Return an identifier, quoted if the engine requires it; PostgreSQL folds unquoted names to lower case."""
        is_postgresql = self.engine == "postgresql"
        is_reserved = is_postgresql and name.lower() in POSTGRESQL_RESERVED
        is_plain = _UNQUOTED_NAME.fullmatch(name if is_postgresql and not is_alias else name.lower())
        return exp.Identifier(this=name, quoted=is_reserved or not is_plain)

    def _alias_subqueries(self, tree: exp.Expression) -> None:
        """Add aliases to subqueries in FROM without one, which PostgreSQL and MariaDB require."""
        for number, query in enumerate(list(tree.find_all(exp.Subquery)), 1):
            if isinstance(query.parent, exp.From | exp.Join) and not query.alias:
                query.set("alias", exp.TableAlias(this=exp.Identifier(this=f"q{number}")))

    def _extend_group_by(self, select: exp.Expression) -> None:
        """Add the columns to a GROUP BY that the query uses outside of aggregates but does not group by.

        The result is the same if the group determines their values. Otherwise SQLite selects an arbitrary row's value,
        and the results differ.
        """
        group_by = select.args.get("group")
        if group_by is None or not group_by.expressions:
            return
        expression_of_alias = {item.alias.lower(): item.this for item in select.selects if isinstance(item, exp.Alias)}
        keys = [self._resolve_group_key(key, select, expression_of_alias) for key in group_by.expressions]
        grouped = {self._qualified_name(key) for key in keys if isinstance(key, exp.Column)}
        order, having = select.args.get("order"), select.args.get("having")
        for part in [*select.selects, *([having] if having else []), *([order] if order else [])]:
            for column in _ungrouped_columns(part, keys):
                qualified_name = self._qualified_name(column)
                if (
                    qualified_name is None
                    or qualified_name in grouped
                    or (not column.table and column.name.lower() in expression_of_alias)
                ):
                    continue
                if self.engine == "postgresql" and self._has_primary_key(column, grouped):
                    continue
                grouped.add(qualified_name)
                group_by.append("expressions", column.copy())

    def _resolve_group_key(
        self, key: exp.Expression, select: exp.Expression, expression_of_alias: Mapping[str, exp.Expression]
    ) -> exp.Expression:
        """Return the expression of a GROUP BY key: itself, or a selected one by its number or alias."""
        if isinstance(key, exp.Literal) and key.name.isdigit() and 0 < int(key.name) <= len(select.selects):
            return select.selects[int(key.name) - 1].unalias()
        if isinstance(key, exp.Column) and not key.table and self.scopes.origin(key) is None:
            return expression_of_alias.get(key.name.lower(), key)
        return key

    def _qualified_name(self, column: exp.Expression) -> tuple[str, str] | None:
        """Return the alias of a column's table, and the column's name on the engine; None if it is not resolved."""
        origin = self.scopes.origin(column)
        return (origin.source.alias.lower(), origin.column.name) if origin else None

    def _has_primary_key(self, column: exp.Expression, grouped: Iterable[tuple[str, str] | None]) -> bool:
        """Return whether the primary key of a column's table is among the columns of a GROUP BY."""
        origin = self.scopes.origin(column)
        if origin is None or origin.source.table is None or not origin.source.table.primary_key:
            return False
        table, alias = origin.source.table, origin.source.alias.lower()
        return {(alias, table.columns[name].name) for name in table.primary_key} <= {*grouped}

    def _rewrite_comparison(self, node: exp.Expression) -> None:
        is_equality = isinstance(node, exp.EQ | exp.NEQ)
        left, right = self._convert_sides(node.this, node.expression, is_equality=is_equality)
        node.set("this", left)
        node.set("expression", right)

    def _rewrite_in(self, node: exp.Expression) -> None:
        """Convert the sides of an IN, unless its items need different conversions of the left side."""
        query = node.args.get("query")
        if query is not None:
            selected = query.selects[0] if query.selects else None
            left, right = self._convert_sides(node.this, selected, is_equality=True)
            node.set("this", left)
            if right is not selected and selected is not None and isinstance(query.this, exp.Select):
                query.this.set("expressions", [right])
            return
        pairs = [self._convert_sides(node.this, expression, is_equality=True) for expression in node.expressions]
        if len({left for left, _ in pairs}) == 1:
            node.set("this", pairs[0][0])
            node.set("expressions", [right for _, right in pairs])

    def _rewrite_between(self, node: exp.Expression) -> None:
        """Convert the sides of a BETWEEN, unless its bounds need different conversions of the left side."""
        (left, low), (other, high) = (
            self._convert_sides(node.this, node.args[name], is_equality=False) for name in ("low", "high")
        )
        if left == other:
            node.set("this", left)
            node.set("low", low)
            node.set("high", high)

    def _convert_sides(
        self, left: exp.Expression, right: exp.Expression, *, is_equality: bool
    ) -> tuple[exp.Expression, exp.Expression]:
        """Return both sides of a comparison, converted so that the engine compares them like SQLite's affinities do."""
        kinds = self.scopes.kind(left), self.scopes.kind(right)
        if "boolean" in kinds and self.engine == "postgresql":
            return _number_as_boolean(left), _number_as_boolean(right)
        if kinds[0] in _DATE_PATTERNS or kinds[1] in _DATE_PATTERNS:
            return self._date_as_text(left, right, kinds[0]), self._date_as_text(right, left, kinds[1])
        if "text" in kinds and not NUMBERS.isdisjoint(kinds):
            if kinds[1] == "text":
                new = self._text_and_number(right, left, is_equality=is_equality)
                return new[1], new[0]
            return self._text_and_number(left, right, is_equality=is_equality)
        return left, right

    def _text_and_number(
        self, text: exp.Expression, number: exp.Expression, *, is_equality: bool
    ) -> tuple[exp.Expression, exp.Expression]:
        """Return a text and a number, converted to texts if SQLite compares texts or for equality, else to numbers.

        A text literal with a number stays, as the engine converts it. The copy has a text column with numeric affinity
        if SQLite's column mixes numbers and texts. Equal numbers in it are equal texts.
        """
        affinity = self.scopes.affinity(text)
        if self.scopes.affinity(number) in _NUMERIC:
            if isinstance(text, exp.Literal):
                return text, _cast(number, "text") if is_equality and not _NUMBER.fullmatch(text.name) else number
            if not is_equality or self.scopes.kind(number) == "real":
                return _cast(text, "double"), number
            return text, _cast(number, "text")
        if affinity == "text" or (affinity in _NUMERIC and is_equality):
            literal = exp.Literal.string(number.name) if isinstance(number, exp.Literal) else None
            return text, literal or _cast(number, "text")
        return text, number

    def _date_as_text(self, node: exp.Expression, other: exp.Expression, kind: str) -> exp.Expression:
        """Return a date as text, which SQLite compares, unless the other side is a date of the same kind."""
        if kind not in _DATE_PATTERNS or self.scopes.kind(other) == kind:
            return node
        if isinstance(other, exp.Literal) and other.is_string and re.fullmatch(_DATE_PATTERNS[kind], other.name):
            return node
        return _cast(node, "text")

    def _rewrite_like(self, node: exp.Expression) -> exp.Expression | None:
        """Write LIKE with SQLite's meaning: it ignores case and has no default escape character."""
        pattern = node.expression
        if isinstance(pattern, exp.Literal):
            if self.engine != "duckdb" and not isinstance(node.parent, exp.Escape):
                pattern = exp.Literal.string(pattern.name.replace("\\", "\\\\"))
                node.set("expression", pattern)
            if not re.search("[a-zA-Z]", pattern.name):
                return None
        if self.engine != "mysql":
            return exp.ILike(this=node.this, expression=node.expression, negate=node.args.get("negate"))
        lower = (
            exp.Literal.string(pattern.name.lower()) if isinstance(pattern, exp.Literal) else exp.Lower(this=pattern)
        )
        return exp.Like(this=exp.Lower(this=node.this), expression=lower, negate=node.args.get("negate"))

    def _cast_arguments_to_text(self, node: exp.Expression) -> None:
        """Cast the argument of a text function to text if the engine has another type there."""
        for name in ("this", "expression") if isinstance(node, exp.DPipe | exp.Like | exp.ILike) else ("this",):
            argument = node.args.get(name)
            if self.engine != "mysql" and self.scopes.kind(argument) in {*NUMBERS, *_DATE_PATTERNS}:
                node.set(name, _cast(argument, "text"))

    def _rewrite_sum(self, node: exp.Expression) -> None:
        """Sum texts as numbers and booleans as 0 and 1; cast for MariaDB, which averages integers to four digits."""
        argument = node.this
        inner = argument.expressions[0] if isinstance(argument, exp.Distinct) else argument
        kind, new = self.scopes.kind(inner), None
        if isinstance(inner, exp.Predicate | exp.Connector | exp.Not | exp.Paren) and self.engine == "postgresql":
            if isinstance(inner.unnest(), exp.Predicate | exp.Connector | exp.Not):
                new = _cast(inner, "int")
        elif self.engine == "mysql":
            new = _cast(inner, "double") if isinstance(node, exp.Avg) and kind != "real" else None
        elif kind == "text":
            new = _cast(inner, "double")
        if new is not None:
            (argument.set("expressions", [new]) if isinstance(argument, exp.Distinct) else node.set("this", new))

    def _rewrite_division(self, node: exp.Expression) -> exp.Expression | None:
        """Use integer division for integers, PostgreSQL's default; division by 0 gives NULL."""
        divisor = node.expression
        # By default, sqlglot writes NULLIF(divisor, 0); `safe` omits it for a literal other than 0.
        if isinstance(divisor, exp.Literal) and not divisor.is_string and float(divisor.name):
            node.set("safe", False)
        if self.engine == "postgresql" or self.scopes.kind(node) != "integer":
            return None
        return exp.IntDiv(this=node.this, expression=node.expression)

    def _rewrite_round(self, node: exp.Expression) -> None:
        """Round a decimal in PostgreSQL, which does not round a float to a number of digits."""
        if self.engine == "postgresql" and node.args.get("decimals") is not None:
            node.set("this", _cast(node.this, "decimal"))

    def _rewrite_literal(self, node: exp.Expression) -> exp.Expression | None:
        """Write a real literal as a float, since MariaDB's are decimals with a fixed number of digits."""
        is_real = self.engine == "mysql" and not node.args["is_string"] and "." in node.name
        return exp.Literal.number(f"{node.name}e0") if is_real and "e" not in node.name.lower() else None

    def _omit_null_order(self, node: exp.Expression) -> None:
        """Omit NULLS FIRST or LAST when sorting by a count, which is never NULL.

        sqlglot omits it if `nulls_first` has the default of the engine.
        """
        if isinstance(node.this, exp.Count) and self.engine != "mysql":
            node.set("nulls_first", self.engine == "postgresql" and bool(node.args.get("desc")))


def _ungrouped_columns(part: exp.Expression, keys: Iterable[exp.Expression]) -> Iterable[exp.Expression]:
    """Return the columns of an expression outside of aggregates, subqueries and keys."""
    key_list = [*keys]
    columns: list[exp.Expression] = []

    def visit(node: exp.Expression) -> None:
        if isinstance(node, exp.AggFunc | exp.Window | exp.Query | exp.Subquery) or node in key_list:
            return
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            columns.append(node)
            return
        for child in node.iter_expressions():
            visit(child)

    visit(part)
    return columns


def _is_alias(column: exp.Expression) -> bool:
    """Return whether a word is an alias in the enclosing query's SELECT list."""
    query = column.find_ancestor(exp.Query)
    return query is not None and any(
        isinstance(select, exp.Alias) and select.alias.lower() == column.name.lower() for select in query.selects
    )


def _cast(node: exp.Expression, kind: str) -> exp.Expression:
    if isinstance(node, exp.Alias):
        return exp.alias_(exp.cast(node.this, kind), node.alias)
    return exp.cast(node, kind)


def _number_as_boolean(node: exp.Expression) -> exp.Expression:
    """Return true or false for the literals 1 and 0, as which SQLite stores them."""
    is_number = isinstance(node, exp.Literal) and node.name in ("0", "1")
    return exp.Boolean(this=node.name == "1") if is_number else node
