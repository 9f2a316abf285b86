"""Which launcher: the one that was asked for, or that of the allocation that this process is in.

``find`` says what an allocation is, what to type for it, and how many ranks it stands for: as many
as JAX's own cluster detection (``jax/_src/clusters`` of jax 0.10.2 and 0.12) would number there, in
the same order. Each launcher says it of its own kind (``Launcher.found_around``).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from jaxcluster.options.known import known
from jaxcluster.options.table import LOCAL

if TYPE_CHECKING:
    from jaxcluster.launchers.base import Launcher


@dataclass(frozen=True)
class Inside:
    """An allocation in which this process runs."""

    what: str  # "Slurm's job 6 (2 nodes, 4 tasks)"
    launcher: str  # what ``--launcher`` takes for it
    obstacle: str = ""  # why it can't be taken as it stands, and what can be done
    is_offered: bool = True  # whether it is worth a word to who has not asked for it

    @property
    def offer(self) -> str:
        """One line that says so to who has started elsewhere; nothing where it can't be taken."""
        if self.obstacle or not self.is_offered:
            return ""
        return (
            f"This notebook runs in {self.what}. To use it: %jaxcluster start --launcher "
            f"{self.launcher}   (or always: --launcher auto)"
        )


def lacks(command: str, environ: Mapping[str, str]) -> str:
    """That this machine has no such command; empty where it has."""
    has = shutil.which(command, path=environ.get("PATH"))
    return "" if has else f"there is no {command} on this machine"


def find(environ: Mapping[str, str] = os.environ) -> Inside | None:
    """The allocation that this process runs in; None where it is in none.

    The first launcher's counts that knows one.
    """
    found = (launcher.found_around(environ) for launcher in known().launchers.values())
    return next(filter(None, found), None)


def launcher_of(
    name: str | None, typed: Mapping[str, Any], num_processes: int | None = None
) -> tuple[Launcher | None, str]:
    """(the launcher that was asked for, the hosts' Python or nothing); None stands for local.

    ``name`` is what stands behind ``--launcher``, ``typed`` its own options as text.

    Raises:
      UsageError: there is no such launcher, it does not know an option, or a value is wrong.
    """
    kind, what = known().check(name or LOCAL, typed)
    given = {name: known().of_launchers[name].parse(value) for name, value in typed.items()}
    if kind == LOCAL:
        return None, ""
    launcher: type[Launcher] = known().launchers[kind]
    python = given.pop("python", launcher.python)
    given.pop("lease", None)  # the agents'
    return launcher.of(given, num_processes, what), python
