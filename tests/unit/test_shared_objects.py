"""One object stays one in new processes: with names, settings and modules of the user's own."""

from __future__ import annotations

import functools
import importlib
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar

import jax.numpy as jnp
import pytest

from jaxcluster.engine.state import ownmodules, saving
from jaxcluster.engine.state.loading import SHARED, bind, load
from jaxcluster.engine.state.saved import read, state_path, write
from jaxcluster.engine.state.saving import save

SOURCE = """
options, numbers, changed, plain = {"a": 1}, [1], {1}, 3
class Box:
    rate, seen = 0.5, []
    mine = numbers
    def __init__(self, options=options):
        self.options = options
box = Box()
"""


class Handlers:
    """Settings of which one is a method of a value that has a name."""

    def __init__(self, **handlers: Any) -> None:
        self.handlers = handlers
        self.own = ownmodules.OwnModules()

    def changed(self) -> dict[str, Any]:
        modules = {f"module {name}": one for name, one in self.own.read().items()}
        return self.handlers | modules

    def restore(self, name: str, value: Any) -> None:
        if isinstance(value, ownmodules.Variables | ownmodules.Held):
            self.own.write({name.partition(" ")[2]: value})
        else:
            self.handlers[name] = value


class Fails:
    """Pickled as any other, but its state can't be set."""

    def __init__(self) -> None:
        self.inner: Any = None

    def __setstate__(self, state: Any) -> None:
        raise ValueError("no")


class FailsToo:
    def __new__(cls, value: Any) -> FailsToo:
        return super().__new__(cls)


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def up(self, *_: Any) -> None:
        self.count += 1


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ModuleType]]:
    """Imports the module again, as another process does."""
    (tmp_path / "of_user.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    # Those of the tests are the user's, too, and leave no room.
    monkeypatch.setattr(ownmodules, "_own_names", lambda count: ["of_user"])

    def new() -> ModuleType:
        sys.modules.pop("of_user", None)
        return importlib.import_module("of_user")

    yield new
    sys.modules.pop("of_user", None)


def again(
    tmp_path: Path, names: dict[str, Any], settings: Any, new: Callable[[], Any] = lambda: None
) -> tuple[dict[str, Any], dict[str, str], dict[str, str]]:
    """The names, what is lost, and the settings that are left."""
    write(save(names, 0, settings=settings), state_path(tmp_path, 0))
    new()
    found: dict[str, Any] = {}
    loaded = load(read(state_path(tmp_path, 0)), found)
    left = bind(loaded, found, settings)
    return found, loaded.lost, left


def test_objects_whose_class_answers_any_name_share_what_they_did(tmp_path: Path) -> None:
    """A class is looked at once: what is known of it then holds for each pickle."""
    vars(sys.modules["__main__"])["Any_"] = Any_ = type(
        "Any_", (), {"__module__": "__main__", "__getattr__": lambda one, name: 5}
    )
    try:
        shared = [1]
        one = Any_()
        one.held = shared
        found, lost, _ = again(tmp_path, {"one": one, "shared": shared}, None)
        assert not lost
        assert found["one"].held is found["shared"]
    finally:
        del vars(sys.modules["__main__"])["Any_"]


def test_values_share_what_they_did_beside_one_that_cannot_be_made(tmp_path: Path) -> None:
    counter, fails = Counter(), Fails()
    fails.inner = counter
    names = {
        "fails": fails,
        "too": FailsToo(1),
        "holds": [counter, fails],
        "counter": counter,
        "up": counter.up,
        "among": [counter],
    }
    handlers = Handlers(signal=counter.up, other=fails)
    found, lost, left = again(tmp_path, names, handlers)
    assert lost.keys() == {"fails", "too", "holds"}
    assert left.keys() == {"other"}
    found["up"]()
    handlers.handlers["signal"]()
    assert found["counter"].count == found["among"][0].count == 2


def test_what_can_be_made_but_once_is_whole_beside_what_can_not(tmp_path: Path) -> None:
    """Read a second time, with all others, it would be half of itself."""
    Once.made.clear()
    once = Once()
    once.value = 5  # type: ignore[attr-defined]
    fails = Fails()
    found, lost, left = again(tmp_path, {"fails": fails, "once": once}, Handlers())
    assert lost.keys() == {"fails"}
    assert found["once"].value == 5
    assert left.keys() == {SHARED}


class Half:
    def __init__(self) -> None:
        self.name = "half"

    def __repr__(self) -> str:
        return self.name

    def __setstate__(self, state: Any) -> None:
        raise ValueError(self)


def test_an_error_that_can_not_be_told_costs_its_name_alone(tmp_path: Path) -> None:
    """Where its message is of an object that has come to nothing."""
    handlers = Handlers(other=Half())
    found, lost, left = again(tmp_path, {"half": Half(), "one": 1}, handlers)
    assert found == {"one": 1}
    assert lost == {"half": "ValueError: (its message is not available)"}
    assert left == {"other": "it can't be made: Half"}


class Once:
    made: ClassVar[list[int]] = []

    def __setstate__(self, state: Any) -> None:
        self.made.append(1)
        if len(self.made) == 2:  # the first reading, of all names, has ended before it
            raise ValueError("once")
        vars(self).update(state)


def test_that_nothing_is_shared_any_more_is_said(tmp_path: Path) -> None:
    counter = Counter()
    write(save({"counter": counter, "up": counter.up}, 0), state_path(tmp_path, 0))
    saved = read(state_path(tmp_path, 0))
    saved.together = None
    found: dict[str, Any] = {}
    assert bind(load(saved, found), found, Handlers()).keys() == {SHARED}  # type: ignore[arg-type]


def test_a_handler_is_of_the_object_that_has_a_name(tmp_path: Path) -> None:
    counter = Counter()
    handlers = Handlers(signal=counter.up)
    found, *_ = again(tmp_path, {"counter": counter}, handlers)
    handlers.handlers["signal"]()
    assert found["counter"].count == 1
    assert counter.count == 0


def test_a_name_and_a_module_of_the_users_have_one_object(tmp_path: Path, own: Any) -> None:
    made = own()
    made.changed.add(2)
    made.box.options["b"] = 2
    names = {"options": made.options, "many": [made.numbers, made.changed], "box": made.box}
    found, lost, left = again(tmp_path, names, Handlers(), own)
    now = sys.modules["of_user"]
    assert (lost, left) == ({}, {})
    assert now is not made
    assert now.options is found["options"] == {"a": 1, "b": 2}
    assert now.numbers is found["many"][0] == [1]  # also where the file makes the same
    assert now.changed is found["many"][1] == {1, 2}
    assert now.box is found["box"]


def test_what_a_module_has_is_set_in_place(tmp_path: Path, own: Any) -> None:
    made = own()
    made.numbers.append(2)
    made.options["b"], made.plain = 2, 4
    again(tmp_path, {}, Handlers(), own)
    now: Any = sys.modules["of_user"]
    assert now.Box().options is now.options == {"a": 1, "b": 2}
    assert now.Box.mine is now.numbers == [1, 2]
    assert now.plain == 4


def test_what_a_class_of_a_module_has_comes_back(tmp_path: Path, own: Any) -> None:
    made = own()
    made.Box.rate, made.Box.new = 0.1, 7
    made.Box.seen.append(1)
    found, *_ = again(tmp_path, {"seen": made.Box.seen}, Handlers(), own)
    now: Any = sys.modules["of_user"]
    assert (now.Box.rate, now.Box.new, now.Box.seen) == (0.1, 7, [1])
    assert now.Box.seen is found["seen"]


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch, own: Callable[[], ModuleType]) -> Any:
    """The same where imports are noted."""
    monkeypatch.setattr(SourceFileLoader, "exec_module", SourceFileLoader.exec_module)
    monkeypatch.setattr(ownmodules, "_made", {})
    ownmodules.remember_imports()
    return own


