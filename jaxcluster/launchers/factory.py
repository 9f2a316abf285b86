"""The launcher that a user has asked for, made of the options that were given."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jaxcluster.launchers.base import Launcher
from jaxcluster.options.known import known
from jaxcluster.options.table import LOCAL


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
