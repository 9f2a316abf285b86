"""A NameError in the notebook for a name that the ranks have, and the other way round."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from jaxcluster import cluster
from jaxcluster.errors import CellFailed, JaxClusterError
from jaxcluster.ranks import name_ranks

_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


class Elsewhere:
    """Says in a notebook's NameError that the ranks have the name."""

    def __init__(self, shell: Any) -> None:
        self.shell = shell
        self._show: Any = None

    def install(self) -> None:
        """Change what the shell shows of a NameError."""
        self._show = show = self.shell.showtraceback

        def showtraceback(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> Any:
            error = exc_tuple[1] if exc_tuple is not None else sys.exc_info()[1]
            if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
                self._explain(error)
            return show(exc_tuple, *args, **kwargs)

        self.shell.showtraceback = showtraceback

    def uninstall(self) -> None:
        if self._show is not None:
            self.shell.showtraceback = self._show
            self._show = None

    def _explain(self, error: NameError) -> None:
        name = str(error.name or "")
        is_users = name not in self.shell.user_ns and self._is_raised_by_user(error)
        have = _ranks_with(name) if is_users else []
        if 0 in have:  # whose value a pull brings
            error.args = (
                f"name {name!r} is not defined in the notebook. The ranks have it: %pull {name} "
                "brings it here, %%spmd runs a cell there.",
            )
        elif have:
            error.args = (
                f"name {name!r} is not defined in the notebook. Only {name_ranks(have)} "
                f"{'has' if len(have) == 1 else 'have'} it: %%spmd runs a cell there.",
            )

    def _is_raised_by_user(self, error: NameError) -> bool:
        """Whether a cell's own code looked for the name: a library has globals of its own."""
        traceback = error.__traceback__
        while traceback is not None and traceback.tb_next is not None:
            traceback = traceback.tb_next
        return traceback is not None and traceback.tb_frame.f_globals is self.shell.user_ns


def _ranks_with(name: str) -> list[int]:
    """Which ranks have a variable, as they said after their last cell."""
    try:
        names = cluster.current().world.names
    except JaxClusterError:
        return []
    return sorted(rank for rank, own in names.items() if name in own)


def point_to_push(error: CellFailed, namespace: Mapping[str, Any]) -> None:
    """Say in the hint of a cell's NameError that the notebook has the name."""
    found = _UNDEFINED.search(error.message) if error.ename == "NameError" else None
    if found is not None and not found[1].startswith("_") and found[1] in namespace:
        told = f"The notebook has {found[1]}: %push {found[1]} gives it to the ranks."
        error.hint = f"{told}\n{error.hint}" if error.hint else told
