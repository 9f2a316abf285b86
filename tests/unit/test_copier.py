"""A rank's copy of its own variables: what is written of it, when, and what counts."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcluster import wire
from jaxcluster.engine.state import background_save, copier, version_store
from jaxcluster.engine.state.copier import Copier
from jaxcluster.engine.state.loading import load
from jaxcluster.engine.state.saved import read, state_path
from jaxcluster.host.checksums import quick_sum
from jaxcluster.records import saved_states
from jaxcluster.wire.copy_marks import NBYTES

# --------------------------------------------------------------------------- marks


def test_the_last_whole_mark_counts() -> None:
    file = bytearray(2 * NBYTES)
    for number in range(1, 6):
        data, at = wire.Mark(number, begun=number, before=number * 7).pack()
        file[at : at + NBYTES] = data
        assert wire.Mark.unpack(bytes(file)) == wire.Mark(number, number, before=number * 7)
    for cut in range(NBYTES):  # killed in the middle of the next one
        torn = bytearray(file)
        data, at = wire.Mark(6, begun=9).pack()
        torn[at : at + cut] = data[:cut]
        assert wire.Mark.unpack(bytes(torn)).number == 5
    assert wire.Mark.unpack(b"") == wire.Mark()


@pytest.mark.parametrize(
    ("mark", "undone", "last", "version"),
    [
        (wire.Mark(9, begun=5, ended=4, before=7), 5, 5, 7),  # it died in the cell
        (wire.Mark(9, begun=5, ended=5, before=7, after=8), 5, 5, 7),  # after it
        (wire.Mark(9, begun=4, ended=4, before=7, after=8), 5, 5, 8),  # before it had begun
        (wire.Mark(9, begun=4, ended=4, before=7, after=0), 5, 5, 0),
        (wire.Mark(9, begun=4, ended=3, before=7, after=0), 5, 5, 0),  # in an earlier one
        (wire.Mark(9, begun=6, ended=5, before=7), 5, 6, 0),  # in a later one
        (wire.Mark(9, begun=5, ended=5, before=7, after=8), 0, 5, 8),  # between cells
        (wire.Mark(9, begun=5, ended=4, before=7), 0, 5, 0),  # in one that is not taken back
        (wire.Mark(9, begun=4, ended=4, before=7, after=8), 0, 5, 0),  # before one that was not
        (wire.Mark(9, after=8), 0, 3, 8),  # a successor that has run none
        (wire.Mark(9, after=8), 0, 4, 0),
    ],
)
def test_which_version_comes_back(mark: wire.Mark, undone: int, last: int, version: int) -> None:
    assert mark.version_for(undone, last, first=3) == version


# --------------------------------------------------------------------------- a rank's copy


@pytest.fixture
def names() -> dict[str, Any]:
    return {"x": jnp.arange(1000.0), "own": [1, {"a": 2}], "view": np.ones((3, 4))}


@pytest.fixture
def rank(tmp_path: Path, names: dict[str, Any]) -> Iterator[Copier]:
    made = Copier(0)
    made.namespace = names
    may_wait(made, 0.0)
    made.switch(str(tmp_path / "copy-0"), 1 << 24)
    yield made
    made.switch("", 0)


def copy(rank: Copier) -> None:
    """What its thread does."""
    assert rank._store is not None
    try:
        rank._copy(rank._store)
    finally:
        rank._store.abandon()


def mark(rank: Copier) -> wire.Mark:
    assert rank._store is not None
    return wire.Mark.unpack((rank._store.folder / copier.MARK).read_bytes())


def back(rank: Copier, version: int) -> dict[str, Any]:
    assert rank._store is not None
    return load(read(state_path(rank._store.version(version), 0)), {}).values


def run(rank: Copier, seq: int, is_same: bool = False) -> None:
    rank.begin(seq)
    rank.end(seq, is_same)


def test_it_has_what_the_names_were_before_the_cell_and_after_it(
    rank: Copier, names: dict[str, Any]
) -> None:
    run(rank, 1)
    copy(rank)
    rank.begin(2)
    names["own"].append(3)
    names["view"][0] = 7
    names["x"] = names["x"] + 1
    rank.end(2, False)
    assert mark(rank).after == 0
    copy(rank)
    found = mark(rank)
    before, after = back(rank, found.before), back(rank, found.after)
    assert (before["own"], after["own"]) == ([1, {"a": 2}], [1, {"a": 2}, 3])
    assert (before["view"][0, 0], after["view"][0, 0]) == (1, 7)
    assert (float(before["x"][5]), float(after["x"][5])) == (5, 6)
    rank.begin(3)
    assert mark(rank).before == found.after
    assert mark(rank).after == 0


def test_copies_that_are_switched_on_in_a_cell_begin_at_its_end(
    rank: Copier, tmp_path: Path
) -> None:
    """What the variables are in the middle of it is neither before it nor after it."""
    rank.switch("", 0)
    rank.begin(4)
    rank.switch(str(tmp_path / "copy-0"), 1 << 24)
    with pytest.raises(background_save.GivenUp):
        copy(rank)
    found = mark(rank)
    assert (found.begun, found.before, found.after) == (4, 0, 0)
    rank.end(4, False)
    copy(rank)
    found = mark(rank)
    assert (found.begun, found.ended) == (4, 4)
    assert back(rank, found.version_for(undone=0, last=4, first=0))["own"] == [1, {"a": 2}]


def test_a_cell_that_changes_nothing_costs_no_copy(rank: Copier) -> None:
    run(rank, 1)
    copy(rank)
    first = mark(rank).after
    run(rank, 2, is_same=True)
    copy(rank)
    assert (mark(rank).after, mark(rank).before) == (first, first)


def test_an_array_that_is_the_same_is_the_same_file(rank: Copier, names: dict[str, Any]) -> None:
    def inodes() -> set[int]:
        assert rank._store is not None
        return {p.stat().st_ino for p in rank._store.version(mark(rank).after).glob("s*")}

    run(rank, 1)
    copy(rank)
    first = inodes()
    names["y"] = jnp.arange(7.0)
    run(rank, 2)
    copy(rank)
    assert first < inodes()
    assert len(inodes()) == 2


def test_files_that_nobody_needs_are_written_over(rank: Copier, names: dict[str, Any]) -> None:
    seen: list[set[int]] = []
    for seq in range(1, 6):
        names["x"] = jnp.full(1000, float(seq))
        run(rank, seq)
        copy(rank)
        assert rank._store is not None
        files = list(rank._store.folder.rglob("s*"))
        assert len(files) <= 2
        seen.append({p.stat().st_ino for p in files})
        found = mark(rank)
        assert float(back(rank, found.after)["x"][0]) == seq
        if seq > 1:
            assert float(back(rank, found.before)["x"][0]) == seq - 1
    assert seen[-1] == seen[-2]


def test_a_file_that_a_version_still_needs_is_left_alone(
    rank: Copier, names: dict[str, Any]
) -> None:
    for seq in range(1, 6):
        names["y"] = jnp.full(1000, float(seq))  # as large as ``x``, which stays
        run(rank, seq)
        copy(rank)
        found = back(rank, mark(rank).after)
        assert found["x"].tolist() == list(range(1000))
        assert float(found["y"][0]) == seq


def test_a_cell_that_begins_ends_a_copy_and_nothing_is_written_down(
    rank: Copier, names: dict[str, Any]
) -> None:
    run(rank, 1)
    steps = itertools.count()
    go_on = background_save.BackgroundSave.step

    def step(self: background_save.BackgroundSave) -> None:
        if next(steps) == 5:
            rank.begin(2)
        go_on(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background_save.BackgroundSave, "step", step)
        with pytest.raises(background_save.GivenUp):
            copy(rank)
    assert (mark(rank).before, mark(rank).after) == (0, 0)
    rank.end(2, True)
    copy(rank)
    assert back(rank, mark(rank).after)["own"] == names["own"]


def test_numbers_are_written_beside_a_cell_that_donates_them(
    rank: Copier, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = version_store.VersionStore.fill
    double = jax.jit(lambda v: v * 2, donate_argnums=0)

    def fill(self: version_store.VersionStore, *args: Any) -> None:
        rank.begin(2)
        names["x"] = double(names["x"])
        rank.end(2, False)
        write(self, *args)

    run(rank, 1)
    monkeypatch.setattr(version_store.VersionStore, "fill", fill)
    copy(rank)
    assert mark(rank).after == 0
    assert back(rank, mark(rank).before)["x"].tolist() == list(range(1000))


def test_arrays_are_read_by_the_main_thread(rank: Copier, names: dict[str, Any]) -> None:
    """jax 0.10.2 gives wrong numbers to two threads that ask for one array's shards at once."""
    jobs: list[Any] = []
    rank._call_main = jobs.append
    run(rank, 1)
    thread = threading.Thread(target=copy, args=(rank,))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    while thread.is_alive():
        for job in list(jobs):
            job()
    assert back(rank, mark(rank).after)["x"].tolist() == names["x"].tolist()


