"""What is said of ranks whose processes have ended. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jaxcluster.wire.forks import RESTARTED, STOPPED


def meant(whys: Iterable[str]) -> str:
    """Why processes have ended that a person has ended; "" where none has."""
    found = {*whys}
    return next((why for why in (STOPPED, RESTARTED) if why in found), "")


def tell(died: Mapping[int, str], cell: int | None = None) -> list[str]:
    """A line for each rank that has died; and that a person has ended the others.

    Args:
      died: how each has ended.
      cell: the one that they were in.
    """
    where = f" in cell [{cell}]" if cell is not None else ""
    lines = [f"Rank {r} died{where}: {why}." for r, why in sorted(died.items()) if not meant([why])]
    if why := meant(died.values()):
        told = f"Cell [{cell}] was ended: {why}." if cell is not None else f"{why.capitalize()}."
        lines.append(told)
    return lines
