"""Which prediction belongs to which gold: by id, or entry by entry where a file has as many as there are questions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlexec_rs.files import Gold, InputError, cases
from sqlexec_rs.predictions import Prediction, Predictions, possible_header, shown_fields
from sqlexec_rs.texts import database_of, same_sql

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

    Those of `order` that are no golds cannot be judged, and their predictions are left out; of several questions with
    one id the first is the gold. Raises InputError, with
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
    shared = [uid for uid, count in Counter(order).items() if count > 1 and uid in found]
    first_judged = "ids are of several questions, of which the first is judged"
    first_judged += ": a prediction may be for another of them" if made.has_ids and not made.is_numbered else ""
    for uids, words in (
        (missing, "questions have no prediction and are in no share"),
        (extra, "predictions are for no question here and left out"),
        (unjudged, "predictions are for questions that cannot be judged and left out"),
        (shared, first_judged),
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
        by_number = sorted(made.found, key=lambda prediction: int(prediction.uid))
        return _first_by_id(order, by_number), "paired by BIRD's numbers"
    return {one.uid: one for one in made.found}, "paired by id"


def _by_place(made: Predictions, golds: Sequence[Gold], order: Sequence[str]) -> tuple[dict[str, Prediction], str]:
    """Return the predictions by question id, an entry a question; blank lines are skipped if the count then agrees."""
    if not made.is_lines:
        if len(made.found) == len(order):
            return _first_by_id(order, made.found), "paired entry by entry"
        raise InputError(
            f"{made.path}: {len(made.found)} entries without ids for {len(order)} questions: they are paired only when "
            "the counts agree; write an id into each"
        )
    known = {gold.db_id for gold in golds}
    last = [database_of(one.sql)[1] for one in made.found if one.sql is not None]
    if 2 * sum(map(bool, last)) > len(last):  # a file for another set
        known |= {name for name in last if name}
    whole = [_without_database(one, known) for one in made.found]
    filled = [one for one in whole if one.sql is not None]
    skipped = len(whole) - len(filled)
    if len(whole) - 1 == len(order) and (advice := possible_header(made)):
        raise InputError(
            f"{made.path}: {len(whole)} lines for {len(order)} questions: {advice}; "
            f"--field {made.field} reads it as SQL"
        )
    for lines, how in ((whole, "paired line by line"), (filled, f"paired line by line, {skipped} blank lines skipped")):
        if len(lines) == len(order):
            return _first_by_id(order, lines), how
    blank = f" ({skipped} of them blank)" if skipped else ""
    raise InputError(
        f"{made.path}: {len(whole)} lines{blank} for {len(order)} questions: without ids they are paired only when the "
        "counts agree; write JSON lines with id and sql"
    )


def _first_by_id(order: Sequence[str], predictions: Iterable[Prediction]) -> dict[str, Prediction]:
    """Return by question id the predictions for the questions of `order`; of a repeated id the first question's."""
    by_id: dict[str, Prediction] = {}
    for uid, prediction in zip(order, predictions, strict=True):
        by_id.setdefault(uid, prediction)
    return by_id


def _without_database(one: Prediction, known: set[str]) -> Prediction:
    """Take off the database that stands behind a tab, as in Spider's files."""
    before, name = database_of(one.sql or "", known)
    if name in known:
        return one._replace(sql=before.strip() or None, db_id=name)
    return one._replace(sql=one.sql.strip()) if one.sql else one


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
