"""Classes that cells define: what cloudpickle leaves out of them.

It makes an empty class, and fills it. What a library's metaclass, or its base by
``__init_subclass__``, does with a class's body when it is made, it would do with an empty one: a
module of equinox would be a pytree without leaves. So these see a body that has what the class's
own statement gave it: annotations and fields, plain values, and a function in each place of one.
Afterwards the class's own are set.

What cells do in a metaclass or in ``__init_subclass__`` is not done again: all that it has changed
is saved as it is.
"""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import enum
import functools
import inspect
import operator
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType
from typing import Any, NamedTuple

from cloudpickle import cloudpickle

from jaxcluster.engine.private import pytrees
from jaxcluster.engine.state.saved import told
from jaxcluster.engine.user_names import is_own_module
from jaxcluster.engine.value_copies import has_attribute

MOST_WRAPPED = 9  # decorators around a function
_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_OF_PYTHON = ("builtins", "typing", "abc")  # their metaclasses and bases look at no body
_OF_CELLS = "__main__"
_MAKING = ("__new__", "__init__", "__prepare__")  # of a metaclass, when it makes a class
_SETTING = "__setattr__"  # of a metaclass
_BEING_BASE = ("__init_subclass__",)  # of a base
_OF_TYPE = ("__class__", "__name__", "__qualname__")  # as a property of a proxy's
_OF_FIELD = ("default", "default_factory", "init", "repr", "hash", "compare", "kw_only")
_OF_MEMBER = ("_value_", "_name_", "__objclass__", "_sort_order_", "_hashable_values_")
_DATA = (bytes, int, float, complex, tuple)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_BY_NAME = (type, FunctionType, types.BuiltinFunctionType, types.ModuleType)  # as they are pickled
_NUMBER = -2  # where cloudpickle's arguments for making a class have its number
_by_number: Any = getattr(cloudpickle, "_DYNAMIC_CLASS_TRACKER_BY_ID", {})
# Objects of modules that are a process's own, whose state ``settings`` keeps. Of a copy,
# ``shuffle`` of ``from random import shuffle, seed`` would draw what no seed changes.
_OF_PROCESS = {
    "jax": ("config",),
    "matplotlib": ("rcParams",),
    "numpy.random.mtrand": ("_rand", "_rand._bit_generator"),
    "os": ("environ", "environb"),
    "random": ("_inst",),
}
_loading: Loading | None = None
# By a cell's class, those of libraries with which it is registered.
_abstract: weakref.WeakKeyDictionary[type, dict[abc.ABCMeta, None]] = weakref.WeakKeyDictionary()
_KINDS: dict[str, Callable[[Any], Any]] = {
    "function": lambda function: function,
    "static": staticmethod,
    "class": classmethod,
    "property": property,
}


def complete(cls: type, reduced: tuple[Any, ...]) -> tuple[Any, ...]:
    """How cloudpickle reduces a class, with what it leaves out."""
    make, arguments, state, items, pairs, set_state = reduced
    members: dict[str, Any] = {}
    if issubclass(cls, enum.Enum):
        make, (arguments, state) = _make_enum, _enum_of(cls, arguments, state)
        members = {name: _attributes_of(one) for name, one in cls.__members__.items()}
    else:
        attributes = {**_like_a_bases(cls), **state[0]}
        # A class that is made can't be given these: its own are set.
        given = {name: attributes.pop(name) for name in _OF_TYPE if name in attributes}
        state = attributes, *state[1:]
        arguments = _with_more(_with_slots(cls, arguments), given)
        if _is_looked_at(cls):
            make, arguments = _make, (make, arguments, _body_of(cls))
    registration, abstract = pytrees.registration_of(cls), tuple(_abstract.get(cls, ()))
    told = set_state, state, registration, abstract, members
    return _make_once, (make, arguments), told, items, pairs, _set_class


