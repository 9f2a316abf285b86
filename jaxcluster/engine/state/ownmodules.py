"""What the user's own modules hold: variables of files that are not installed.

A new process imports them again, so it has what their files make: ``config.rate = 0.5`` of a cell
would be gone without a word. Plain values, also those of classes (``Config.rate``), are saved and
set again where they differ from those of the file. What can't be compared (functions, arrays of
JAX, what is too large) is where it is another object than when the module was imported, or leads to
other arrays of JAX; what such a value has come to hold else is not seen.

Values are set in place: a class or a function's default of the module may have them, too. A value
that a cell has under a name (``from config import OPTIONS``) is one object with it again.
"""

from __future__ import annotations

import contextlib
import copy
import enum
import functools
import hashlib
import importlib
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.machinery import SourceFileLoader
from pathlib import Path
from typing import Any

from jaxcluster.engine.arrays import is_array
from jaxcluster.engine.digests import Room, digest, is_imported, is_literal
from jaxcluster.engine.object_graph import arrays_within
from jaxcluster.engine.state.saved import users_code
from jaxcluster.engine.user_names import is_of_own_module, is_own_module
from jaxcluster.engine.value_copies import has_attribute, kind_of, module_of, vars_of_class
from jaxcluster.host import kernel_private

OF_THE_DEAD = "the rank that died may have had its own value"
GROUP = "module"  # of the settings; "module config" is one
MOST_ELEMENTS, MOST_NBYTES = 20_000, 1 << 22  # of all of them: some 10 ms
LOOK_S = 0.05
_NEVER = (types.ModuleType, types.FunctionType, type)


@dataclass(frozen=True)
class Variables:
    """A module's variables that can be compared.

    Attributes:
      source: a hash of its file, when it was loaded last.
      values: the variables by their names.
      texts: their digests.
      set_later: those that are not what its file has made.
      shared: those that are objects which names of cells lead to.
    """

    source: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)
    set_later: set[str] = field(default_factory=set)
    shared: frozenset[str] = frozenset()  # what older files say

    def since(self, before: Variables) -> Variables:
        """Those that were not so before."""
        names = {n for n, text in self.texts.items() if before.texts.get(n) != text}
        return Variables(
            self.source,
            {n: self.values[n] for n in names},
            {n: self.texts[n] for n in names},
            self.set_later & names,
        )

    def differing(self, module: str, names: Collection[str]) -> list[str]:
        """Which of these the module, which is imported for it, has otherwise now.

        Where they are equal its own object is to stay: other parts of it may have it, too.

        Raises:
          ImportError: it can't be imported.
        """
        now = _texts_of(_imported(module))
        return [name for name in names if now.get(name) != self.texts[name]]

    def take_out(self, setting: str, skip: Collection[str]) -> dict[str, str]:
        """Leave those in ``skip`` as the file makes them; returns where it makes something else.

        Where it makes the same, a value stays the object that names have, too.
        """
        names = [name for name in self.values if f"{setting}.{name}" in skip]
        told = []
        with contextlib.suppress(ImportError):
            told = self.differing(setting.partition(" ")[2], names) if names else []
        for name in {*names} - (self.shared - {*told}):
            del self.values[name]
        return {f"{setting}.{n}": OF_THE_DEAD for n in told}


@dataclass(frozen=True, eq=False)
class Held:
    """A variable of a module that can't be compared, and is not what its file has made.

    Attributes:
      shared: it is an object which names of cells lead to.
    """

    module: str
    name: str
    value: Any
    shared: bool = False

    def __eq__(self, other: object) -> bool:
        """Whether both are one value, which can't have changed."""
        same = type(other) is Held and other.value is self.value
        return same and (is_array(self.value) or isinstance(self.value, types.FunctionType))

    __hash__ = object.__hash__


