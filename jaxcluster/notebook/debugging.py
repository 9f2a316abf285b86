"""``%jaxcluster debug``, and IPython's ``%debug`` after a cell that has failed on the ranks."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from jaxcluster.errors import CellInterrupted, JaxClusterError, UsageError
from jaxcluster.model.outputs import CellRecord, without_rank
from jaxcluster.ranks import by_value, name_ranks


def choose(record: CellRecord | None) -> tuple[int, str]:
    """The rank whose error differs from others' in a cell that has failed, and a line that says so.

    Raises:
      UsageError: there is no such cell.
    """
    if record is None:
        raise UsageError(
            "No cell of this notebook has failed on the ranks.",
            "%jaxcluster debug RANK looks at a rank's last error, also in another notebook's cell.",
        )
    replies, errors = record.replies, record.errors
    own = {r: e for r, e in errors.items() if replies[r].status != "interrupted"}
    own = own or errors  # else where the ranks were when they were stopped
    alike = by_value({r: (e.ename, without_rank(e.evalue), e.lineno) for r, e in own.items()})
    chosen = min(alike.values(), key=lambda ranks: (len(ranks), -ranks[0]))
    rank, others = chosen[0], [r for r in own if r not in chosen]
    hint = f" For another one: %jaxcluster debug {others[0]}" if others else ""
    name = errors[rank].ename
    return rank, f"Cell [{record.execution_count}], {name_ranks(chosen)}: {name}.{hint}"


def take_debug(shell: Any, on_ranks: Callable[[], None]) -> Callable[[], None]:
    """Have IPython's ``%debug`` look at the ranks after a cell that has failed there.

    The notebook's own frames show nothing of the user's then.

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
