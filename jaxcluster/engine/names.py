"""Which names a rank has, told with each reply to the notebook whose cell it is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.user_names import is_users

MOST = 10_000  # names in one reply; what is left comes with the next
NOTEBOOKS = 16  # connections that are remembered


class Names:
    """What each connected notebook was told of a namespace's names."""

    def __init__(self) -> None:
        self._told: OrderedDict[bytes, list[str]] = OrderedDict()

    def changes(self, notebook: bytes, namespace: Mapping[str, Any]) -> wire.NameChanges | None:
        """What ``notebook`` has to be told; None: nothing. Some 10 us for a thousand names.

        A namespace keeps its order, so mostly what it was is the beginning of what it is.
        """
        before = self._told.pop(notebook, None)
        told, now = before or [], list(namespace)
        gone: list[str] = []
        if now[: len(told)] != told:
            known, there = set(told), set(now)
            gone = [name for name in told if name not in there]
            told = [name for name in now if name in known]
            now = told + [name for name in now if name not in known]
        bound = now[len(told) : len(told) + MOST]
        self._told[notebook] = told + bound
        if len(self._told) > NOTEBOOKS:
            self._told.popitem(last=False)
        if before is not None and not (bound or gone):
            return None
        users = [name for name in bound if is_users(name, namespace.get(name))]
        return wire.NameChanges(users, gone, before is None)