def _with_slots(cls: type, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    bases = arguments[2]
    slots = vars(cls).get("__slots__")
    if slots is None or NamedTuple in bases:  # which gives its classes such itself
        return arguments
    names = [slots] if isinstance(slots, str) else slots
    return _with_more(arguments, {"__slots__": ["".join(one) for one in names]})  # see ``_body_of``


def _with_more(arguments: tuple[Any, ...], body: dict[str, Any]) -> tuple[Any, ...]:
    metaclass, name, bases, given, *others = arguments
    return metaclass, name, bases, {**given, **body}, *others


def _like_a_bases(cls: type) -> dict[str, Any]:
    """What a class has itself, and cloudpickle leaves out since a base has the same object.

    Without it ``count = 0`` of a class would follow its base's.
    """
    own = {"".join(n): v for n, v in vars(cls).items() if not n.startswith("__")}
    bases = [vars(base) for base in cls.__bases__]
    return {n: v for n, v in own.items() if any(base.get(n, base) is v for base in bases)}


def _make_once(make: Callable[..., type], arguments: tuple[Any, ...]) -> type:
    """A class, which this process may have: by the number that cloudpickle has given it."""
    number = (arguments[1] if make is _make else arguments)[_NUMBER]
    known: type | None = _by_number.get(number)
    if known is None:
        known = make(*arguments)
        if _loading is not None:
            _loading.made.add(known)
    return known


def _set_class(cls: Any, state: Any) -> None:
    if not isinstance(cls, type):  # what stands for one that could not be made, and is lost
        return
    if _loading is not None:  # again, since code of the user's that is read runs meanwhile
        _loading.later.append((cls, state))
    if _loading is None or cls in _loading.made:
        _set_registered(cls, state)


class Loading:
    """What is read of classes that this process has: they stay as they are until ``put_back``.

    Attributes:
      made: the others.
      later: what is to be set of all.
    """

    def __init__(self) -> None:
        self.made: weakref.WeakSet[type] = weakref.WeakSet()
        self.later: list[tuple[type, Any]] = []

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """On the main thread."""
        global _loading
        _loading = self
        try:
            yield
        finally:
            _loading = None

    def put_back(self) -> dict[str, str]:
        """Make each class what was read, also without what it has got since.

        Returns:
          Those that are not, and why: how a class is set may be code of the user's.
        """
        later, self.later = self.later, []
        left = {}
        for cls, state in later:
            try:
                _set_again(cls, state)
            except Exception as error:
                left[f"class {cls.__qualname__}"] = told(error)
        return left


def _set_again(cls: type, state: Any) -> None:
    for name, value in list(vars(cls).items()) if not issubclass(cls, enum.Enum) else ():
        is_of_python = name.startswith(("__", "_abc_")) or type(value) in _DESCRIPTORS
        if name not in state[1][0] and not is_of_python:
            type.__delattr__(cls, name)
    _set_registered(cls, state)


def _is_looked_at(cls: type) -> bool:
    """Whether others do something with a class's body when it is made."""
    hooks = _hooks(type(cls), cls.__bases__)
    return any(owner.__module__ not in _OF_PYTHON for owner, _ in hooks)


def _hooks(metaclass: type, bases: tuple[type, ...]) -> list[tuple[type, str]]:
    """What runs when a class is made: the classes that have it, and its name."""
    owners = [(kind, name) for kind in metaclass.__mro__ for name in _MAKING]
    owners += [(kind, name) for base in bases for kind in base.__mro__ for name in _BEING_BASE]
    return [(kind, name) for kind, name in dict.fromkeys(owners) if name in vars(kind)]


@contextlib.contextmanager
def _without_cells(hooks: list[tuple[type, str]]) -> Iterator[None]:
    """Inside it none of these runs that cells have defined."""
    taken = {one: vars(one[0])[one[1]] for one in hooks if one[0].__module__ == _OF_CELLS}
    try:
        for kind, name in taken:
            type.__delattr__(kind, name)  # a cell's metaclass may have a ``__delattr__``
        yield
    finally:
        for (kind, name), value in taken.items():
            type.__setattr__(kind, name, value)


def _body_of(cls: type) -> dict[str, Any]:
    own = vars(cls)
    try:
        annotations = inspect.get_annotations(cls)
    except Exception:  # Python 3.14 asks for them only now: a name is not there
        annotations = {}
    found = own.get("__dataclass_fields__", {})
    fields = {name: _arguments(found[name]) for name in annotations if name in found}
    functions = {name: kind for name, value in own.items() if (kind := _kind_of(value))}
    plain = {
        name: value
        for name, value in own.items()
        if type(value) in _PLAIN and not name.startswith("__") and name not in fields
    }
    body = {"annotations": annotations, "fields": fields, "functions": functions, "plain": plain}
    # As cloudpickle does: strings that are nobody else's, or the pickle of the same class depends
    # on whether it was made here.
    return {key: {"".join(name): one for name, one in made.items()} for key, made in body.items()}


def _arguments(field: Any) -> dict[str, Any]:
    given = {name: getattr(field, name) for name in _OF_FIELD}
    given = {name: value for name, value in given.items() if value is not dataclasses.MISSING}
    return given | {"metadata": dict(field.metadata)}


def _kind_of(value: Any) -> str | None:
    """The kind of a function that a body has; None for all else.

    What a decorator or a metaclass has generated is not of the body.
    """
    kind = "function"
    if isinstance(value, staticmethod | classmethod):
        kind, value = "static" if isinstance(value, staticmethod) else "class", value.__func__
    elif isinstance(value, property):
        kind, value = "property", value.fget
    function = value
    for _ in range(MOST_WRAPPED):
        if isinstance(function, FunctionType):
            break
        # A user's ``__getattr__`` is not called: values are saved beside cells.
        function = inspect.getattr_static(function, "__wrapped__", None)
    if not isinstance(function, FunctionType) or function.__code__.co_filename.startswith("<"):
        return None
    return kind


def _make(make: Callable[..., type], arguments: tuple[Any, ...], body: dict[str, Any]) -> type:
    """A class, made as by its statement where that is possible, else empty."""
    metaclass, name, bases, given, *others = arguments
    made = {
        **({"__annotations__": body["annotations"]} if body["annotations"] else {}),
        **body["plain"],
        **{key: dataclasses.field(**one) for key, one in body["fields"].items()},
        **{key: _function(kind) for key, kind in body["functions"].items()},
    }
    with _without_cells(_hooks(metaclass, bases)), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own statement has warned
        try:
            return make(metaclass, name, bases, {**given, **made}, *others)
        except Exception:  # it adds to a body what it refuses to find there, as flax's modules do
            return make(*arguments)


def _function(kind: str) -> Any:
    def function(*arguments: Any, **options: Any) -> Any:
        raise TypeError("this class is not whole yet")

    return _KINDS[kind](function)


def _set_registered(cls: Any, state: Any) -> None:
    set_state, class_state, registration, abstract, *members = state
    setting = [(kind, _SETTING) for kind in type(cls).__mro__ if _SETTING in vars(kind)]
    with _without_cells(setting):  # as one that makes its classes' attributes constants
        set_state(cls, class_state)
    if registration is not None:
        pytrees.register(cls, registration)  # where its metaclass has not
    for one in abstract:
        one.register(cls)
    for name, (value, attributes) in (members[0] if members else {}).items():
        member = cls.__members__[name]
        member._value_ = value
        for gone in _attributes_of(member)[1].keys() - attributes.keys():
            delattr(member, gone)
        vars(member).update(attributes)


def _attributes_of(member: enum.Enum) -> tuple[Any, dict[str, Any]]:
    """A member's value, and what its class or a cell has set of it."""
    return member._value_, {k: v for k, v in vars(member).items() if k not in _OF_MEMBER}


def _enum_of(cls: Any, arguments: tuple[Any, ...], state: Any) -> tuple[Any, Any]:
    """What ``_make_enum`` takes, and the class's state without its members."""
    bases, name, qualname, _, *others = arguments
    kind = cls._member_type_
    members = {
        n: (one._value_, kind.__str__(one) if kind is str else kind(one) if kind in _DATA else None)
        for n, one in cls.__members__.items()
    }
    body = {name: value for name, value in state[0].items() if name not in members}
    return (bases, name, qualname, members, *others), (body, *state[1:])


def _make_enum(
    bases: tuple[type, ...],
    name: str,
    qualname: str,
    members: dict[str, tuple[Any, Any]],
    module: str,
    number: str,
    extra: Any,
) -> type:
    """As cloudpickle does, with aliases, and without what its class does with a value."""
    todo = list(members.values())

    def new(kind: Any, *_: Any) -> Any:
        value, data = todo.pop(0)
        made: Any = object.__new__(kind) if data is None else type(data).__new__(kind, data)
        made._value_ = value
        return made

    metaclass: Any = type(bases[-1])
    body = metaclass.__prepare__(name, bases)
    body["__new__"] = new
    for member, (value, _) in members.items():
        body[member] = enum.member(value)
    made = metaclass.__new__(metaclass, name, bases, body)
    type.__delattr__(made, "__new_member__")
    type.__setattr__(made, "_new_member_", bases[-1]._new_member_)  # type: ignore[attr-defined]
    made.__module__, made.__qualname__ = module, qualname
    found: type = cloudpickle._lookup_class_or_track(number, made)
    return found


def remember_registrations() -> None:
    """From now on, note with which abstract classes of libraries cells register their classes.

    Those of cells have it in their own state, as cloudpickle knows.
    """
    register = abc.ABCMeta.register

    @functools.wraps(register)
    def registering(self: abc.ABCMeta, subclass: Any) -> Any:
        found = register(self, subclass)
        if subclass.__module__ == _OF_CELLS != self.__module__:
            _abstract.setdefault(subclass, {})[self] = None
        return found

    abc.ABCMeta.register = registering  # type: ignore[method-assign, assignment]


def is_half_made(value: Any) -> bool:
    """Whether a value's metaclass does something when one is made, beside ``__new__``.

    What ``__new__`` has begun would have no end: an equinox module would not be frozen, nor freed.
    """
    cls: Any = type(value)
    return (
        type(cls) is not type
        and _own(type(cls), "__call__") is not type.__call__
        and _own(cls, "__new__") is not object.__new__
        and not isinstance(value, type)
    )


_own = type.__getattribute__  # which asks no metaclass of a cell's


class Singletons:
    """Values that an imported module has under a name, and may tell by identity.

    Those without a state, as ``dataclasses.MISSING`` or a library's ``unset = object()``: pickle
    makes other ones. And those that can't be pickled, as the settings of JAX that contexts are of,
    and what each process has one of.
    """

    def __init__(self) -> None:
        self._of_process = _names_of_process()
        self._names: dict[type, dict[int, tuple[str, str]]] = {}  # by class, of its module
        self._refused: dict[type, bool] = {}  # classes whose objects can't be pickled

    def find(self, value: Any) -> tuple[str, str] | None:
        """(module, name) of such a value; None for others."""
        cls = type(value)
        if isinstance(value, _BY_NAME):
            return None
        if (own := self._of_process.get(id(value))) is not None:
            return own
        if (names := self._names.get(cls)) is None:
            module = cls.__module__
            is_there = type(module) is str and module != _OF_CELLS
            names = self._names[cls] = _names_in([module] if is_there else [])
        found = names.get(id(value))
        if cls not in self._refused:
            self._refused[cls] = _can_not_be_pickled(value)
        if found is None and (cls is object or self._refused[cls]):
            found = _names_everywhere(len(sys.modules)).get(id(value))
            if (
                found is not None
                and getattr(sys.modules.get(found[0]), found[1], None) is not value
            ):
                found = None  # that one is gone, and its place in memory another's
        return found if found is not None and _has_no_state(value) else None


def _names_of_process() -> dict[int, tuple[str, str]]:
    found = {}
    for module, names in _OF_PROCESS.items():
        for name in names if module in sys.modules else ():
            with contextlib.suppress(AttributeError):  # a name that has moved
                found[id(operator.attrgetter(name)(sys.modules[module]))] = module, name
    return found


@functools.lru_cache(maxsize=1)
def _names_everywhere(count: int) -> dict[int, tuple[str, str]]:
    """Of so many modules; the user's own have theirs by ``ownmodules``. Some 10 ms."""
    return _names_in(n for n in list(sys.modules) if not is_own_module(n))


def _names_in(modules: Iterable[str]) -> dict[int, tuple[str, str]]:
    found: dict[int, tuple[str, str]] = {}
    for module in modules:
        if module != _OF_CELLS:
            own = dict(getattr(sys.modules.get(module), "__dict__", {}))
            found |= {id(v): (module, n) for n, v in own.items() if not isinstance(v, _BY_NAME)}
    return found


def _has_no_state(value: Any) -> bool:
    """Whether it has none, or none that can be pickled."""
    if _can_not_be_pickled(value):
        return True
    with contextlib.suppress(TypeError):
        return bool(object.__reduce_ex__(value, 2)[1:] == ((type(value),), None, None, None))
    return False


def _can_not_be_pickled(value: Any) -> bool:
    try:
        object.__reduce_ex__(value, 2)
    except TypeError:
        return not has_attribute(type(value), "__reduce_ex__", "__reduce__")
    return False
