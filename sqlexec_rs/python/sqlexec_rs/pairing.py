"""Pair predictions with golds: by id, or by position if the file has one entry per question."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from sqlexec_rs.files import Gold, InputError, cases
from sqlexec_rs.predictions import Prediction, Predictions, describe_fields, possible_header
from sqlexec_rs.texts import same_sql, split_database

_NEARLY_ALL = 0.95
"""Share of predictions equal to their golds from which the file is assumed to contain golds."""


class Paired(NamedTuple):
    """The SQL by id of each question that has a prediction (None: without SQL), and notes about the rest."""

    sqls: dict[str, str | None]
    missing: tuple[str, ...]
    extra: int
    notes: tuple[str, ...]


def pair(
    predictions: Predictions,
    golds: Sequence[Gold],
    order: Sequence[str],
    allow_missing: bool = False,
    allow_extra: bool = False,
) -> Paired:
    """Pair a file of predictions with golds; `order` lists the ids of all questions of the benchmark, in file order.

    Questions of `order` without a gold cannot be judged, so their predictions are skipped. If an id is repeated, the
    first question counts. Raises InputError with counts and examples for:

    - missing predictions, or predictions that match no question (unless allowed).
    - a file without ids whose number of entries differs from the number of questions.
    - a prediction on another database than its question.
    - predictions that are nearly all equal to the golds, unless the caller chose their field.
    """
    by_id, method = _by_id(predictions, order) if predictions.has_ids else _by_position(predictions, golds, order)
    golds_by_id = {gold.uid: gold for gold in golds}
    _refuse_other_databases(predictions, by_id, golds_by_id)
    without_gold = {uid for uid in order if uid not in golds_by_id}
    extra = [uid for uid in by_id if uid not in golds_by_id and uid not in without_gold]
    missing = tuple(uid for uid in golds_by_id if uid not in by_id)
    if len(missing) == len(golds_by_id):
        raise InputError(
            f"{predictions.path}: none of its {len(by_id)} ids is a question's: they are {cases(by_id)}, and the "
            f"questions' {cases(golds_by_id)}"
        )
    problems = []
    if missing and not allow_missing:
        problems.append(
            f"{len(missing)} of {len(golds_by_id)} questions have no prediction ({cases(missing)}): "
            "--allow-missing skips them"
        )
    if extra and not allow_extra:
        problems.append(
            f"{len(extra)} of {len(by_id)} predictions match no question ({cases(extra)}): --allow-extra skips them"
        )
    if problems:
        raise InputError(f"{predictions.path}: {'; '.join(problems)}")
    _refuse_golds(predictions, by_id, golds_by_id)
    notes = [f"{predictions.path}: {len(by_id)} predictions, read as {predictions.form}, {method}"]
    empty = [uid for uid, gold in golds_by_id.items() if gold.sql and uid in by_id and by_id[uid].sql is None]
    fenced = [uid for uid in golds_by_id if uid in by_id and (by_id[uid].sql or "").startswith("```")]
    unjudged = [uid for uid in by_id if uid in without_gold]
    shared = [uid for uid, count in Counter(order).items() if count > 1 and uid in by_id]
    first_judged = "ids are shared by several questions, of which the first is judged"
    is_ambiguous = predictions.has_ids and not predictions.is_numbered
    first_judged += ": a prediction may be for another of them" if is_ambiguous else ""
    for uids, note in (
        (missing, "questions have no prediction and are skipped"),
        (extra, "predictions match no question and are skipped"),
        (unjudged, "predictions are for questions that cannot be judged and are skipped"),
        (shared, first_judged),
        (empty, "predictions hold no SQL and count as wrong"),
        (fenced, "predictions are in a code fence, which is not SQL: they are judged unchanged"),
    ):
        if uids:
            notes.append(f"{predictions.path}: {len(uids)} {note} ({cases(uids)})")
    return Paired({uid: by_id[uid].sql for uid in golds_by_id if uid in by_id}, missing, len(extra), tuple(notes))


def _by_id(predictions: Predictions, order: Sequence[str]) -> tuple[dict[str, Prediction], str]:
    """Return the predictions by question id.

    BIRD numbers its predictions from 0 in question order, independent of the ids. They are read this way if some ids
    differ and there is one prediction per question; each must be for the database of its question.
    """
    ids = set(order)
    entries = predictions.entries
    if predictions.is_numbered and len(entries) == len(order) and not all(entry.uid in ids for entry in entries):
        by_number = sorted(entries, key=lambda prediction: int(prediction.uid))
        return _first_by_id(order, by_number), "paired by BIRD's numbers"
    return {entry.uid: entry for entry in entries}, "paired by id"


def _by_position(
    predictions: Predictions, golds: Sequence[Gold], order: Sequence[str]
) -> tuple[dict[str, Prediction], str]:
    """Return the predictions by question id, one entry per question. Skips blank lines if the counts then agree."""
    entries = predictions.entries
    if not predictions.is_lines:
        if len(entries) == len(order):
            return _first_by_id(order, entries), "paired entry by entry"
        raise InputError(
            f"{predictions.path}: {len(entries)} entries without ids for {len(order)} questions: the counts must "
            "agree; write an id into each entry"
        )
    known = {gold.db_id for gold in golds}
    names = [split_database(entry.sql)[1] for entry in entries if entry.sql is not None]
    if 2 * sum(map(bool, names)) > len(names):  # a file for another set
        known |= {name for name in names if name}
    cleaned = [_without_database(entry, known) for entry in entries]
    filled = [entry for entry in cleaned if entry.sql is not None]
    skipped = len(cleaned) - len(filled)
    if len(cleaned) - 1 == len(order) and (advice := possible_header(predictions)):
        raise InputError(
            f"{predictions.path}: {len(cleaned)} lines for {len(order)} questions: {advice}; "
            f"--field {predictions.field} reads it as SQL"
        )
    for lines, method in (
        (cleaned, "paired line by line"),
        (filled, f"paired line by line, {skipped} blank lines skipped"),
    ):
        if len(lines) == len(order):
            return _first_by_id(order, lines), method
    blank = f" ({skipped} of them blank)" if skipped else ""
    raise InputError(
        f"{predictions.path}: {len(cleaned)} lines{blank} for {len(order)} questions: without ids the counts must "
        "agree; write JSON lines with id and sql"
    )


def _first_by_id(order: Sequence[str], predictions: Iterable[Prediction]) -> dict[str, Prediction]:
    """Return the predictions for the questions of `order` by id; for a repeated id the first question's."""
    by_id: dict[str, Prediction] = {}
    for uid, prediction in zip(order, predictions, strict=True):
        by_id.setdefault(uid, prediction)
    return by_id


