"""What is saved of variables is what comes back: values, aliases, and what is lost by name."""

from __future__ import annotations

import array
import asyncio
import gc
import logging
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxcluster.engine.state import saved as files
from jaxcluster.engine.state.loading import Loaded, bind, load
from jaxcluster.engine.state.memory import Section
from jaxcluster.engine.state.saved import (
    CannotRestore,
    CannotSave,
    Saved,
    Unreadable,
    check,
    read,
    state_path,
    write,
    write_where_room,
)
from jaxcluster.engine.state.saving import save
from jaxcluster.wire.ops.state import SavePlace


def back(tmp_path: Path, names: dict[str, Any], **options: Any) -> dict[str, Any]:
    """The names, saved to a file and restored from it."""
    found: dict[str, Any] = {}
    write(save(names, 0), state_path(tmp_path, 0))
    assert loaded(read(state_path(tmp_path, 0)), found, **options).lost == {}
    return found


def loaded(saved: Saved, namespace: dict[str, Any], *args: Any, **options: Any) -> Loaded:
    """What was saved, read and then bound."""
    found = load(saved, namespace, *args, **options)
    assert namespace == {}
    assert bind(found, namespace) == {}
    return found


@pytest.fixture(params=["together", "name by name"])
def again(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Restores names, also where one of them is in the way of restoring all at once."""

    def again(**names: Any) -> dict[str, Any]:
        write(save(names, 0), state_path(tmp_path, 0))
        saved = read(state_path(tmp_path, 0))
        if request.param == "name by name":
            saved.together = None
        found: dict[str, Any] = {}
        assert loaded(saved, found).lost == {}
        return found

    return again


VIEWS = {
    "a slice": lambda a: a[:500],
    "a step": lambda a: a[10:900:7],
    "backwards": lambda a: a[::-1],
    "another shape": lambda a: a.reshape(10, 100),
    "transposed": lambda a: a.reshape(10, 100).T,
    "a block": lambda a: a.reshape(10, 100)[2:5, 30:60],
    "another dtype": lambda a: a.view(np.int64),
    "bytes": lambda a: a.view(np.uint8)[3:20],
    "a window": lambda a: np.lib.stride_tricks.sliding_window_view(a, 5),
    "broadcast": lambda a: np.broadcast_to(a[:3], (4, 3)),
    "one number": lambda a: a[7:8].reshape(()),
    "read only": lambda a: _read_only(a[5:]),
    "a matrix": lambda a: a[:4].view(np.matrix),
    "a record array": lambda a: a[:4].view([("x", "f8")]).view(np.recarray),
    "masked": lambda a: np.ma.MaskedArray(a, mask=a > 500),
}


def _read_only(a: Any) -> Any:
    a.flags.writeable = False
    return a


@pytest.mark.parametrize("kind", VIEWS)
def test_a_view_comes_back_as_a_view(again: Any, kind: str) -> None:
    base = np.arange(1000.0)
    view = VIEWS[kind](base)
    found = again(base=base, view=view, held={"twin": view, "list": [base]})
    np.testing.assert_array_equal(found["view"], view)
    assert type(found["view"]) is type(view)
    assert found["view"].dtype == view.dtype
    assert np.shares_memory(found["base"], found["view"])
    assert found["held"]["list"][0] is found["base"]
    if kind != "masked":
        assert found["held"]["twin"] is found["view"]
        assert found["view"].flags.writeable == view.flags.writeable
        assert found["view"].strides == view.strides
    found["base"][:] = -found["base"]
    if kind not in ("masked", "another dtype", "bytes"):
        expected = -np.asarray(view.x if kind == "a record array" else view)
        values = found["view"].x if kind == "a record array" else found["view"]
        np.testing.assert_array_equal(np.asarray(values), expected)


def test_a_views_base_is_the_variable(again: Any) -> None:
    base = np.arange(1000.0)
    found = again(view=base[:500], base=base)
    assert found["view"].base is found["base"]


def test_views_that_overlap_without_a_name_for_their_base(again: Any) -> None:
    base = np.arange(1000.0)
    found = again(left=base[:600], right=base[400:])
    assert np.shares_memory(found["left"], found["right"])
    found["left"][500] = -1.0
    assert found["right"][100] == -1.0


def test_a_row_of_a_huge_array_costs_a_row(tmp_path: Path) -> None:
    saved = save({"row": np.zeros((1000, 1000))[3]}, 0)
    assert saved.nbytes < 20_000


@pytest.mark.parametrize("dtype", ["M8[s]", "S5", "U3", "bool", "complex128", "bfloat16"])
def test_arrays_of_any_dtype(again: Any, dtype: str) -> None:
    import jax.numpy as jnp

    base = np.zeros(12, jnp.bfloat16 if dtype == "bfloat16" else dtype)
    found = again(base=base, view=base[::2])
    assert found["view"].dtype == base.dtype
    assert np.shares_memory(found["base"], found["view"])
    np.testing.assert_array_equal(found["view"], base[::2])


def test_fields_of_a_structured_array(again: Any) -> None:
    base = np.zeros(5, [("x", "f8"), ("y", "i4", 3)])
    found = again(base=base, x=base["x"], y=base["y"])
    found["base"]["y"][2, 1] = 7
    assert found["y"][2, 1] == 7
    assert np.shares_memory(found["x"], found["base"])


def test_arrays_in_any_order_of_axes(again: Any) -> None:
    base = np.arange(24.0).reshape(2, 3, 4).transpose(1, 2, 0).copy(order="K")
    found = again(base=base, view=base[1], empty=np.zeros((0, 3)))
    np.testing.assert_array_equal(found["base"], base)
    assert np.shares_memory(found["base"], found["view"])
    assert found["empty"].shape == (0, 3)


def test_views_of_an_array_of_objects(tmp_path: Path) -> None:
    base = np.array([[1], "two", None, {}], object)
    found = back(tmp_path, {"base": base, "view": base[1:3]})
    found["base"][1] = "changed"
    assert found["view"][0] == "changed"


def test_arrays_on_a_users_bytes(tmp_path: Path) -> None:
    raw, numbers = bytearray(16), array.array("d", [1.0, 2.0, 3.0])
    names = {"a": np.frombuffer(raw, np.int32), "raw": raw}
    names |= {"b": np.frombuffer(numbers, "f8")[1:], "numbers": numbers}
    found = back(tmp_path, names)
    found["a"][0] = 513
    assert found["raw"][:2] == b"\x01\x02"
    found["numbers"][1] = 9.0
    assert found["b"][0] == 9.0


class Tagged(np.ndarray):
    tag: list[str]


def test_arrays_of_a_users_class_keep_their_attributes_and_their_memory(again: Any) -> None:
    base = np.arange(6.0)
    tagged, alone = base[2:].view(Tagged), np.zeros(3).view(Tagged)
    tagged.tag = ["a"]
    found = again(base=base, tagged=tagged, alone=alone, empty=tagged[:0])
    found["base"][2] = 7
    assert type(found["tagged"]) is Tagged and found["tagged"].tolist() == [7, 3, 4, 5]
    assert found["tagged"].tag == ["a"]
    assert type(found["alone"]) is Tagged and found["alone"].tolist() == [0] * 3
    assert type(found["empty"]) is Tagged and found["empty"].shape == (0,)


def test_a_memoryview_is_lost_and_not_bytes() -> None:
    buffer = bytearray(b"abc")
    lost = save({"buffer": buffer, "seen": memoryview(buffer)}, 0).now.lost
    assert lost == {"seen": "a memoryview can't be saved"}


def test_functions_with_a_cache_come_back_without_what_it_held(tmp_path: Path) -> None:
    calls: list[int] = []
    names: dict[str, Any] = {"__name__": "__main__", "calls": calls}
    source = (
        "import functools\n"
        "@functools.lru_cache(maxsize=4, typed=True)\n"
        "def twice(n): calls.append(n); return 2 * n\n"
        "twice.unit = 'm'\n"
    )
    exec(source, names)
    assert names["twice"](3) == 6
    found = back(tmp_path, {"twice": names["twice"], "calls": calls})
    twice = found["twice"]
    assert twice.cache_parameters() == {"maxsize": 4, "typed": True} and twice.unit == "m"
    assert twice.cache_info().currsize == 0


class Own(Exception):
    """Whose arguments are not those of its class."""

    def __init__(self, code: int, *, why: str) -> None:
        super().__init__(f"{code}: {why}")
        self.code = code


def raised(cause: BaseException | None, context: BaseException | None) -> BaseException:
    try:
        try:
            raise context or ValueError
        except BaseException:
            raise KeyError("raised") from cause
    except KeyError as error:
        return error


def test_exceptions_keep_what_they_came_from(again: Any) -> None:
    own = Own(3, why="full")
    own.add_note("a note")
    chain = raised(own, OSError(2, "missing", "here"))
    hidden = raised(None, ZeroDivisionError())
    group = ExceptionGroup("both", [chain, StopIteration(4)])
    found = again(chain=chain, own=own, hidden=hidden, group=group)
    back, cause, context = found["chain"], found["own"], found["chain"].__context__
    assert (back.args, back.__suppress_context__) == (("raised",), True)
    assert (type(back.__cause__), str(back.__cause__)) == (Own, "3: full")
    assert (type(cause), str(cause), cause.code) == (Own, "3: full", 3)
    assert (cause.__notes__, cause.__context__) == (["a note"], None)
    assert (type(context), context.filename) == (FileNotFoundError, "here")
    assert type(found["hidden"].__context__) is ZeroDivisionError
    assert (found["hidden"].__cause__, found["hidden"].__suppress_context__) == (None, True)
    assert found["group"].exceptions[0].__cause__.code == 3
    assert found["group"].exceptions[1].value == 4


def held_lock() -> Any:
    lock = threading.Lock()
    lock.acquire()
    return lock


def test_what_runs_is_refused_by_its_name() -> None:
    """Else it would come back as if it still ran."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    done: futures.Future[int] = futures.Future()
    done.set_result(5)
    loop = asyncio.new_event_loop()
    task = loop.create_task(asyncio.sleep(0))
    loop.run_until_complete(task)
    names = {
        "process": multiprocessing.Process(target=print),
        "task": task,
        "loop": loop,
        "thread": threading.Thread(target=print),
        "ended": ended,
        "pending": futures.Future(),
        "handler": logging.NullHandler(),
        "done": done,
    }
    lost = save(names, 0).now.lost
    loop.close()
    assert lost == {
        "process": "a process can't be saved",
        "task": "a task or future of asyncio can't be saved",
        "loop": "an event loop can't be saved",
        "thread": "a thread can't be saved",
        "ended": "a subprocess can't be saved",
        "pending": "a future that is not done can't be saved",
        "handler": "a logging handler can't be saved",
    }


def test_an_exception_outlives_what_it_came_from(again: Any) -> None:
    holder = ValueError("has a lock")
    holder.lock = held_lock()  # type: ignore[attr-defined]
    back = again(error=raised(holder, None))["error"]
    assert (back.args, back.__cause__, type(back.__context__)) == (("raised",), None, ValueError)
    told = "Its __cause__ was lost with its process (a lock that is held can't be saved)."
    assert back.__notes__ == [told]


@pytest.mark.parametrize("again", ["together"], indirect=True)
def test_functions_that_share_a_variable_share_it_again(again: Any) -> None:
    names: dict[str, Any] = {}
    exec(SHARING, names)
    names["add"](2)
    found = again(**names)
    found["add"](3)
    assert (found["get"](), found["at"]["get"](), found["counter"].get()) == (5, 5, 5)
    assert found["down"](3) == 0
    assert found["other"]() == 0  # of another call of the same function


SHARING = """
def make():
    total = 0
    def add(n):
        nonlocal total
        total += n
    def get():
        return total
    def down(n):
        return down(n - 1) if n else 0
    class Counter:
        def get(self):
            return total
    return add, get, down, Counter()
add, get, down, counter = make()
at, other = {"get": get}, make()[1]
"""


def test_an_array_that_lies_in_a_file_lies_in_it_again(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    disk = np.memmap(path, "f8", "w+", shape=(100,))
    disk[:] = np.arange(100)
    found = back(tmp_path, {"disk": disk, "part": disk[50:]})
    assert type(found["disk"]) is np.memmap
    found["part"][0] = -5.0
    assert found["disk"][50] == -5.0
    assert np.memmap(path, "f8", "r")[50] == -5.0


def test_what_came_back_can_be_saved_again(tmp_path: Path) -> None:
    base = np.arange(1000.0)
    found = back(tmp_path, {"base": base, "view": base[:500]})
    assert type(found["base"].base) is Section
    again = back(tmp_path, found)
    assert again["view"].base is again["base"]
    np.testing.assert_array_equal(again["base"], base)


# --------------------------------------------------------------------------- the file


@pytest.mark.parametrize("umask", [0, 0o777])
def test_a_state_is_for_its_owners_eyes_only_and_for_those(tmp_path: Path, umask: int) -> None:
    """A cell may have set any umask; root alone reads a file that allows nobody anything."""
    before = os.umask(umask)
    try:
        write(save({"secret": 1}, 0), state_path(tmp_path, 0))
    finally:
        os.umask(before)
    assert stat.S_IMODE(state_path(tmp_path, 0).stat().st_mode) == 0o600


def test_nobody_waits_for_a_state_whose_folder_is_gone(tmp_path: Path) -> None:
    with pytest.raises(CannotSave, match="the save was cancelled"):
        write(save({"a": 1}, 0), state_path(tmp_path / "gone", 0))
    assert not (tmp_path / "gone").exists()


def test_another_file_is_no_state(tmp_path: Path) -> None:
    state_path(tmp_path, 0).write_bytes(b"something else")
    with pytest.raises(CannotRestore, match="is not a saved state of this version"):
        read(state_path(tmp_path, 0))


def test_a_state_that_is_cut_short_is_none(tmp_path: Path) -> None:
    path = state_path(tmp_path, 0)
    write(save({"a": np.arange(1000.0)}, 0), path)
    os.truncate(path, path.stat().st_size - 5000)
    with pytest.raises(CannotRestore, match="is truncated"):
        read(path)


@pytest.mark.parametrize("where", ["a section", "the header"])
def test_a_state_that_is_damaged_is_found_out(tmp_path: Path, where: str) -> None:
    path = state_path(tmp_path, 0)
    write(save({"a": np.arange(1000.0)}, 0), path)
    data = bytearray(path.read_bytes())
    at = data.index(np.float64(500).tobytes()) if where == "a section" else data.rindex(b"places")
    data[at] ^= 1
    path.write_bytes(data)
    for look in (read, check):
        with pytest.raises(Unreadable, match="damaged"):
            look(path)


def test_what_can_not_be_read_back_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes that have the values end once this has returned."""
    copy = files._copy

    def wrongly(section: Any, file: Any) -> tuple[int, int]:
        nbytes, checksum = copy(section, file)
        file.seek(-nbytes, os.SEEK_CUR)
        file.write(b"x" * nbytes)
        return nbytes, checksum

    monkeypatch.setattr(files, "_copy", wrongly)
    with pytest.raises(CannotSave, match="reading it back failed"):
        write(save({"a": np.arange(1000.0)}, 0), state_path(tmp_path, 0))
    assert not list(tmp_path.iterdir())


def test_what_a_cell_changes_while_it_is_written_is_no_damage(tmp_path: Path) -> None:
    array, path = np.zeros(1 << 20), state_path(tmp_path, 0)
    stop = threading.Event()

    def change() -> None:
        while not stop.is_set():
            array[:] += 1

    thread = threading.Thread(target=change)
    thread.start()
    try:
        for _ in range(5):
            write(save({"a": array}, 0), path)
            check(path)
    finally:
        stop.set()
        thread.join()


# --------------------------------------------------------------------------- where there is room


@pytest.fixture
def places(tmp_path: Path) -> list[SavePlace]:
    """One in memory, with room for a MiB, and one on a disk."""
    found = [SavePlace(str(tmp_path / "memory"), 1 << 20), SavePlace(str(tmp_path / "disk"))]
    for place in found:
        Path(place.folder).mkdir()
    return found


def fill(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """Have no room left in these, whatever they say."""
    write_to = files._write_to

    def fails(file: Any, saved: Any, folder: Path) -> None:
        if folder.name in folders:
            file.write(b"half")
            raise OSError(28, "No space left on device")
        write_to(file, saved, folder)

    monkeypatch.setattr(files, "_write_to", fails)


def kib(n: int) -> Any:
    return save({"a": np.arange(n << 7, dtype=np.float64)}, 0)


def test_memory_is_taken_where_it_has_room(places: list[SavePlace]) -> None:
    assert write_where_room(kib(512), 0, places).parent.name == "memory"
    assert write_where_room(kib(2048), 0, places).parent.name == "disk"


def test_the_next_place_is_taken_where_one_turns_out_to_be_full(
    places: list[SavePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(monkeypatch, "memory")
    assert write_where_room(kib(512), 0, places).parent.name == "disk"
    assert not list(Path(places[0].folder).iterdir())  # nor half a file


def test_a_ranks_share_of_memory_is_not_its_limit_where_no_disk_has_room(
    places: list[SavePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(monkeypatch, "disk")
    assert write_where_room(kib(2048), 0, places).parent.name == "memory"


def test_where_nothing_has_room_it_is_said_of_all_and_nothing_is_left(
    places: list[SavePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(monkeypatch, "memory", "disk")
    with pytest.raises(CannotSave) as caught:
        write_where_room(kib(2048), 0, places)
    assert "its 2 MiB can't be written: " in str(caught.value)
    for place in places:
        assert f"{place.folder} (No space left on device, " in str(caught.value)
        assert not list(Path(place.folder).iterdir())


def test_memory_that_would_overflow_is_left_alone(
    places: list[SavePlace], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever fills it has processes killed, ranks among them."""
    fill(monkeypatch, "disk")
    monkeypatch.setattr(files, "memory_room", lambda folder: 1 << 20)
    with pytest.raises(CannotSave, match=r"memory .No space left on device, 1 MiB free."):
        write_where_room(kib(2048), 0, places)


def test_classes_with_cached_properties_come_back(again: Any) -> None:
    """In Python 3.11 such a property has a lock."""
    made: dict[str, Any] = {"__name__": "__main__"}
    source = (
        "import functools\n"
        "class Model:\n"
        "    @functools.cached_property\n"
        "    def size(self):\n"
        "        'How large.'\n"
        "        self.asked = getattr(self, 'asked', 0) + 1\n"
        "        return 3\n"
        "model = Model(); model.size\n"
    )
    exec(source, made)
    found = again(Model=made["Model"], model=made["model"])
    assert (found["model"].size, found["model"].asked) == (3, 1)
    new = found["Model"]()
    assert (new.size, new.size, new.asked) == (3, 3, 1)
    assert found["Model"].size.__doc__ == "How large."


# --------------------------------------------------------------------------- arrays


def test_the_weak_type_of_an_array_on_chosen_devices_is_kept(again: Any) -> None:
    """With it ``rate * params`` stays bfloat16."""
    import jax
    import jax.numpy as jnp

    place = jax.sharding.NamedSharding(jax.make_mesh((1,), ("i",)), jax.sharding.PartitionSpec())
    weak = jax.device_put(jnp.asarray(3.0), place)
    found = again(weak=weak, strong=jax.device_put(jnp.ones(2), place))
    assert found["weak"].weak_type and found["weak"].committed
    assert found["weak"].sharding == place
    assert (found["weak"] * jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16
    assert not found["strong"].weak_type


def test_arrays_made_in_a_context_have_their_dtype_outside_of_it(again: Any) -> None:
    """Else 2 ** 40 is 0 in new processes, and a third has other digits."""
    import jax
    import jax.numpy as jnp

    place = jax.sharding.NamedSharding(jax.make_mesh((1,), ("i",)), jax.sharding.PartitionSpec())
    weak = jnp.asarray(float("nan"))
    with jax.enable_x64(True):
        made = {"count": jnp.arange(3) + 2**40, "x": jax.device_put(jnp.arange(3.0) / 3, place)}
    with jax.debug_nans(True), jax.transfer_guard("disallow_explicit"):
        found = again(**made, weak=weak)
    assert not jax.config.jax_enable_x64
    for name, one in made.items():
        assert found[name].dtype == one.dtype
        assert np.asarray(found[name]).tolist() == np.asarray(one).tolist()
    assert found["weak"].weak_type


@pytest.mark.parametrize("exits", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_value_whose_code_exits_is_lost_alone(tmp_path: Path, exits: type) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "exits": exits}
    source = """
class Saved:
    def __getstate__(self): raise exits
class Made:
    def __setstate__(self, state): raise exits
class Unbound:  # as a lazy proxy
    @property
    def __class__(self): raise RuntimeError("unbound")
saved, made, unbound, kept = Saved(), Made(), Unbound(), [1]
made.of = kept
"""
    exec(source, names)
    written = save(names, 0)
    write(written, state_path(tmp_path, 0))
    found: dict[str, Any] = {"__name__": "__main__"}
    read_back = load(read(state_path(tmp_path, 0)), found)
    bind(read_back, found)
    raises = f"RuntimeError: its code raises {exits.__name__}"
    assert written.now.lost == {"saved": raises, "unbound": "RuntimeError: unbound"}
    assert read_back.lost == {"made": raises}
    assert found["kept"] == [1]


def test_a_dtype_that_holds_what_a_cell_has_made_keeps_no_other_array_from_coming_back(
    tmp_path: Path,
) -> None:
    names: dict[str, Any] = {"__name__": "__main__", "np": np}
    source = """
class Unit: pass
metre = np.dtype("f4", metadata={"unit": Unit, "of": lambda: 1})
lengths, pairs = np.ones(2, metre), np.ones(2, [("a", metre, 3)])
lost = np.ones(2, np.dtype("f4", metadata={"of": (one for one in [1])}))
plain = np.arange(3)
"""
    exec(source, names)
    written = save(names, 0)
    write(written, state_path(tmp_path, 0))
    found: dict[str, Any] = {"__name__": "__main__"}
    read_back = load(read(state_path(tmp_path, 0)), found)
    bind(read_back, found)
    assert [*written.now.lost] == ["lost"]
    assert read_back.lost == {}
    assert found["plain"].tolist() == [0, 1, 2]
    assert found["lengths"].dtype.metadata["unit"] is found["Unit"]
    assert found["pairs"]["a"].tolist() == [[1, 1, 1]] * 2


def test_names_of_the_users_that_look_like_pythons_own_come_back(again: Any) -> None:
    pythons = {"__name__": "__main__", "__annotations__": {}, "__warningregistry__": {}, "_i1": ""}
    pythons |= {"__pdb_convenience_variables": {}, "__return__": 1, "__exception__": ()}
    assert again(**pythons, __version__="1.2", _own=3) == {"__version__": "1.2", "_own": 3}


def test_what_a_process_has_one_of_stays_that(again: Any) -> None:
    """What draws from the process's generator is seeded by its ``seed``, as before."""
    import random

    import jax
    import matplotlib

    mine = random.Random(1)
    found = again(
        mine=mine, shuffle=random.shuffle, seed=random.seed, rand=np.random.rand,
        bits=np.random.get_bit_generator(), environ=os.environ, rc=matplotlib.rcParams,
        update=jax.config.update,
    )  # fmt: skip
    assert found["shuffle"].__self__ is found["seed"].__self__ is random.shuffle.__self__  # type: ignore[attr-defined]
    assert found["rand"].__self__ is np.random.rand.__self__
    assert found["bits"] is np.random.get_bit_generator()
    assert found["environ"] is os.environ
    assert found["rc"] is matplotlib.rcParams
    assert found["update"].__self__ is jax.config
    assert found["mine"] is not mine
    assert found["mine"].getstate() == mine.getstate()


def test_a_class_stays_as_it_is_until_what_was_read_is_bound(tmp_path: Path) -> None:
    """A restore that another rank refuses changes nothing."""
    ns: dict[str, Any] = {"__name__": "__main__"}
    exec(
        "import enum\nclass Config:\n    rate = 1\n    __slots__ = ('a',)\n"
        "    def f(self): return 1\n"
        "class Mode(enum.Enum):\n    A = [1]\n"
        "mine = Config()",
        ns,
    )
    path = state_path(tmp_path, 0)
    write(save(ns, 0), path)
    change = (
        "Config.rate = 5; Config.more = 2; Config.f = None; Mode.A.value.append(2); Mode.A.n = 1"
    )
    exec(change, ns)
    config, mode, mine = ns["Config"], ns["Mode"], ns["mine"]
    found = load(read(path), ns)
    assert (config.rate, config.more, config.f, mode.A.value, mode.A.n) == (5, 2, None, [1, 2], 1)
    bind(found, ns)
    assert ns["Config"] is config
    assert (config.rate, mine.f(), mode.A.value) == (1, 1, [1])
    assert not (hasattr(config, "more") or hasattr(mode.A, "n"))
    assert isinstance(ns["mine"], config)


def test_what_a_library_tells_by_identity_is_the_same_object(again: Any) -> None:
    import dataclasses

    from jax._src import config, core

    held = [config.config_ext.unset, core.no_axis_name, dataclasses.MISSING]
    entered = config.enable_x64(True)
    found = again(held=held, entered=entered, own=object())
    assert all(a is b for a, b in zip(found["held"], held, strict=True))
    with found["entered"]:
        assert config.enable_x64.value
    assert not config.enable_x64.value


# --------------------------------------------------------------------------- from before a cell


def test_names_from_before_a_cell_come_back_with_their_aliases(tmp_path: Path) -> None:
    old, same = np.arange(10.0), [1]
    before = {"params": old, "view": old[2:], "same": same, "deleted": 1}
    now = {"params": old + 1, "view": old[2:], "same": same, "new": 2}
    saved = save(now, 0, before=before)
    assert saved.absent == ["new"]
    assert sorted(saved.before.names) == ["deleted", "params", "view"]
    write(saved, state_path(tmp_path, 0))
    found: dict[str, Any] = {}
    names = ["params", "view", "same", "deleted"]
    loaded(read(state_path(tmp_path, 0)), found, names, names)
    assert sorted(found) == sorted(names)
    assert found["params"][0] == 0.0
    assert np.shares_memory(found["params"], found["view"])
    newest: dict[str, Any] = {}
    loaded(read(state_path(tmp_path, 0)), newest, ["params", "view", "new"], ["view"])
    assert newest["params"][0] == 1.0 and newest["new"] == 2


def test_a_name_that_was_not_there_before_the_cell_is_not_bound(tmp_path: Path) -> None:
    write(save({"new": 1}, 0, before={}), state_path(tmp_path, 0))
    found: dict[str, Any] = {}
    assert loaded(read(state_path(tmp_path, 0)), found, ["new"], ["new"]).lost == {}
    assert found == {}


class Holder:
    def __init__(self, *held: Any) -> None:
        self.held = held


def test_the_reason_names_the_value_and_not_what_is_deep_inside_of_it() -> None:
    widgets = pytest.importorskip("ipywidgets")
    slider = widgets.IntSlider()
    names = {
        "slider": slider,
        "panel": {"left": [slider]},
        "comm": slider.comm,
        "lock": held_lock(),
        "trainer": Holder(held_lock()),
        "numbers": (n for n in "12"),
        "kept": Holder(3),
    }
    assert save(names, 0).now.lost == {
        "slider": "a widget can't be saved",
        "panel": "a widget can't be saved",
        "comm": "a widget can't be saved",
        "lock": "a lock that is held can't be saved",
        "trainer": "a lock that is held can't be saved",
        "numbers": "a generator can't be saved",
    }


# --------------------------------------------------------------------------- memory of one's own


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(24).reshape(2, 3, 4).transpose(2, 0, 1) + 1,
        np.array(["a", "bc"]),
        np.array(5),
        np.array(["2020-01-01"], "M8[D]"),
    ],
    ids=["plain", "Fortran", "permuted", "text", "scalar", "dates"],
)
def test_an_array_with_memory_of_its_own_has_it_again(tmp_path: Path, array: Any) -> None:
    array = array.copy(order="K")
    assert array.flags.owndata
    for found in (back(tmp_path, {"a": array}), back(tmp_path, back(tmp_path, {"a": array}))):
        assert found["a"].flags.owndata and found["a"].flags.writeable
        assert found["a"].strides == array.strides
        assert np.array_equal(found["a"], array)
        if array.flags.contiguous:  # numpy resizes no others
            found["a"].resize((10,), refcheck=False)
            assert found["a"].shape == (10,)


def test_one_with_views_shares_its_memory_with_them(tmp_path: Path) -> None:
    array = np.arange(6)
    found = back(tmp_path, {"a": array, "v": array[::2]})
    found["a"][0] = 9
    assert found["v"][0] == 9


def test_one_that_can_not_be_written_to_is_so_again(tmp_path: Path) -> None:
    array = np.arange(6)
    array.flags.writeable = False
    assert not back(tmp_path, {"a": array})["a"].flags.writeable


# --------------------------------------------------------------------------- many


def test_many_names_cost_as_much_more_as_they_are(tmp_path: Path) -> None:
    """20,000 took more than 150 s; it is one."""
    names = {f"v{i}": i for i in range(20_000)}
    started = time.monotonic()
    write(save(names, 0), state_path(tmp_path, 0))
    found: dict[str, Any] = {}
    loaded(read(state_path(tmp_path, 0)), found, sorted(names))
    assert found == names
    assert time.monotonic() - started < 30


def test_the_garbage_collector_is_as_it_was_after_it(tmp_path: Path) -> None:
    assert gc.isenabled()
    back(tmp_path, {"a": 1})
    assert gc.isenabled()
    gc.disable()
    try:
        back(tmp_path, {"a": 1})
        assert not gc.isenabled()
    finally:
        gc.enable()
