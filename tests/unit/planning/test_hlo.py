"""Collectives of a program's text: bytes by hand, loop counts, and fragments of one collective counted once."""

from __future__ import annotations

import pytest

from jaxrl_sql.planning.hlo import collectives, largest_array, received_by_kind

# A loop of 28 steps: its body gathers in fragments with a common channel; a reduction follows after the loop.
PROGRAM = """\
HloModule jit_step, is_scheduled=true

%start (p: bf16[48,64]) -> bf16[192,64] {
  %p = bf16[48,64]{1,0} parameter(0)
  %all-gather.1 = bf16[192,64]{1,0:T(8,128)S(1)} all-gather(%p), channel_id=7, replica_groups=[2,4]<=[8]
  ROOT %done = bf16[192,64]{1,0} copy(%all-gather.1)
}

%end (p: bf16[48,64]) -> bf16[192,64] {
  %p.1 = bf16[48,64]{1,0} parameter(0)
  ROOT %all-gather.2 = bf16[192,64]{1,0} all-gather(%p.1), channel_id=7, replica_groups=[2,4]<=[8], dimensions={0}
}

%condition (t: (s32[], bf16[48,64])) -> pred[] {
  %bound = s32[]{:T(128)} constant(28)
  %t = (s32[], bf16[48,64]{1,0}) parameter(0)
  %i = s32[]{:T(128)} get-tuple-element(%t), index=0
  ROOT %lt = pred[]{:T(512)} compare(%i, %bound), direction=LT
}

%body (t: (s32[], bf16[48,64])) -> (s32[], bf16[48,64]) {
  %t.1 = (s32[], bf16[48,64]{1,0}) parameter(0)
  %a = bf16[192,64]{1,0} fusion(%x), kind=kCustom, calls=%start
  %b = bf16[192,64]{1,0} fusion(%x), kind=kCustom, calls=%end
  %i.1 = s32[]{:T(128)} get-tuple-element(%t.1), index=0
  %one = s32[]{:T(128)} constant(1)
  %next = s32[]{:T(128)} add(%i.1, %one), metadata={op_name="while"}
  ROOT %r = (s32[], bf16[48,64]{1,0}) tuple(%next, %x)
}

%all-reduce-scatter.3 (p: f32[32,16]) -> f32[8,16] {
  %all-reduce.3 = f32[32,16]{1,0} all-reduce(%p), channel_id=9, replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=%add
  ROOT %s = f32[8,16]{1,0} dynamic-slice(%all-reduce.3, %o, %z)
}

ENTRY %main (p0: bf16[48,64]) -> f32[8,16] {
  %w = (s32[], bf16[48,64]{1,0}) while(%t0), condition=%condition, body=%body
  %s = (f32[10]{0}, f32[6]{0}) all-reduce(%u, %v), channel_id=3, replica_groups=mesh['x'=2,'y'=4] {'x'}, to_apply=%add
  %one = f32[99]{0} all-reduce(%u), channel_id=4, replica_groups={{0},{1}}, to_apply=%add
  ROOT %f = f32[8,16]{1,0} fusion(%y), kind=kCustom, calls=%all-reduce-scatter.3
}
"""


FOUR, PAIRS = "replica_groups=[1,4]<=[4]", "source_target_pairs={{0,1},{1,0}}"


def test_bytes_of_collectives_by_hand() -> None:
    assert received_by_kind(collectives(PROGRAM)) == {
        "all-gather": 28 * 192 * 64 * 2 * 3 / 4,
        "all-reduce": 2 * 16 * 4 / 2,
        "reduce-scatter": 32 * 16 * 4 * 3 / 4,
    }


def test_loop_count_is_read_from_either_form() -> None:
    known = PROGRAM.replace("direction=LT", "direction=GT").replace(
        "body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"5"}}'
    )
    assert [collective.times for collective in collectives(known) if collective.kind == "all-gather"] == [5]
    doubled = PROGRAM.replace("%one = s32[]{:T(128)} constant(1)", "%one = s32[]{:T(128)} constant(2)")
    assert [item.times for item in collectives(doubled) if item.kind == "all-gather"] == [14]
    unknown = PROGRAM.replace("direction=LT", "direction=GT")
    assert [entry.times for entry in collectives(unknown) if entry.kind == "all-gather"] == [1]


