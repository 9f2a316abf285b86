"""What a random cell does to the objects that it reaches. See ``undosearch``."""

from __future__ import annotations

import collections
import decimal
import enum
import random
import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from undopicture import CLASS_VARS, FIXED, LRU, edges, get, has, is_own, is_users_function

__file__ = "/lib/site-packages/undopokes.py"  # a library's, and no module of the user's


def poke(value: Any = None, seed: int = 0) -> Any:
    """Change something that ``value`` leads to, whatever that takes. A library's function."""
    global _depth
    if _depth > 3:
        return None
    _depth += 1
    try:
        choose = random.Random(seed)
        for _ in range(choose.randint(0, 5)):
            held = [one for one in edges(value)[1] if type(one) not in FIXED]
            if not held:
                break
            value = choose.choice(held)
        _change(value, choose)
    except Exception:  # a cell may fail at any point
        pass
    finally:
        _depth -= 1
    return None


_LOCK = type(threading.Lock())
_depth = 0
_spawned = False


def begin() -> None:
    global _depth, _spawned
    _depth, _spawned = 0, False


def has_spawned() -> bool:
    """Whether seeds have been spawned since ``begin``: their count can't be put back."""
    return _spawned


def _change(value: Any, choose: random.Random) -> None:
    cls = type(value)
    if issubclass(cls, type):
        if is_own(value):
            _change_class(value, choose)
        return
    if cls is types.FunctionType and not (is_users_function(value) or value.__closure__):
        return
    if cls is type(np.random.default_rng) or (issubclass(cls, enum.Enum) and not is_own(cls)):
        return
    bases = [base for base in _CHANGES if issubclass(cls, base)]
    if collections.OrderedDict in bases:
        bases.remove(dict)  # its methods leave the order as it is
    acts = [act for base in bases for act in _CHANGES[base]]
    if cls is not types.FunctionType or is_users_function(value):
        if hasattr(cls, "__dict__") and has_attributes(value):
            acts += _ON_ATTRIBUTES
        if is_own(cls):
            acts += [_set_slot, _set_slot, _new_class]
        if callable(value) and type(getattr(value, "__self__", None)) is not _LOCK:  # it waits
            acts += [lambda v, c: v(), lambda v, c: v(c.randint(0, 3))]
    if acts:
        choose.choice(acts)(value, choose)


def has_attributes(value: Any) -> bool:
    try:
        return type(get(value, "__dict__")) is dict
    except AttributeError:
        return False


def _change_class(value: Any, choose: random.Random) -> None:
    names = [n for n in CLASS_VARS.__get__(value) if not n.startswith("__")]
    way = choose.randint(0, 3)
    if way == 0 or not names:
        type.__setattr__(value, "new", [1])
    elif way == 1:
        type.__setattr__(value, choose.choice(names), 5)
    elif way == 2:
        type.__delattr__(value, choose.choice(names))
    else:
        type.__setattr__(value, "act", lambda self: None)


def _set_slot(value: Any, choose: random.Random) -> None:
    for name in ("a", "b"):
        one = getattr(type(value), name, None)
        if type(one) is types.MemberDescriptorType:
            if choose.random() < 0.3 and has(one, value):
                one.__delete__(value)  # type: ignore[attr-defined]
            else:
                one.__set__(value, [7])  # type: ignore[attr-defined]


def _new_class(value: Any, choose: random.Random) -> None:
    cls = type(value)
    slots = {} if cls.__dictoffset__ else {"__slots__": ()}
    value.__class__ = type(cls)("Other", (cls,), {"__module__": "__main__", **slots})


def _fill(value: Any, choose: random.Random) -> None:
    value[choose.randrange(len(value))] = choose.random()


def _spawn(value: Any) -> None:
    """What it counts can't be put back."""
    global _spawned
    _spawned = True
    value.spawn(1)


def _swap_code(value: Any, choose: random.Random) -> None:
    if not value.__closure__:
        value.__code__ = (lambda *a: 5).__code__


def _advance(value: Any, choose: random.Random) -> None:
    for _ in range(choose.randint(1, 4)):
        next(value)


def _set(act: Callable[..., Any], *args: Any) -> Callable[[Any, random.Random], None]:
    return lambda value, choose: act(value, *args)


