"""Ask hard questions: joins, groups over a join, HAVING."""

from __future__ import annotations

from jaxrl_sql.datagen.synth.question_builder import (
    MEASURE,
    Link,
    NoFit,
    QuestionBuilder,
    QuestionCandidate,
    listing,
    literal,
)


def _named(link: Link) -> bool:
    return link.parent.label is not None


def _parent_condition(s: QuestionBuilder, link: Link) -> tuple[str, str]:
    """Draw a condition on the parent: a given label or any other; SQL, and words after the singular or `a`."""
    if link.parent.label is not None and s.rng.random() < 0.5:
        label = link.parent.label
        value = s.value(label)
        words = s.one(("the {t} whose {c} is {v}", "the {t} with {c} {v}", "the {t} that has {c} {v}"))
        return f"T2.{label.name} = {literal(value)}", words.format(t=link.parent.singular, c=label.words, v=value)
    where = s.condition(link.parent, "T2.")
    return where.sql, f"{s.many(link.parent)} {where.words}"


def children_of(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the children of parents that meet a condition."""
    link = s.link()
    shown = s.shown(link.child)
    sql, owner = _parent_condition(s, link)
    what, many = s.say(shown), s.many(link.child)
    texts = (
        f"List the {what} of the {many} of {owner}.",
        f"What is the {what} of {many} that belong to {owner}?",
        f"Show the {what} of all {many} linked to {owner}.",
        f"Find the {what} of every one of the {many} belonging to {owner}.",
        f"For {owner}, show the {what} of the {many}.",
    )
    return QuestionCandidate(texts, f"SELECT T1.{shown.name} FROM {link.join} WHERE {sql}")


def count_children_of(s: QuestionBuilder) -> QuestionCandidate:
    """Count the children of parents that meet a condition."""
    link = s.link()
    sql, owner = _parent_condition(s, link)
    many = s.many(link.child)
    texts = (
        f"How many {many} belong to {owner}?",
        f"Count the {many} of {owner}.",
        f"What is the number of {many} linked to {owner}?",
        f"Find the number of {many} that belong to {owner}.",
        f"How many {many} are there for {owner}?",
    )
    return QuestionCandidate(texts, f"SELECT COUNT(*) FROM {link.join} WHERE {sql}")


def aggregate_children_of(s: QuestionBuilder) -> QuestionCandidate:
    """Aggregate a measure of the children of parents that meet a condition."""
    link = s.link()
    aggregate, said = s.aggregate(s.column(link.child, MEASURE), "T1.")
    sql, owner = _parent_condition(s, link)
    many = s.many(link.child)
    texts = (
        f"What is the {said} of the {many} of {owner}?",
        f"Find the {said} of {many} that belong to {owner}.",
        f"Show the {said} of all {many} linked to {owner}.",
        f"Give the {said} over the {many} belonging to {owner}.",
    )
    return QuestionCandidate(texts, f"SELECT {aggregate} FROM {link.join} WHERE {sql}")


def both_sides(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of the child and one of its parent, under a condition on the child."""
    link = s.link(_named)
    shown, label = s.shown(link.child), s.label(link.parent)
    where = s.condition(link.child, "T1.", (shown,))
    what, owner = s.say(shown), f"{label.words} of the {link.parent.singular}"
    things = f"{s.many(link.child)} {where.words}"
    texts = (
        f"List the {what} and the {owner} for {things}.",
        f"Show the {what} of {things}, along with the {owner}.",
        f"What is the {what} and the {owner} for all {things}?",
        f"For {things}, give the {what} and the {owner}.",
        f"Find the {what} together with the {owner} for {things}.",
    )
    return QuestionCandidate(texts, f"SELECT T1.{shown.name}, T2.{label.name} FROM {link.join} WHERE {where.sql}")


def parents_with(s: QuestionBuilder) -> QuestionCandidate:
    """Show the label of the parents that have a child that meets a condition."""
    link = s.link(_named)
    label = s.label(link.parent)
    where = s.condition(link.child, "T1.")
    owners, things = s.many(link.parent), f"{s.many(link.child)} {where.words}"
    texts = (
        f"List the distinct {label.words} of {owners} that have {things}.",
        f"What are the different {label.words} values of {owners} having {things}?",
        f"Show the distinct {label.words} of the {owners} linked to {things}.",
        f"Find the unique {label.words} of all {owners} with any {things}.",
    )
    return QuestionCandidate(texts, f"SELECT DISTINCT T2.{label.name} FROM {link.join} WHERE {where.sql}")


def count_per_parent(s: QuestionBuilder) -> QuestionCandidate:
    """Count the children of every parent."""
    link = s.link(_named)
    label, key = s.label(link.parent), link.parent.key.name
    many = s.many(link.child)
    parent, what = link.parent.singular, label.words
    texts = (
        f"How many {many} does each {parent} have? Show the {what} and the count.",
        f"For each {parent}, show the {what} and the number of {many}.",
        f"Show the {what} of each {parent} and the number of its {many}.",
        f"List the {what} of every {parent} together with the number of {many}.",
        f"Count the {many} of each {parent} and give its {what}.",
    )
    return QuestionCandidate(texts, f"SELECT T2.{label.name}, COUNT(*) FROM {link.join} GROUP BY T2.{key}")


def aggregate_per_parent(s: QuestionBuilder) -> QuestionCandidate:
    """Aggregate a measure of the children of every parent."""
    link = s.link(_named)
    label, key = s.label(link.parent), link.parent.key.name
    aggregate, said = s.aggregate(s.column(link.child, MEASURE), "T1.")
    many, parent, what = s.many(link.child), link.parent.singular, label.words
    texts = (
        f"For each {parent}, show the {what} and the {said} of the {many}.",
        f"What is the {said} of {many} for each {parent}? Show the {what} too.",
        f"Show the {what} of each {parent} and the {said} of its {many}.",
        f"List the {what} of every {parent} with the {said} of its {many}.",
    )
    return QuestionCandidate(texts, f"SELECT T2.{label.name}, {aggregate} FROM {link.join} GROUP BY T2.{key}")


def aggregate_per_parent_category(s: QuestionBuilder) -> QuestionCandidate:
    """Aggregate the children, or count them, by a category of the parent."""
    link = s.link()
    group = s.column(link.parent, ("category",))
    if s.rng.random() < 0.5:
        aggregate, said = "COUNT(*)", f"number of {s.many(link.child)}"
    else:
        aggregate, said = s.aggregate(s.column(link.child, MEASURE), "T1.")
        said = f"{said} of {s.many(link.child)}"
    by, parent = s.say(group), link.parent.singular
    texts = (
        f"For each {by} of the {parent}, show the {said}.",
        f"What is the {said} for each {parent} {by}?",
        f"Show each {parent} {by} and the {said}.",
        f"Find the {said} per {by} of the {parent}.",
    )
    return QuestionCandidate(texts, f"SELECT T2.{group.name}, {aggregate} FROM {link.join} GROUP BY T2.{group.name}")


def having_count(s: QuestionBuilder) -> QuestionCandidate:
    """Show the label of parents with at least some number of children."""
    link = s.link(_named)
    label, key = s.label(link.parent), link.parent.key.name
    counts = sorted(_counts(link).values())
    if len(counts) < 4:
        raise NoFit
    k = counts[int((len(counts) - 1) * s.rng.uniform(0.4, 0.95))]
    sign, phrase = s.one(
        ((">=", f"at least {k}"), (">", f"more than {k}"), (">=", f"{k} or more"), ("=", f"exactly {k}"))
    )
    owners, many, what = s.many(link.parent), s.many(link.child), label.words
    texts = (
        f"List the {what} of {owners} with {phrase} {many}.",
        f"What is the {what} of the {owners} that have {phrase} {many}?",
        f"Which {owners} have {phrase} {many}? Show the {what}.",
        f"Find the {what} of all {owners} having {phrase} {many}.",
        f"Show the {what} of every {link.parent.singular} with {phrase} {many}.",
    )
    return QuestionCandidate(
        texts, f"SELECT T2.{label.name} FROM {link.join} GROUP BY T2.{key} HAVING COUNT(*) {sign} {k}"
    )


def _counts(link: Link) -> dict[object, int]:
    column = next(column for key, column in link.child.foreign if key == link.key)
    counts: dict[object, int] = {}
    for value in column.values:
        counts[value] = counts.get(value, 0) + 1
    return counts


def most_children(s: QuestionBuilder) -> QuestionCandidate:
    """Show the label of the parent with the most children."""
    link = s.link(_named)
    label, key = s.label(link.parent), link.parent.key.name
    many, parent, what = s.many(link.child), link.parent.singular, label.words
    texts = (
        f"Which {parent} has the most {many}? Show the {what}.",
        f"What is the {what} of the {parent} with the most {many}?",
        f"Find the {what} of the {parent} that has the largest number of {many}.",
        f"Show the {what} of the {parent} with the highest number of {many}.",
    )
    rest = f"FROM {link.join} GROUP BY T2.{key} ORDER BY COUNT(*) DESC LIMIT"
    return QuestionCandidate(texts, f"SELECT T2.{label.name} {rest} 1", f"SELECT COUNT(*) {rest} 2")


def top_parents_by_sum(s: QuestionBuilder) -> QuestionCandidate:
    """Show the label of the parents with the highest total or average of a measure."""
    link = s.link(_named)
    label, key = s.label(link.parent), link.parent.key.name
    column = s.column(link.child, MEASURE)
    function = s.one(("SUM", "AVG"))
    said = f"{'total' if function == 'SUM' else 'average'} {s.say(column)}"
    k = s.rng.randint(1, 4)
    many, owners, parent, what = s.many(link.child), s.many(link.parent), link.parent.singular, label.words
    if k == 1:
        texts = (
            f"Which {parent} has the highest {said} of {many}? Show the {what}.",
            f"What is the {what} of the {parent} with the highest {said} of its {many}?",
            f"Find the {what} of the {parent} whose {many} have the highest {said}.",
            f"Show the {what} of the {parent} with the largest {said} over its {many}.",
        )
    else:
        texts = (
            f"Which {k} {owners} have the highest {said} of {many}? Show the {what}.",
            f"What is the {what} of the {k} {owners} with the highest {said} of their {many}?",
            f"Find the {what} of the top {k} {owners} whose {many} have the highest {said}.",
            f"Show the {what} of the {k} {owners} with the largest {said} over their {many}.",
        )
    order = f"{function}(T1.{column.name})"
    rest = f"FROM {link.join} GROUP BY T2.{key} ORDER BY {order} DESC LIMIT"
    return QuestionCandidate(texts, f"SELECT T2.{label.name} {rest} {k}", f"SELECT {order} {rest} {k + 1}")


def having_average(s: QuestionBuilder) -> QuestionCandidate:
    """Show the categories of one table whose average is above a value."""
    table = s.table(lambda table: any(c.kind == "category" for c in table.columns))
    group, column = s.column(table, ("category",)), s.column(table, MEASURE)
    middle = s.inner_value(column, 0.35, 0.6)
    sign, relation = s.one(((">", "above"), (">", "greater than"), ("<", "below"), ("<", "less than")))
    by, said, many = s.say(group), s.say(column), s.many(table)
    texts = (
        f"Which {by} values have an average {said} {relation} {middle} among {many}?",
        f"List each {by} of {many} whose average {said} is {relation} {middle}.",
        f"Show the {by} of {many} with an average {said} {relation} {middle}.",
        f"Find every {by} for which the average {said} of the {many} is {relation} {middle}.",
    )
    rest = f"GROUP BY {group.name} HAVING AVG({column.name}) {sign} {literal(middle)}"
    return QuestionCandidate(texts, f"SELECT {group.name} FROM {table.name} {rest}")


def most_common(s: QuestionBuilder) -> QuestionCandidate:
    """Show the most or least common category of one table."""
    table = s.table_with("category")
    group = s.column(table, ("category",))
    if group.has_nulls:
        raise NoFit
    way, rank = s.one((("DESC", "most"), ("DESC", "most"), ("ASC", "least")))
    by, many = s.say(group), s.many(table)
    texts = (
        f"What is the {rank} common {by} among {many}?",
        f"Find the {rank} common {by} of all {many}.",
        f"Which {by} is the {rank} common among the {many}?",
        f"Show the {rank} frequent {by} of {many}.",
    )
    rest = f"FROM {table.name} GROUP BY {group.name} ORDER BY COUNT(*) {way} LIMIT"
    return QuestionCandidate(texts, f"SELECT {group.name} {rest} 1", f"SELECT COUNT(*) {rest} 2")


def over_two_joins(s: QuestionBuilder) -> QuestionCandidate:
    """Show a column of a grandchild, or count them, under a condition on the grandparent."""
    low = s.link(lambda link: link.parent.foreign)
    key, _ = s.one(low.parent.foreign)
    top = s.database.table(key.table)
    label = s.label(top)
    value = s.value(label)
    owner = f"the {top.singular} whose {label.words} is {value}"
    many, middle = s.many(low.child), s.many(low.parent)
    join = f"{low.join} JOIN {top.name} AS T3 ON T2.{key.column} = T3.{key.target}"
    clause = f"FROM {join} WHERE T3.{label.name} = {literal(value)}"
    if s.rng.random() < 0.5:
        texts = (
            f"How many {many} belong to {middle} of {owner}?",
            f"Count the {many} of the {middle} that belong to {owner}.",
            f"Find the number of {many} of {middle} linked to {owner}.",
            f"What is the number of {many} for the {middle} of {owner}?",
        )
        return QuestionCandidate(texts, f"SELECT COUNT(*) {clause}")
    shown = s.shown(low.child)
    return QuestionCandidate(
        listing(s.say(shown), f"{many} of the {middle} of {owner}"), f"SELECT T1.{shown.name} {clause}"
    )


HARD = (
    (children_of, 4),
    (count_children_of, 3),
    (aggregate_children_of, 3),
    (both_sides, 3),
    (parents_with, 2),
    (count_per_parent, 3),
    (aggregate_per_parent, 3),
    (aggregate_per_parent_category, 2),
    (having_count, 3),
    (most_children, 1),
    (top_parents_by_sum, 2),
    (having_average, 2),
    (most_common, 1),
    (over_two_joins, 2),
)
