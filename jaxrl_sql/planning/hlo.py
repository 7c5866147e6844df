"""Read from a compiled program the bytes that each collective moves, with loops counted, and its largest array.

The source is the text of the optimised program in HLO, XLA's intermediate language. It consists of computations: the
entry, bodies of loops, branches of conditionals, fusions. A computation counts as often as its callers run it. A loop's
body counts by its trip count, or once if this is unknown. A branch of a conditional counts by the given shares, or
always without shares. The compiler may split a collective into a start and an end, with concurrent operations between
them. Both have the same channel, which counts once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

COLLECTIVES = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
BYTES_PER_VALUE = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(COLLECTIVES)})(-start)?\(")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|body)=%?([\w.\-]+)")
_FUSED = re.compile(r" fusion\(.*calls=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_TRUE_FALSE = re.compile(r"true_computation=%?([\w.\-]+), false_computation=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_TRIP_COUNT = re.compile(r'known_trip_count[^}]*?"?n"?:"?(\d+)')
_CHANNEL = re.compile(r"channel_id=(\d+)")
_BODY = re.compile(r"body=%?([\w.\-]+)")
_LOOP_CONDITION = re.compile(r"ROOT .* compare\((%[\w.\-]+), (%[\w.\-]+)\), direction=LT")
_CONSTANT = re.compile(r"= [su]32\[\]\S* constant\((\d+)\)")
_INDEX = re.compile(r" get-tuple-element\(.*index=(\d+)")


class Collective(NamedTuple):
    """A collective of a program.

    kind: an element of COLLECTIVES; received: bytes that a chip receives in each execution; chips: number of chips that
    take part; times: number of executions in a run, a mean over the branches of conditionals.
    """

    kind: str
    received: float
    chips: int
    times: float

    @property
    def total(self) -> float:
        """Return the bytes that a chip receives in one run of the program."""
        return self.received * self.times


def collectives(text: str, shares: Sequence[float] = ()) -> list[Collective]:
    """Return the collectives of an optimised program (`compiled.as_text()`).

    `shares`: the frequency of each branch of conditionals with that many branches, in order (sum 1).
    """
    computations, entry = _computations(text)
    collectives_by_key: dict[str, Collective] = {}
    for name, times in _walk_executions(computations, entry, shares):
        for number, line in enumerate(computations[name]):
            match = _COLLECTIVE.search(line)
            if match is None:
                continue
            collective = _collective(line, match, name, times)
            channel = _CHANNEL.search(line)
            key = f"channel {channel[1]}" if channel else f"{name} {number}"
            if key not in collectives_by_key or collectives_by_key[key].total < collective.total:
                collectives_by_key[key] = collective
    return [collective for collective in collectives_by_key.values() if collective.chips > 1]


def largest_array(text: str) -> tuple[str, int]:
    """Return the largest array of a program, such as bf16[28,1,73728,3584], and its bytes; arguments do not count.

    Arrays inside fusions are never written to memory and do not count.
    """
    computations, entry = _computations(text)
    fused = {name for lines in computations.values() for line in lines for name in _FUSED.findall(line)}
    parameters = {
        array[0] for line in computations.get(entry, ()) if " parameter(" in line for array in _ARRAY.finditer(line)
    }
    arrays = {
        array[0]: _bytes(array)
        for name, lines in computations.items()
        if name not in fused
        for line in lines
        for array in _ARRAY.finditer(line.partition(" = ")[2].partition("(%")[0])
        if array[0] not in parameters
    }
    return max(arrays.items(), key=lambda pair: pair[1], default=("", 0))


def received_by_kind(collectives: list[Collective]) -> Mapping[str, float]:
    """Sum the bytes that a chip receives by kind of collective."""
    sums: dict[str, float] = {}
    for collective in collectives:
        sums[collective.kind] = sums.get(collective.kind, 0.0) + collective.total
    return sums


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Split a program into computations; return the lines of each by name, and the name of the entry computation."""
    computations: dict[str, list[str]] = {}
    name, entry = "", ""
    for line in text.splitlines():
        if match := _HEAD.match(line):
            name = match[2]
            computations[name] = []
            entry = name if match[1] else entry
        elif name:
            computations[name].append(line)
    return computations, entry


