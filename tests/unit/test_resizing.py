"""Meshes for another number of devices, and parts of arrays that were cut otherwise."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcluster import arguments, wire
from jaxcluster.cluster.resizing import resized, tell
from jaxcluster.engine.state.resizing import Unclear, Unfit, fit_mesh
from jaxcluster.engine.state.saved import CannotRestore, Glance, Saved, write
from jaxcluster.engine.state.unplaced import NotPlaced, Unplaced, place
from jaxcluster.errors import UsageError


@pytest.mark.parametrize(
    ("shape", "devices", "wanted", "fits"),
    [
        ([8], 16, {}, [16]),
        ([8], 3, {}, [3]),
        ([4, 2], 8, {}, [4, 2]),
        ([4, 2], 16, {"data": 8}, [8, 2]),
        ([4, 2], 16, {"model": 4}, [4, 4]),
        ([4, 2], 12, {"data": 4, "model": 3}, [4, 3]),
        ([4, 2], 12, {"other": 3, "model": 3}, [4, 3]),
        ([8, 3], 27, {}, [9, 3]),  # 27 is no multiple of 8
        ([8, 1], 16, {}, [16, 1]),  # an axis of size 1 stays
        ([1, 1], 4, {"data": 4}, [4, 1]),
    ],
)
def test_a_mesh_takes_the_change_on_the_axis_that_can(
    shape: list[int], devices: int, wanted: dict[str, int], fits: list[int]
) -> None:
    assert fit_mesh(shape, ["data", "model"][: len(shape)], devices, wanted) == fits


@pytest.mark.parametrize(
    ("shape", "devices", "wanted", "says"),
    [
        ([4, 2], 16, {}, "The mesh data=4,model=2 can become data=8,model=2 or data=4,model=4 on"),
        ([1, 1], 4, {}, "The mesh data=1,model=1 can become data=4,model=1 or data=1,model=4 on"),
        ([4, 2], 16, {"data": 16}, "would become data=16,model=2, which are not 16 devices."),
    ],
)
def test_a_mesh_that_fits_in_several_ways_or_not_as_named_is_asked_about(
    shape: list[int], devices: int, wanted: dict[str, int], says: str
) -> None:
    with pytest.raises(Unclear, match=says) as caught:
        fit_mesh(shape, ["data", "model"], devices, wanted)
    way = caught.value.hint.removeprefix("Choose the axes' sizes, for example --mesh ")
    assert math.prod(arguments.axis_sizes(way, "").values()) == devices


def test_a_mesh_that_fits_in_no_way_says_so() -> None:
    with pytest.raises(Unfit, match="the mesh data=4,model=2 does not fit 3 devices"):
        fit_mesh([4, 2], ["data", "model"], 3, {})


def test_a_section_is_read_and_compared_when_it_is_asked_for(tmp_path: Path) -> None:
    saved = Saved(0, 1, 1, {})
    saved.sections = [b"first", np.arange(100_000, dtype=np.uint8), b""]
    path = tmp_path / "rank-0.state"
    write(saved, path)
    glance = Glance(path)
    assert (glance.saved.process_count, glance.saved.sections) == (1, [])
    assert bytes(glance.section(0)) == b"first"
    assert not glance.section(2)
    damaged = bytearray(path.read_bytes())
    damaged[50_000] ^= 1
    path.write_bytes(damaged)  # in place: the file that is mapped
    with pytest.raises(CannotRestore, match="damaged"):
        glance.section(1)
    again = Glance(path)
    path.unlink()
    assert bytes(again.section(0)) == b"first"


def test_an_array_that_waits_says_so_wherever_it_is_used() -> None:
    values = np.arange(12.0)
    one = Unplaced((12,), "float64", lambda index: values[tuple(index)], "no mesh fits")
    says = r"this float64\[12\] was not placed .* no mesh fits\. Place it first: x = jaxcluster\.pl"
    uses: list[Any] = [
        lambda: one + 1, lambda: 1 + one, lambda: one @ one, lambda: one[0], lambda: float(one),
        lambda: np.asarray(one), lambda: list(one), lambda: len(one), lambda: bool(one),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(NotPlaced, match=says):
            use()
    with pytest.raises(AttributeError, match=says):
        _ = one.sum
    assert repr(one).startswith("<float64[12], not placed: no mesh fits.")
    make, (whole, *rest) = one.__reduce__()
    assert (np.array(whole) == values).all()
    assert repr(make(whole, *rest)) == repr(one)


def test_place_is_for_cells(no_jax: None) -> None:
    with pytest.raises(UsageError, match="works on ranks"):
        place([1], None)


def test_what_can_not_be_resized_is_refused_with_what_to_type() -> None:
    here = wire.ClusterSpec("main", 4, devices_per_process=2)
    assert resized(here, 8, {}).devices == 16
    assert resized(here, 8, {}).spec.num_processes == 8
    for spec, n, says in (
        (here, 0, "at least one rank, not 0"),
        (here, 4, "It has 4 ranks already"),
        (wire.ClusterSpec("main", 4, launcher="tpu", platform="tpu"), 8, "of a TPU slice belong"),
        (wire.ClusterSpec("main", 2, local_device_ids=[[0], [1]]), 3, "given their devices one by"),
    ):
        with pytest.raises(UsageError, match=says) as caught:
            resized(spec, n, {})
        assert caught.value.hint


def test_the_sizes_of_axes_are_read() -> None:
    assert arguments.axis_sizes("data=8,model=2", "x") == {"data": 8, "model": 2}
    assert arguments.axis_sizes(None, "x") == {}
    for wrong in ("data", "data=", "=2", "data=0", "data=2,", "data=two"):
        with pytest.raises(UsageError, match="is not an axis with its size") as caught:
            arguments.axis_sizes(wrong, "%jaxcluster resize -n 8")
        assert "%jaxcluster resize -n 8 --mesh data=8,model=2" in caught.value.hint


def test_it_is_said_who_has_no_value_and_what_waits() -> None:
    looks: dict[int, dict[str, Any]] = {
        0: {"unplaced": ["odd"]},
        1: {"unplaced": ["odd"], "own": ["mine"]},
    }
    assert tell(looks, 1) == (
        "Each rank had its own mine: rank 1 has none. Not on any device yet: odd. Place each: "
        "odd = jaxcluster.place(odd, sharding)"
    )
    assert tell({0: {"gone": ["mine"]}}, 3) == "Gone with ranks 1, 2: their own mine."
    assert tell({0: {}}, 2) == ""
