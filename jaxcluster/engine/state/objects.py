"""How objects of cells' classes are pickled: by what they hold, not by what their methods say.

pickle asks an object for its items, and fills a new one by its methods. So a list whose
``__iter__`` shuffles would come back shuffled, a dict with ``__getattr__ = dict.get`` can't be
pickled at all, and a set is made by an ``__init__`` that may take something else. And some classes
of Python leave out the attributes of a subclass's objects: ``Counter``, ``defaultdict``,
``Random``, ``datetime``.

What a class of a cell says of its own pickling (``__reduce__``, ``__getstate__``) holds.

Several objects may have one ``__dict__``, of which pickle would make several.
"""

from __future__ import annotations

import copyreg
import enum
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import cloudpickle

from jaxcluster.engine.value_copies import has_attribute, module_of, vars_of_class

PROTOCOL = 5
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
_OF_CELLS = "__main__"
_ON_STATE = ("__getstate__", "__setstate__", "__getnewargs__", "__getnewargs_ex__")
# What pickle calls of an object's own, by its base: only where cells define one of these is it
# pickled by what it holds.
_ASKED = {
    list: {"__iter__", "append", "extend"},
    dict: {"items", "keys", "__iter__", "__setitem__"},
    OrderedDict: {"items", "keys", "__iter__", "__setitem__", "__init__"},
    deque: {"__iter__", "append", "extend", "__init__"},
    object: set[str](),
}
_OF_ALL = {"__getattr__", "__getattribute__"}
# Of these attributes get lost, or ``__init__`` is called.
_ALWAYS = (Counter, defaultdict, set, frozenset, SimpleNamespace)
_CONTAINERS: tuple[Any, ...] = (*_ALWAYS, OrderedDict, deque, dict, list, object)

Way = tuple[Callable[[Any, Any], "tuple[Any, ...] | None"], type]


class Kind(NamedTuple):
    """How the objects of a class are pickled.

    Attributes:
      way: None: as any other.
      has_plain_dict: pickle saves their ``__dict__`` as any other's.
      is_ordinary: cells have defined all that the class is: nothing else needs to look at them.
    """

    way: Way | None
    has_plain_dict: bool
    is_ordinary: bool


def kind_of(cls: type) -> Kind:
    """That of a class, which stays what it is while variables are saved."""
    if cls in cloudpickle.Pickler.dispatch_table:
        return Kind(None, False, False)
    way, has_dict = way_of(cls), _has_plain_dict(cls)
    above = [one for one in cls.__mro__ if one is not object]
    is_of_cells = type(cls) is type and all(module_of(one) == _OF_CELLS for one in above)
    return Kind(way, has_dict, way is None and has_dict and is_of_cells)


def reduce(obj: Any, kind: Kind) -> tuple[Any, ...] | None:
    """How an object is pickled; None: as any other."""
    if kind.way is not None:
        how, base = kind.way
        if (reduced := how(obj, base)) is not None:
            return reduced
    return with_its_dict(obj) if kind.has_plain_dict and shares_dict(obj) else None


def way_of(cls: type) -> Way | None:
    """How the objects of a class are pickled; None: as any other."""
    if module_of(cls) != _OF_CELLS or issubclass(cls, (enum.Enum, type, BaseException)):
        return None
    users: set[str] = set()
    for one in cls.__mro__:
        own = vars_of_class(one)
        if "__reduce_ex__" in own or "__reduce__" in own:
            break
        users |= own.keys()
    if one.__flags__ & HEAP_TYPE and one not in _CONTAINERS and module_of(one) == _OF_CELLS:
        return None
    if users & {*_ON_STATE}:
        return None
    base = next(kind for kind in _CONTAINERS if issubclass(cls, kind))
    of_python = [kind for kind in cls.__mro__ if not kind.__flags__ & HEAP_TYPE]
    if not {*of_python} <= {*base.__mro__}:  # it holds what only its own code knows
        return (_with_attributes, base) if cls.__dictoffset__ else None
    if one not in _CONTAINERS:
        return _with_attributes, base
    asked = _ASKED.get(base, set()) | _OF_ALL
    return (_by_what_it_holds, base) if base in _ALWAYS or users & asked else None


def _attributes(obj: Any) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None
    return found


