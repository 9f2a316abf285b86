"""A compiled program's text: its operations, how often they run, who takes part."""

from __future__ import annotations

import pytest

from jaxcluster.wire import hlo

HEAD = "HloModule jit_step, is_scheduled=true, num_partitions=8\n"
TABLES = """
FileNames
1 "2-c637ea876fa9.py"
2 "/home/me/layers.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=2 end_column=2}
2 {file_name_id=2 function_name_id=1 line=31 end_line=31 column=2 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

"""
LOOP = """
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[4,64])) -> (s32[], f32[4,64]) {
  %p = (s32[], f32[4,64]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %x = f32[4,64]{1,0:T(8,128)(2,1)S(1)} get-tuple-element(%p), index=1
  %s = f32[4,64]{1,0} all-reduce(%x), channel_id=1, replica_groups=[4,2]<=[8], to_apply=%add, \
metadata={op_name="jit(step)/dot" stack_frame_id=2}
  ROOT %t = (s32[], /*index=1*/f32[4,64]{1,0}) tuple(%i, %s)
}

%condition (q: (s32[], f32[4,64])) -> pred[] {
  %q = (s32[], f32[4,64]{1,0}) parameter(0)
  ROOT %more = pred[] constant(true)
}

ENTRY %main (x: f32[4,64]) -> f32[4,64] {
  %x.1 = f32[4,64]{1,0} parameter(0)
  %zero = s32[] constant(0)
  %both = (s32[], f32[4,64]{1,0}) tuple(%zero, %x.1)
  %loop = (s32[], f32[4,64]{1,0}) while(%both), condition=%condition, body=%body TURNS
  ROOT %out = f32[4,64]{1,0} get-tuple-element(%loop), index=1
}
"""
KNOWN = ', backend_config={"known_trip_count":{"n":"12"}}'


def one_line(line: str, *before: str) -> tuple[hlo.Program, hlo.Run]:
    """A program of this line, and the one collective or product in it."""
    lines = ["%x = f32[4,64]{1,0} parameter(0)", "%w = f32[64,32]{1,0} parameter(1)", *before, line]
    text = f"{HEAD}\nENTRY %main (x: f32[4,64]) -> f32[4,64] {{\n" + "\n".join(lines) + "\n}\n"
    program = hlo.parse(text)
    (run,) = hlo.runs(program)
    return program, run


@pytest.mark.parametrize(
    ("turns", "times", "when"), [(KNOWN, 12, ""), ("", 1, "loop")], ids=["known", "unknown"]
)
def test_a_loop_multiplies_what_is_in_it(turns: str, times: int, when: str) -> None:
    (run,) = hlo.runs(hlo.parse(HEAD + LOOP.replace(" TURNS", turns)))
    assert (run.operation.opcode, run.times, run.when) == ("all-reduce", times, when)


def test_bytes_are_those_of_the_operands() -> None:
    program = hlo.parse(HEAD + LOOP)
    (run,) = hlo.runs(program)
    assert hlo.given(program, run) == ["f32[4,64]{1,0:T(8,128)(2,1)S(1)}"]
    assert sum(map(hlo.nbytes, hlo.given(program, run))) == 4 * 64 * 4


@pytest.mark.parametrize("shift", [0, 1])
def test_a_line_has_its_stack(shift: int) -> None:
    """Some releases write each parent's number as one more than it is."""
    tables = TABLES
    if not shift:
        tables = TABLES.replace("=1 parent_frame_id=1", "=1 parent_frame_id=0")
        tables = tables.replace("=2 parent_frame_id=2", "=2 parent_frame_id=1")
    program = hlo.parse(HEAD + tables + LOOP)
    (run,) = hlo.runs(program)
    assert program.stack(run.operation) == (("/home/me/layers.py", 31), ("2-c637ea876fa9.py", 7))


