"""What a rank makes of a profile: made-up ones, read by JAX's reader. In a process of its own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from helpers import python

SCRIPT = """
import json, sys, tempfile, time
from pathlib import Path
from types import SimpleNamespace
import numpy as np
from jax.profiler import ProfileData
from jaxcluster import wire
from jaxcluster.engine import tracks

STATS = ["hlo_op", "hlo_module", "run_id", "device_ordinal", "step_num", "profile_start_time"]

def event(names, name, at_us, long_us, **stats):
    number = names.setdefault(name, len(names) + 1)
    told = "".join(
        "stats { metadata_id: %d %s: %s } " % (
            STATS.index(key) + 1, "str_value" if isinstance(value, str) else "int64_value",
            json.dumps(value))
        for key, value in stats.items())
    return "events { metadata_id: %d offset_ps: %d duration_ps: %d %s}" % (
        number, at_us * 10**6, long_us * 10**6, told)

def plane(name, lines, stats=""):
    names, text = {}, ""
    for at, (line, events) in enumerate(lines.items()):
        made = " ".join(event(names, *one[:3], **one[3]) for one in events)
        text += "lines { id: %d name: %s %s } " % (at, json.dumps(line), made)
    known = "".join("event_metadata { key: %d value { id: %d name: %s } } " % (
        number, number, json.dumps(name)) for name, number in names.items())
    known += "".join("stat_metadata { key: %d value { id: %d name: %s } } " % (
        number, number, json.dumps(name)) for number, name in enumerate(STATS, 1))
    return "planes { name: %s %s %s %s }" % (json.dumps(name), text, known, stats)

BEGAN = time.time_ns()
tracks.time = SimpleNamespace(monotonic_ns=lambda: 10**15, time_ns=lambda: 10**15 + 5)
TASK = plane("Task Environment", {}, "stats { metadata_id: 6 uint64_value: %d }" % BEGAN)