def _by_what_it_holds(obj: Any, base: Any) -> tuple[Any, ...]:
    cls = type(obj)
    items: Any = None
    slots = {}
    for name in copyreg._slotnames(cls):  # type: ignore[attr-defined]
        try:
            slots[name] = object.__getattribute__(obj, name)
        except AttributeError:
            continue
    if base is frozenset:
        made: tuple[Any, ...] = _make_frozen, (cls, [*frozenset.__iter__(obj)])
    else:
        made = _make_empty, (cls, base, obj.maxlen if base is deque else None)
        if base not in (object, SimpleNamespace):
            items = [*(base.items(obj) if issubclass(base, dict) else base.__iter__(obj))]
        if base is defaultdict:
            slots["default_factory"] = obj.default_factory
    return *made, (base, items, _attributes(obj), slots), None, None, _fill


def _make_frozen(cls: Any, items: list[Any]) -> Any:
    return frozenset.__new__(cls, items)


def _make_empty(cls: Any, base: Any, maxlen: int | None) -> Any:
    made = base.__new__(cls)
    if base is deque:
        deque.__init__(made, (), maxlen)
    return made


def _fill(obj: Any, state: Any) -> None:
    base, items, attributes, slots = state
    if items is not None:
        if base is OrderedDict:
            for key, value in items:
                OrderedDict.__setitem__(obj, key, value)
        elif issubclass(base, dict):
            dict.update(obj, items)
        else:
            (base.update if base is set else base.extend)(obj, items)
    if base is SimpleNamespace:
        vars(obj).update(attributes)
        attributes = None
    _set_attributes(obj, attributes, slots)


def _set_attributes(obj: Any, attributes: dict[str, Any] | None, slots: dict[str, Any]) -> None:
    if attributes is not None:
        object.__setattr__(obj, "__dict__", attributes)
    for name, value in slots.items():
        object.__setattr__(obj, name, value)


def _with_attributes(obj: Any, base: Any) -> tuple[Any, ...] | None:
    reduced = obj.__reduce_ex__(PROTOCOL)
    attributes = _attributes(obj)
    if isinstance(reduced, str) or not attributes:
        return None
    make, arguments, *more = reduced
    state, items, pairs, set_state = (*more, None, None, None, None)[:4]
    parts = state if type(state) is tuple else (state,)
    if any(type(part) is dict and attributes.keys() <= part.keys() for part in parts):
        return None
    both = state, set_state, attributes
    return make, arguments, both, items, pairs, _set_both


def _set_both(obj: Any, state: Any) -> None:
    own, setter, attributes = state
    set_state(obj, own, setter)
    _set_attributes(obj, attributes, {})


def set_state(obj: Any, state: Any, setter: Any) -> None:
    """As pickle does with what is behind an object's arguments."""
    if setter is not None:
        setter(obj, state)
    elif state is not None:
        obj.__setstate__(state)


# ------------------------------------------------------------------ a dict that others have, too


class _Alone:
    """An object whose ``__dict__`` nobody else has."""


_alone = _Alone()
_HOLDERS = sys.getrefcount(object.__getattribute__(_alone, "__dict__"))
_PICKLED = ("__reduce_ex__", "__reduce__", "__getstate__", "__setstate__")


def _has_plain_dict(cls: type) -> bool:
    """Whether pickle saves the ``__dict__`` of its objects as any other's."""
    is_made = cls.__dictoffset__ and cls.__flags__ & HEAP_TYPE
    return bool(is_made) and not has_attribute(cls, *_PICKLED)


def shares_dict(obj: Any) -> bool:
    return sys.getrefcount(object.__getattribute__(obj, "__dict__")) > _HOLDERS


def with_its_dict(obj: Any) -> Any:
    """How an object is pickled whose ``__dict__`` others have, too: pickle fills another dict.

    So is one that has itself (``self.__dict__ = self``), or its class's.
    """
    reduced: Any = object.__reduce_ex__(obj, PROTOCOL)
    make, arguments, state, items, pairs = reduced
    slots = state[1] if type(state) is tuple else {}
    attributes = object.__getattribute__(obj, "__dict__")
    return make, arguments, (attributes, slots), items, pairs, _set_dict


def _set_dict(obj: Any, state: tuple[dict[str, Any], dict[str, Any]]) -> None:
    _set_attributes(obj, *state)
