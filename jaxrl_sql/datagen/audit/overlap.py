"""Find questions, SQL and databases that an evaluation set shares with training sets, exactly or nearly.

Questions are compared by their words (Jaccard similarity), databases by their (table, column) pairs. Golds, the
reference queries, are compared in a canonical form with qualified columns and numbered tables, once with their values
and once without them. In this file a "target" is the evaluation set.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from sqlglot import exp
from sqlglot.optimizer.qualify import qualify
from sqlglot.optimizer.scope import Scope, traverse_scope

from jaxrl_sql.datagen.audit.finding import Finding, QuestionSet
from jaxrl_sql.text2sql.env.dialect import normal_form
from jaxrl_sql.text2sql.env.parse import none_if_it_fails, parse_query
from jaxrl_sql.text2sql.question_sets.filters import plain_words
from jaxrl_sql.text2sql.schema.cache import content_of
from jaxrl_sql.text2sql.schema.read import read_schema
from jaxrl_sql.types import Example, Record

_MAX_MATCHES = 5  # that a finding lists
# Questions with fewer words and schemas with fewer columns may be similar by coincidence.
_MIN_WORDS = 5
_MIN_COLUMNS = 6
Occurrence = tuple[str, Example]
"""The name of a training set, and a question of it."""


def find_shared_questions(trains: Sequence[QuestionSet], target: QuestionSet, near: float = 0.8) -> list[Finding]:
    """Find questions that training has too: with the same text apart from case and punctuation, or similar words.

    `near` is the least Jaccard similarity of the sets of words.
    """
    same, findings = _find_same("question: same", trains, target, lambda example: plain_words(example.question))
    occurrences = [(train.name, example) for train in trains for example in train.examples]
    word_sets = [frozenset(plain_words(example.question).split()) for _, example in occurrences]
    index = _SimilarityIndex(word_sets, near)
    for example in target.examples:
        question_words = frozenset(plain_words(example.question).split())
        if example.uid in same or len(question_words) < _MIN_WORDS:
            continue
        similar = [(share, occurrences[i]) for i, share in index.find_similar(question_words)]
        if similar:
            similar.sort(key=lambda pair: -pair[0])
            matches = [occurrence for _, occurrence in similar]
            details = _match_details(matches, example) | {"share": round(similar[0][0], 3)}
            findings.append(Finding("question: nearly the same", target.name, example.uid, details))
    return findings


def find_repeated_questions(questions: QuestionSet) -> list[Finding]:
    """Find questions that a set repeats: on the same database, in the same words and with the same evidence."""
    first: dict[tuple[str, str, str], Example] = {}
    findings = []
    for example in questions.examples:
        question = plain_words(example.question)
        earlier = first.setdefault((example.database, question, plain_words(example.evidence)), example)
        if question and earlier is not example:
            line = questions.lines.get(earlier.uid)
            details: Record = {
                "with": {"id": earlier.uid, **({"line": line} if line else {})},
                "same_sql": normal_form(example.gold_sql) == normal_form(earlier.gold_sql),
            }
            findings.append(Finding("question: twice in the set", questions.name, example.uid, details))
    return findings


def find_shared_sql(trains: Sequence[QuestionSet], target: QuestionSet) -> list[Finding]:
    """Find golds that training has too: the same canonical query, or the same query except for values."""
    same, findings = _find_same(
        "sql: same", trains, target, lambda example: canonical(example.gold_sql, example.db_path)
    )
    _, masked = _find_same(
        "sql: same but for values", trains, target, lambda example: mask(example.gold_sql, example.db_path)
    )
    return findings + [finding for finding in masked if finding.id not in same]


@lru_cache(1 << 17)
def canonical(sql: str, db_path: str) -> str:
    """Return the canonical form of a query, which is equal for many queries of equal meaning.

    A query that does not parse is only stripped of comments and normalized in its case and blanks. Otherwise, columns
    are qualified, tables and result columns are numbered, and double-quoted text becomes a string literal. Sides of an
    equality and conditions joined by AND are sorted. Conditions of inner joins move to WHERE, and a star expands to its
    columns. Joined tables keep their order.
    """
    return _write_sql(_qualify(sql, db_path), sql)


@lru_cache(1 << 17)
def mask(sql: str, db_path: str) -> str:
    """Return the canonical query with a placeholder per value or list of values; unmasked if it does not parse."""
    tree = _qualify(sql, db_path)
    return _write_sql(None if tree is None else _mask_values(tree), sql)


def _mask_values(tree: exp.Expression) -> exp.Expression:
    """Replace each value of a tree, also negative ones, with a placeholder, and a list of values with one."""
    for negation in list(tree.find_all(exp.Neg)):
        if isinstance(negation.this, exp.Literal):
            negation.replace(negation.this)
    for literal in list(tree.find_all(exp.Literal)):
        literal.replace(exp.Placeholder())
    for among in tree.find_all(exp.In):
        if among.expressions and all(isinstance(expression, exp.Placeholder) for expression in among.expressions):
            among.set("expressions", among.expressions[:1])
    return tree


def _write_sql(tree: exp.Expression | None, sql: str) -> str:
    return normal_form(sql) if tree is None else tree.sql("sqlite", comments=False, normalize_functions="upper")


@none_if_it_fails
def _qualify(sql: str, db_path: str) -> exp.Expression | None:
    """Return the query's tree in lower case, with qualified columns and tables numbered from the inside out."""
    tree = parse_query(sql)
    if tree is None:
        return None
    columns = {table.name.lower(): {column.name.lower(): "" for column in table.columns}
               for table in read_schema(db_path).tables}  # fmt: skip
    column_names = {name for table in columns.values() for name in table}
    column_names |= {alias.alias.lower() for alias in tree.find_all(exp.Alias)}
    for name in tree.find_all(exp.Identifier):
        name.set("this", name.this if _is_text(name, column_names) else name.this.lower())
    for column in list(tree.find_all(exp.Column)):
        if _is_text(column.this, column_names):
            column.replace(exp.Literal.string(column.name))
    tree = qualify(tree, "sqlite", schema=columns, quote_identifiers=False, validate_qualify_columns=False)
    _number_tables(tree)
    for equal in tree.find_all(exp.EQ):
        smaller, larger = sorted((equal.this, equal.expression), key=lambda side: side.sql())
        equal.set("this", smaller)
        equal.set("expression", larger)
    for name in tree.find_all(exp.Identifier):
        name.set("quoted", False)
    for select in list(tree.find_all(exp.Select)):
        _number_results(select)
        _sort_conditions(select)
    for order in tree.find_all(exp.Ordered):
        order.set("desc", order.args.get("desc") or None)
    return tree


