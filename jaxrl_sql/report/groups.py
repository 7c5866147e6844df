"""Read the answers of a run, an evaluation or a comparison from its folder: one group per question, in chunks.

Groups from all sources have these fields: `step`, `phase`, `uid`, `db` (the database's id), `question`, `evidence`,
`gold`, `hardness` (the difficulty), `rule` (the rule of comparison that decides the score), `chosen` and `answers`.
`chosen` is the position of a group among those that the rollout's updates train on, or None. `example` is the question
if its answers can be judged again, or None. Groups of evaluations and comparisons also have `prompt`, the text of the
prompt or "".

An answer has `turns` ([role, text], for sampled turns followed by packed token ids and log-probabilities), `sql`,
`status`, `reward`, `right` and optional fields. Its `verdict`, if any, has the scores by each rule.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from jaxrl_sql.runtime.rollouts import FOLDER, KINDS, TOKENS, list_shards, read_shard
from jaxrl_sql.text2sql.evals.hardness import spider_level
from jaxrl_sql.text2sql.evals.row_pairs import pair_rows
from jaxrl_sql.types import Example, Fields, InputError, Record

RUN, EVALUATION, COMPARISON = "run", "evaluation", "comparison"
"""Kinds of folders."""
RECORDS, NUMBERS, COMPARED = "records.jsonl", "metrics.json", "compare.json"
"""Files of an evaluation (two) and of a comparison."""
_CHUNK_SIZE = 512

AnswerGroup = Record
"""A group with the fields above."""


class ResultFolder(NamedTuple):
    """A folder of results and its kind."""

    folder: Path
    kind: str

    @property
    def name(self) -> str:
        """Return the folder's name."""
        return self.folder.resolve().name


class Chunk(NamedTuple):
    """A part of the groups of a folder; `stamp` changes with its content.

    Of a run it is a shard, and `kind` and `number` are those of the shard. Else `kind` is EVALUATION or COMPARISON, and
    the chunk has the groups from `number` x `_CHUNK_SIZE` on.
    """

    path: Path
    kind: str
    number: int
    stamp: tuple[int, ...]


class ChunkContent(NamedTuple):
    """The groups of a chunk, advantages of training batches, and whether a part of the chunk was unreadable.

    Advantages, [groups of the batch][answers], have the key (step of the rollout, index of the batch in the rollout).
    """

    groups: list[AnswerGroup]
    advantages: dict[tuple[int, int], list[list[float]]]
    is_incomplete: bool


def open_result_folder(folder: str | Path) -> ResultFolder:
    """Return a folder with its kind; raises InputError if it has no run, evaluation or comparison."""
    folder = Path(folder)
    if (folder / "metrics.jsonl").is_file():
        return ResultFolder(folder, RUN)
    if (folder / RECORDS).is_file() and (folder / NUMBERS).is_file():
        return ResultFolder(folder, EVALUATION)
    if (folder / COMPARED).is_file():
        return ResultFolder(folder, COMPARISON)
    raise InputError(
        f"{folder}: neither a run (metrics.jsonl), an evaluation ({RECORDS} and {NUMBERS}) nor a comparison "
        f"({COMPARED}): name the folder of one"
    )