class OwnModules:
    """The modules of one rank."""

    def __init__(self) -> None:
        self._count = 0  # of all modules, when they were looked through

    def note(self) -> None:
        """After each cell: what modules are that it has imported. Some 0.1 us if none."""
        if len(sys.modules) == self._count:
            return
        self._count = len(sys.modules)
        for module, names in _own():
            if module not in _first:
                _first[module] = _source_of(names), _texts_of(names)
                if module not in _made:  # it came on another way
                    _note_made(names)

    def read(self) -> dict[str, Variables | Held]:
        """By each module's name its variables; those that can't be compared by theirs. Any thread.

        Some ms.
        """
        found: dict[str, Variables] = {}
        held: dict[str, Held] = {}
        room = Room(MOST_ELEMENTS, MOST_NBYTES)
        for module, names in _own():
            source, first = _first.get(module, ("", {}))
            found[module] = Variables(source)
            for name, value, text in _compared(names, room):
                found[module].values[name], found[module].texts[name] = value, text
                if first.get(name) != text:
                    found[module].set_later.add(name)
            before = _made.get(module, {})
            for name, value in _others(names, found[module].texts) if module in _made else ():
                if name not in before or not before[name].is_it(value):
                    held[f"{module}.{name}"] = Held(module, name, value)
        return {module: one for module, one in found.items() if one.values} | held

    def write(self, found: Mapping[str, Variables | Held]) -> None:
        """Set what ``read`` had found, where the module's file makes something else.

        Where the file was edited since, what it makes is taken, but for what was set later.
        """
        for module, one in found.items():
            # What could not be imported is lost with the names that need it, which say why.
            with contextlib.suppress(ImportError):
                if isinstance(one, Held):
                    names = _imported(one.module)
                    is_itself = one.shared or isinstance(one.value, _NEVER)
                    _set(names, one.name, one.value, is_itself)
                    continue
                names = _imported(module)
                self.note()  # what its file has made, before anything is set
                is_edited = _source_of(names) != one.source
                wanted = one.set_later & one.values.keys() if is_edited else {*one.values}
                shared = wanted & one.shared
                for name in {*one.differing(module, wanted), *shared}:
                    _set(names, name, one.values[name], name in shared)


def _imported(module: str) -> dict[str, Any]:
    """A module's variables: its file may have been edited since, and do anything."""
    with users_code():
        return vars(importlib.import_module(module))


def digests(settings: Mapping[str, Any]) -> dict[str, str]:
    """By "module config.rate" what is equal on ranks that have equal values.

    Args:
      settings: those of a rank, among which modules are.
    """
    return {
        f"{setting}.{name}": text
        for setting, one in settings.items()
        if isinstance(one, Variables)
        for name, text in one.texts.items()
    }


def _set(names: dict[str, Any], name: str, value: Any, is_shared: bool) -> None:
    """Set a variable: in place, and to the object itself where that is impossible or shared."""
    owner, _, attribute = name.rpartition(".")
    cls = names.get(owner)
    if owner and not isinstance(cls, type):  # the file no longer has it
        return
    made = names.get(name) if cls is None else vars_of_class(cls).get(attribute)
    if type(made) is not type(value) or not _refill(made, value) or is_shared:
        if cls is None:
            names[name] = value
        else:
            type.__setattr__(cls, attribute, value)


def _refill(made: Any, value: Any) -> bool:
    """Give an object what another one of its type has; False where that can't be done."""
    kind = kind_of(type(made))
    if kind.opaque or not kind.is_watched or not kind.can_put_back(made, copy := kind.copy(value)):
        return False
    kind.put_back(made, copy)
    return True


def _own() -> Iterator[tuple[str, dict[str, Any]]]:
    for name in _own_names(len(sys.modules)):
        names = getattr(sys.modules.get(name), "__dict__", {})
        if is_of_own_module(names):
            yield name, names


@functools.lru_cache(maxsize=1)
def _own_names(count: int) -> list[str]:
    """Of so many modules the user's own: thousands are looked through when one has come."""
    return [name for name in list(sys.modules) if is_own_module(name)]


def _source_of(names: Mapping[str, Any]) -> str:
    try:
        return hashlib.blake2b(Path(names["__file__"]).read_bytes(), digest_size=12).hexdigest()
    except (KeyError, OSError):
        return ""


def _compared(names: Mapping[str, Any], room: Room) -> Iterator[tuple[str, Any, str]]:
    """A module's variables that can be compared: names, values, and their digests."""
    for name, value in _variables(names):
        with contextlib.suppress(Exception):  # too large, or changed at this moment
            if not is_literal(value) and (is_imported(value) or _has_arrays(value)):
                continue
            if text := digest(value, room).text:
                yield name, value, text


def _texts_of(names: Mapping[str, Any]) -> dict[str, str]:
    return {name: text for name, _, text in _compared(names, Room(MOST_ELEMENTS, MOST_NBYTES))}


