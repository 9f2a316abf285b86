"""Scripts that a cell runs by ``%run``, again and again in one process."""

from __future__ import annotations

import sys
from typing import Any


def run_again(shell: Any) -> None:
    """Let a script that defines absl's flags be run more than once.

    absl refuses flags that are defined twice, which a script does that is run once more. Those that
    it defined when it was run before are removed first.
    """
    execute = shell.safe_execfile

    def safe_execfile(fname: Any, *args: Any, **options: Any) -> Any:
        try:
            _forget_flags(sys.argv[0])
        except Exception:  # of an absl that has no such names: as without us
            pass
        return execute(fname, *args, **options)

    shell.safe_execfile = safe_execfile


def _forget_flags(script: str) -> None:
    """Remove the absl flags that a script has defined, by its name as absl has it."""
    absl = sys.modules.get("absl.flags")
    if absl is None:
        return
    flags = absl.FLAGS
    for flag in list(flags.flags_by_module_dict().get(script, ())):
        delattr(flags, flag.name)
    flags.unparse_flags()