def test_what_can_not_be_compared_comes_back_where_it_is_not_the_files(
    tmp_path: Path, watched: Any
) -> None:
    made, settings = watched(), Handlers()
    settings.own.note()
    made.plain = made.new = lambda: 5
    made.numbers.extend(range(30_000))
    made.Box.act = lambda self: 6
    made.options["w"] = made.box.w = jnp.ones(2)
    made.changed = (n for n in "12")
    for _ in range(2):  # what was set once is not the file's in the next process, either
        saved = save({"twin": made.options}, 0, settings=settings)  # type: ignore[arg-type]
        assert saved.left.keys() <= {"module of_user.changed"}
        assert {"module of_user.plain", "module of_user.numbers"} <= saved.random.keys()
        found, _, _ = again(tmp_path, {"twin": made.options}, settings, watched)
        now: Any = sys.modules["of_user"]
        assert now is not made
        assert now.plain() == now.new() == 5 and now.Box().act() == 6
        assert now.Box.mine is now.numbers
        assert len(now.numbers) == 30_001
        assert now.options is found["twin"]
        assert now.Box().options == now.options  # a default is the file's object
        assert now.options["w"] is now.box.w
        made = now


def test_of_what_a_dead_rank_may_have_set_the_files_is_taken_and_said(
    tmp_path: Path, watched: Any
) -> None:
    made, settings = watched(), Handlers()
    made.plain = lambda: 5
    saved = save({}, 0, settings=settings)  # type: ignore[arg-type]
    watched()
    loaded = load(saved, {}, skip=["module of_user.plain"])
    left = bind(loaded, {}, settings)  # type: ignore[arg-type]
    assert left == {"module of_user.plain": ownmodules.OF_THE_DEAD}
    assert sys.modules["of_user"].plain == 3


def test_what_a_module_raises_is_shown_without_what_notes_imports(
    tmp_path: Path, watched: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "raises.py").write_text("1 / 0")
    with pytest.raises(ZeroDivisionError) as caught:
        importlib.import_module("raises")
    assert [Path(one.path).name for one in caught.traceback][-1] == "raises.py"
    try:
        import raises  # type: ignore[import-not-found]  # noqa: F401
    except ZeroDivisionError as error:
        at = error.__traceback__
        assert at is not None and at.tb_next is not None
        assert at.tb_next.tb_frame.f_code.co_filename == str(tmp_path / "raises.py")


