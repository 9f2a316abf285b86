"""What a compiled program's text says of its collectives. The texts are as XLA prints them."""

from __future__ import annotations

import pytest

from jaxcluster.engine.replayable import course, why_not

SUM = """
%add (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %add.1 = f32[] add(%x, %y)
}
"""
# A reduction: what it calls for each element holds no collective.
MEETING = """
%meets (p: (f32[4])) -> (f32[]) {
  %p = (f32[4]{0}) parameter(0)
  %g = f32[4]{0} get-tuple-element(%p), index=0
  %r = f32[] all-reduce(%g), channel_id=1, replica_groups={{0,1}}, to_apply=%add
  ROOT %t = (f32[]) tuple(%r)
}
"""
ALONE = """
%alone (p: (f32[4])) -> (f32[]) {
  %p = (f32[4]{0}) parameter(0)
  %c = f32[] constant(0)
  ROOT %t = (f32[]) tuple(%c)
}

%turns (p: (f32[4])) -> pred[] {
  %p = (f32[4]{0}) parameter(0)
  ROOT %c = pred[] constant(false)
}
"""


def program(*operations: str, more: str = "") -> str:
    body = "\n".join(f"  {operation}" for operation in operations)
    return (
        "HloModule jit_step, is_scheduled=true, entry_computation_layout={(f32[4]{0})->f32[]}\n\n"
        f"FileNames\n1 \"cell.py\"\n\n{SUM}{MEETING}{ALONE}{more}\n"
        "ENTRY %main.1_spmd (param: f32[4], k: s32[]) -> f32[] {\n"
        "  %param = f32[4]{0} parameter(0), sharding={devices=[2]<=[2]}\n"
        "  %tuple.1 = (f32[4]{0}) tuple(%param)\n"
        f"{body}\n}}\n"
    )  # fmt: skip


def holding(name: str, operation: str) -> str:
    """A computation with one operation."""
    head = f"\n%{name} (p: (f32[4])) -> (f32[]) {{\n"
    return f"{head}  %tuple.1 = (f32[4]) parameter(0)\n  {operation}\n}}\n"


CONDITIONAL = (
    "%c.1 = (f32[]) conditional(%flag, %tuple.1, %tuple.1), branch_computations={%alone, %meets},"
    ' metadata={op_name="jit(step)/cond" stack_frame_id=7}'
)
TRUE_FALSE = (
    "%c.1 = (f32[]) conditional(%flag, %tuple.1, %tuple.1), true_computation=%meets,"
    " false_computation=%alone"
)
WHILE = "%w.1 = (f32[]) while(%tuple.1), condition=%turns, body=%meets"
COUNTED = (
    WHILE + ', backend_config={"known_trip_count":{"n":"5"},"known_init_step":{"init":"0",'
    '"step":"1"},"known_induction_variable":{"tuple_index":"0"}}'
)
PLAIN = "%s = f32[] all-reduce(%param), channel_id=1, replica_groups={{0,1}}, to_apply=%add"


@pytest.mark.parametrize(
    "operation",
    [
        PLAIN,
        COUNTED,
        "%f = f32[4]{0} fusion(%param), kind=kLoop, calls=%add",
        "%c = (f32[]) call(%tuple.1), to_apply=%meets",
        "%a = ((f32[4]{0}), (f32[])) async-start(%tuple.1), calls=%meets",
        "%p = f32[4]{0} collective-permute(%param), source_target_pairs={{0,1},{1,0}}",
        "%w = (f32[]) while(%tuple.1), condition=%turns, body=%alone",
        "%c = (f32[]) conditional(%flag, %t, %t), branch_computations={%alone, %alone}",
        '%l = (f32[2,2]{0,1}, s32[]) custom-call(%param), custom_call_target="lapack_spotrf_ffi"',
        "%d = f32[8,128]{1,0:T(8,128)S(1)} copy(%param)",
        "%g = f32[8]{0} all-gather(%param), replica_groups=mesh['x'=2,'y'=1] {'x'}, dimensions={0}",
        "%r = (f32[4]{0}, /*index=1*/f32[4]{0}) all-reduce-start(%param), to_apply=%add",
    ],
)
def test_a_program_whose_inputs_can_not_change_its_collectives_may_be_replayed(
    operation: str,
) -> None:
    assert why_not(program(operation)) == ""


