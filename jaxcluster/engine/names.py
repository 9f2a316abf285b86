"""Which names a rank has and what their values are, told with each reply: what has changed.

So it is known of a rank that has died what it had. A value is told as ``engine.digests`` has it.
What a cell has bound, or may have changed in place, is looked at when it has ended, as far as there
is room; what there was no room for is unknown until a later one ends.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.digests import (
    MOST_ELEMENTS,
    MOST_NBYTES,
    Digest,
    NotReady,
    Room,
    TooMuch,
    digest,
)
from jaxcluster.engine.undo import Course
from jaxcluster.engine.user_names import is_users

MOST = 10_000  # names in one reply; what is left comes with the next
MANY = 200  # values of the largest size that are looked at after a restart or a push
NOTEBOOKS = 16  # connections that are remembered


@dataclass
class Values:
    """What a namespace's values are, as far as it is known. For the main thread.

    Attributes:
      texts: for the user's names, in the order of their last change: what the value is, and the
        number of that change.
      is_spoiled: something else than a cell has changed some, or may have; notebooks know of it.
        Any thread.
    """

    texts: dict[str, tuple[str, int]] = field(default_factory=dict)
    is_spoiled: bool = False
    _change: int = 0
    _changeable: dict[str, frozenset[int] | None] = field(default_factory=dict)
    # To be looked at, in this order. The first of a dict is found slowly once many were taken.
    _left: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _too_large: set[str] = field(default_factory=set)

    def note(self, course: Course | None, namespace: Mapping[str, Any]) -> None:
        """Look at what a cell has bound or may have changed in place, for some 2 ms at most.

        Args:
          course: what it did; None where any name may be another, and any value.
        """
        if self.is_spoiled:
            course, self.is_spoiled = None, False
            self.texts.clear()  # all is told again: a notebook may know that it was taken back
        if course is None:
            names = [*(self.texts.keys() - namespace.keys()), *namespace]
        else:
            # Each cell rebinds a few of IPython's: those come to nothing.
            bound = [n for n in course.rebound if n in self.texts or is_users(n, namespace.get(n))]
            names = [*bound, *self._changed(course.in_place)]
        self._too_large.difference_update(names if course is None else course.rebound)
        self._left |= dict.fromkeys(names)
        left = self._left
        elements, nbytes = MOST_ELEMENTS, MOST_NBYTES
        again = []
        while left and elements > 0 and nbytes > 0:
            name, _ = left.popitem(last=False)
            room = Room()
            if not self._look(name, namespace, room):
                again.append(name)
            elements -= MOST_ELEMENTS - room.elements
            nbytes -= MOST_NBYTES - room.nbytes
        for name in names:  # those that were left before are unknown already
            if name in left:
                self._set(name, Digest("", False))
        left |= dict.fromkeys(again)

    def _changed(self, ids: Set[int] | None) -> Iterable[str]:
        """The names whose values have one of these objects in them, or may have.

        That is all that can change, where one of them is in no value, as it was taken apart here.
        """
        if not ids:
            return self._changeable if ids is None else ()
        found, seen = [], set[int]()
        for name, inside in self._changeable.items():
            if inside is None:
                found.append(name)
            elif here := inside & ids:
                found.append(name)
                seen |= here
        return found if seen == ids else self._changeable

    def note_all(self, names: Iterable[str], namespace: Mapping[str, Any]) -> dict[str, str]:
        """Look at these, for some 0.3 s at most; returns what they are."""
        names = list(names)
        elements, nbytes = MANY * MOST_ELEMENTS, MANY * MOST_NBYTES
        for name in names:
            room = Room()
            if elements <= 0 or nbytes <= 0 or not self._look(name, namespace, room):
                self._set(name, Digest("", False))
                self._left[name] = None
            elements -= MOST_ELEMENTS - room.elements
            nbytes -= MOST_NBYTES - room.nbytes
        return {name: self.texts[name][0] for name in names if name in self.texts}

    def _look(self, name: str, namespace: Mapping[str, Any], room: Room) -> bool:
        """Whether all is known that will be: a value may be still being computed."""
        if name not in namespace or not is_users(name, namespace[name]):
            self.texts.pop(name, None)
            self._changeable.pop(name, None)
            return True
        found, is_ready = Digest("", False), True
        try:
            if name not in self._too_large:
                found = digest(namespace[name], room)
        except NotReady:
            is_ready = False
        except TooMuch:
            self._too_large.add(name)
        self._set(name, found)
        return is_ready

    def _set(self, name: str, found: Digest) -> None:
        if found.is_fixed:
            self._changeable.pop(name, None)
        else:
            self._changeable[name] = found.inside
        if self.texts.get(name, (None,))[0] != found.text:
            self._change += 1
            self.texts.pop(name, None)
            self.texts[name] = found.text, self._change

    def since(self, change: int) -> tuple[dict[str, str], int]:
        """What has changed after ``change``, and which change is the last in it."""
        found = {}
        for name in reversed(self.texts):
            text, number = self.texts[name]
            if number <= change:
                break
            found[name] = (text, number)
        oldest = list(found.items())[: -MOST - 1 : -1]
        return {name: text for name, (text, _) in oldest}, oldest[-1][1][1] if oldest else change


class Names:
    """What each connected notebook was told of a namespace's names, and of their values.

    Attributes:
      spoiled: notebooks for which that does not hold any more: the next time they are told all. Any
        thread.
    """

    def __init__(self) -> None:
        self.values = Values()
        self.spoiled: set[bytes] = set()
        self._told: OrderedDict[bytes, tuple[list[str], int]] = OrderedDict()

    def changes(self, notebook: bytes, namespace: Mapping[str, Any]) -> wire.NameChanges | None:
        """What ``notebook`` has to be told; None: nothing. Some 10 us for a thousand names.

        A namespace keeps its order, so mostly what it was is the beginning of what it is.
        """
        before, change = self._told.pop(notebook, (None, 0))
        if notebook in self.spoiled:
            self.spoiled.discard(notebook)
            before, change = None, 0
        told, now = before or [], list(namespace)
        gone: list[str] = []
        if now[: len(told)] != told:
            known, there = set(told), set(now)
            gone = [name for name in told if name not in there]
            told = [name for name in now if name in known]
            now = told + [name for name in now if name not in known]
        bound = now[len(told) : len(told) + MOST]
        values, change = self.values.since(change)
        self._told[notebook] = told + bound, change
        if len(self._told) > NOTEBOOKS:
            self._told.popitem(last=False)
        if before is not None and not (bound or gone or values):
            return None
        users = [name for name in bound if is_users(name, namespace.get(name))]
        return wire.NameChanges(users, gone, before is None, values)
