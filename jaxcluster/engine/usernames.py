"""Which names in a namespace are the user's."""

from __future__ import annotations

import re
from typing import Any

# What IPython, the engine and Python keep in a namespace; it comes with the process.
_SYSTEM_NAME = re.compile(r"_+|_i{1,3}|_i?\d+|_[iod]h|__\w+__|In|Out")
_SYSTEM_MODULES = ("IPython", "ipykernel", "ipyparallel", "jaxcluster.engine", "io", "_io")


def is_users(name: Any, value: Any) -> bool:
    """Whether a user has bound it: all else in a namespace comes with the process."""
    if type(name) is not str:  # globals()[1] may be bound
        return False
    if _SYSTEM_NAME.fullmatch(name):
        return False
    if name in ("get_ipython", "exit", "quit", "open", "input"):
        return not str(getattr(value, "__module__", "")).startswith(_SYSTEM_MODULES)
    return True
