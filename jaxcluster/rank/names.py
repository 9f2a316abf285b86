"""The names of a rank: which are the user's, which a notebook knows, and which were lost."""

from __future__ import annotations

import re
import sys
from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from jaxcluster import wire
from jaxcluster.rank.places import OURS, is_library_file

NOTEBOOKS = 16  # connections that are remembered
# What IPython, the engine, Python and its debugger keep in a namespace.
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
    is_own = type(file) is str and not is_library_file(file) and not file.startswith(OURS)
    return is_own and name != "__main__"


class Names:
    """What each connected notebook was told of a namespace's names, with each cell's reply."""

    def __init__(self) -> None:
        self._told: OrderedDict[bytes, set[str]] = OrderedDict()

    def changes(self, notebook: bytes, namespace: Mapping[str, Any]) -> wire.NameChanges | None:
        """What ``notebook`` has to be told; None: nothing. Some 20 us for a thousand names."""
        before = self._told.pop(notebook, None)
        told, now = before or set(), set(namespace)
        bound, gone = now - told, told - now
        self._told[notebook] = now
        if len(self._told) > NOTEBOOKS:
            self._told.popitem(last=False)
        if before is not None and not (bound or gone):
            return None
        users = sorted(name for name in bound if is_users(name, namespace.get(name)))
        return wire.NameChanges(
            users, sorted(name for name in gone if is_users(name, None)), before is None
        )


class LostNames:
    """The names that were lost: whoever uses one is told when it was lost and why.

    They are not values: a name that is lost is not there, for functions, ``%who`` and completion as
    well. What is shown of the NameError is changed, where it is shown.

    Attributes:
      reasons: for each of them, as in "was lost in cell [12] (still being computed)".
    """

    def __init__(self) -> None:
        self.reasons: dict[str, str] = {}

    def add(self, reasons: Mapping[str, str], namespace: Mapping[str, Any]) -> None:
        self.reasons |= reasons
        self.tidy(namespace)

    def tidy(self, namespace: Mapping[str, Any]) -> None:
        """Forget those that have a value again."""
        for name in self.reasons.keys() & namespace.keys():
            del self.reasons[name]

    def install(self, shell: Any) -> None:
        """Change what ``shell`` shows of a NameError."""
        show = shell.showtraceback

        def showtraceback(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> Any:
            error = exc_tuple[1] if exc_tuple is not None else sys.exc_info()[1]
            while error is not None and self.reasons:
                name = getattr(error, "name", None)
                is_lost = isinstance(error, NameError) and name not in shell.user_ns
                if is_lost and (reason := self.reasons.get(str(name))):
                    error.args = (f"name {name!r} {reason}",)
                error = error.__context__
            return show(exc_tuple, *args, **kwargs)

        shell.showtraceback = showtraceback
        shell.events.register("pre_run_cell", lambda info: self.tidy(shell.user_ns))