def _without_database(prediction: Prediction, known: set[str]) -> Prediction:
    """Split off the database after a tab, as in Spider's files."""
    before, name = split_database(prediction.sql or "", known)
    if name in known:
        return prediction._replace(sql=before.strip() or None, db_id=name)
    return prediction._replace(sql=prediction.sql.strip()) if prediction.sql else prediction


def _refuse_other_databases(
    predictions: Predictions, by_id: dict[str, Prediction], golds_by_id: dict[str, Gold]
) -> None:
    others = [
        f"{entry.location} is for {entry.db_id}, question {uid} for {golds_by_id[uid].db_id}"
        for uid, entry in by_id.items()
        if uid in golds_by_id and entry.db_id and entry.db_id != golds_by_id[uid].db_id
    ]
    if others:
        raise InputError(f"{predictions.path}: {len(others)} predictions are for another database ({cases(others)})")


def _refuse_golds(predictions: Predictions, by_id: dict[str, Prediction], golds_by_id: dict[str, Gold]) -> None:
    """Refuse golds read as predictions: the predictions may be in another field."""
    pairs = [
        (entry.sql, golds_by_id[uid].sql)
        for uid, entry in by_id.items()
        if uid in golds_by_id and entry.sql is not None
    ]
    texts = [(sql, [golds] if isinstance(golds, str) else golds) for sql, golds in pairs]
    equal = sum(any(same_sql(sql, gold) for gold in golds) for sql, golds in texts)
    if pairs and equal >= _NEARLY_ALL * len(pairs) and not predictions.is_chosen:
        raise InputError(
            f"{predictions.path}: {equal} of {len(pairs)} texts are the golds themselves: set the predictions' field "
            f"by --field NAME, of the fields {describe_fields(predictions.fields)}; "
            f"--field {predictions.field} scores these"
        )
