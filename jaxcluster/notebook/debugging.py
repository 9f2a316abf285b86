"""``%jaxcluster debug``, and IPython's ``%debug`` after a cell that has failed on the ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from jaxcluster import wire
from jaxcluster.errors import CellInterrupted, JaxClusterError, UsageError
from jaxcluster.model.outputs import CellRecord, group_errors
from jaxcluster.ranks import name_ranks

MESSAGE_CHARS = 100


def choose(
    record: CellRecord | None, rank: int | None, num_processes: int
) -> tuple[int, list[str]]:
    """The rank whose last error is to be looked at, and what is said of the choice.

    Args:
      record: the last cell that has failed, if one has.
      rank: the one that was typed; None: the one that differs from the others.

    Raises:
      UsageError: there is no such rank, or nothing to look at.
    """
    if rank is not None:
        if rank >= num_processes:
            raise UsageError(
                f"There is no rank {rank}: this cluster has {name_ranks(range(num_processes))}.",
                "For example: %jaxcluster debug 0",
            )
        return rank, []
    if record is None:
        raise UsageError(
            "No cell of this notebook has failed on the ranks.",
            "%jaxcluster debug RANK looks at a rank's last error, also in another notebook's cell.",
        )
    replies, errors = record.replies, record.errors
    own = {r: e for r, e in errors.items() if replies[r].status != "interrupted"}
    groups = group_errors(own or errors)  # else where the ranks were when they were stopped
    chosen = min(groups, key=lambda ranks: (len(ranks), -ranks[0]))
    groups = [chosen, *(ranks for ranks in groups if ranks is not chosen)]
    lines = [f"Cell [{record.execution_count}]:"]
    lines += [f"  {name_ranks(ranks)}: {_told(errors[ranks[0]])}" for ranks in groups]
    rank, other = chosen[0], groups[-1][-1]
    hint = f" For another one: %jaxcluster debug {other}" if other != rank else ""
    return rank, [*lines, f"Showing rank {rank}.{hint}"]


def _told(error: wire.ErrorInfo) -> str:
    message = " ".join(error.evalue.split())
    place = f" in line {error.lineno}" if error.lineno else ""
    return f"{wire.shorten(f'{error.ename}: {message}'.rstrip(': '), MESSAGE_CHARS)}{place}"


def take_debug(shell: Any, on_ranks: Callable[[], None]) -> Callable[[], None]:
    """Have IPython's ``%debug`` look at the ranks after a cell that has failed there.

    In the notebook's own frames there is nothing of the user's to see then.

    Args:
      on_ranks: looks at the ranks' errors.

    Returns:
      what undoes that.
    """
    own = shell.find_line_magic("debug")

    def debug(line: str, cell: str | None = None) -> Any:
        """IPython's %debug; after an %%spmd cell that has failed, ``%jaxcluster debug``."""
        is_ours = isinstance(getattr(sys, "last_value", None), JaxClusterError | CellInterrupted)
        if is_ours and not line.strip() and cell is None:
            return on_ranks()
        return own(line, cell)

    shell.register_magic_function(debug, "line_cell", "debug")
    return lambda: shell.register_magic_function(own, "line_cell", "debug")
