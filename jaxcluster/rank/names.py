"""The names of a rank: which are the user's, and which were lost."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from jaxcluster.rank.places import owner

# Names that IPython, the engine, Python and its debugger keep in a namespace.
_PYTHONS = (
    "name|doc|package|loader|spec|file|cached|path|builtins?|warningregistry|session|vsc_\\w+|"
    "annotations|annotate|annotate_func|annotations_cache|conditional_annotations|"
    "return|exception"
)
_SYSTEM_NAME = re.compile(rf"_+|_i{{1,3}}|_i?\d+|_[iod]h|__(?:{_PYTHONS})__|In|Out|__pdb_\w+")
_SYSTEM_MODULES = ("IPython", "ipykernel", "ipyparallel", "jaxcluster.rank", "io", "_io")


def is_users(name: Any, value: Any) -> bool:
    """Whether a user has bound it: all else in a namespace comes with the process."""
    if type(name) is not str or _SYSTEM_NAME.fullmatch(name):  # globals()[1] may be bound
        return False
    if name in ("get_ipython", "exit", "quit", "open", "input"):
        return not str(getattr(value, "__module__", "")).startswith(_SYSTEM_MODULES)
    return True


def is_own_module(name: Any) -> bool:
    """Whether a module is the user's own: imported, and of a file that is not installed."""
    file = getattr(sys.modules.get(str(name)), "__file__", None)
    return type(file) is str and owner(file) == "user" and name != "__main__"


def explain_lost(
    error: BaseException | None, lost: Mapping[str, str], namespace: Mapping[str, Any]
) -> None:
    """Say in a NameError, and in those before it, why its name was lost.

    Lost names are not values: they are not there for functions, ``%who`` and completion either.

    Args:
      lost: for each of them why, as in "was lost in cell [12] (still being computed)".
    """
    while error is not None and lost:
        name = str(getattr(error, "name", None))
        if isinstance(error, NameError) and name in lost and name not in namespace:
            error.args = (f"name {name!r} {lost[name]}",)
        error = error.__context__