_ON_ATTRIBUTES: list[Any] = [
    lambda v, c: get(v, "__dict__").update(new=c.random()),
    lambda v, c: get(v, "__dict__").pop(c.choice([*get(v, "__dict__")])),
    lambda v, c: get(v, "__dict__").update({c.choice([*get(v, "__dict__")]): [1]}),
]
_CHANGES: dict[type, list[Callable[[Any, random.Random], Any]]] = {
    list: [
        _set(list.append, 9),
        _set(list.clear),
        _set(list.reverse),
        lambda v, c: list.pop(v),
        lambda v, c: list.insert(v, 0, v),
    ],
    dict: [
        lambda v, c: dict.__setitem__(v, "new", c.random()),
        lambda v, c: dict.__setitem__(v, c.choice([*dict.keys(v)]), []),
        lambda v, c: dict.pop(v, c.choice([*dict.keys(v)])),
        lambda v, c: dict.__setitem__(v, k := c.choice([*dict.keys(v)]), dict.pop(v, k)),
    ],
    collections.OrderedDict: [
        lambda v, c: v.move_to_end(c.choice([*v])),
        lambda v, c: v.popitem(),
        _set(collections.OrderedDict.__setitem__, "new", [1]),
    ],
    collections.defaultdict: [_set(setattr, "default_factory", None), lambda v, c: v["b"]],
    set: [
        _set(set.add, "new"),
        _set(set.clear),
        lambda v, c: set.remove(v, 1) or set.add(v, True),
    ],
    collections.deque: [_set(collections.deque.append, 9), _set(collections.deque.rotate, 1)],
    bytearray: [_set(bytearray.append, 65), _fill],
    memoryview: [_set(memoryview.__setitem__, 0, 90)],
    np.ndarray: [
        _set(np.ndarray.fill, 7),
        lambda v, c: np.ndarray.__setitem__(v, c.randrange(len(v)), c.random()),
        lambda v, c: v.setflags(write=False),
        lambda v, c: np.ndarray.sort(v),
    ],
    random.Random: [lambda v, c: v.random()],
    np.random.Generator: [lambda v, c: v.normal(), lambda v, c: v.integers(5)],
    np.random.SeedSequence: [lambda v, c: _spawn(v)],
    np.random.BitGenerator: [lambda v, c: v.random_raw()],
    decimal.Context: [_set(setattr, "prec", 5), lambda v, c: v.divide(1, 3)],
    weakref.ReferenceType: [lambda v, c: _change(v(), c)],
    BaseException: [lambda v, c: setattr(v, "args", (1,)), _set(setattr, "__cause__", None)],
    types.FunctionType: [
        _set(setattr, "__defaults__", (1,)),
        _set(setattr, "__kwdefaults__", {"k": 1}),
        _set(setattr, "note", [1]),
        _swap_code,
    ],
    types.CellType: [_set(setattr, "cell_contents", [1]), _set(delattr, "cell_contents")],
    types.ModuleType: [_set(setattr, "new", 1), _set(setattr, "a", 1)],
    LRU: [lambda v, c: v(5), lambda v, c: v.cache_clear(), lambda v, c: v(0).append(1)],
    types.GeneratorType: [_advance],
    type(iter([])): [_advance],
    map: [_advance],
    enum.Enum: [_set(object.__setattr__, "_value_", 9)],
    property: [lambda v, c: v.fget(None)],
}
CELLS = (
    *("poke({0}, {2})", "poke({0}, {2})", "poke({0}, {2})", "poke({0}, {2}); poke({1}, {3})"),
    *("{0} = {1}", "del {0}", "{0} = [{1}]", "new = {0}", "{0}()", "{0}(1)", "next({0})"),
    *(
        "with {0}(): pass",
        "poke({0}); {0} = 1",
        "for one in [*{0}][:4]: poke(one, {2})",
        "{0}.prop",
    ),
    *(
        "{0}.append({1})",
        "{0}['k'] = 1",
        "{0}.a = {1}",
        "{0}.act(1)",
        "{0}.c",
        "{0}.d",
        "{0} += {1}",
    ),
    *("{0}.k()", "{0}.make()", "globals()['{0}'] = poke({1}, {2})", "exec('poke({0}, {2})')"),
    *("{0}.put(1)", "{0}.close()", "{0}[0] = 1", "{0}.cache_clear()", "poke({0}.held, {2})"),
)
