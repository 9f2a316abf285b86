"""Names that were lost: whoever uses one is told when it was lost and why."""

from __future__ import annotations

import ast
import sys
import traceback
from collections.abc import Iterator, Mapping
from typing import Any


class LostNames:
    """The names that a rank's user has had, and how they were lost.

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
        for name in [name for name in self.reasons if name in namespace]:
            del self.reasons[name]

    def install(self, shell: Any) -> None:
        """Change what ``shell`` shows of a NameError."""
        show = shell.showtraceback

        def showtraceback(exc_tuple: Any = None, *args: Any, **kwargs: Any) -> Any:
            if self.reasons:
                error = exc_tuple[1] if exc_tuple is not None else sys.exc_info()[1]
                source = shell.user_ns.get("In") or [""]
                self.explain(error, shell.user_ns, str(source[-1]))
            return show(exc_tuple, *args, **kwargs)

        shell.showtraceback = showtraceback
        shell.events.register("pre_run_cell", lambda info: self.tidy(shell.user_ns))

    def explain(self, error: Any, namespace: Mapping[str, Any], source: str) -> None:
        """Say in a NameError that its name was lost, and in those that it comes from.

        Args:
          source: the cell's. A name that it binds and deletes itself was not lost.
        """
        for one in _with_causes(error):
            if not isinstance(one, NameError) or isinstance(one, UnboundLocalError):
                continue
            name = getattr(one, "name", None)
            reason = self.reasons.get(str(name))
            if reason and name not in namespace and _is_raised_in(one, namespace):
                if _is_rebound(str(name), source):
                    del self.reasons[str(name)]
                else:
                    one.args = (f"name {name!r} {reason}",)


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    seen: set[int] = set()
    left = [error]
    while left:
        one = left.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        left += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            left += one.exceptions


def _is_raised_in(error: BaseException, namespace: Mapping[str, Any]) -> bool:
    """Whether the namespace is where the name was looked for: a library has globals of its own."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].f_globals is namespace


def _is_rebound(name: str, source: str) -> bool:
    try:
        tree = ast.parse(source)
    except SyntaxError:  # IPython's own syntax
        return False
    done = {type(n.ctx) for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id == name}
    return ast.Store in done and ast.Del in done
