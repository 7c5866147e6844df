"""Which prediction belongs to which gold: by id, or entry by entry where a file has as many as there are questions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from sqlexec_rs.files import Gold, InputError, cases
from sqlexec_rs.predictions import Prediction, Predictions, same_sql, shown_fields

_NAME = re.compile(r" *[\w-]+ *")
_NEARLY_ALL = 0.95
"""Where so large a share of the predictions is the gold to the letter, the golds were read: no model writes so."""


class Paired(NamedTuple):
    """The SQL of each question that has a prediction (None: it holds none), by id, and what to tell about the rest."""

    sqls: dict[str, str | None]
    missing: tuple[str, ...]
    extra: int
    notes: tuple[str, ...]


def pair(
    made: Predictions,
    golds: Sequence[Gold],
    order: Sequence[str],
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> Paired:
    """Pair a file of predictions with golds; `order` are the ids of all of a benchmark's, in its file's order.

    Those of `order` that are no golds cannot be judged, and their predictions are left out. Raises InputError, with
    counts and first cases, where predictions are missing or for no question (unless that is allowed), where a file
    without ids has not an entry for each, where a prediction is for another database than its question, and where
    nearly all are the golds themselves and the caller did not choose their field.
    """
    found, how = _by_id(made, order) if made.has_ids else _by_place(made, golds, order)
    mine = {gold.uid: gold for gold in golds}
    _refuse_other_databases(made, found, mine)
    places = {uid for uid in order if uid not in mine}
    extra = [uid for uid in found if uid not in mine and uid not in places]
    missing = tuple(uid for uid in mine if uid not in found)
    if len(missing) == len(mine):
        raise InputError(
            f"{made.path}: none of its {len(found)} ids is a question's: they are {cases(found)}, and the questions' "
            f"{cases(mine)}"
        )
    refused = []
    if missing and not allow_missing:
        refused.append(
            f"{len(missing)} of {len(mine)} questions have no prediction ({cases(missing)}): --allow-missing leaves "
            "them out of every share"
        )
    if extra and not allow_extra:
        refused.append(
            f"{len(extra)} of {len(found)} predictions are for no question here ({cases(extra)}): --allow-extra leaves "
            "them out"
        )
    if refused:
        raise InputError(f"{made.path}: {'; '.join(refused)}")
    _refuse_golds(made, found, mine)
    notes = [f"{made.path}: {len(found)} predictions, read as {made.form}, {how}"]
    empty = [uid for uid, one in mine.items() if one.sql and uid in found and found[uid].sql is None]
    fenced = [uid for uid in mine if uid in found and (found[uid].sql or "").startswith("```")]
    unjudged = [uid for uid in found if uid in places]
    for uids, words in (
        (missing, "questions have no prediction and are in no share"),
        (extra, "predictions are for no question here and left out"),
        (unjudged, "predictions are for questions that cannot be judged and left out"),
        (empty, "predictions hold no SQL and count as wrong"),
        (fenced, "predictions stand in a code fence, which is no SQL: they are judged as they are"),
    ):
        if uids:
            notes.append(f"{made.path}: {len(uids)} {words} ({cases(uids)})")
    return Paired({uid: found[uid].sql for uid in mine if uid in found}, missing, len(extra), tuple(notes))


def _by_id(made: Predictions, order: Sequence[str]) -> tuple[dict[str, Prediction], str]:
    """Return the predictions by question id.

    BIRD numbers its predictions from 0 in the order of its questions, whatever their ids: so they are read where the
    ids are others and there is one for each question, each for the database of its place.
    """
    ids = set(order)
    if made.is_numbered and len(made.found) == len(order) and not all(one.uid in ids for one in made.found):
        return {order[int(one.uid)]: one for one in made.found}, "paired by BIRD's numbers"
    return {one.uid: one for one in made.found}, "paired by id"


def _by_place(made: Predictions, golds: Sequence[Gold], order: Sequence[str]) -> tuple[dict[str, Prediction], str]:
    """Return the predictions by question id, an entry a question; blank lines are skipped if the count then agrees."""
    if not made.is_lines:
        if len(made.found) == len(order):
            return dict(zip(order, made.found, strict=True)), "paired entry by entry"
        raise InputError(
            f"{made.path}: {len(made.found)} entries without ids for {len(order)} questions: they are paired only when "
            "the counts agree; write an id into each"
        )
    known = {gold.db_id for gold in golds}
    last = [(one.sql or "").rpartition("\t")[1:] for one in made.found if one.sql is not None]
    if all(tab and _NAME.fullmatch(word) for tab, word in last):  # a file for another set names its databases as well
        known |= {word.strip() for _, word in last}
    whole = [_without_database(one, known) for one in made.found]
    filled = [one for one in whole if one.sql is not None]
    skipped = len(whole) - len(filled)
    for lines, how in ((whole, "paired line by line"), (filled, f"paired line by line, {skipped} blank lines skipped")):
        if len(lines) == len(order):
            return dict(zip(order, lines, strict=True)), how
    blank = f" ({skipped} of them blank)" if skipped else ""
    raise InputError(
        f"{made.path}: {len(whole)} lines{blank} for {len(order)} questions: without ids they are paired only when the "
        "counts agree; write JSON lines with id and sql"
    )


def _without_database(one: Prediction, known: set[str]) -> Prediction:
    """Take off the database that stands behind a tab, as in Spider's files."""
    before, tab, last = (one.sql or "").rpartition("\t")
    return one._replace(sql=before.strip() or None, db_id=last.strip()) if tab and last.strip() in known else one


def _refuse_other_databases(made: Predictions, found: dict[str, Prediction], mine: dict[str, Gold]) -> None:
    others = [
        f"{one.place} is for {one.db_id}, question {uid} for {mine[uid].db_id}"
        for uid, one in found.items()
        if uid in mine and one.db_id and one.db_id != mine[uid].db_id
    ]
    if others:
        raise InputError(f"{made.path}: {len(others)} predictions are for another database ({cases(others)})")


def _refuse_golds(made: Predictions, found: dict[str, Prediction], mine: dict[str, Gold]) -> None:
    """Refuse golds read as predictions: what a model wrote may stand in the file under another name."""
    given = [(one.sql, mine[uid].sql) for uid, one in found.items() if uid in mine and one.sql is not None]
    texts = [(sql, [golds] if isinstance(golds, str) else golds) for sql, golds in given]
    equal = sum(any(same_sql(sql, gold) for gold in golds) for sql, golds in texts)
    if given and equal >= _NEARLY_ALL * len(given) and not made.is_chosen:
        raise InputError(
            f"{made.path}: {equal} of {len(given)} texts are the golds themselves: name the predictions' field by "
            f"--field NAME, of the fields {shown_fields(made.fields)}; --field {made.field} scores these"
        )