def test_a_line_may_have_one_file_alone() -> None:
    program, run = one_line(
        "ROOT %s = f32[4,64]{1,0} all-reduce(%x), replica_groups={}, "
        'metadata={op_name="dot" source_file="/a/b.py" source_line=9}'
    )
    assert program.stack(run.operation) == (("/a/b.py", 9),)


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("{{0,1},{2,3},{4,5},{6,7}}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("{}", (tuple(range(8)),)),
        ("[4,2]<=[8]", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("[1,8]<=[8]", (tuple(range(8)),)),
        ("[2,4]<=[4,2]T(1,0)", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("[4,2]<=[2,2,2]T(1,2,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=4,'y'=2] {'x'}", ((0, 2, 4, 6), (1, 3, 5, 7))),
        ("mesh['x'=4,'y'=2] {'y'}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("mesh['x'=4,'y'=2] {'x','y'}", (tuple(range(8)),)),
        ("mesh['x'=4,'y'=2] {'x':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['x'=4,'y'=2] {'x':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        (
            "mesh['a'=1,'b'=2,'c'=4], device_ids=([4,2]T(1,0)) {'b'}",
            ((0, 1), (2, 3), (4, 5), (6, 7)),
        ),
        ("mesh['a'=2,'b'=2], device_ids=(3,1,2,0) {'b'}", ((3, 1), (2, 0))),
    ],
)
def test_each_form_of_groups_is_read(groups: str, expected: hlo.Groups) -> None:
    _, run = one_line(
        f"ROOT %s = f32[4,64]{{1,0}} all-reduce(%x), channel_id=1, replica_groups={groups}, "
        "use_global_device_ids=true, to_apply=%add"
    )
    assert hlo.groups(run.operation, 8) == expected


def test_pairs_of_a_permute_are_read() -> None:
    _, run = one_line(
        "ROOT %p = f32[4,64]{1,0} collective-permute(%x), source_target_pairs={{0,2},{2,0}}"
    )
    assert hlo.pairs(run.operation) == ((0, 2), (2, 0))


def test_a_collective_in_two_parts_counts_once() -> None:
    program, run = one_line(
        "ROOT %d = f32[16,64]{1,0} all-gather-done(%g)",
        "%g = (f32[4,64]{1,0}, f32[16,64]{1,0}) all-gather-start(%x), replica_groups={{0,1,2,3}}",
    )
    assert run.operation.collective == "all-gather"
    assert sum(map(hlo.nbytes, hlo.given(program, run))) == 4 * 64 * 4


def test_a_collective_in_an_async_computation_counts_once() -> None:
    text = f"""{HEAD}
%inner (y: f32[8]) -> f32[8] {{
  %y = f32[8]{{0}} parameter(0)
  ROOT %r = f32[8]{{0}} all-to-all(%y), replica_groups={{{{0,1}}}}
}}

ENTRY %main (x: f32[8]) -> f32[8] {{
  %x = f32[8]{{0}} parameter(0)
  %a = ((f32[8]{{0}}), f32[8]{{0}}) async-start(%x), calls=%inner
  ROOT %b = f32[8]{{0}} async-done(%a), calls=%inner
}}
"""
    assert [run.times for run in hlo.runs(hlo.parse(text))] == [1]


@pytest.mark.parametrize(
    ("shape", "nbytes"),
    [
        ("f32[4,64]{1,0}", 1024),
        ("bf16[3]", 6),
        ("pred[5]", 5),
        ("s4[7]", 4),
        ("f8e4m3fn[10]", 10),
        ("c64[2]", 16),
        ("f32[]", 4),
        ("token[]", 0),
        ("(f32[2], (s8[3], u16[1]))", 13),
        ("f32[<=8]", 32),
    ],
)
def test_a_shapes_bytes(shape: str, nbytes: int) -> None:
    assert hlo.nbytes(shape) == nbytes


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        (
            "ROOT %d = f32[4,32]{1,0} dot(%x, %w), lhs_contracting_dims={1}, "
            "rhs_contracting_dims={0}",
            2 * 4 * 32 * 64,
        ),
        (
            "ROOT %g = (f32[4,32]{1,0}, s8[4194304]{0}) custom-call(%x, %w), "
            'custom_call_target="__cublas$gemm", backend_config={"gemm_backend_config":'
            '{"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}}}',
            2 * 4 * 32 * 64,
        ),
        ('ROOT %c = f32[4,64]{1,0} custom-call(%x), custom_call_target="mine"', 0),
    ],
)
def test_the_operations_of_a_product(line: str, flops: int) -> None:
    program, run = one_line(line)
    assert hlo.matrix_flops(program, run) == flops


def test_the_operations_of_a_convolution() -> None:
    program, run = one_line(
        "ROOT %c = f32[1,8,8,16]{3,2,1,0} convolution(%image, %kernel), window={size=3x3}, "
        "dim_labels=b01f_01io->b01f",
        "%image = f32[1,10,10,3]{3,2,1,0} parameter(2)",
        "%kernel = f32[3,3,3,16]{3,2,1,0} parameter(3)",
    )
    assert hlo.matrix_flops(program, run) == 2 * (8 * 8 * 16) * (3 * 3 * 3)


def test_the_operations_of_a_convolution_on_gpu() -> None:
    program, run = one_line(
        "ROOT %c = (f32[4,64,64,64]{3,2,1,0}, u8[0]{0}) custom-call(%image, %kernel), "
        "window={size=3x3 pad=1_1x1_1}, dim_labels=b01f_o01i->b01f, "
        'custom_call_target="__cudnn$convForward"',
        "%image = f32[4,64,64,32]{3,2,1,0} parameter(2)",
        "%kernel = f32[64,3,3,32]{3,2,1,0} parameter(3)",
    )
    assert hlo.matrix_flops(program, run) == 2 * (4 * 64 * 64 * 64) * (3 * 3 * 32)


def test_another_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no entry"):
        hlo.parse("module @jit_step {\n}\n")
