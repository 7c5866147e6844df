"""SQLite's queries for PostgreSQL, MariaDB and DuckDB, on a copy of the database whose names and types are known.

sqlglot writes the dialect. What it cannot know is added here: how the copy names things, SQLite's comparison by
affinity, LIKE without regard to case, a GROUP BY that need not name what is shown, averages that are floats. What has
no form at the engine stays as it is, and fails there: whoever needs the same result runs both and compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

from sqlglot import exp

from jaxrl_sql.text2sql.env.dialect import SQLGLOT, rewritten
from jaxrl_sql.text2sql.env.scopes import NUMBERS, EngineSchema, FromItem, Scopes
from jaxrl_sql.types import InputError

# Words that PostgreSQL takes as no bare name of a column or table; sqlglot knows those of the others.
_RESERVED = frozenset(
    """
    all analyse analyze and any array as asc asymmetric authorization binary both case cast check collate collation
    column concurrently constraint create cross current_catalog current_date current_role current_schema current_time
    current_timestamp current_user default deferrable desc distinct do else end except false fetch for foreign freeze
    from full grant group having ilike in initially inner intersect into is isnull join lateral leading left like limit
    localtime localtimestamp natural not notnull null offset on only or order outer overlaps placing primary references
    returning right select session_user similar some symmetric table tablesample then to trailing true union unique user
    using variadic verbose when where window with
    """.split()
)
_BARE = re.compile(r"[a-z_][a-z0-9_]*")
_FORMS = {"date": r"\d{4}-\d\d-\d\d", "timestamp": r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"}
_NUMERIC = frozenset({"integer", "real", "numeric"})
_NUMBER = re.compile(r"\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d+)?\s*", re.ASCII)
_COMPARISONS = (exp.EQ, exp.NEQ, exp.GT, exp.GTE, exp.LT, exp.LTE)
_OF_TEXT = (exp.Substring, exp.Length, exp.Upper, exp.Lower, exp.Trim, exp.DPipe, exp.Like, exp.ILike, exp.StrPosition)


def to_engine(sql: str, engine: str, schema: EngineSchema) -> str | None:
    """Write SQLite's query in an engine's dialect, for a copy of the database; None when it does not parse.

    Raises InputError for an engine that is not of `dialect.SQLGLOT`.
    """
    if engine not in SQLGLOT:
        raise InputError(f"engine {engine!r}: there are {', '.join(SQLGLOT)}")
    return rewritten(sql, "sqlite", SQLGLOT[engine], lambda tree: _Rewriter(engine, schema).rewrite(tree))


class _Rewriter:
    """One query on its way to an engine."""

    def __init__(self, engine: str, schema: EngineSchema) -> None:
        self.engine = engine
        self.schema = schema
        self.scopes = Scopes(schema)
        comparisons: dict[type[exp.Expression], Callable[[exp.Expression], exp.Expression | None]] = dict.fromkeys(
            _COMPARISONS, self._compare
        )
        self.rules = comparisons | {
            exp.In: self._among,
            exp.Between: self._between,
            exp.Like: self._like,
            exp.Avg: self._sum,
            exp.Sum: self._sum,
            exp.Div: self._divide,
            exp.Round: self._round,
            exp.Literal: self._literal,
            exp.Ordered: self._ordered,
        }

    def rewrite(self, tree: exp.Expression) -> exp.Expression:
        """Rewrite a tree in place: what depends on the names in it comes before they are changed."""
        if not isinstance(tree, exp.Query):
            raise TypeError("not a query")
        self._texts(tree)
        if self.engine != "mysql":
            for select in tree.find_all(exp.Select):
                self._group(select)
        for node in reversed(list(tree.walk())):
            if isinstance(node, _OF_TEXT):
                self._as_text_inside(node)
            rule = self.rules.get(type(node))
            new = rule(node) if rule else None
            if new is not None and new is not node:
                tree = new if node is tree else tree
                node.replace(new)
        self._name(tree)
        self._alias_subqueries(tree)
        return tree

    def _texts(self, tree: exp.Expression) -> None:
        """Make text of double-quoted words that name no column where they stand."""
        for column in list(tree.find_all(exp.Column)):
            word = column.this
            is_quoted = isinstance(word, exp.Identifier) and word.args.get("quoted") and not column.table
            if is_quoted and self.scopes.origin(column) is None and not _is_shown(column):
                column.replace(exp.Literal.string(word.name))

    def _name(self, tree: exp.Expression) -> None:
        """Give tables and columns the names of the copy; aliases are spelled as they were given."""
        found = [(column, self.scopes.origin(column)) for column in tree.find_all(exp.Column)]
        tables = [(source.node, source.table) for select in tree.find_all(exp.Select) for source in self._read(select)]
        for column, origin in found:
            if origin is None:
                continue
            column.set("this", self._identifier(origin.column.name))
            if column.table:
                source = origin.source
                name = source.alias if source.table is None or source.node.alias else source.table.name
                column.set("table", self._identifier(name))
        for join in tree.find_all(exp.Join):
            columns = {key: column.name for table in self.schema.values() for key, column in table.columns.items()}
            using = [self._identifier(columns.get(one.name.lower(), one.name)) for one in join.args.get("using") or ()]
            if using:
                join.set("using", using)
        for node, table in tables:
            if table is not None:
                node.set("this", self._identifier(table.name))

    def _read(self, select: exp.Expression) -> Iterable[FromItem]:
        return list(self.scopes.sources(select))

    def _identifier(self, name: str) -> exp.Identifier:
        is_reserved = self.engine == "postgresql" and name.lower() in _RESERVED
        return exp.Identifier(this=name, quoted=is_reserved or not _BARE.fullmatch(name.lower()))

    def _alias_subqueries(self, tree: exp.Expression) -> None:
        """Name subqueries of FROM that have no name, which PostgreSQL and MariaDB want."""
        for number, query in enumerate(list(tree.find_all(exp.Subquery)), 1):
            if isinstance(query.parent, exp.From | exp.Join) and not query.alias:
                query.set("alias", exp.TableAlias(this=exp.Identifier(this=f"q{number}")))

    def _group(self, select: exp.Expression) -> None:
        """Add to a GROUP BY the columns that are shown beside it: the same where the group decides them.

        Where it does not, SQLite shows any row's, and the rows become others.
        """
        group = select.args.get("group")
        if group is None or not group.expressions:
            return
        shown = {one.alias.lower(): one.this for one in select.selects if isinstance(one, exp.Alias)}
        keys = [self._key(key, select, shown) for key in group.expressions]
        known = {self._place(key) for key in keys if isinstance(key, exp.Column)}
        order, having = select.args.get("order"), select.args.get("having")
        for part in [*select.selects, *([having] if having else []), *([order] if order else [])]:
            for column in _bare_columns(part, keys):
                place = self._place(column)
                if place is None or place in known or (not column.table and column.name.lower() in shown):
                    continue
                if self.engine == "postgresql" and self._is_decided(column, known):
                    continue
                known.add(place)
                group.append("expressions", column.copy())

    def _key(self, key: exp.Expression, select: exp.Expression, shown: Mapping[str, exp.Expression]) -> exp.Expression:
        """Return the expression that an entry of a GROUP BY means: its own, a shown one's place, or its alias."""
        if isinstance(key, exp.Literal) and key.name.isdigit() and 0 < int(key.name) <= len(select.selects):
            return select.selects[int(key.name) - 1].unalias()
        if isinstance(key, exp.Column) and not key.table and self.scopes.origin(key) is None:
            return shown.get(key.name.lower(), key)
        return key

    def _place(self, column: exp.Expression) -> tuple[str, str] | None:
        found = self.scopes.origin(column)
        return (found.source.alias.lower(), found.column.name) if found else None

    def _is_decided(self, column: exp.Expression, known: Iterable[tuple[str, str] | None]) -> bool:
        """Return whether the primary key of a column's table is among the columns of a GROUP BY."""
        found = self.scopes.origin(column)
        if found is None or found.source.table is None or not found.source.table.primary_key:
            return False
        table, alias = found.source.table, found.source.alias.lower()
        return {(alias, table.columns[name].name) for name in table.primary_key} <= {*known}

    def _compare(self, node: exp.Expression) -> None:
        is_equality = isinstance(node, exp.EQ | exp.NEQ)
        left, right = self._pair(node.this, node.expression, is_equality=is_equality)
        node.set("this", left)
        node.set("expression", right)

    def _among(self, node: exp.Expression) -> None:
        query = node.args.get("query")
        if query is not None:
            shown = query.selects[0] if query.selects else None
            left, right = self._pair(node.this, shown, is_equality=True)
            node.set("this", left)
            if right is not shown and shown is not None and isinstance(query.this, exp.Select):
                query.this.set("expressions", [right])
            return
        pairs = [self._pair(node.this, expression, is_equality=True) for expression in node.expressions]
        if len({left for left, _ in pairs}) == 1:
            node.set("this", pairs[0][0])
            node.set("expressions", [right for _, right in pairs])

    def _between(self, node: exp.Expression) -> None:
        (left, low), (other, high) = (
            self._pair(node.this, node.args[name], is_equality=False) for name in ("low", "high")
        )
        if left == other:
            node.set("this", left)
            node.set("low", low)
            node.set("high", high)

    def _pair(
        self, left: exp.Expression, right: exp.Expression, *, is_equality: bool
    ) -> tuple[exp.Expression, exp.Expression]:
        """Return two sides of a comparison of types that the engine compares as SQLite does by their affinities."""
        kinds = self.scopes.kind(left), self.scopes.kind(right)
        if kinds[0] in _FORMS or kinds[1] in _FORMS:
            return self._dated(left, right, kinds[0]), self._dated(right, left, kinds[1])
        if "text" in kinds and not NUMBERS.isdisjoint(kinds):
            if kinds[1] == "text":
                new = self._text_and_number(right, left, is_equality=is_equality)
                return new[1], new[0]
            return self._text_and_number(left, right, is_equality=is_equality)
        return left, right

    def _text_and_number(
        self, text: exp.Expression, number: exp.Expression, *, is_equality: bool
    ) -> tuple[exp.Expression, exp.Expression]:
        """Compare as texts where SQLite does, or where only equal ones count; else as numbers.

        A literal that is a number is left to the engine, which reads it so. Texts of a column of numbers are what the
        copy made of numbers that stood beside texts: equal ones are equal as texts.
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

    def _dated(self, node: exp.Expression, other: exp.Expression, kind: str) -> exp.Expression:
        """Return a date as the text that SQLite compares, where the other side is not written as such a date."""
        if kind not in _FORMS or self.scopes.kind(other) == kind:
            return node
        if isinstance(other, exp.Literal) and other.is_string and re.fullmatch(_FORMS[kind], other.name):
            return node
        return _cast(node, "text")

    def _like(self, node: exp.Expression) -> exp.Expression | None:
        """Write LIKE as SQLite means it: letters of ASCII in any case, and no character that escapes unless named."""
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

    def _as_text_inside(self, node: exp.Expression) -> None:
        """Make text of what a function of texts is given, where the engine has another type there."""
        for name in ("this", "expression") if isinstance(node, exp.DPipe | exp.Like | exp.ILike) else ("this",):
            given = node.args.get(name)
            if self.engine != "mysql" and self.scopes.kind(given) in {*NUMBERS, *_FORMS}:
                node.set(name, _cast(given, "text"))

    def _sum(self, node: exp.Expression) -> None:
        """Sum texts as numbers, and truths as 0 and 1; MariaDB averages whole numbers to four digits, unless told."""
        given = node.this
        inner = given.expressions[0] if isinstance(given, exp.Distinct) else given
        kind, new = self.scopes.kind(inner), None
        if isinstance(inner, exp.Predicate | exp.Connector | exp.Not | exp.Paren) and self.engine == "postgresql":
            if isinstance(inner.unnest(), exp.Predicate | exp.Connector | exp.Not):
                new = _cast(inner, "int")
        elif self.engine == "mysql":
            new = _cast(inner, "double") if isinstance(node, exp.Avg) and kind != "real" else None
        elif kind == "text":
            new = _cast(inner, "double")
        if new is not None:
            (given.set("expressions", [new]) if isinstance(given, exp.Distinct) else node.set("this", new))

    def _divide(self, node: exp.Expression) -> exp.Expression | None:
        """Divide whole numbers to a whole number, which PostgreSQL does by itself; only by 0 it has to be NULL."""
        divisor = node.expression
        if isinstance(divisor, exp.Literal) and not divisor.is_string and float(divisor.name):
            node.set("safe", False)
        if self.engine == "postgresql" or self.scopes.kind(node) != "integer":
            return None
        return exp.IntDiv(this=node.this, expression=node.expression)

    def _round(self, node: exp.Expression) -> None:
        if self.engine == "postgresql" and node.args.get("decimals") is not None:
            node.set("this", _cast(node.this, "decimal"))

    def _literal(self, node: exp.Expression) -> exp.Expression | None:
        """Write a real as a float: MariaDB's are decimals of a fixed number of digits."""
        is_real = self.engine == "mysql" and not node.args["is_string"] and "." in node.name
        return exp.Literal.number(f"{node.name}e0") if is_real and "e" not in node.name.lower() else None

    def _ordered(self, node: exp.Expression) -> None:
        """Say nothing of NULLs where a count is sorted by, which is none."""
        if isinstance(node.this, exp.Count) and self.engine != "mysql":
            node.set("nulls_first", self.engine == "postgresql" and bool(node.args.get("desc")))


def _bare_columns(part: exp.Expression, keys: Iterable[exp.Expression]) -> Iterable[exp.Expression]:
    """Yield the columns of an expression that stand in no aggregate, no subquery and no key."""
    known = [*keys]
    found: list[exp.Expression] = []

    def look(node: exp.Expression) -> None:
        if isinstance(node, exp.AggFunc | exp.Window | exp.Query | exp.Subquery) or node in known:
            return
        if isinstance(node, exp.Column) and not isinstance(node.this, exp.Star):
            found.append(node)
            return
        for child in node.iter_expressions():
            look(child)

    look(part)
    return found


def _is_shown(column: exp.Expression) -> bool:
    """Return whether a word is the alias of what a query around it shows."""
    query = column.find_ancestor(exp.Query)
    return query is not None and any(
        isinstance(select, exp.Alias) and select.alias.lower() == column.name.lower() for select in query.selects
    )


def _cast(node: exp.Expression, kind: str) -> exp.Expression:
    if isinstance(node, exp.Alias):
        return exp.alias_(exp.cast(node.this, kind), node.alias)
    return exp.cast(node, kind)
