"""What a cell may change in place, kept from before it, so that it can be put back.

Names are the smaller half of a cell's effects: ``state["step"] += 1`` and ``losses.append(x)`` bind
none. So shallow copies are kept of the mutable values that a cell can reach by the names in its
source, and by those in the functions behind them (``value_copies`` has how each is kept). Of what
is *opaque* (generators, open files, data frames) and what is too large nothing is claimed: it is
named, and so is what other names share with it (``object_graph``). What installed modules hold is
left alone. Of the user's own modules that a cell can reach all is kept but what is opaque, which is
not named: their logger is not what a cell was to change.

Nothing here calls a user's code or compares values: two values are the same if they are one object.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import types
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxcluster.engine import value_copies
from jaxcluster.engine.ipython_hooks import Registered
from jaxcluster.engine.user_names import (
    is_of_module,
    is_of_own_module,
    is_own_module,
    is_users,
    spec_of,
)
from jaxcluster.engine.value_copies import (
    CLASS,
    FIXED,
    FUNCTION,
    MODULE,
    OBJECT,
    OPAQUE,
    Kind,
    kind_of,
)

MOST_ELEMENTS = 10_000  # that are looked at before a cell: some 0.2 ms
MOST_BENEATH = 1_000  # more, of what opaque values lead to
MOST_OF_MODULES = 5_000  # more, of what the user's own modules hold
ONE_VALUE = 25  # elements that a container costs beside its own
MOST_NBYTES = 1 << 19  # of numpy arrays that are copied before a cell: some 0.05 ms
MOST_TEXT = 1 << 20  # characters of a script or text that a cell runs
SMALL_NBYTES = 1 << 16  # a numpy array beyond it is not copied

_WORD = re.compile(r"[^\W\d]\w*")
_APART = bytes(c if chr(c).isalnum() or c == ord("_") else ord(" ") for c in range(128)).ljust(256)
_RUN = re.compile(r"^\s*%run\s+(?:-\w+\s+(?:\d+\s+)?)*(\S+)", re.MULTILINE)
_RESULT = re.compile(r"_oh|Out|_{1,3}|_\d+")
# What may reach any name, as it can't be read here which. (But for those where it can.)
_REACHES_ALL = re.compile(
    r"""(?xm) (?<![\w.]) (?:exec|eval) \s* \( (?! \s* r?(?:"[^"\n]*"|'[^'\n]*') \s* [,)])
    | (?<! \b in \s) \b (?: globals\(\) | locals\(\) | vars\(\s*\) ) (?! \s* (?:
          \[ \s* (?:"\w+"|'\w+') \s* \] | \[ [^]\n]* \] \s* = (?!=)
        | \. (?:get|pop|setdefault) \( \s* (?:"\w+"|'\w+') | \. update \( ))
    | \. (?: f_globals | user_ns | safe_execfile | run_(?:cell|code|line_magic|cell_magic) ) \b
    | \b run_(?:path|module) \( | get_ipython\(\) \. e[xv] \( | ^ \s* %rerun \b
    | \b import \s+ __main__ \b | \b modules \[ \s* ["']__main__"""
)
_OF_THESE = frozenset(
    (
        *("exec", "eval", "globals", "locals", "vars", "f_globals", "user_ns", "safe_execfile"),
        *("run_cell", "run_code", "run_line_magic", "run_cell_magic", "run_path", "run_module"),
        *("rerun", "get_ipython", "__main__"),
    )
)
REACH_ALL = frozenset(("eval", "exec", "globals", "f_globals", "user_ns", "run_path", "run_cell"))
_CONTAINERS = (dict, list, set, tuple)
_DEFINED = (types.FunctionType, type)
# A function that uses one of these may mean a name by a string, with one of those any name.
_BY_STRINGS = frozenset(
    ("eval", "exec", "globals", "locals", "vars", "getattr", "setattr", "get_ipython", "__dict__")
)


# --------------------------------------------------------------------------- a cell's reach


class Watched(NamedTuple):
    """A value that a cell can reach, and its copy.

    Attributes:
      root: the name that led to it.
      beneath: an opaque value led to it, and to it alone: to put it back might be half the work.
      spec: the import that it is of. Where its module was imported again since, as a cell's own
        ``%autoreload`` does, it stays what that has made of it: the file is not read again.
    """

    root: str
    value: Any
    kind: Kind
    copy: Any
    cls: type
    beneath: bool
    spec: Any = None


@dataclass
class Watch:
    """What is kept of the values that a cell may change in place.

    Attributes:
      mentioned: the names that it can reach.
      watched: those that can change, in the order in which they were met.
      opaque: names that lead to values of which nothing can be said, and what those are.
      too_large: names that lead to more than is looked at.
      unwatched: the values because of which names are opaque or too large.
      is_partial: a module of the user's own has more than is looked at.
      is_open: it may reach any name: what it runs is not all in its source.
    """

    mentioned: list[str] = field(default_factory=list)
    watched: list[Watched] = field(default_factory=list)
    opaque: dict[str, str] = field(default_factory=dict)
    too_large: set[str] = field(default_factory=set)
    unwatched: list[Any] = field(default_factory=list)
    is_partial: bool = False
    is_open: bool = False

    def changed(self) -> list[Watched]:
        """Those that are not any more what they were."""
        return [one for one in self.watched if not _is_same(one)]

    def copies(self) -> dict[int, Any]:
        """By a value's id what it was made of, where that is known."""
        known = [one for one in self.watched if one.kind is kind_of(one.cls)]
        return {id(one.value): one.copy for one in known}

    def put_back(self, leave: Collection[str] = ()) -> list[Watched]:
        """Make the changed ones what they were; returns those that could not be put back.

        Args:
          leave: names behind which nothing is to be touched.
        """
        if self._put_back(leave):  # a view can be written to once its array can
            return self._put_back(leave)
        return []

    def _put_back(self, leave: Collection[str]) -> list[Watched]:
        failed = []
        for one in self.changed():
            if one.root in leave or not can_put_back(one):
                failed.append(one)
                continue
            try:
                now = type(one.value)
                if now is not one.cls and not _is_loaded_again(now, one.cls):
                    _class_of.__set__(one.value, one.cls)
                one.kind.put_back(one.value, one.copy)
            except Exception:  # a subclass's own methods may do anything
                failed.append(one)
        return failed


_class_of: Any = object.__dict__["__class__"]


def _is_loaded_again(new: type, old: type) -> bool:
    """Whether a class has replaced another one since its module was imported again."""
    module, name = value_copies.module_of(new), type.__dict__["__qualname__"].__get__(new)
    return (
        module == value_copies.module_of(old)
        and is_own_module(module)
        and _is_at(new, name, vars(sys.modules[module]))
    )


def can_put_back(one: Watched) -> bool:
    try:
        return (
            not one.beneath
            and (one.spec is None or one.spec is _spec_of(one.kind, one.value))
            and one.kind.can_put_back(one.value, one.copy)
        )
    except Exception:  # the main thread changes it at this moment
        return False


def _spec_of(kind: Kind, value: Any) -> Any:
    """The import that a module's names, a function or a class are of."""
    if kind is FUNCTION:
        value = value.__globals__
    elif kind is CLASS:
        return spec_of(value_copies.module_of(value))
    return value.get("__spec__") if type(value) is dict else None


def _is_same(one: Watched) -> bool:
    try:
        return type(one.value) is one.cls and one.kind.is_same(one.value, one.copy)
    except Exception:  # the main thread changes it at this moment
        return False


def watch(namespace: Mapping[str, Any], source: str, registered: Registered | None = None) -> Watch:
    """What a cell with this source may change in place.

    Args:
      registered: what else runs in it.

    Looks at the same values in the same order on all ranks, as far as they have the same. Some
    20 us, half a microsecond for each container that the cell can reach and 20 ns for each of its
    elements, up to ``MOST_ELEMENTS``.
    """
    found = Watch()
    words = identifiers(source)
    found.is_open = not _OF_THESE.isdisjoint(words) and _REACHES_ALL.search(source) is not None
    for text in _scripts(source):
        found.is_open = found.is_open or text is None
        words |= identifiers(text or "")
    known = {word for word in words if word in namespace}
    mine = [n for n in known if is_users(n, namespace[n])]
    # The small ones first: what is large may be more than is looked at.
    names = found.mentioned = sorted(mine, key=lambda name: (length(namespace[name]), name))
    is_taken = False  # all others, since it is open
    # The values too: another one that is made on the way may get a dead one's id.
    seen: dict[int, Any] = {id(namespace): namespace}
    rooms, bytes_left = [MOST_ELEMENTS, MOST_BENEATH, MOST_OF_MODULES], MOST_NBYTES
    # What iterators and libraries' functions hold; names come first, as it may be too much.
    later: list[tuple[str, Any]] = []
    for one in _results(known, source, namespace):
        later.append((_name_of(one, namespace), one))
    if registered is not None:
        later += [(_name_of(one, namespace), one) for one in registered.used(words)]
    beneath: list[tuple[str, Any]] = []  # what opaque values lead to
    modules: list[tuple[str, Any]] = []  # all that the user's own ones have
    at, fixed = 0, value_copies.fixed_types
    while True:
        is_beneath = is_of_own = False
        if at < len(names):  # it grows
            root = names[at]
            stack, at = [namespace[root]], at + 1
            found.is_open = found.is_open or type(stack[0]).__name__ == "Macro"
        elif found.is_open and not is_taken:
            is_taken, more = True, namespace.keys() - {*names}
            mine = [n for n in more if is_users(n, namespace[n])]
            names += sorted(mine, key=lambda name: (length(namespace[name]), name))
            continue
        elif later:
            root, value = later.pop()
            stack = [value]
        elif modules:
            root, value = modules.pop()
            stack, is_of_own = [value], True
        elif beneath:
            root, value = beneath.pop()
            stack, is_beneath = [value], True
        else:
            return found
        room = rooms[part := 1 if is_beneath else 2 if is_of_own else 0]
        while stack and not (is_of_own and room < ONE_VALUE):
            value = stack.pop()
            cls = type(value)
            if cls in fixed or id(value) in seen:
                continue
            kind = kind_of(cls)
            if kind is FIXED:
                continue
            seen[id(value)] = value
            if kind.opaque and is_of_own:
                continue
            if kind.opaque:
                behind = value_copies.referents(value)
                if hasattr(cls, "__get__"):  # as functions in C: named if what it holds changes
                    beneath += [(root, one) for one in behind]
                    for copy in map(dict, value_copies.attributes_of(value)):
                        found.watched.append(Watched(root, value, OBJECT, copy, cls, True))
                    continue
                if not is_beneath or root not in found.opaque:
                    found.opaque.setdefault(root, describe(value))
                    found.unwatched.append(value)
                if kind is OPAQUE or is_beneath:
                    beneath += [(root, one) for one in behind]
                else:
                    later += [(root, one) for one in behind]
                continue
            try:
                if kind is CLASS and not value_copies.is_users_class(value):
                    continue
                if kind is MODULE and is_imported(value):
                    modules += [(root, vars(value))] if is_of_own_module(vars(value)) else []
                    continue
                if cls is dict and "__name__" in value and is_of_module(value):
                    if not is_of_own_module(value):
                        continue
                    if not is_of_own:  # its turn comes
                        modules.append((root, seen.pop(id(value))))
                        continue
                if kind is FUNCTION and (names_of := value.__globals__) is not namespace:
                    if not is_of_module(names_of):
                        stack.append(names_of)
                    elif is_of_own_module(names_of):
                        modules += [(root, names_of)] if id(names_of) not in seen else []
                    elif is_in_module(value):
                        continue
                    else:
                        copy = kind.copy(value)
                        found.watched.append(Watched(root, value, kind, copy, cls, is_beneath))
                        after = beneath if is_beneath else modules if is_of_own else later
                        after += [(root, one) for one in kind.inside(copy)]
                        continue
                size = kind.size(value)
                if kind.nbytes is not None:
                    bytes_left -= (nbytes := kind.nbytes(value))
                    if nbytes > SMALL_NBYTES or bytes_left < 0:
                        bytes_left += nbytes
                        size = room + 1
                if size > room:
                    found.is_partial = found.is_partial or is_of_own
                    if not (is_beneath or is_of_own):
                        found.too_large.add(root)
                        found.unwatched.append(value)
                    continue
                copy = kind.copy(value)
                inside = kind.inside(copy)
            except Exception:  # a thread of the user's changes it at this moment
                found.is_partial = found.is_partial or is_of_own
                if not is_of_own:
                    found.opaque.setdefault(root, describe(value))
                    found.unwatched.append(value)
                continue
            room -= size + ONE_VALUE
            if kind.is_watched:
                spec = _spec_of(kind, value)
                found.watched.append(Watched(root, value, kind, copy, cls, is_beneath, spec))
            if not fixed.issuperset(map(type, inside)):
                more_values = [v for v in kind.inside(copy) if type(v) not in fixed]
                if is_of_own:  # what else a module has comes before its functions and classes
                    more_values.sort(key=lambda one: not isinstance(one, _DEFINED))
                stack += more_values
            if kind.has_class:
                stack.append(cls)  # what its methods may reach
            elif kind is CLASS:
                stack.append(cls)  # its metaclass
            elif kind is FUNCTION and value.__globals__ is namespace:
                found.is_open = found.is_open or not REACH_ALL.isdisjoint(value.__code__.co_names)
                more = {n for n in known_names(value.__code__) if n in namespace} - known
                known |= more
                names += sorted(n for n in more if is_users(n, namespace[n]))
        found.is_partial = found.is_partial or bool(stack)
        rooms[part] = room


def _name_of(function: Any, namespace: Mapping[str, Any]) -> str:
    """The name that leads to a function or object, or to that whose method it is."""
    values = (function, getattr(function, "__self__", function))
    names = (name for name, one in namespace.items() if any(one is value for value in values))
    return next(names, type(function).__name__)


def length(value: Any) -> int:
    """How much a builtin container holds; 0 for other values."""
    return len(value) if type(value) in _CONTAINERS else 0


def is_imported(module: Any) -> bool:
    return vars(module).get("__spec__") is not None or is_of_module(vars(module))


def is_librarys(value: Any) -> bool:
    """Whether it is an installed module, or a function or class of one."""
    if issubclass(type(value), types.ModuleType):
        return is_imported(value) and not is_of_own_module(vars(value))
    if type(value) is types.FunctionType:
        return is_in_module(value) and not is_of_own_module(value.__globals__)
    return issubclass(type(value), type) and not value_copies.is_users_class(value)


def is_in_module(function: Any) -> bool:
    """Whether a function was defined by a library itself, and not made by it for somebody."""
    at: Any = function.__globals__
    if at.get("__name__") == "__main__" or not is_of_module(at):
        return False
    return _is_at(function, function.__qualname__, at)


def _is_at(one: Any, qualname: str, names: Mapping[str, Any]) -> bool:
    """Whether a module has a function or class by this name."""
    at: Any = names
    for part in qualname.split("."):
        at = vars(at) if isinstance(at, type) else at
        at = at.get(part) if isinstance(at, Mapping) else None
    return at is one


def _results(known: set[str], source: str, namespace: Mapping[str, Any]) -> Iterator[Any]:
    """What cells have ended in and this one may change: ``_.append(1)``, ``Out[3]``."""
    for name in sorted(filter(_RESULT.fullmatch, known)):
        if name in ("Out", "_oh"):
            yield from namespace[name].values()
        elif name.strip("_") or re.search(rf"(?<!\w){name}\s*[.\[]", source):  # not for _ in ...
            yield namespace[name]


def _scripts(source: str) -> Iterator[str | None]:
    """The texts of the files that a cell runs by ``%run``; None for one that can't be known."""
    for found in _RUN.finditer(source) if "%run" in source else ():
        path = os.path.expanduser(found[1].strip("'\""))
        text = None
        with contextlib.suppress(OSError):
            path = path if os.path.exists(path) else f"{path}.py"
            if os.path.getsize(path) < MOST_TEXT and path.endswith(".py"):
                with open(path, encoding="utf-8", errors="replace") as file:
                    text = file.read()
        yield text


def identifiers(source: str) -> set[str]:
    """All that may be a name in a cell's source, also in its strings: ``exec`` may run them."""
    if source.isascii():  # a fifth of the time
        return {word.decode() for word in set(source.encode().translate(_APART).split())}
    return set(_WORD.findall(unicodedata.normalize("NFKC", source)))  # as Python does


@functools.lru_cache(maxsize=1024)
def known_names(code: types.CodeType) -> frozenset[str]:
    """The global names (and attributes) in a function's code, and in what is defined in it."""
    names = set(code.co_names)
    by_strings = not _BY_STRINGS.isdisjoint(names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            names |= known_names(const)
        elif by_strings and isinstance(const, str):
            names |= identifiers(const)
    return frozenset(names)


def describe(value: Any) -> str:
    """What an opaque value is, in a word or two."""
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"
