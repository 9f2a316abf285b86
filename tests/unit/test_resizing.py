"""Meshes for another number of devices, and parts of arrays that were cut otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcluster import arguments, wire
from jaxcluster.allocation.fleet import Left
from jaxcluster.cluster.description import down_hint
from jaxcluster.cluster.resizing import choose, resized, tell, tell_idle
from jaxcluster.engine.state.resizing import Unclear, Unfit, _is_number, fit_mesh, generation_of
from jaxcluster.engine.state.saved import (
    CannotRestore,
    Generation,
    Glance,
    Saved,
    SavedPickle,
    write,
)
from jaxcluster.engine.state.unplaced import NotPlaced, Unplaced, place
from jaxcluster.errors import UsageError
from jaxcluster.records.saved_states import Dead, Kept
from jaxcluster.wire.ops.state import Chosen, RestoreLooked, SavedBefore, SaveReport


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
    assert type(resized(here, np.int64(8), {}).spec.num_processes) is int  # type: ignore[arg-type]
    for spec, n, says in (
        *((here, n, "is a whole number, not") for n in (2.5, "3", True, None)),
        (here, 0, "at least one rank, not 0"),
        (here, 4, "It has 4 ranks already"),
        (wire.ClusterSpec("main", 4, launcher="tpu", platform="tpu"), 8, "of a TPU slice belong"),
        (wire.ClusterSpec("main", 2, local_device_ids=[[0], [1]]), 3, "given their devices one by"),
    ):
        with pytest.raises(UsageError, match=says) as caught:
            resized(spec, n, {})  # type: ignore[arg-type]
        assert caught.value.hint


def test_the_sizes_of_axes_are_read() -> None:
    assert arguments.axis_sizes("data=8,model=2", "x") == {"data": 8, "model": 2}
    assert arguments.axis_sizes(None, "x") == {}
    for wrong in ("data", "data=", "=2", "data=0", "data=2,", "data=two"):
        with pytest.raises(UsageError, match="is not an axis with its size") as caught:
            arguments.axis_sizes(wrong, "%jaxcluster resize -n 8")
        assert "%jaxcluster resize -n 8 --mesh data=8,model=2" in caught.value.hint


def test_it_is_said_who_has_no_value_and_what_waits() -> None:
    nothing = RestoreLooked([], {}, {})
    looks = {
        0: replace(nothing, unplaced=["odd"]),
        1: replace(nothing, unplaced=["odd"], own=["mine"]),
    }
    assert tell(looks, 1) == (
        "Each rank had its own mine: rank 1 has none. Not on any device yet: odd. Place each: "
        "odd = jaxcluster.place(odd, sharding)"
    )
    assert tell({0: nothing, 1: replace(nothing, only=[*"abcdefghij"])}, 1) == (
        "With one rank it was not known which values are each rank's own, so rank 1 got rank 0's "
        "a, b, c, d, e, f, g, h and 2 more. Run again the cells of those that depend on the rank, "
        "like rank = jax.process_index()."
    )
    assert tell({0: replace(nothing, unequal=["w", "x"])}, 2) == (
        "The copies of w, x were not equal on all ranks: each has the lowest rank's now."
    )
    assert tell({0: replace(nothing, gone=["mine"])}, 3) == "Gone with ranks 1, 2: their own mine."
    assert tell({0: nothing}, 2) == ""


# --------------------------------------------------------------------------- dead ranks


def report(common: Sequence[str] = (), **texts: str) -> SaveReport:
    """What a rank has saved: names with what it tells of their values."""
    return SaveReport(sorted(texts), common=list(common), digests=texts, texts=texts)


def kept(reports: dict[int, Any], dead: dict[int, Dead], **more: Any) -> Kept:
    folder: Any = None
    return Kept(folder, reports, more.pop("undone", False), dead, len(reports) + len(dead), **more)


def test_a_value_is_in_doubt_where_a_dead_rank_may_have_had_its_own() -> None:
    reports = {rank: report(["cfg"], lr="=0.5", is_main="=False", cfg="#a") for rank in (2, 3)}
    told = {"lr": "=0.5", "is_main": "=True", "only": "=1"}
    dead = {0: Dead(frozenset({*told, "cfg"}), True, told), 1: Dead()}
    choice, _, lost = choose(kept(reports, {0: dead[0]}))
    assert choice.doubtful == ["is_main"]
    assert choice.told == {0: {"cfg": "", "is_main": "=True", "lr": "=0.5"}}
    assert lost == {"only": "only rank 0 had it, and died"}
    assert choose(kept(reports, dead))[0].doubtful == ["is_main", "lr"]  # rank 1 told nothing


def test_a_lone_survivors_values_are_its_own_unless_they_are_known_not_to_be() -> None:
    one = {1: replace(report(["w"], mine="=1", w=""), digests={"mine": "x", "w": "y"})}
    assert choose(kept(one, {0: Dead()}))[0].doubtful == ["mine"]


def test_a_cell_that_is_taken_back_is_so_on_other_ranks_too() -> None:
    then = SavedBefore(["a"], texts={"a": "=1"}, digests={"a": "=1"}, absent=["new"])
    one = replace(report(a="=2", b="=1", new="=1"), before=then)
    reports = {0: one, 1: one}
    choice, chosen, _ = choose(kept(reports, {}, undone=True))
    assert (choice.older, choice.absent) == (["a"], ["new"])
    assert chosen[0].texts["a"] == "=1"
    assert choose(kept(reports, {}))[0].older == []
    saved = Saved(0, 2, 2, {})
    for generation, number in ((saved.now, 1), (saved.before, 2)):
        generation.names = {"a": SavedPickle(number, [], [])}
        generation.digests = generation.texts = {"a": str(number)}
    saved.now.names["new"] = saved.now.names["b"] = SavedPickle(3, [], [])
    saved.absent = ["new"]
    found = generation_of(saved, choice)
    assert {name: one.section for name, one in found.names.items()} == {"a": 2, "b": 3}
    assert found.texts == {"a": "2"}
    assert generation_of(saved, Chosen()) is saved.now
    other = Saved(1, 2, 2, {})  # a rank that has not run the cell has what it had
    other.now.names = {"a": SavedPickle(5, [], [])}
    assert generation_of(other, choice).names["a"].section == 5


def test_a_ranks_own_number_is_known_by_what_dead_ranks_told() -> None:
    def had(text: str) -> Generation:
        return Generation(texts={"rank": text})

    assert _is_number("rank", {3: had("=3")}, {0: {"rank": "=0"}})
    assert not _is_number("rank", {3: had("=3")}, {0: {"rank": "=7"}})
    assert not _is_number("rank", {3: had("=3")}, {0: {"rank": ""}})
    assert _is_number("rank", {2: had("=2"), 3: had("=3")}, {0: {"rank": ""}})


def test_as_many_ranks_as_before_are_refused_unless_hosts_are_left_out() -> None:
    spec = wire.ClusterSpec("main", 4, platform="cpu", launcher="ssh")
    with pytest.raises(UsageError, match="It has 4 ranks already"):
        resized(spec, 4, {})
    assert resized(spec, 4, {}, without_lost=True).without_lost


def test_hosts_without_ranks_are_named() -> None:
    assert tell_idle([]) == ""
    assert tell_idle(["h2", "h3"]) == (
        "No rank is on h2 and h3 now; the next resize can use it again."
    )


def test_what_can_be_done_without_lost_hosts_is_said() -> None:
    left = Left(2, ("h1",))
    offer = "%jaxcluster resize -n 2 goes on with what is left, host h1"
    assert down_hint(None, "", left) == (
        f"{offer}; %jaxcluster restart tries again with all hosts; %jaxcluster stop ends the "
        "cluster."
    )
    assert down_hint(None, "host h2 is lost", left) == (
        f"Host h2 is lost. {offer}; %jaxcluster stop ends the cluster."
    )
    assert "can't be restored" not in down_hint(None, "host h2 is lost", left)