def _number_tables(tree: exp.Expression) -> None:
    """Rename tables and subqueries to numbers from the inside out, and columns of subqueries by position."""
    # New names are set at the end, because the traversal needs the old ones.
    renamed: list[tuple[exp.Expression, str]] = []
    count = 0
    for scope in traverse_scope(tree):
        names = {}
        # `source` is a table, or the scope of a subquery.
        for alias, (node, source) in scope.selected_sources.items():
            count += 1
            names[alias] = f"t{count}"
            renamed.append(
                (node if isinstance(node, exp.Table) else node.find_ancestor(exp.Subquery) or node, f"t{count}")
            )
            if isinstance(source, Scope):
                new_names = {name: f"c{number}" for number, name in enumerate(source.expression.named_selects, 1)}
                for column in scope.columns:
                    if column.table == alias and column.name in new_names:
                        column.set("this", exp.to_identifier(new_names[column.name]))
        renamed += [(column, names[column.table]) for column in scope.columns if column.table in names]
    for node, name in renamed:
        is_column = isinstance(node, exp.Column)
        identifier = exp.to_identifier(name)
        node.set("table" if is_column else "alias", identifier if is_column else exp.TableAlias(this=identifier))


def _number_results(select: exp.Select) -> None:
    """Name result columns by position, also in ORDER BY and GROUP BY."""
    names = {}
    for number, expression in enumerate(select.expressions, 1):
        if isinstance(expression, exp.Alias):
            names[expression.alias] = exp.to_identifier(f"c{number}")
            expression.set("alias", names[expression.alias])
    for column in list(select.find_all(exp.Column)):
        if not column.table and column.name in names and column.parent_select is select:
            column.set("this", names[column.name].copy())


def _sort_conditions(select: exp.Select) -> None:
    """Move conditions of inner joins to WHERE, and sort the conditions of WHERE and HAVING.

    They are sorted by their SQL without values first, so that other values do not change the order.
    """
    joins = select.args.get("joins") or []
    if not any(join.side or join.args.get("using") or join.method for join in joins):
        for join in joins:
            if conditions := join.args.get("on"):
                select.where(conditions, copy=False)
            join.replace(exp.Join(this=join.this))
    for name in ("where", "having"):
        if clause := select.args.get(name):
            conditions = sorted(
                clause.this.flatten() if isinstance(clause.this, exp.And) else [clause.this], key=_sort_key
            )
            clause.set("this", exp.and_(*conditions))


def _sort_key(condition: exp.Expression) -> tuple[str, str]:
    return _mask_values(condition.copy()).sql("sqlite"), condition.sql("sqlite")


def _is_text(name: exp.Expression, column_names: set[str]) -> bool:
    """Return whether SQLite reads a double-quoted identifier as text, because it names no column."""
    column = name.parent
    is_bare = isinstance(name, exp.Identifier) and isinstance(column, exp.Column) and not column.table
    return is_bare and bool(name.args.get("quoted")) and name.name.lower() not in column_names


def _find_same(
    kind: str, trains: Sequence[QuestionSet], target: QuestionSet, key: Callable[[Example], str]
) -> tuple[set[str], list[Finding]]:
    """Find the examples of `target` whose key some training example has; return their ids and the findings.

    `kind` is the kind of the findings. Examples with an empty key have no match.
    """
    occurrences: dict[str, list[Occurrence]] = defaultdict(list)
    for train in trains:
        for example in train.examples:
            if text := key(example):
                occurrences[text].append((train.name, example))
    findings = [
        Finding(kind, target.name, example.uid, _match_details(matches, example))
        for example in target.examples
        if (matches := occurrences.get(key(example)))
    ]
    return {finding.id for finding in findings}, findings