def test_a_version_of_which_nobody_asks_any_more_is_given_up(
    rank: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = version_store.VersionStore.fill

    def fill(self: version_store.VersionStore, *args: Any) -> None:
        run(rank, 2)
        run(rank, 3)
        write(self, *args)

    run(rank, 1)
    monkeypatch.setattr(version_store.VersionStore, "fill", fill)
    with pytest.raises(background_save.GivenUp):
        copy(rank)
    assert (mark(rank).before, mark(rank).after) == (0, 0)


def waits(rank: Copier, seq: int) -> float:
    """How long a cell waits for the copy of what the last one has changed."""
    rank.end(seq - 1, False)
    began = time.monotonic()
    rank.begin(seq)
    return time.monotonic() - began


def may_wait(rank: Copier, seconds: float) -> None:
    """Cells are to have so much left of what they may wait for copies."""
    rank._earned_from = time.monotonic() - seconds * copier.WAIT_SHARE


def test_cells_wait_for_copies_for_a_twentieth_of_all_time(rank: Copier) -> None:
    rank.begin(1)
    seqs = itertools.count(2)

    def holds() -> bool:
        """On a machine that is busy, a wait for nothing may take longer than one for copies."""
        may_wait(rank, 0.1)
        waited = [waits(rank, next(seqs)) for _ in range(2)]  # its thread does not run here
        time.sleep(0.4)
        waited.append(waits(rank, next(seqs)))
        least = waited[0] > 0.09 and waited[2] > 0.015
        assert least, waited
        return waited[0] < 1.0 and waited[1] < 0.05 and waited[2] < 0.5

    assert any(holds() for _ in range(10))
    may_wait(rank, 5 * copier.WAIT_S)
    assert copier.WAIT_S <= waits(rank, next(seqs)) < 10 * copier.WAIT_S


def test_a_cell_does_not_wait_in_vain(rank: Copier) -> None:
    rank.begin(1)
    may_wait(rank, 0.3)
    rank._through_s = 0.4
    assert waits(rank, 2) < 0.1
    may_wait(rank, 0.5)
    assert waits(rank, 3) > 0.4
    rank.end(3, False)
    may_wait(rank, 0.5)
    rank._is_behind("it can't be copied", is_final=True)
    began = time.monotonic()
    rank.begin(4)
    assert time.monotonic() - began < 0.1


def test_a_cell_does_not_wait_for_numbers_that_take_long(
    rank: Copier, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill, may_end = version_store.VersionStore.fill, threading.Event()

    def slowly(self: version_store.VersionStore, *args: Any) -> None:
        may_end.wait(10)
        fill(self, *args)

    monkeypatch.setattr(version_store.VersionStore, "fill", slowly)
    rank.begin(1)
    rank.end(1, False)
    may_wait(rank, 40.0)
    rank._whole_s = 2 * copier.SOON_S
    writer = threading.Thread(target=copy, args=(rank,))
    writer.start()
    began = time.monotonic()
    rank.begin(2)
    assert time.monotonic() - began < copier.WAIT_S
    assert rank._through.is_set()
    assert not mark(rank).before
    may_end.set()
    writer.join()
    assert mark(rank).before
    # What the next cell takes for usual.
    assert 0 < rank._through_s < rank._whole_s != 2 * copier.SOON_S


@pytest.mark.parametrize("has_mirror", [False, True])
def test_a_cell_waits_for_the_numbers_and_for_the_mirror(
    rank: Copier, monkeypatch: pytest.MonkeyPatch, has_mirror: bool
) -> None:
    fill, ends = version_store.VersionStore.fill, []

    def slowly(self: version_store.VersionStore, *args: Any) -> None:
        time.sleep(0.1)
        fill(self, *args)
        ends.append(time.monotonic())

    monkeypatch.setattr(version_store.VersionStore, "fill", slowly)
    rank.begin(1)
    rank.end(1, False)
    may_wait(rank, 40.0)  # so that a busy machine ends the copy in time
    if has_mirror:
        sent = SimpleNamespace(
            seconds=0.1, is_behind=False, wake=lambda: None, stop=lambda: None,
            is_current=lambda now: time.monotonic() > ends[0] + 0.1,
        )  # fmt: skip
        rank._mirror = sent  # type: ignore[assignment]
    threading.Thread(target=copy, args=(rank,)).start()
    rank.begin(2)
    assert time.monotonic() > ends[0] + 0.1 * has_mirror
    assert mark(rank).before


def test_what_a_copy_leaves_out_is_named(
    rank: Copier, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    own: dict[str, Any] = {"__name__": "__main__"}
    exec("class Own:\n    def __getstate__(self): raise KeyError", own)
    rank.namespace = own | names | {"odd": own["Own"](), "big": jnp.zeros(1 << 23)}
    rank.namespace["many"] = [[] for _ in range(100_000)]
    rank.namespace["gen"] = (one for one in ())
    own["Own"].__getstate__.__globals__.update(rank.namespace)
    rank.namespace = own["Own"].__getstate__.__globals__
    monkeypatch.setattr(background_save, "NAME_S", 0.02)
    run(rank, 1)
    copy(rank)
    left_out = rank.told().left_out
    assert set(left_out) == {"big", "many", "odd"}
    assert "16 MiB for copies" in left_out["big"]
    assert "takes too long" in left_out["many"]
    assert "__getstate__ of yours" in left_out["odd"]
    assert "x" in back(rank, mark(rank).after)


def test_a_damaged_copy_is_none(tmp_path: Path, rank: Copier) -> None:
    run(rank, 1)
    copy(rank)
    version = mark(rank).after
    folder = saved_states.LocalStates.__new__(saved_states.LocalStates)
    folder.paths = [tmp_path]
    copies = saved_states.Copies(folder, {0: str(tmp_path)}, 1 << 20)
    assert copies.mark(0) == mark(rank)
    assert copies.report(0, version).kept == ["own", "view", "x"]
    assert rank._store is not None
    (part,) = rank._store.version(version).glob("s*")
    data = bytearray(part.read_bytes())
    data[100] ^= 1
    part.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        copies.report(0, version)


@pytest.mark.parametrize("nbytes", [0, 1, 7, 8, 9, 4099])
def test_a_sum_sees_each_byte(nbytes: int) -> None:
    data = bytearray(np.random.default_rng(0).integers(0, 256, nbytes, np.uint8).tobytes())
    first = quick_sum(bytes(data))
    assert quick_sum(bytes(data) + b"\0") != first
    for at in range(0, nbytes, 101):
        data[at] ^= 16
        assert quick_sum(bytes(data)) != first
        data[at] ^= 16