@pytest.mark.parametrize(
    ("operation", "why"),
    [
        (CONDITIONAL, "a branch that depends on its inputs has a collective"),
        (TRUE_FALSE, "a branch that depends on its inputs has a collective"),
        (WHILE, "a loop that depends on its inputs has a collective"),
        ("%s = f32[4]{0} sort(%param), to_apply=%meets", "a collective in a sort"),
        (
            "%r = f32[4]{0} ragged-all-to-all(%param, %k)",
            "the effect of zeros on its ragged-all-to-all",
        ),
        ("%r = ((f32[4]{0}), token[]) infeed(%k)", "the effect of zeros on its infeed"),
        ("%r = (f32[4]{0}, u32[], token[]) recv(%k), channel_id=1", "its recv"),
        ("%r = f32[4]{0} teleport(%param)", "the effect of zeros on its teleport"),
        (
            '%c = f32[4]{0} custom-call(%param), custom_call_target="my_allreduce"',
            "it calls my_allreduce, which is not XLA's own",
        ),
        (
            '%c = () custom-call(%k), custom_call_target="xla_ffi_partitioned_python_cpu_callback"',
            "it calls xla_ffi_partitioned_python_cpu_callback",
        ),
        ("%c = f32[4]{0} custom-call(%param)", "it calls ?"),
    ],
)
def test_what_may_meet_others_more_or_less_often_is_refused(operation: str, why: str) -> None:
    assert why in why_not(program(operation))


@pytest.mark.parametrize("inside", [CONDITIONAL, TRUE_FALSE, WHILE])
@pytest.mark.parametrize(
    "outside",
    [
        "%o = (f32[]) call(%tuple.1), to_apply=%holds",
        "%o = (f32[]) fusion(%tuple.1), kind=kLoop, calls=%holds",
        COUNTED.replace("%meets", "%holds"),
        CONDITIONAL.replace("%meets", "%holds"),
    ],
)
def test_it_is_found_however_deep_it_stands(inside: str, outside: str) -> None:
    holds = holding("holds", inside)
    assert "depends on its inputs" in why_not(program(outside, more=holds))


def test_a_call_to_what_holds_a_collective_counts_as_one() -> None:
    deep = holding("calls", "ROOT %c = (f32[]) call(%tuple.1), to_apply=%meets")
    operation = CONDITIONAL.replace("%meets", "%calls")
    assert "a branch that depends on its inputs" in why_not(program(operation, more=deep))


def test_a_known_number_of_turns_of_the_outer_loop_says_nothing_of_the_inner_one() -> None:
    inner = (
        f"\n%inner (p: (f32[4])) -> (f32[]) {{\n  %tuple.1 = (f32[4]) parameter(0)\n  {WHILE}\n}}\n"
    )
    assert "a loop that depends on its inputs" in why_not(
        program(COUNTED.replace("%meets", "%inner"), more=inner)
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "HloModule jit_step",
        program(PLAIN).replace("ENTRY ", ""),
        program(PLAIN).rstrip("}\n"),
        program("what is this"),
        program(PLAIN) + SUM,  # one name for two computations
    ],
)
def test_a_text_that_is_not_understood_is_refused(text: str) -> None:
    assert "its compiled text " in why_not(text)
    assert course(text) == ""


MAX = "\n%max (x: f32[], y: f32[]) -> f32[] {\n  %x = f32[] parameter(0)\n}\n"


def test_a_sum_and_a_maximum_of_one_shape_have_one_course() -> None:
    other = program(PLAIN.replace("%add", "%max").replace("channel_id=1", "channel_id=7"), more=MAX)
    assert course(program(PLAIN)) == course(other) != ""


def test_what_a_collective_of_several_arrays_is_given_is_not_in_its_course() -> None:
    both = "%t = (f32[2], f32[2]) all-to-all(%param, %one.1), replica_groups={{0,1}}"
    assert course(program(both)) == course(program(both.replace("%one.1", "%fusion.7"))) != ""
    assert course(program(both)) != course(program(both.replace("{{0,1}}", "{{1,0}}")))


@pytest.mark.parametrize(
    "operations",
    [
        (),
        (PLAIN, PLAIN),
        (PLAIN.replace("f32[]", "f32[2]"),),
        (PLAIN.replace("{{0,1}}", "{{1,0}}"),),
        (PLAIN.replace("all-reduce", "all-gather"),),
        (COUNTED,),
        (COUNTED.replace('"5"', '"6"'),),
        ("%p = f32[] collective-permute(%param), source_target_pairs={{0,1}}",),
        ("%p = f32[] collective-permute(%param), source_target_pairs={{1,0}}",),
        ("%g = f32[] all-reduce(%param), replica_groups=mesh['x'=2], device_ids=([2]) {'x'}",),
        ("%g = f32[] all-reduce(%param), replica_groups=mesh['x'=2] {'x'}",),
    ],
)  # fmt: skip
def test_other_collectives_are_another_course(operations: tuple[str, ...]) -> None:
    assert course(program(*operations)) != course(program(PLAIN))


def test_all_other_courses_differ_from_each_other() -> None:
    cases = test_other_collectives_are_another_course.pytestmark[0].args[1]
    assert len({course(program(*operations)) for operations in cases}) == len(cases)


def test_what_can_not_be_foreseen_has_no_course() -> None:
    assert course(program(CONDITIONAL)) == ""