def test_a_lock_of_a_library_is_its_modules_own(tmp_path: Path) -> None:
    names = {"theirs": threading._active_limbo_lock, "own": threading.Lock()}  # type: ignore[attr-defined]
    found, lost, _ = again(tmp_path, names, Handlers())
    assert not lost
    assert found["theirs"] is names["theirs"]
    assert found["own"] is not names["own"] and found["own"].acquire(blocking=False)


def test_another_array_in_a_value_makes_it_another_than_the_files() -> None:
    held = {"w": jnp.ones(2), "lock": object()}
    first = ownmodules._First(held)
    assert first.is_it(held)
    held["w"] = held["w"] + 0
    assert not first.is_it(held)


def test_what_a_module_makes_when_it_is_loaded_again_is_the_files(watched: Any) -> None:
    made, settings = watched(), ownmodules.OwnModules()
    made.plain = made.new = lambda: 5
    assert [name for name in settings.read() if "." in name] == ["of_user.plain", "of_user.new"]
    importlib.reload(made)
    assert [name for name in settings.read() if "." in name] == ["of_user.new"]


class Attributes(dict[str, Any]):
    def __init__(self, **values: Any) -> None:
        super().__init__(values)
        self.__dict__ = self


class Borg:
    shared: ClassVar[dict[str, Any]] = {}

    def __init__(self) -> None:
        self.__dict__ = self.shared


class Slotted:
    __slots__ = ("__dict__", "slot")


def test_an_object_has_the_dict_that_others_have(tmp_path: Path) -> None:
    config, borg, slotted = Attributes(rate=1.0, inner=Attributes(n=1)), Borg(), Slotted()
    borg.one = 1  # type: ignore[attr-defined]
    slotted.slot, slotted.two = 1, 2  # type: ignore[attr-defined]
    names = {"config": config, "borg": borg, "shared": Borg.shared, "of": vars(slotted)}
    names |= {"slotted": slotted, "alone": Counter()}
    found, *_ = again(tmp_path, names, Handlers())
    found["config"].rate = found["config"].inner.n = 2.0
    assert found["config"] == {"rate": 2.0, "inner": {"n": 2.0}}
    found["borg"].one = 3
    assert found["shared"] == {"one": 3}
    found["of"]["two"] = 4
    assert (found["slotted"].slot, found["slotted"].two) == (1, 4)
    assert vars(found["alone"]) == {"count": 0}


def test_views_show_the_dict_that_has_a_name(tmp_path: Path) -> None:
    plain, ordered = {"a": 1}, OrderedDict(b=2)
    names = {"plain": plain, "keys": plain.keys(), "read": MappingProxyType(plain)}
    names |= {"ordered": ordered, "values": ordered.values(), "items": ordered.items()}
    found, *_ = again(tmp_path, names, Handlers())
    found["plain"]["new"] = found["ordered"]["new"] = 3
    assert [*found["keys"]] == [*found["read"]] == ["a", "new"]
    assert [*found["values"]] == [2, 3]
    assert ("new", 3) in found["items"]
    assert type(found["items"]) is type(ordered.items())


class Hashed:
    def __init__(self, name: str) -> None:
        self.name = name
        self.others: set[Any] = set()
        self.by: dict[Any, int] = {}

    def __hash__(self) -> int:
        return hash(self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hashed) and self.name == other.name


@pytest.mark.parametrize("fails", [False, True])
def test_objects_that_have_each_other_in_sets_come_back(tmp_path: Path, fails: bool) -> None:
    """pickle alone adds them before they have a hash."""
    one, other, counter = Hashed("one"), Hashed("other"), Counter()
    one.others, other.others = {other}, {one}
    one.by, other.by = {other: 1, one: 2}, {one: 3}
    names = {"one": one, "other": other, "counter": counter, "up": counter.up}
    names |= {"all": {one, other}} | ({"fails": Fails()} if fails else {})
    found, lost, _ = again(tmp_path, names, Handlers())
    assert lost.keys() == ({"fails"} if fails else set())
    back = found["one"]
    assert back.others == {found["other"]} and found["other"].others == {back}
    assert back.by == {found["other"]: 1, back: 2} and found["other"].by[back] == 3
    assert found["all"] == {back, found["other"]}
    found["up"]()
    assert found["counter"].count == 1


@functools.cache
def registry() -> dict[str, int]:
    return {}


@functools.lru_cache(maxsize=9)
def square(number: int) -> int:
    return number * number


def test_a_cache_that_may_have_changed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saving, "is_imported", lambda value: False)  # of a cell, where all are
    names = {"registry": registry, "square": square}
    registry.cache_clear()
    square(3)
    assert save(names, 0, settings=Handlers()).left == {}  # type: ignore[arg-type]
    registry()["step"] = 5
    left = save(names, 0, settings=Handlers()).left  # type: ignore[arg-type]
    assert left == {"what registry has cached": "it is called again"}