def _match_details(occurrences: Sequence[Occurrence], example: Example) -> Record:
    """Return the details of a finding: the matching training questions of `example`, and their number."""
    matches = [{"set": name, "id": other.uid, "db_id": other.db_id} for name, other in occurrences[:_MAX_MATCHES]]
    same_db = any(other.db_id == example.db_id for _, other in occurrences)
    return {"with": matches, "times": len(occurrences), "same_db_id": same_db}


class _SimilarityIndex:
    """Find word sets with a Jaccard similarity of at least `near` by an index of each set's rarest words.

    Two sets can only be that similar if they share one of their n - ceil(near * n) + 1 rarest words, where n is the
    size of each set (prefix filtering). So only sets that share such a word are compared.
    """

    def __init__(self, word_sets: Sequence[frozenset[str]], near: float) -> None:
        self.word_sets, self.min_similarity = word_sets, near
        self.counts = Counter(word for words in word_sets for word in words)
        self.index: dict[str, list[int]] = defaultdict(list)
        for i, words in enumerate(word_sets):
            for word in self._rarest(words):
                self.index[word].append(i)

    def find_similar(self, words: frozenset[str]) -> Iterator[tuple[int, float]]:
        """Yield (index, similarity) of each set that is similar enough to `words`."""
        for i in sorted({i for word in self._rarest(words) for i in self.index.get(word, ())}):
            other = self.word_sets[i]
            similarity = len(words & other) / len(words | other)
            if similarity >= self.min_similarity:
                yield i, similarity

    def _rarest(self, words: frozenset[str]) -> Iterable[str]:
        ordered = sorted(words, key=lambda word: (self.counts[word], word))
        return ordered[: len(words) - math.ceil(self.min_similarity * len(words)) + 1]


def find_shared_databases(trains: Sequence[QuestionSet], target: QuestionSet, near: float = 0.8) -> list[Finding]:
    """Find databases that training has too: the same file, the same schema, or a common share `near` of columns.

    A database with only the name in common is a finding too.
    """
    train_databases = [(train.name, db_id, path) for train in trains for db_id, path in train.databases]
    # Only files of the same size are compared.
    by_file_size: dict[int, list[tuple[str, str, str]]] = defaultdict(list)
    for database in train_databases:
        by_file_size[Path(database[2]).stat().st_size].append(database)
    train_columns = [(name, db_id, _columns(path)) for name, db_id, path in train_databases]
    question_counts = Counter(example.db_path for example in target.examples)
    findings = []
    for db_id, path in target.databases:
        num_questions: Record = {"questions": question_counts[path]}
        same_size = by_file_size.get(Path(path).stat().st_size, [])
        if files := [(name, other_id) for name, other_id, other in same_size if content_of(other) == content_of(path)]:
            findings.append(Finding("database: same file", target.name, db_id, num_questions | _list_databases(files)))
            continue
        columns = _columns(path)
        similar = [(_common_share(columns, other), (name, other_id)) for name, other_id, other in train_columns]
        similar = sorted((pair for pair in similar if pair[0] >= near), key=lambda pair: -pair[0])
        if similar and similar[0][0] == 1.0 and any(columns == other for _, _, other in train_columns):
            same = [(name, other_id) for name, other_id, other in train_columns if other == columns]
            findings.append(Finding("database: same schema", target.name, db_id, num_questions | _list_databases(same)))
        elif similar:
            databases = _list_databases([database for _, database in similar])
            details = num_questions | databases | {"share": round(similar[0][0], 3)}
            findings.append(Finding("database: nearly the same schema", target.name, db_id, details))
        elif names := [(name, other_id) for name, other_id, _ in train_databases if other_id.lower() == db_id.lower()]:
            findings.append(
                Finding("database: same name, other schema", target.name, db_id, num_questions | _list_databases(names))
            )
    return findings


def _list_databases(databases: Sequence[tuple[str, str]]) -> Record:
    return {
        "with": [{"set": name, "db_id": db_id} for name, db_id in databases[:_MAX_MATCHES]],
        "times": len(databases),
    }


def _columns(path: str) -> frozenset[tuple[str, str]]:
    """Return a database's (table, column) pairs in lower case, without separators such as underscores."""

    def normalize(name: str) -> str:
        return "".join(filter(str.isalnum, name.casefold())) or name

    return frozenset(
        (normalize(table.name), normalize(column.name))
        for table in read_schema(path).tables
        for column in table.columns
    )


def _common_share(columns: frozenset[tuple[str, str]], others: frozenset[tuple[str, str]]) -> float:
    """Return the share of the smaller schema that the larger one contains.

    It is 0 if the smaller one has fewer than `_MIN_COLUMNS` columns, unless both are equal.
    """
    smaller = min(len(columns), len(others))
    return len(columns & others) / smaller if smaller >= _MIN_COLUMNS or columns == others else 0.0
