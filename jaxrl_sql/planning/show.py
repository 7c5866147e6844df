"""Format plans as text (tables of memory, time and links, and whether the run fits) or as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jaxrl_sql.parallel.rules import num_batch_shards
from jaxrl_sql.planning.plan import Plan, best_of
from jaxrl_sql.planning.units import format_bytes, format_seconds
from jaxrl_sql.runtime.progress import quantity


def table(rows: Sequence[Sequence[str]]) -> str:
    """Lay out rows of cells in columns; the first column is aligned left and the others right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for first, *others in rows:
        cells = [first.ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def as_text(plan: Plan) -> str:
    """Return the plan of one mesh as text."""
    sections = [_title(plan), _memory(plan), _time(plan), *_links(plan), _verdict(plan)]
    return "\n\n".join(section for section in sections if section)


def _title(plan: Plan) -> str:
    work, sizes = plan.work, " x ".join(f"{name}={size}" for name, size in plan.sizes.items())
    tokens = 0 if work.update is None else work.update.micro_batches.tokens
    lines = [f"{plan.topology.name}: {quantity(plan.topology.chips, 'chips')} as {sizes}; {plan.params:,} parameters"]
    if work.update is not None and work.rollout is not None:
        update = work.update
        lines.append(
            f"step: {work.questions} questions x {work.rollout.group} answers, prompts of {update.prompt} and "
            f"answers of {update.answer} tokens; {quantity(work.updates, 'updates')} of "
            f"{quantity(update.prompts, 'prompts')} in {quantity(update.parts, 'parts')}"
        )
        if tokens:
            lines.append(f"a shard runs at most {tokens:,} tokens at a time, {update.passes:,.1f} times per update")
        if update.part_rows:
            lines.append(
                f"answers are packed: {update.group} answers in {update.packed_rows} rows of {update.answer} tokens; a "
                f"part runs {update.rows:.1f} rows on average"
            )
        if plan.layout != "training":
            lines.append(f"answers are sampled by replicas of the model, replicas x tensor = {plan.layout}")
        num_shards, micro_batch = num_batch_shards(plan.sizes), update.prompts // update.parts
        if micro_batch % num_shards:
            lines.append(
                f"the {micro_batch} prompts of a part are not divisible by data x fsdp = {num_shards}: "
                "some chips are idle"
            )
    return "\n".join(lines)


def _memory(plan: Plan) -> str:
    sizes = plan.memory._asdict()
    rows = [["memory per chip", "by formula"]]
    rows += [[name.replace("_", " "), format_bytes(size)] for name, size in sizes.items() if size]
    rows.append(["peak", format_bytes(plan.memory.total)])
    for name, program in plan.programs.items():
        rows.append([f"{name}, compiled: arguments", format_bytes(program.arguments)])
        rows.append([f"{name}, compiled: temporaries", format_bytes(program.temporaries)])
        if program.largest[1]:
            rows.append([f"  largest, {program.largest[0]}", format_bytes(program.largest[1])])
    if plan.programs:
        rows.append(["peak, compiled", format_bytes(plan.total)])
    rows.append(["available", format_bytes(plan.topology.chip.memory) if plan.topology.chip.memory else "unknown"])
    return table(rows)


def _time(plan: Plan) -> str:
    if not plan.phases:
        return ""
    chip, step_seconds = plan.topology.chip, plan.seconds
    rows = [["least time", "runs", "per run", "per step", "share", "TFLOP per chip", "bound by"]]
    for phase in plan.phases:
        seconds = phase.seconds(chip)
        rows.append([
            phase.name, f"{phase.runs:,.1f}", format_seconds(phase.cost.seconds(chip)), format_seconds(seconds),
            f"{seconds / step_seconds:.0%}", f"{phase.runs * phase.cost.flops / 1e12:,.1f}", phase.cost.bound_by(chip),
        ])  # fmt: skip
    flops = sum(phase.runs * phase.cost.flops for phase in plan.phases)
    rows.append(["step", "", "", format_seconds(step_seconds), "", f"{flops / 1e12:,.1f}", f"{plan.slowest.name}"])
    return f"{table(rows)}\n{plan.tokens / step_seconds:,.0f} answer tokens per second at most ({plan.assumed_lengths})"


def _links(plan: Plan) -> Iterable[str]:
    if not plan.programs or not any(program.received for program in plan.programs.values()):
        return
    rows = [["received per chip and run", "bytes", "compiled in"]]
    for name, program in plan.programs.items():
        kinds = sorted(program.received.items(), key=lambda pair: -pair[1])
        rows += [[f"{name}: {kind}", format_bytes(size), ""] for kind, size in kinds]
        rows.append([f"{name}: all", format_bytes(sum(program.received.values())), f"{program.seconds:.0f} s"])
    yield table(rows)


def _verdict(plan: Plan) -> str:
    device_bytes = plan.topology.chip.memory
    if not device_bytes:
        return "the memory of a chip is unknown"
    if plan.total <= device_bytes:
        lines = [f"it fits: {format_bytes(device_bytes - plan.total)} free per chip"]
        if plan.larger is not None:
            lines.append(f"  larger batches, {format_bytes(plan.larger.total)} by formula: {plan.larger.change}")
        return "\n".join(lines)
    lines = [f"it does not fit: {format_bytes(plan.total - device_bytes)} too much per chip"]
    fitting = [suggestion for suggestion in plan.suggestions if suggestion.total <= device_bytes]
    lines += [f"  {suggestion.change}: {format_bytes(suggestion.total)} by formula, fits" for suggestion in fitting[:6]]
    if not fitting:
        lines += [
            f"  even {suggestion.change} needs {format_bytes(suggestion.total)} by formula: use more chips"
            for suggestion in plan.suggestions
        ]
    return "\n".join(lines)


def as_json(plan: Plan) -> Mapping[str, Any]:
    """Return a plan for JSON; memory is in bytes per chip, and times are seconds per step.

    Keys that are not fields of `Plan`: "has" (memory of a chip), "total" (peak memory), "kept_logits" (bytes of logits
    that an update may store), "figures" (source of the chip's figures).
    """
    chip = plan.topology.chip
    return {
        "topology": plan.topology.name,
        "chips": plan.topology.chips,
        "mesh": dict(plan.sizes),
        "rollout": plan.layout,
        "parameters": plan.params,
        "memory": {**plan.memory._asdict(), "total": plan.memory.total},
        "kept_logits": max((update.kept_logits for update in plan.work.trained_updates), default=0),
        "has": chip.memory,
        "total": plan.total,
        "fits": plan.fits,
        "programs": {name: program._asdict() for name, program in plan.programs.items()},
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
        "suggestions": [suggestion._asdict() for suggestion in plan.suggestions],
        "larger": plan.larger._asdict() if plan.larger else None,
        "figures": chip.source,
    }


def comparison(plans: Sequence[Plan]) -> str:
    """Return a line per plan, with the best one marked."""
    best = best_of(plans)
    if best is None:
        return "none of these meshes fits"
    lines = ["of these meshes:"]
    for plan in plans:
        name = "x".join(map(str, plan.sizes.values()))
        fits = "fits" if plan.fits else "does not fit"
        mark = ", the best" if plan is best else ""
        lines.append(
            f"  {name}: {format_bytes(plan.total)} per chip, {fits}; "
            f"at least {format_seconds(plan.seconds)} per step{mark}"
        )
    return "\n".join(lines)


def all_as_json(plans: Sequence[Plan]) -> Mapping[str, Any]:
    """Return several plans for JSON, and the mesh of the best one."""
    best = best_of(plans)
    return {"plans": [as_json(plan) for plan in plans], "best": dict(best.sizes) if best else None}