def look(*planes, most=100, known=lambda module: ()):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "rank-3.xplane.pb")
        path.write_bytes(ProfileData.text_proto_to_serialized_xspace(" ".join(planes)))
        told, packed = tracks.read(str(path), 3, most, known)
    kinds = (*wire.SLICE_COLUMNS, *wire.COLLECTIVE_COLUMNS)
    columns = [np.frombuffer(data, kind).tolist() for data, kind in zip(packed, kinds, strict=True)]
    zero = BEGAN - 5
    short = lambda ns: round((ns - zero) / 1000)
    slices = [[told.tracks[track], told.names[name], short(start), long // 1000]
              for track, name, start, long in zip(*columns[:4])]
    runs = [[told.operations[op], run, device, turn, short(start), short(end)]
            for op, run, device, turn, start, end in zip(*columns[4:])]
    steps = [[number, short(start), short(end)] for number, start, end in told.steps]
    return {"slices": slices, "runs": runs, "steps": steps, "left": told.left_out,
            "shortest": told.shortest_ns, "uncounted": told.uncounted, "rank": told.rank}

def op(name, at, long, run=7, device=0, module="jit_step"):
    return name, at, long, {"hlo_op": name, "hlo_module": module, "run_id": run,
                            "device_ordinal": device}

found = {}
cpu = plane("/host:CPU", {
    "python": [("PjitFunction(step)", 0, 50, {}), ("train", 0, 60, {"step_num": 4}),
               ("Wait for usage holds", 70, 1, {})],
    "pool/1": [op("dot.3", 10, 5), op("all-reduce.1", 20, 9), op("all-reduce.1", 30, 9),
               ("end: all-reduce.1", 29, 1, {}), ("ThreadpoolListener::Record", 5, 0, {})],
    "pool/2": [op("all-reduce.1", 22, 7, device=1), op("psum.4", 40, 2, device=1),
               op("dot.3", 8, 10), ("other", 1, 1, {})],
})
found["cpu"] = look(cpu, TASK, known=lambda module: {"psum.4"} if module == "jit_step" else ())
gpu = plane("/device:GPU:0", {"Stream #1": [
    ("ncclDevKernel_AllReduce", 20, 9, {"hlo_op": "all-reduce-start.1", "hlo_module": "jit_step"}),
    ("ncclDevKernel_AllReduce", 40, 9, {"hlo_op": "all-reduce-start.1", "hlo_module": "jit_step"}),
    ("loop_add_fusion", 30, 4, {"hlo_op": "loop_add_fusion", "hlo_module": "jit_step"})]})
host = plane("/host:CPU", {"python": [op("all-reduce-start.1", 19, 1)]})
found["gpu"] = look(gpu, host, TASK)
many = plane("/host:CPU", {"pool": [
    *(("call", 100 * k, k + 1, {}) for k in range(50)), op("all-reduce.1", 7, 1)]})
found["many"] = look(many, TASK, most=11)
busy = plane("/host:CPU", {"pool": [op("all-reduce.1", 100 * k, 1, run=k) for k in range(20)]})
found["busy"] = look(busy, TASK, most=5)
deep = plane("/host:CPU", {"pool": [("call", k, 100, {}) for k in range(20)]})
found["deep"] = look(deep, TASK)
for name, planes in {"no time": [cpu], "nothing": None}.items():
    try:
        if planes is None:
            tracks.read("/nowhere/rank-3.xplane.pb", 3, 1, lambda module: ())
        look(*planes)
    except tracks.Unreadable as error:
        found[name] = str(error)
with tempfile.NamedTemporaryFile(suffix=".pb") as file:
    file.write(b"not a profile")
    file.flush()
    try:
        tracks.read(file.name, 3, 1, lambda module: ())
    except tracks.Unreadable as error:
        found["broken"] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    done = python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def test_operations_stand_on_their_device_whichever_thread_has_run_them(
    found: dict[str, Any],
) -> None:
    slices = found["cpu"]["slices"]
    assert found["cpu"]["rank"] == 3
    assert ["device 0", "all-reduce.1", 20, 9] in slices
    assert ["device 1", "all-reduce.1", 22, 7] in slices
    assert ["Python", "PjitFunction(step)", 0, 50] in slices
    assert ["pool", "other", 1, 1] in slices
    assert not [one for one in slices if one[1].startswith(("end: ", "Threadpool", "Wait for"))]
    assert found["cpu"]["left"] == 0


def test_what_overlaps_on_a_track_has_a_lane_of_its_own(found: dict[str, Any]) -> None:
    dots = [one for one in found["cpu"]["slices"] if one[1] == "dot.3"]
    assert dots == [["device 0", "dot.3", 8, 10], ["device 0", "dot.3", 10, 5]]  # one in the other
    lanes = {one[0] for one in found["deep"]["slices"]}
    assert lanes == {"pool", *(f"pool ({number})" for number in range(2, 17))}
    assert found["deep"]["left"] == 4


def test_collectives_are_told_with_their_runs_devices_and_turns(found: dict[str, Any]) -> None:
    name = ["jit_step", "all-reduce.1"]
    assert sorted(found["cpu"]["runs"], key=lambda one: one[4]) == [
        [name, 7, 0, 0, 20, 29],
        [name, 7, 1, 0, 22, 29],
        [name, 7, 0, 1, 30, 39],
        [["jit_step", "psum.4"], 7, 1, 0, 40, 42],  # as the compiled program says
    ]
    assert found["cpu"]["steps"] == [[4, 0, 60]]


def test_where_devices_tell_of_collectives_their_host_does_not_count(found: dict[str, Any]) -> None:
    name = ["jit_step", "all-reduce-start.1"]
    assert found["gpu"]["runs"] == [[name, -1, 0, 0, 20, 29], [name, -1, 0, 1, 40, 49]]
    assert ["GPU:0 Stream #1", "loop_add_fusion", 30, 4] in found["gpu"]["slices"]


def test_the_shortest_are_left_out_but_no_collective(found: dict[str, Any]) -> None:
    slices = found["many"]["slices"]
    assert len(slices) == 11
    assert sorted(one[3] for one in slices) == [1, *range(41, 51)]
    assert ["device 0", "all-reduce.1", 7, 1] in slices
    assert (found["many"]["left"], found["many"]["shortest"]) == (40, 41_000)
    assert [one[1] for one in found["busy"]["runs"]] == [0, 1, 2, 3, 4]
    assert found["busy"]["uncounted"] == 15


def test_what_is_no_profile_says_so(found: dict[str, Any]) -> None:
    assert found["nothing"] == "it has written no file."
    assert "does not say when it began" in found["no time"]
    assert "can't be read" in found["broken"]
