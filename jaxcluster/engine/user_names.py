"""Which names in a namespace are the user's, and which modules."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from jaxcluster.engine.library_code import OURS, is_library_file

# What IPython, the engine, Python and its debugger keep in a namespace.
_PYTHONS = (
    "name|doc|package|loader|spec|file|cached|path|builtins?|warningregistry|session|vsc_\\w+|"
    "annotations|annotate|annotate_func|annotations_cache|conditional_annotations|"
    "return|exception"
)
_SYSTEM_NAME = re.compile(rf"_+|_i{{1,3}}|_i?\d+|_[iod]h|__(?:{_PYTHONS})__|In|Out|__pdb_\w+")
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


def is_of_module(names: Mapping[str, Any]) -> bool:
    """Whether they are all that an imported module has."""
    name = names.get("__name__")
    module = sys.modules.get(name) if type(name) is str else None
    return module is not None and getattr(module, "__dict__", None) is names


def is_own_module(name: Any) -> bool:
    """Whether a module is the user's own: imported, and of a file that is not installed."""
    module = sys.modules.get(name) if type(name) is str and name != "__main__" else None
    return module is not None and is_of_own_module(getattr(module, "__dict__", {}))


def is_of_own_module(names: Mapping[str, Any]) -> bool:
    """Whether they are all that a module of the user's own has."""
    file = names.get("__file__")
    return (
        type(file) is str
        and names.get("__name__") != "__main__"
        and not is_library_file(file)
        and not file.startswith(OURS)
        and is_of_module(names)
    )
