"""What a compiled program says of itself: the bytes that each of its collectives moves, loops counted.

Read from the text of the optimised program. A computation is counted as often as what calls it: the body of a loop by
its trip count, where that is known, and a way of a conditional as often as the program's caller says, else as if each
were gone. Of a collective that a compiler has cut into several (its start, what runs beside
it, its end) all pieces carry one channel, which counts once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
WIDTHS = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s16": 2, "u16": 2, "f32": 4, "s32": 4, "u32": 4}

_HEAD = re.compile(r"^(ENTRY )?%?([\w.\-]+) \(.*\) -> .* \{$")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(KINDS)})(-start)?\(")
_ARRAY = re.compile(r"\b([a-z]\w*)\[([\d,]*)\]")
_CALLED = re.compile(r"(?:calls|body)=%?([\w.\-]+)")
_FUSED = re.compile(r" fusion\(.*calls=%?([\w.\-]+)")
_BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
_EITHER = re.compile(r"true_computation=%?([\w.\-]+), false_computation=%?([\w.\-]+)")
_CONDITION = re.compile(r"condition=%?([\w.\-]+)")
_KNOWN_TRIPS = re.compile(r'known_trip_count[^}]*?"?n"?:"?(\d+)')
_CHANNEL = re.compile(r"channel_id=(\d+)")
_BODY = re.compile(r"body=%?([\w.\-]+)")
_COMPARED = re.compile(r"ROOT .* compare\((%[\w.\-]+), (%[\w.\-]+)\), direction=LT")
_CONSTANT = re.compile(r"= [su]32\[\]\S* constant\((\d+)\)")
_INDEX = re.compile(r" get-tuple-element\(.*index=(\d+)")


class Collective(NamedTuple):
    """One collective of a program: bytes that a chip receives each time, among how many chips, and how often.

    How often is a mean, where a program goes one way at a time and the other at another.
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

    `shares`: how often it goes each way of a choice among so many, in their order (1 in all).
    """
    computations, entry = _computations(text)
    found: dict[str, Collective] = {}
    for name, times in _reached(computations, entry, shares):
        for number, line in enumerate(computations[name]):
            match = _COLLECTIVE.search(line)
            if match is None:
                continue
            one = _collective(line, match, name, times)
            channel = _CHANNEL.search(line)
            key = f"channel {channel[1]}" if channel else f"{name} {number}"
            if key not in found or found[key].total < one.total:
                found[key] = one
    return [one for one in found.values() if one.chips > 1]


def largest_array(text: str) -> tuple[str, int]:
    """Return the largest array that a program makes beside its arguments, such as bf16[28,1,73728,3584], and its bytes.

    What is inside of a fusion is never written and does not count.
    """
    computations, entry = _computations(text)
    fused = {name for lines in computations.values() for line in lines for name in _FUSED.findall(line)}
    given = {
        array[0] for line in computations.get(entry, ()) if " parameter(" in line for array in _ARRAY.finditer(line)
    }
    found = {
        array[0]: _bytes(array)
        for name, lines in computations.items()
        if name not in fused
        for line in lines
        for array in _ARRAY.finditer(line.partition(" = ")[2].partition("(%")[0])
        if array[0] not in given
    }
    return max(found.items(), key=lambda pair: pair[1], default=("", 0))


def received_by_kind(found: list[Collective]) -> Mapping[str, float]:
    """Add up the bytes that a chip receives, by kind of collective."""
    sums: dict[str, float] = {}
    for one in found:
        sums[one.kind] = sums.get(one.kind, 0.0) + one.total
    return sums


def _computations(text: str) -> tuple[dict[str, list[str]], str]:
    """Cut a program into its computations -> lines by name, and the name of the first to run."""
    found: dict[str, list[str]] = {}
    name, entry = "", ""
    for line in text.splitlines():
        if match := _HEAD.match(line):
            name = match[2]
            found[name] = []
            entry = name if match[1] else entry
        elif name:
            found[name].append(line)
    return found, entry


def _reached(computations: Mapping[str, list[str]], entry: str, shares: Sequence[float]) -> Iterator[tuple[str, float]]:
    """Yield (computation, how often it runs) of all that the entry calls, along each way."""
    todo = [(entry, 1.0)] if entry else []
    seen: dict[str, float] = {}
    while todo:
        name, times = todo.pop()
        if seen.get(name, 0) >= times:
            continue
        seen[name] = times
        yield name, times
        for line in computations.get(name, ()):
            often = times * (_trips(line, computations) if " while(" in line else 1)
            called = [(other, often) for other in _CALLED.findall(line)]
            ways = _ways(line)
            parts = shares if len(ways) == len(shares) else [1.0] * len(ways)
            called += [(way, often * part) for way, part in zip(ways, parts, strict=True)]
            todo.extend((other, count) for other, count in called if other in computations)


def _ways(line: str) -> list[str]:
    """Return the computations that a conditional chooses among, in the order of its index."""
    if branches := _BRANCHES.search(line):
        return [branch.strip().lstrip("%") for branch in branches[1].split(",")]
    either = _EITHER.search(line)
    return [either[2], either[1]] if either else []


def _trips(line: str, computations: Mapping[str, list[str]]) -> int:
    """Return how often a loop runs: as XLA says, or up to the bound that its condition compares with; else once."""
    if known := _KNOWN_TRIPS.search(line):
        return int(known[1])
    condition, body = _CONDITION.search(line), _BODY.search(line)
    lines = computations.get(condition[1], []) if condition else []
    for one in lines:
        bound = _COMPARED.search(one)
        if bound is None:
            continue
        counter, until = _defined(lines, bound[1]), _CONSTANT.search(_defined(lines, bound[2]))
        if until is not None:
            place = _INDEX.search(counter)
            step = _step(computations.get(body[1], []), int(place[1])) if body and place else 1
            return -(-int(until[1]) // step)
    return 1


def _step(lines: list[str], place: int) -> int:
    """Return by how much a loop's body moves the counter that stands at `place` of what it carries; 1 if unknown."""
    root = next((line for line in lines if "ROOT" in line), "")
    carried = re.findall(r"%[\w.\-]+", root.partition(" tuple(")[2])
    added = _defined(lines, carried[place]) if place < len(carried) else ""
    if " add(" in added:
        for operand in re.findall(r"%[\w.\-]+", added.partition(" add(")[2].partition(")")[0]):
            if value := _CONSTANT.search(_defined(lines, operand)):
                return max(int(value[1]), 1)
    return 1


