"""The ranks' reports joined into layouts, from 1 to 64 ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import layouts
import pytest

from jaxcluster import wire
from jaxcluster.model import layout


@pytest.mark.parametrize(
    ("spec", "parts"),
    [((), 1), (("i",), 64), (("i", "j"), 512), ((None, "j"), 8), ((("i", "j"),), 512)],
    ids=str,
)
def test_every_element_is_held_as_often_as_the_replication_says(
    spec: layouts.Spec, parts: int
) -> None:
    found = layouts.array((512, 8), {"i": 64, "j": 8}, spec, 64)
    assert (len(found.parts), len(found.shards)) == (parts, 512)
    assert (found.replication, found.imbalance) == (512 / parts, 1)
    assert (found.missing, found.gaps) == (0, ())
    assert sum(found.bytes_per_device.values()) == 512 * 8 * 4 * found.replication
    assert {s.replica_id for s in found.parts[-1].shards} == set(range(512 // parts))


def test_an_uneven_array_says_how_uneven() -> None:
    found = layouts.array((10,), {"i": 4}, ("i",))
    assert [shard.index for shard in found.shards] == [((0, 3),), ((3, 6),), ((6, 9),), ((9, 10),)]
    assert found.imbalance == pytest.approx(3 / 2.5)
    assert found.missing == 0


def test_the_part_of_a_silent_rank_is_a_gap_unless_another_has_a_copy() -> None:
    known = layouts.devices(4, 2)
    infos = layouts.named(known, (8, 8), {"i": 4, "j": 2}, ("i", "j"))
    del infos[2]
    found = layout.array_layout("x", infos, known, {2: "dead (killed by SIGKILL)"})
    assert found.missing == 16
    assert found.gaps == (((4, 6), (0, 4)), ((4, 6), (4, 8)))
    assert found.notes == {2: "dead (killed by SIGKILL)"}
    copied = layouts.named(known, (8, 8), {"i": 4, "j": 2}, ("j",))
    del copied[2]
    assert layout.array_layout("x", copied, known).missing == 0


def own(rank: int, size: int = 3) -> wire.ArrayInfo:
    """An array that a rank has for itself."""
    shards = (wire.Shard(rank, 2048 * rank, ((0, size),), 4 * size),)
    return wire.ArrayInfo((size,), "float32", False, shards, 4 * size, on=str(rank))


def test_arrays_of_one_rank_each_are_not_taken_for_one() -> None:
    known = layouts.devices(4, 1)
    infos = {rank: own(rank) for rank in range(4)}
    found = layout.array_layout("y", infos, known)
    assert (found.spans, found.ranks, found.missing) == (False, (0, 1, 2, 3), 0)
    infos[3] = own(3, 4)
    assert layout.array_layout("y", infos, known).notes == {3: "another array: float32[4]"}
    spanning = layouts.named(known, (3,), {"i": 4}, ("i",))
    found = layout.array_layout("x", spanning | {2: own(2)}, known)
    assert found.notes == {2: "another array: float32[3]"}
    found = layout.array_layout("x", infos | {3: spanning[3]}, known)
    assert found.notes == {3: "another array: float32[3], across processes"}
    spanning[1] = replace(spanning[1], sharding="NamedSharding(mesh=Mesh('k': 4), spec=P('k'))")
    assert "another sharding" in layout.array_layout("x", spanning, known).notes[1]


@pytest.mark.parametrize("gone_on", [range(1), range(4)])
def test_a_deleted_array_has_a_note(gone_on: range) -> None:
    known = layouts.devices(4, 1)
    infos = layouts.named(known, (8,), {"i": 4}, ("i",))
    gone = wire.ArrayInfo((8,), "float32", note="deleted or donated")
    found = layout.array_layout("x", infos | dict.fromkeys(gone_on, gone), known)
    assert found.notes == dict.fromkeys(gone_on, "deleted or donated")
    assert found.gaps == ((((0, 2),),) if found.parts else ())


def test_a_scalar_and_an_empty_array_are_whole() -> None:
    scalar = layouts.array((), {"i": 4}, ())
    assert (len(scalar.parts), scalar.replication, scalar.missing) == (1, 4, 0)
    empty = layouts.array((0, 4), {"i": 4}, (None, "i"))
    assert empty.missing == 0
    assert empty.replication == 0
    assert empty.imbalance == 1


# ------------------------------------------------------------------------------------------ trees


def test_alike_leaves_share_a_layout_and_sums_count_every_leaf() -> None:
    found = layout.tree_layout("params", *layouts.tree(40))
    assert len(found.rows) == 40
    assert len(found.layouts) == 4
    whole = [512 * 512 * 4, 512 * 4, 512 * 2048 * 4, 4]
    assert found.nbytes == 10 * sum(whole)
    each = [512 * 512 * 4 // 8, 512 * 4 // 2, 512 * 2048 * 4 // 8, 4]
    assert set(found.bytes_per_device.values()) == {10 * sum(each)}
    path, use = found.rows[2]
    assert "".join(path) == "['layers'][0]['up']"
    assert found.layouts[use].shape == (512, 2048)


def test_a_rank_whose_tree_is_another_is_told_of_and_left_out() -> None:
    reports, known = layouts.tree(4)
    *others, last = reports[2].leaves
    reports[2] = replace(reports[2], leaves=[*others, (*last[:-1], "['extra']")])
    found = layout.tree_layout("params", reports, known)
    assert found.notes == {
        2: "another tree: lacks ['layers'][0]['scale'] and has ['layers'][0]['extra'] more",
    }
    assert 2 not in found.layouts[0].ranks


# ------------------------------------------------------------------------------------------ checks


def compared(digests: str, **changes: Any) -> layout.CheckResult:
    """What is said of a part of which each rank has a copy."""
    return layout.compare(
        "w",
        {
            rank: [wire.ShardCheck(("['w']",), rank, 2048 * rank, ((0, 4),), digest=d, **changes)]
            for rank, d in enumerate(digests)
        },
    )


def test_copies_are_compared_and_the_odd_ones_are_named() -> None:
    equal = compared("aaaa")
    assert (equal.ok, equal.shards, equal.compared) == (True, 4, 1)
    odd = compared("aaba")
    (difference,) = odd.differences
    assert difference.groups == (((0, 0), (1, 2048), (3, 6144)), ((2, 4096),))
    assert not odd.ok
    assert not replace(equal, unchecked={2: "dead"}).ok
    (*_, bad) = compared("aa", nan=3).bad  # also where all copies are equal
    assert (bad.rank, bad.nan, compared("aa", inf=2).ok) == (1, 3, False)
