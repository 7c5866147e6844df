"""What a plan says: one table of memory, one of time, and in a line what it comes to; or the same as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl_sql.parallel.rules import batch_ways
from jaxrl_sql.planning.plan import Plan, best_of
from jaxrl_sql.planning.units import in_bytes, in_seconds


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows in columns, the first to the left and the others to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_text(plan: Plan) -> str:
    """Return everything that a plan says of one mesh."""
    pieces = [_title(plan), _memory(plan), _time(plan), *_links(plan), _verdict(plan)]
    return "\n\n".join(piece for piece in pieces if piece)


def _title(plan: Plan) -> str:
    work, sizes = plan.work, " x ".join(f"{name}={size}" for name, size in plan.sizes.items())
    tokens = 0 if work.update is None else work.update.micro_batches.tokens
    lines = [f"{plan.topology.name}: {plan.topology.chips} chips as {sizes}; {plan.params:,} parameters"]
    if work.update is not None and work.rollout is not None:
        one = work.update
        lines.append(
            f"a step: {work.questions} questions x {work.rollout.group} answers, prompts of {one.prompt} and "
            f"answers of {one.answer} tokens; {work.updates} update(s) of {one.prompts} prompts in {one.parts} part(s)"
        )
        if tokens:
            lines.append(f"a shard runs {tokens:,} tokens at a time at most, an update {one.passes:,.1f} times")
        if one.part_rows:
            lines.append(
                f"answers are packed: {one.packed_rows} rows of {one.answer} tokens for {one.group} of them, "
                f"of which a part runs {one.rows:.1f} in the mean"
            )
        if plan.layout != "training":
            lines.append(f"answers are sampled by copies of the model, replicas x tensor = {plan.layout}")
        ways, part = batch_ways(plan.sizes), one.prompts // one.parts
        if part % ways:
            lines.append(f"a part's {part} prompts are not divided by data x fsdp = {ways}: chips wait in each part")
    return "\n".join(lines)


def _memory(plan: Plan) -> str:
    sizes = plan.memory._asdict()
    rows = [["memory a chip", "by formula"]]
    rows += [[name, in_bytes(size)] for name, size in sizes.items() if size]
    rows.append(["the most at a time", in_bytes(plan.memory.total)])
    for name, one in plan.programs.items():
        rows.append([f"{name}, compiled: arguments", in_bytes(one.arguments)])
        rows.append([f"{name}, compiled: temporaries", in_bytes(one.temporaries)])
        if one.largest[1]:
            rows.append([f"  the largest of them, {one.largest[0]}", in_bytes(one.largest[1])])
    if plan.programs:
        rows.append(["the most at a time, compiled", in_bytes(plan.total)])
    rows.append(["a chip has", in_bytes(plan.topology.chip.memory) if plan.topology.chip.memory else "unknown"])
    return table(rows)


def _time(plan: Plan) -> str:
    if not plan.phases:
        return ""
    chip, whole = plan.topology.chip, plan.seconds
    rows = [["at best", "runs", "a run", "in a step", "share", "TFLOP a chip", "bound by"]]
    for phase in plan.phases:
        seconds = phase.seconds(chip)
        rows.append([
            phase.name, f"{phase.runs:,.1f}", in_seconds(phase.cost.seconds(chip)), in_seconds(seconds),
            f"{seconds / whole:.0%}", f"{phase.runs * phase.cost.flops / 1e12:,.1f}", phase.cost.bound_by(chip),
        ])  # fmt: skip
    flops = sum(phase.runs * phase.cost.flops for phase in plan.phases)
    rows.append(["step", "", "", in_seconds(whole), "", f"{flops / 1e12:,.1f}", f"{plan.slowest.name}"])
    return f"{table(rows)}\n{plan.tokens / whole:,.0f} tokens of answers a second at most ({plan.words})"


def _links(plan: Plan) -> Iterable[str]:
    if not plan.programs or not any(one.received for one in plan.programs.values()):
        return
    rows = [["a chip receives, one run", "bytes", "compiled in"]]
    for name, one in plan.programs.items():
        kinds = sorted(one.received.items(), key=lambda pair: -pair[1])
        rows += [[f"{name}: {kind}", in_bytes(size), ""] for kind, size in kinds]
        rows.append([f"{name}: all", in_bytes(sum(one.received.values())), f"{one.seconds:.0f} s"])
    yield table(rows)


def _verdict(plan: Plan) -> str:
    have = plan.topology.chip.memory
    if not have or plan.total <= have:
        return f"it fits: {in_bytes(have - plan.total)} are left a chip" if have else "what a chip has is not known"
    lines = [f"it does not fit: {in_bytes(plan.total - have)} too much a chip"]
    fitting = [one for one in plan.suggestions if one.total <= have]
    lines += [f"  {one.words}: {in_bytes(one.total)} by formula, fits" for one in fitting[:6]]
    if not fitting:
        lines += [f"  even {one.words} leaves {in_bytes(one.total)} by formula: more chips" for one in plan.suggestions]
    return "\n".join(lines)


def as_json(plan: Plan) -> Mapping[str, Any]:
    """Return what a plan says as numbers: bytes a chip, seconds a step."""
    chip = plan.topology.chip
    return {
        "topology": plan.topology.name,
        "chips": plan.topology.chips,
        "mesh": dict(plan.sizes),
        "rollout": plan.layout,
        "parameters": plan.params,
        "memory": {**plan.memory._asdict(), "total": plan.memory.total},
        "has": chip.memory,
        "total": plan.total,
        "fits": plan.fits,
        "programs": {name: one._asdict() for name, one in plan.programs.items()},
        "phases": {
            phase.name: {
                "runs": phase.runs,
                "flops": phase.cost.flops,
                "seconds": phase.seconds(chip),
                "bounds": dict(phase.cost.bounds(chip)),
            }
            for phase in plan.phases
        },
        "seconds": plan.seconds,
        "tokens_per_second": plan.tokens / plan.seconds if plan.seconds else 0.0,
        "slowest": plan.slowest.name if plan.phases else "",
        "suggestions": [one._asdict() for one in plan.suggestions],
        "figures": chip.source,
    }


def compared(plans: Sequence[Plan]) -> str:
    """Return a line for each of several plans, with the best one marked."""
    best = best_of(plans)
    if best is None:
        return "none of these meshes fits"
    lines = ["of these meshes:"]
    for one in plans:
        name = "x".join(map(str, one.sizes.values()))
        fits = "fits" if one.fits else "does not fit"
        mark = ", the best" if one is best else ""
        lines.append(f"  {name}: {in_bytes(one.total)} a chip, {fits}; a step {in_seconds(one.seconds)} at best{mark}")
    return "\n".join(lines)


def all_as_json(plans: Sequence[Plan]) -> Mapping[str, Any]:
    """Return several plans as numbers, and the sizes of the best one."""
    best = best_of(plans)
    return {"plans": [as_json(one) for one in plans], "best": dict(best.sizes) if best else None}