def _walk_executions(
    computations: Mapping[str, list[str]], entry: str, shares: Sequence[float]
) -> Iterator[tuple[str, float]]:
    """Yield (computation, number of executions) of all computations that the entry calls, along each path.

    A computation is yielded again if another path runs it more often.
    """
    stack = [(entry, 1.0)] if entry else []
    seen: dict[str, float] = {}
    while stack:
        name, times = stack.pop()
        if seen.get(name, 0) >= times:
            continue
        seen[name] = times
        yield name, times
        for line in computations.get(name, ()):
            executions = times * (_trip_count(line, computations) if " while(" in line else 1)
            called = [(other, executions) for other in _CALLED.findall(line)]
            branches = _branches_of(line)
            frequencies = shares if len(branches) == len(shares) else [1.0] * len(branches)
            called += [
                (branch, executions * frequency) for branch, frequency in zip(branches, frequencies, strict=True)
            ]
            stack.extend((other, count) for other, count in called if other in computations)


def _branches_of(line: str) -> list[str]:
    """Return the branches of a conditional in the order of its index (false, true); empty for other instructions."""
    if branches := _BRANCHES.search(line):
        return [branch.strip().lstrip("%") for branch in branches[1].split(",")]
    match = _TRUE_FALSE.search(line)
    return [match[2], match[1]] if match else []


def _trip_count(line: str, computations: Mapping[str, list[str]]) -> int:
    """Return the trip count of a loop: from XLA's annotation, or from the limit in its condition; 1 if unknown."""
    if annotation := _TRIP_COUNT.search(line):
        return int(annotation[1])
    condition, body = _CONDITION.search(line), _BODY.search(line)
    lines = computations.get(condition[1], []) if condition else []
    for instruction in lines:
        comparison = _LOOP_CONDITION.search(instruction)
        if comparison is None:
            continue
        counter_line, limit = (
            _find_definition(lines, comparison[1]),
            _CONSTANT.search(_find_definition(lines, comparison[2])),
        )
        if limit is not None:
            match = _INDEX.search(counter_line)
            step = _loop_step(computations.get(body[1], []), int(match[1])) if body and match else 1
            return -(-int(limit[1]) // step)
    return 1


def _loop_step(lines: list[str], index: int) -> int:
    """Return the increment of the loop counter at index `index` of the carried values; 1 if unknown."""
    root = next((line for line in lines if "ROOT" in line), "")
    carried = re.findall(r"%[\w.\-]+", root.partition(" tuple(")[2])
    update = _find_definition(lines, carried[index]) if index < len(carried) else ""
    if " add(" in update:
        for operand in re.findall(r"%[\w.\-]+", update.partition(" add(")[2].partition(")")[0]):
            if value := _CONSTANT.search(_find_definition(lines, operand)):
                return max(int(value[1]), 1)
    return 1


def _find_definition(lines: list[str], name: str) -> str:
    """Return the line that defines a value, or ""."""
    return next((line for line in lines if line.lstrip().removeprefix("ROOT ").startswith(f"{name} = ")), "")


def _collective(line: str, match: re.Match[str], computation: str, times: float) -> Collective:
    """Return the collective of an instruction that `_COLLECTIVE` matches, in a computation that runs `times` times."""
    kind, chips = match[2], _group_size(line)
    size = float(sum(_bytes(array) for array in _ARRAY.finditer(_result(match[1], kind, bool(match[3])))))
    # TPUs' compiler wraps an all-reduce whose result is split in a fused computation of this name.
    if kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
        kind, size = "reduce-scatter", size / chips
    remote_share = (chips - 1) / chips  # the rest of an array is on the chip already
    received = {
        "all-gather": size * remote_share,
        "all-reduce": 2 * size * remote_share,  # a reduce-scatter and an all-gather
        "reduce-scatter": size * (chips - 1),  # its result is the shard of a chip
        "all-to-all": size * remote_share,
        "collective-permute": size,
    }[kind]
    # A permutation has pairs of chips instead of groups.
    return Collective(kind, received, 2 if kind == "collective-permute" else chips, times)


def _result(type_: str, kind: str, is_start: bool) -> str:
    """Return the type of a collective's result.

    The start of a split collective has a tuple of operands, results and more. Only `all-reduce-start` has the type of
    the results itself.
    """
    if not is_start or kind == "all-reduce":
        return type_
    depth, parts = 0, [""]
    for character in type_.strip()[1:-1]:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts[1]


def _bytes(array: re.Match[str]) -> int:
    """Return the bytes of an array that `_ARRAY` matches."""
    return BYTES_PER_VALUE.get(array[1], 0) * math.prod(int(size) for size in array[2].split(",") if size)


def _group_size(line: str) -> int:
    """Return the number of chips per group of a collective: HLO has the axes of a mesh, a shape, or the groups."""
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", mesh[2]))
    if shape := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(shape[2])
    if first_group := re.search(r"replica_groups=\{\{([^}]*)\}", line):
        return len(first_group[1].split(","))
    return 1
