"""Which names a rank has, told with each reply: what has changed since the last one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.engine.saving import is_users

MOST = 10_000  # names in one reply; what is left comes with the next
NOTEBOOKS = 16  # connections that are remembered


class Names:
    """What each connected notebook was told of a namespace's names."""

    def __init__(self) -> None:
        self._told: OrderedDict[bytes, set[str]] = OrderedDict()

    def changes(self, notebook: bytes, namespace: Mapping[str, Any]) -> wire.NameChanges:
        """What ``notebook`` has to be told. Some 20 us for a thousand names."""
        told = self._told.pop(notebook, None)
        anew = told is None
        told = set() if told is None else told
        found = namespace.keys()
        bound = list(found - told)[:MOST]
        gone = list(told - found)
        told.update(bound)
        told.difference_update(gone)
        self._told[notebook] = told
        if len(self._told) > NOTEBOOKS:
            self._told.popitem(last=False)
        users = [name for name in bound if is_users(name, namespace.get(name))]
        return wire.NameChanges(users, gone, anew)
