"""A NameError in the notebook for a name that the ranks have, and the other way round."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any

from jaxcluster import cluster
from jaxcluster.errors import CellFailed, JaxClusterError
from jaxcluster.ranks import name_ranks

_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


def tell_where_names_are(shell: Any) -> Callable[[], None]:
    """Have the shell say in a NameError that the ranks have the name. Returns what undoes that."""
    show = shell.showtraceback

    def showtraceback(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> Any:
        error = exc_tuple[1] if exc_tuple is not None else sys.exc_info()[1]
        if isinstance(error, NameError) and not isinstance(error, UnboundLocalError):
            _explain(error, shell.user_ns)
        return show(exc_tuple, *args, **kwargs)

    shell.showtraceback = showtraceback
    return lambda: setattr(shell, "showtraceback", show)


def _explain(error: NameError, namespace: Mapping[str, Any]) -> None:
    name, raised = str(error.name or ""), error.__traceback__
    while raised is not None and raised.tb_next is not None:
        raised = raised.tb_next
    # A cell's own code looked for the name: a library has globals of its own.
    is_users = raised is not None and raised.tb_frame.f_globals is namespace
    names: Mapping[int, Any] = {}
    if is_users and name not in namespace:
        with contextlib.suppress(JaxClusterError):
            names = cluster.current().world.names
    if have := sorted(rank for rank, own in names.items() if name in own):
        pull = f"%pull {name} brings it here, " if 0 in have else ""
        error.args = (
            f"name {name!r} is not defined in the notebook, but on {name_ranks(have)}: "
            f"{pull}%%spmd runs a cell there.",
        )


def point_to_push(error: CellFailed, namespace: Mapping[str, Any]) -> None:
    """Say in the hint of a cell's NameError that the notebook has the name."""
    found = _UNDEFINED.search(error.message) if error.ename == "NameError" else None
    if found is not None and not found[1].startswith("_") and found[1] in namespace:
        told = f"The notebook has {found[1]}: %push {found[1]} gives it to the ranks."
        error.hint = f"{told}\n{error.hint}" if error.hint else told
