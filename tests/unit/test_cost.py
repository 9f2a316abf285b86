"""What a call would cost: counts of programs as people write them, and what is shown of them."""

from __future__ import annotations

import base64
import json
import os
import re
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import costprograms
import pytest
from helpers import python

from jaxcluster import wire
from jaxcluster.errors import UsageError
from jaxcluster.model.cost import Cost, check_call, estimate
from jaxcluster.views import cost as view
from jaxcluster.views import markup

Told = dict[str, Any]
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def compiled() -> dict[str, Told]:
    """What a process with 8 devices says of each program."""
    done = python(costprograms.__file__, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    found = map(json.loads, done.stdout.splitlines())
    return {one["name"]: one for one in found}


def cost_of(told: Told) -> Cost:
    return estimate("step(a, b)", {0: wire.parse(wire.StepCost, told["told"])})


def given(cost: Cost, told: Told) -> dict[str, int]:
    """Bytes that a device gives to each kind of collective."""
    found: dict[str, int] = {}
    for one in cost.collectives:
        ways = {"all-gather": _members(cost, one.axes)}.get(one.kind, 1)
        found[one.kind] = found.get(one.kind, 0) + one.times * one.nbytes // ways
    return found


def _members(cost: Cost, axes: tuple[str, ...]) -> int:
    ways = 1
    for axis in axes:
        ways *= cost.mesh[axis]
    return ways


@pytest.mark.parametrize("name", costprograms.PROGRAMS)
def test_a_program_is_counted_as_xla_has_it(compiled: dict[str, Told], name: str) -> None:
    told = compiled[name]
    cost = cost_of(told)
    assert given(cost, told) == told["counted"]
    assert {kind: cost.memory[kind] for kind in told["held"]} == told["held"]
    by_hand = costprograms.PROGRAMS[name][1]
    if by_hand is not None:
        assert cost.by_axis == by_hand
    assert all(one.over for one in cost.collectives)


def test_a_loops_products_count_as_often_as_it_turns(compiled: dict[str, Told]) -> None:
    rolled = cost_of(compiled["megatron_layers_in_a_scan"]).flops
    unrolled = cost_of(compiled["megatron_layers_unrolled"]).flops
    assert rolled is not None
    assert rolled == pytest.approx(unrolled, rel=0.01)


@pytest.mark.parametrize(
    ("name", "times"),
    [("loop_of_unknown_turns", "1 or more"), ("branch_with_a_sum", "1 or 0")],
)
def test_what_is_not_certain_is_said(compiled: dict[str, Told], name: str, times: str) -> None:
    assert f"  {times}  " in view.text(cost_of(compiled[name]))


# --------------------------------------------------------------------------- what is shown

HLO = """HloModule jit_step, num_partitions=4

FileNames
1 "3-abc.py"
2 "/lib/linear.py"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7}
2 {file_name_id=2 function_name_id=1 line=31}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=2}

ENTRY %main (x: f32[1024]) -> f32[1024] {
  %x = f32[1024]{0} parameter(0)
  %s = f32[1024]{0} all-reduce(%x), replica_groups={{0,1},{2,3}}, metadata={stack_frame_id=2}
  ROOT %t = f32[1024]{0} all-reduce(%s), replica_groups={{0,2},{1,3}}, metadata={stack_frame_id=1}
}
"""
ARGUMENT = wire.CostArgument("0", "['w']", [1024], "float32", 4096, {"data": 2, "model": 2}, [[]])
FIRST = wire.StepCost(
    rank=0,
    name="step",
    digest="a",
    lower_s=0.1,
    compile_s=1.0,
    text=base64.b64encode(zlib.compress(HLO.encode())).decode(),
    files={"3-abc.py": [3, "3-abc.py", False], "/lib/linear.py": [None, "lib/linear.py", True]},
    meshes=[wire.MeshInfo("", ["data", "model"], [2, 2], [], [0, 1, 2, 3])],
    processes=[0, 0, 1, 1],
    arguments=[ARGUMENT],
    flops=1.5e9,
    memory={"arguments": 4096, "outputs": 4096, "donated": 0, "temporaries": 8192, "code": 0},
)
CALLS = HLO.replace(
    "  ROOT %t",
    "  %w = f32[1024,8]{1,0} parameter(1)\n"
    '  %g = (f32[8]{0}, s8[64]{0}) custom-call(%s, %w), custom_call_target="__cublas$lt$matmul", '
    'backend_config={"dot_dimension_numbers":{"lhs_contracting_dimensions":["0"]}}\n'
    "  ROOT %t",
)
OTHER = wire.StepCost(rank=1, name="step", digest="a", lower_s=0.1, compile_s=1.0)


def shown(*reports: wire.StepCost, expression: str = "step(params, x)") -> str:
    return view.text(estimate(expression, {one.rank: one for one in reports}))


def flops_told(hlo: str, counted: float) -> str:
    text = base64.b64encode(zlib.compress(hlo.encode())).decode()
    said = shown(replace(FIRST, text=text, flops=counted)).splitlines()
    return next(line for line in said if line.startswith("Floating point"))


def test_products_that_are_custom_calls_are_counted() -> None:
    """XLA takes one away for each, instead."""
    told = "Floating point operations of each device: "
    assert flops_told(CALLS, -1.0 + 1000) == told + "17.4 k"
    unknown = CALLS.replace("__cublas$lt$matmul", "mine")
    assert flops_told(unknown, -1.0 + 1000) == (
        f"{told}1 k or more: what custom calls compute is not known"
    )


def test_all_is_said_in_text() -> None:
    assert shown(FIRST, OTHER).splitlines() == [
        "step(params, x), on 4 devices (data=2, model=2): 2 collectives, each device sends "
        "8.0 KiB.",
        "",
        "collective  axis   times  of         each     sent     line",
        "all-reduce  model  1      f32[1024]  4.0 KiB  4.0 KiB  cell [3] line 7 (lib/linear.py "
        "line 31)",
        "all-reduce  data   1      f32[1024]  4.0 KiB  4.0 KiB  cell [3] line 7",
        "",
        "Sent by each device, by mesh axis:",
        "model  ████████████████████████  4.0 KiB",
        "data   ████████████████████████  4.0 KiB, between ranks",
        "",
        "Floating point operations of each device: 1.5 G",
        "Memory of each device: 16.0 KiB at the peak: arguments 4.0 KiB, outputs 4.0 KiB, "
        "temporaries 8.0 KiB, code 0 B",
        "Traced and lowered in 0.10 s on ranks 0, 1",
        "Compiled in 1.00 s on ranks 0, 1",
        "Replicated over 'data' and 'model': params, 4.0 KiB on each device; cut 4 ways it would "
        "be 1.0 KiB.",
    ]


def test_a_slow_compiler_is_named() -> None:
    assert "Compiled in 1.00 s (rank 0) to 9.00 s (rank 1)" in shown(
        FIRST, replace(OTHER, compile_s=9.0)
    )


def test_ranks_that_would_run_another_program_are_named() -> None:
    told = shown(FIRST, replace(OTHER, digest="b"))
    assert "Rank 1 would run another program than rank 0: the ranks would hang" in told


def test_an_argument_that_was_not_computed_is_named() -> None:
    told = shown(replace(FIRST, abstract={"1": 1}), expression="step(params, x * 2)")
    assert "x * 2 was not computed: its sharding is not known" in told


def test_what_the_tracing_has_launched_is_said() -> None:
    assert "its own code launched 2 programs." in shown(replace(FIRST, launches=2))


def test_only_axes_that_could_cut_it_are_suggested() -> None:
    odd = replace(ARGUMENT, shape=[1023])
    assert "Replicated" not in shown(replace(FIRST, arguments=[odd]))
    cut = replace(ARGUMENT, split=[["data"]])
    assert "Replicated over 'model': params" in shown(replace(FIRST, arguments=[cut]))
    whole = replace(ARGUMENT, split=[["data", "model"]])
    assert "Replicated" not in shown(replace(FIRST, arguments=[whole]))


def test_little_things_are_not_suggested() -> None:
    small = replace(ARGUMENT, nbytes=16)
    assert "Replicated" not in shown(replace(FIRST, arguments=[small]))


def test_the_picture_has_a_bar_for_each_axis() -> None:
    cost = estimate("step(params, x)", {0: FIRST})
    svg = view.picture(cost)
    assert svg.count("<rect") == 1 + len(cost.by_axis)  # and the ground
    assert ">model<" in svg
    html = view.html(cost)
    assert "data:image/svg+xml;base64," in html
    assert "<td>cell [3] line 7</td>" in html


def test_names_of_axes_are_escaped() -> None:
    mesh = replace(FIRST.meshes[0], axis_names=["<b>", "model"])
    cost = estimate("step('<i>', x)", {0: replace(FIRST, meshes=[mesh])})
    assert "<b>" not in view.picture(cost)
    assert "<i>" not in view.html(cost)


def test_the_document_is_json() -> None:
    told = json.loads(json.dumps(view.document(estimate("step(params, x)", {0: FIRST}))))
    assert told["by_axis"] == {"model": 4096, "data": 4096}
    assert told["peak"] == 16384


def test_a_text_that_is_not_understood_is_said() -> None:
    other = base64.b64encode(zlib.compress(b"module @jit_step {}")).decode()
    with pytest.raises(UsageError, match=r"can't be read: the compiled text has no entry\."):
        estimate("step(x)", {0: replace(FIRST, text=other)})


@pytest.mark.parametrize("source", ["", "step", "1 +", "x = step(a)", "step(await x)"])
def test_what_is_not_a_call_is_refused(source: str) -> None:
    with pytest.raises(UsageError):
        check_call(source)


def test_bars_are_as_long_as_what_they_stand_for() -> None:
    rows = [("a", 4.0, "4 s", "red"), ("b", 1.0, "1 s", "red"), ("c", 0.0, "none", "red")]
    drawn = markup.bars("title", rows, 8.0, 20, 150, 100)
    widths = re.findall(r'x="150.0" y="([\d.]+)" width="([\d.]+)" height="16.0"', drawn)
    half = markup.WIDTH / 2
    assert widths == [("20.0", f"{half:.1f}"), ("40.0", f"{half / 4:.1f}"), ("60.0", "1.0")]