CHOICE = """\
%few (p: f32[4,8]) -> f32[4,8] {
  ROOT %a = f32[4,8]{1,0} all-to-all(%p), channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}
}

%many (p: f32[4,8]) -> f32[4,8] {
  ROOT %b = f32[40,8]{1,0} all-to-all(%p), channel_id=2, replica_groups=[1,4]<=[4], dimensions={0}
}

ENTRY %main (p: f32[4,8]) -> f32[4,8] {
  ROOT %c = f32[4,8]{1,0} conditional(%i, %p, %p), BRANCHES
}
"""


@pytest.mark.parametrize(
    "branches", ["branch_computations={%few, %many}", "true_computation=%many, false_computation=%few"]
)
def test_conditional_counts_branches_by_frequency(branches: str) -> None:
    text, few = CHOICE.replace("BRANCHES", branches), 4 * 8 * 4 * 3 / 4
    assert received_by_kind(collectives(text)) == {"all-to-all": 11 * few}
    assert received_by_kind(collectives(text, (0.75, 0.25))) == {"all-to-all": (0.75 + 2.5) * few}
    assert received_by_kind(collectives(text, (0.25, 0.25, 0.5))) == {"all-to-all": 11 * few}
    assert received_by_kind(collectives(text, (1.0, 0.0))) == {"all-to-all": few}


@pytest.mark.parametrize(
    ("line", "received"),
    [
        ("%x = (f32[4,8]{1,0}, f32[16,8]{1,0}) all-gather-start(%p), replica_groups=[1,4]<=[4], dimensions={0}", 384.0),
        ("%x = f32[4,8]{1,0} reduce-scatter(%p), replica_groups=[1,4]<=[4], dimensions={0}", 384.0),
        ("%x = f32[16,8]{1,0} all-to-all(%p), replica_groups=[1,4]<=[4], dimensions={0}", 384.0),
        ("%x = f32[16,8]{1,0} collective-permute(%p), source_target_pairs={{0,1},{1,0}}", 512.0),
        ("%x = f32[16,8]{1,0} all-reduce-start(%p), replica_groups=[1,4]<=[4], to_apply=%add", 768.0),
        ("%x = (f32[8]{0}, f32[120]{0}) all-reduce-start(%p, %q), replica_groups=[1,4]<=[4], to_apply=%add", 768.0),
        (f"%x = ((f32[4,6]{{1,0}}, /*index=1*/f32[4,2]), (f32[16,6], f32[16,2])) all-gather-start(%p), {FOUR}", 384.0),
        (
            f"%x = ((f32[16,8]{{1,0:T(8,128)S(1)}}), f32[4,8]{{1,0:T(8,128)S(1)}}) reduce-scatter-start(%p), {FOUR}",
            384.0,
        ),
        (f"%x = ((f32[16,6], f32[16,2]), (f32[4,6], f32[4,2]), u32[]) reduce-scatter-start(%p, %q), {FOUR}", 384.0),
        (f"%x = ((f32[16,8]{{0,1}}), f32[16,8]{{0,1}}) all-to-all-start(%p), {FOUR}", 384.0),
        (f"%x = (f32[16,8]{{1,0}}, f32[16,8]{{1,0}}, u32[], u32[]) collective-permute-start(%p), {PAIRS}", 512.0),
    ],
)
def test_collectives_count_bytes_received_per_chip(line: str, received: float) -> None:
    (item,) = collectives(f"ENTRY %main (p: f32[4,8]) -> f32[4,8] {{\n  {line}\n}}\n")
    assert item.received == received


def test_largest_array_excludes_arguments_and_fusions() -> None:
    assert largest_array(PROGRAM) == ("bf16[192,64]", 192 * 64 * 2)
    inside = PROGRAM.replace("ROOT %s = f32[8,16]{1,0} dynamic-slice", "ROOT %s = f32[800,160]{1,0} dynamic-slice")
    assert largest_array(inside) == ("bf16[192,64]", 192 * 64 * 2)
