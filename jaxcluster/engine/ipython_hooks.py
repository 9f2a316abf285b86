"""What cells register with IPython: it runs in later cells, whose source does not name it.

Callbacks of events, magics, ways to display a class, transformers; also handlers of signals. What
libraries register stays where it is: they know that they have done it.
"""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Set
from typing import Any

NAME = "IPython's callbacks"  # in messages


class Registered:
    """What is registered at one moment.

    Args:
      shell: IPython's, which has run no cell yet; None: nothing is registered.
    """

    def __init__(self, shell: Any = None) -> None:
        self._namespace: Mapping[str, Any] | None = None
        self._magics = [] if shell is None else list(shell.magics_manager.magics.values())
        others = [] if shell is None else _others(shell)
        self._copies = [(one, one.copy()) for one in (*self._magics, *others)]
        self._others: list[Any] = []  # those that others have changed since

    def now(self, namespace: Mapping[str, Any], handlers: Collection[Any] = ()) -> Registered:
        """What is registered now. Mostly nothing has changed: some 5 us.

        Args:
          namespace: the cells'.
          handlers: of signals, that cells have set.
        """
        made = Registered()
        made._namespace, made._magics = namespace, self._magics
        for number, (one, first) in enumerate(self._copies):
            if one == first:
                made._copies.append((one, first))
                continue
            made._copies.append((one, one.copy()))
            if number >= len(self._magics):
                made._others.append(one)
        made._others.append(handlers)
        return made

    def used(self, words: Set[str]) -> Iterator[Any]:
        """What of cells runs in a cell with these words."""
        for magics in self._magics:
            yield from filter(self._is_of_cells, (magics[w] for w in words & magics.keys()))
        for one in self._others:
            yield from filter(self._is_of_cells, one.values() if isinstance(one, dict) else one)

    def has_changed(self) -> bool:
        """Whether a cell has registered something, or taken it away."""
        return any(self._differing(now, before) for now, before in self._copies)

    def put_back(self) -> None:
        """Make it what it was."""
        for now, before in self._copies:
            if not (differing := self._differing(now, before)):
                continue
            if isinstance(now, dict):
                for key in differing:
                    if key in before:
                        now[key] = before[key]
                    else:
                        del now[key]
            else:
                now[:] = [one for one in now if one not in differing or one in before]
                now += [one for one in before if one not in now and one in differing]

    def _differing(self, now: Any, before: Any) -> list[Any]:
        """The keys of a dict, the entries of a list, that cells have changed."""
        if now == before:
            return []
        if isinstance(now, dict):
            found = [k for k in {**before, **now} if now.get(k) is not before.get(k)]
            return [k for k in found if any(self._is_of_cells(d.get(k)) for d in (now, before))]
        found = [one for one in now if one not in before] + [o for o in before if o not in now]
        return list(filter(self._is_of_cells, found))

    def _is_of_cells(self, function: Any) -> bool:
        while isinstance(function, functools.partial):
            function = function.func
        function = getattr(function, "__func__", function)
        found = getattr(function, "__globals__", None)
        if found is None:
            return bool(type(function).__module__ == "__main__")
        return found is self._namespace


def _others(shell: Any) -> list[Any]:
    """But magics, which run only where they are named."""
    return [
        *shell.events.callbacks.values(),
        shell.ast_transformers,
        shell.input_transformers_cleanup,
        shell.input_transformers_post,
        *(one.type_printers for one in shell.display_formatter.formatters.values()),
    ]