def list_chunks(source: ResultFolder) -> list[Chunk]:
    """Return the chunks of a source, oldest first; raises InputError for a run or a comparison without answers."""
    if source.kind == RUN:
        shards = [
            Chunk(shard.path, kind, shard.number, (shard.size,))
            for kind in KINDS
            for shard in list_shards(source.folder / FOLDER, kind)
        ]
        if not shards:
            raise InputError(f"{source.folder}: {_no_answers_reason(source.folder)}")
        return shards
    path = source.folder / (RECORDS if source.kind == EVALUATION else COMPARED)
    status = path.stat()
    stamp = (status.st_size, status.st_mtime_ns)
    count = len(_all_groups(path, source.kind, stamp))
    if not count and source.kind == COMPARISON:
        raise InputError(
            f"{source.folder}: no question has different results, so there is nothing to show: see compare.md"
        )
    return [Chunk(path, source.kind, number, stamp) for number in range(-(-count // _CHUNK_SIZE))]


def read_chunk(chunk: Chunk) -> ChunkContent:
    """Return the content of a chunk; a chunk that the run has deleted meanwhile is empty."""
    if chunk.kind in (EVALUATION, COMPARISON):
        start = chunk.number * _CHUNK_SIZE
        return ChunkContent(
            _all_groups(chunk.path, chunk.kind, chunk.stamp)[start : start + _CHUNK_SIZE], {}, is_incomplete=False
        )
    try:
        records, is_incomplete = read_shard(chunk.path)
    except FileNotFoundError:
        return ChunkContent([], {}, is_incomplete=False)
    groups: list[AnswerGroup] = []
    advantages: dict[tuple[int, int], list[list[float]]] = {}
    for record in records:
        try:
            if "advantages" in record:
                advantages[int(record["rollout_step"]), int(record["part"])] = record["advantages"]
            else:
                groups.append(_run_group(record))
        except (KeyError, TypeError, ValueError, AttributeError):
            is_incomplete = True
    return ChunkContent(groups, advantages, is_incomplete)


def add_advantages(
    groups: Iterable[AnswerGroup], advantages: Mapping[tuple[int, int], Sequence[Sequence[float]]]
) -> None:
    """Add the advantages of the update to the answers of groups; groups that were not chosen have none.

    The chosen groups of a rollout are split into batches of equal size in their order.
    """
    for group in groups:
        first_batch = advantages.get((group["step"], 0))
        if group["chosen"] is None or not first_batch:
            continue
        batch_index, row = divmod(group["chosen"], len(first_batch))
        rows = advantages.get((group["step"], batch_index), ())
        for answer, value in zip(group["answers"], rows[row] if row < len(rows) else (), strict=False):
            answer["advantage"] = value


def read_tokens(source: ResultFolder) -> list[str]:
    """Return the text of each token id; empty if the run has not saved it."""
    try:
        texts = json.loads((source.folder / FOLDER / TOKENS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return texts if isinstance(texts, list) else []


def last_evaluations(source: ResultFolder, count: int = 2) -> dict[str, dict[int, list[AnswerGroup]]]:
    """Return the groups of the last `count` evaluations of a run, by phase and step, newest last.

    Only the last chunks are read.
    """
    evaluations: dict[str, dict[int, list[AnswerGroup]]] = {}
    for chunk in reversed(list_chunks(source)):
        if chunk.kind != "eval":
            continue
        for group in read_chunk(chunk).groups:
            evaluations.setdefault(group["phase"], {}).setdefault(group["step"], []).append(group)
        if all(len(steps) > count for steps in evaluations.values()):
            break
    return {phase: {step: steps[step] for step in sorted(steps)[-count:]} for phase, steps in evaluations.items()}


@lru_cache(maxsize=1 << 16)
def difficulty_of(gold: str, dialect: str = "sqlite") -> str:
    """Return Spider's difficulty of a gold query; "" without one."""
    return spider_level(gold, dialect) if gold else ""


def _is_right(phase: str, answer: Fields) -> bool | None:
    """Return whether an answer of a run is right; None if its reward does not show that.

    An evaluation's reward is its score, 1 if right. The reward of a rollout may have the part `correct`, which is
    positive if the answer is right.
    """
    reward, parts = answer["reward"], answer.get("parts") or {}
    if reward is None:
        return None
    if phase.startswith("eval"):
        return bool(reward >= 1.0)
    return bool(parts["correct"] > 0) if "correct" in parts else None


def _no_answers_reason(folder: Path) -> str:
    if not (folder / FOLDER).is_dir():
        return (
            "the run kept no answers (run.keep_rollouts was 0, or it has not sampled yet): "
            f"its numbers are in {folder / 'report.html'}"
        )
    return f"no answers are left in {folder / FOLDER}"


def _run_group(record: Fields) -> AnswerGroup:
    example = _example(record)
    phase = str(record["phase"])
    answers = [{**_answer(answer), "right": _is_right(phase, answer)} for answer in record["answers"]]
    # Golds that are given as result tables cannot be executed again.
    can_be_judged = bool(example.database) and not record.get("has_tables")
    return {
        "step": record["step"],
        "phase": phase,
        "chosen": record.get("chosen"),
        "uid": str(record["uid"]),
        "db": str(record.get("db_id", "")),
        "question": str(record.get("question", "")),
        "evidence": str(record.get("evidence", "")),
        "gold": example.gold_sql,
        "hardness": record.get("difficulty") or difficulty_of(example.gold_sql, example.gold_dialect),
        "rule": record.get("rule", ""),
        "answers": answers,
        "example": example if can_be_judged else None,
    }


def _answer(answer: Fields) -> Record:
    """Check and return an answer of a run; raises KeyError, TypeError or ValueError for a malformed one."""
    turns = [list(turn) for turn in answer["turns"]]
    if not all(len(turn) >= 2 for turn in turns):
        raise ValueError(turns)
    if not all(isinstance(part, str) for turn in turns for part in turn):
        raise TypeError(turns)
    return {**answer, "turns": turns, "status": str(answer["status"]), "reward": answer["reward"]}


def _example(record: Fields) -> Example:
    """Return the question of a record; a server's URL has no password."""
    return Example(
        uid=str(record["uid"]),
        db_id=str(record.get("db_id", "")),
        db_path=record.get("db_path", ""),
        question=record.get("question", ""),
        gold_sql=record.get("gold", ""),
        dialect=record.get("dialect", "sqlite"),
        other_golds=tuple(record.get("golds", ())),
        options=record.get("options", {}),
        suite=tuple(record.get("suite", ())),
        answerable=record.get("answerable", True),
        engine_url=record.get("db", ""),
    )


def with_row_pairs(results: Fields) -> Record:
    """Add the pairs of rows of a prediction and its gold to their results, if both have rows.

    A pair has the fields of `RowPair`: a row, its counterpart in the gold (None: no such row), and the indices of the
    columns that differ.
    """
    prediction, gold = results.get("prediction"), results.get("gold")
    if not (prediction and gold and "rows" in prediction and "rows" in gold):
        return dict(results)
    pairs, _ = pair_rows(prediction["rows"], gold["rows"], len(prediction["rows"]) + len(gold["rows"]))
    return {**results, "pairs": [list(pair) for pair in pairs]}


@lru_cache(maxsize=2)
def _all_groups(path: Path, kind: str, _stamp: tuple[int, ...]) -> list[AnswerGroup]:
    """Return all groups of a file; `_stamp` is only a key of the cache, so that a changed file is read again."""
    return _evaluation_groups(path) if kind == EVALUATION else _comparison_groups(path)


def _evaluation_groups(path: Path) -> list[AnswerGroup]:
    """Return the groups of an evaluation: a question, and its answer in each run.

    In a record, `own` is the rule of the question's set.
    """
    groups: dict[tuple[str, str], AnswerGroup] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").split("\n"), start=1):
        if not line:
            continue
        try:
            record = json.loads(line)
            group = _new_group(record, f"eval/{record.get('set', '')}".rstrip("/"), record["own"])
            answer = record["answer"]
            answer_fields = {
                "turns": [["assistant", answer]] if isinstance(answer, str) else [list(turn) for turn in answer],
                **_judged_fields(record, record["own"], record.get("results")),
                **({"error": record["error"]} if record.get("error") else {}),
            }
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise InputError(
                f"{path}:{number}: not a valid question record: evaluate again, or delete the line"
            ) from error
        groups.setdefault((group["phase"], group["uid"]), group)["answers"].append(answer_fields)
    return list(groups.values())


def _comparison_groups(path: Path) -> list[AnswerGroup]:
    """Return the questions whose scores differ in two evaluations, with both answers."""
    try:
        comparison = json.loads(path.read_text(encoding="utf-8"))
        groups = []
        for record in comparison["changed"]:
            group = _new_group(record, "comparison", comparison["own"])
            for side in ("first", "second"):
                judged = _judged_fields(record[side], comparison["own"], None)
                group["answers"].append({"turns": [], "from": f"{side}: {Path(comparison[side]).name}", **judged})
            groups.append(group)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{path}: not a comparison of two evaluations: write it again with evaluate --compare"
        ) from error
    return groups


def _new_group(record: Fields, phase: str, rule: str) -> AnswerGroup:
    gold = record["gold_sql"]
    return {
        "step": 0,
        "phase": phase,
        "chosen": None,
        "uid": str(record["id"]),
        "db": record["db_id"],
        "question": record["question"],
        "evidence": record.get("evidence", ""),
        "gold": gold,
        "hardness": difficulty_of(gold),
        "rule": rule,
        "prompt": record.get("prompt", ""),
        "answers": [],
        "example": None,
    }


def _judged_fields(record: Fields, rule: str, results: Fields | None) -> Record:
    verdict, score = {"scores": record["scores"], "reasons": list(record["reasons"])}, record["scores"].get(rule)
    if results:
        verdict["results"] = with_row_pairs(results)
    return {
        "finish_reason": record["finish_reason"],
        "sql": record["sql"],
        "status": record["status"],
        "gold_status": record["gold_status"],
        "reward": score,
        "right": None if score is None else score >= 1.0,
        "verdict": verdict,
    }