def _defined(lines: list[str], name: str) -> str:
    """Return the line that defines a value; nothing where it is not among them."""
    return next((line for line in lines if line.lstrip().removeprefix("ROOT ").startswith(f"{name} = ")), "")


def _collective(line: str, match: re.Match[str], computation: str, times: float) -> Collective:
    kind, chips = match[2], _group_size(line)
    size = float(sum(_bytes(array) for array in _ARRAY.finditer(_result(match[1], kind, bool(match[3])))))
    if kind == "all-reduce" and computation.startswith("all-reduce-scatter"):
        kind, size = "reduce-scatter", size / chips
    share = (chips - 1) / chips
    received = {
        "all-gather": size * share,
        "all-reduce": 2 * size * share,
        "reduce-scatter": size * (chips - 1),  # its type is the piece that is left
        "all-to-all": size * share,
        "collective-permute": size,
    }[kind]
    return Collective(kind, received, 2 if kind == "collective-permute" else chips, times)


def _result(type_: str, kind: str, is_start: bool) -> str:
    """Return the type of what a collective leaves; a start's type is a tuple of operands, results and more.

    Of an `all-reduce-start` alone it is the results' own.
    """
    if not is_start or kind == "all-reduce":
        return type_
    depth, parts = 0, [""]
    for letter in type_.strip()[1:-1]:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts[1]


def _bytes(array: re.Match[str]) -> int:
    return WIDTHS.get(array[1], 0) * math.prod(int(size) for size in array[2].split(",") if size)


def _group_size(line: str) -> int:
    """Return among how many chips a collective is: groups are listed, counted, or axes of a mesh."""
    if mesh := re.search(r"replica_groups=mesh\[([^\]]*)\] \{([^}]*)\}", line):
        sizes = dict(re.findall(r"'(\w+)'=(\d+)", mesh[1]))
        return math.prod(int(sizes[name]) for name in re.findall(r"'(\w+)'", mesh[2]))
    if counted := re.search(r"replica_groups=\[(\d+),(\d+)\]", line):
        return int(counted[2])
    if listed := re.search(r"replica_groups=\{\{([^}]*)\}", line):
        return len(listed[1].split(","))
    return 1