def _variables(names: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """What is no module, class or function, in a module and in the classes that it defines."""
    for name, value in list(names.items()):
        if not isinstance(value, _NEVER):
            if not name.startswith("__"):
                yield name, value
        elif isinstance(value, type) and module_of(value) == names.get("__name__"):
            is_enum = isinstance(value, enum.EnumMeta)
            for own, one in () if is_enum else list(vars_of_class(value).items()):
                if not own.startswith("__") and not has_attribute(type(one), "__get__"):
                    yield f"{name}.{own}", one


def _others(names: Mapping[str, Any], texts: Collection[str]) -> Iterator[tuple[str, Any]]:
    """What has no digest, functions and classes too, in a module and in the classes it defines."""
    for name, value in list(names.items()):
        if name.startswith("__"):
            continue
        if name not in texts:
            yield name, value
        if isinstance(value, type) and module_of(value) == names.get("__name__"):
            is_enum = isinstance(value, enum.EnumMeta)
            for own, one in () if is_enum else list(vars_of_class(value).items()):
                if not own.startswith(("__", "_abc_")) and f"{name}.{own}" not in texts:
                    yield f"{name}.{own}", one


class _First:
    """What a module's file has made, by identity, and the arrays of JAX that it led to.

    Args:
      is_compared: it could be compared: where it no longer can, it is another.
    """

    def __init__(self, value: Any, is_compared: bool = False) -> None:
        self._value, self._is_compared = _reference(value), is_compared
        self._arrays = [*map(_reference, _arrays_of(value))]

    def is_it(self, value: Any) -> bool:
        arrays = _arrays_of(value)
        return (
            not self._is_compared
            and self._value() is value
            and len(arrays) == len(self._arrays)
            and all(old() is new for old, new in zip(self._arrays, arrays, strict=True))
        )


def _reference(value: Any) -> Callable[[], Any]:
    """Leads to a value, without keeping alive what may be large."""
    try:
        return weakref.ref(value)
    except TypeError:
        return lambda: value


def _arrays_of(value: Any) -> list[Any]:
    if isinstance(value, _NEVER) or is_literal(value):
        return []
    try:
        return [one for one in arrays_within([value], {}, most_s=LOOK_S) if is_array(one)]
    except TimeoutError:
        return []


_made: dict[str, dict[str, _First]] = {}  # by module, what its file has made
_first: dict[str, tuple[str, dict[str, str]]] = {}  # a hash of its file, and digests of that
_loads = 0


def loads() -> int:
    """How often the file of a module of the user's own was loaded, once more or in part, too."""
    return _loads


def remember_imports() -> None:
    """From now on, note what the files of the user's modules make, before cells change it."""
    execute = SourceFileLoader.exec_module

    @functools.wraps(execute)
    def executing(self: SourceFileLoader, module: types.ModuleType) -> None:
        before = _Before(vars(module))
        execute(self, module)
        before.note_loaded()

    # Python leaves what is of this file out of the traceback of a module that raises.
    file = execute.__code__.co_filename
    executing.__code__ = executing.__code__.replace(co_filename=file)  # type: ignore[attr-defined]
    SourceFileLoader.exec_module = executing  # type: ignore[method-assign, assignment]
    kernel_private.wrap_patching_of_modules(_noting_patches)


def _noting_patches(patch: Callable[..., bool]) -> Callable[..., bool]:
    """What ``%autoreload`` sets in a module, without a reload, is what its file makes, too."""

    @functools.wraps(patch)
    def patching(self: Any, module: types.ModuleType) -> bool:
        before = _Before(vars(module))
        is_patched = patch(self, module)  # else in part: a reload comes, which may fail
        # As a reload does: by it undo knows that the module stays so.
        module.__spec__ = copy.copy(module.__spec__)
        before.note_loaded()
        return is_patched

    return patching


class _Before:
    """What a module has before its file is loaded."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names
        self._others: dict[str, Callable[[], Any]] = {}
        self._texts: dict[str, str] = {}
        with contextlib.suppress(Exception):  # an import must not fail by what is noted of it
            self._others = {name: _reference(value) for name, value in _others(names, ())}
            if names.get("__name__") in _first:
                self._texts = _texts_of(names)

    def note_loaded(self) -> None:
        """Note what the file has made: what cells had set, and is still so, is theirs."""
        global _loads
        with contextlib.suppress(Exception):  # as above
            if is_of_own_module(self._names):
                _loads += 1
                texts = _note_made(self._names, self._others)
                if (module := self._names["__name__"]) in _first:
                    known = _first[module][1]
                    same = {n for n, text in texts.items() if self._texts.get(n) == text}
                    made = {n: text for n, text in texts.items() if n not in same}
                    made |= {n: known[n] for n in same & known.keys()}
                    _first[module] = _source_of(self._names), made


def _note_made(
    names: Mapping[str, Any], before: Mapping[str, Callable[[], Any]] | None = None
) -> dict[str, str]:
    """Note what a module's file has just made; returns the digests of what has one.

    Args:
      before: what it had before it was loaded once more: what cells had set stays so.
    """
    before, module = before or {}, str(names["__name__"])
    texts = _texts_of(names)
    new = {
        name: _First(value, name in texts)
        for name, value in _others(names, ())
        if name not in before or before[name]() is not value
    }
    _made[module] = _made.get(module, {}) | new
    return texts


def _has_arrays(value: Any) -> bool:
    return any(map(is_array, arrays_within([value], {}, most_s=LOOK_S)))
