"""Tab, Shift-Tab and ``name?`` in ``%%spmd`` cells, answered from rank 0's namespace."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from IPython.core.completer import SimpleCompletion, context_matcher
from IPython.utils.tokenutil import token_at_cursor

from jaxcluster import arguments, cluster
from jaxcluster.errors import JaxClusterError, UsageError
from jaxcluster.model.rewrite import stays_in_notebook
from jaxcluster.wire.link import unwrap
from jaxcluster.wire.ops import Operation
from jaxcluster.wire.ops.cells import Complete, Inspect

R = TypeVar("R")

ANSWER_S = 0.7  # rank 0 has so long; then the notebook's own answer must do


def is_spmd(code: str, auto: bool) -> bool:
    """Whether a cell's names are the ranks'."""
    first = code.lstrip()
    if first.startswith(("%%spmd", "%spmd")):
        return True
    return auto and not stays_in_notebook(code.splitlines())


class Completion:
    """Hooks a shell's completer and, in a notebook, its kernel's inspection."""

    def __init__(self, auto: Callable[[], bool]) -> None:
        self.auto = auto
        self._do_inspect: Any = None

    def install(self, shell: Any) -> Callable[[], None]:
        """Returns what takes it back."""

        @context_matcher()  # type: ignore[untyped-decorator]
        def jaxcluster_matcher(context: Any) -> Any:
            return self.complete(context)

        matchers, kernel = shell.Completer.custom_matchers, getattr(shell, "kernel", None)
        matchers.insert(0, jaxcluster_matcher)
        if kernel is not None:
            self._do_inspect, kernel.do_inspect = kernel.do_inspect, self._inspect

        def uninstall() -> None:
            matchers.remove(jaxcluster_matcher)
            if kernel is not None:
                kernel.do_inspect = self._do_inspect

        return uninstall

    def complete(self, context: Any) -> Any:
        """IPython's matcher protocol: what rank 0 offers, instead of the notebook's names."""
        code = context.full_text
        nothing = {"completions": [], "suppress": False}
        if not is_spmd(code, self.auto()):
            return nothing
        lines = code.split("\n")[: context.cursor_line]
        cursor = sum(len(line) + 1 for line in lines) + context.cursor_position
        code, cursor = without_magic_line(code, cursor)
        answer = self._ask(Complete(code, cursor))
        if answer is None or not answer.matches:
            return nothing
        typed = code[answer.start : cursor]
        completions = _completions(answer.matches, typed, context.token)
        return {"completions": completions, "suppress": True, "ordered": True}

    def _inspect(
        self, code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()
    ) -> Any:
        if is_spmd(code, self.auto()):
            source, cursor = without_magic_line(code, cursor_pos)
            name = token_at_cursor(source, cursor)
            answer = self._ask(Inspect(name, source, cursor, detail_level))
            if answer is not None and answer.found:
                reply = {"status": "ok", "found": True, "data": answer.data, "metadata": {}}
                return _as(self._do_inspect, reply)
        return self._do_inspect(code, cursor_pos, detail_level, omit_sections)

    @staticmethod
    def _ask(request: Operation[R]) -> R | None:
        try:
            return unwrap(cluster.current().world.ask([0], request, timeout_s=ANSWER_S)[0])
        except JaxClusterError:
            return None


def _completions(matches: Any, typed: str, token: str) -> list[SimpleCompletion]:
    """(word, kind) each as IPython takes it.

    It replaces the token that it has found itself; they may have been found for another one.
    """
    extra = len(typed) - len(token)
    before = token[:-extra] if extra < 0 else ""
    return [
        SimpleCompletion(text=before + word[max(0, extra) :], type=kind) for word, kind in matches
    ]


def without_magic_line(code: str, cursor: int) -> tuple[str, int]:
    """The cell's body, and the cursor in it."""
    if code.lstrip().startswith("%%spmd") and "\n" in code:
        first, _, body = code.partition("\n")
        return body, max(0, cursor - len(first) - 1)
    if code.lstrip().startswith("%spmd "):
        line = code.partition("%spmd ")[2]
        with contextlib.suppress(UsageError):
            line = arguments.split_spmd(line)[1]
        start = len(code) - len(line)
        return line, max(0, cursor - start)
    return code, cursor


def _as(function: Any, value: Any) -> Any:
    """``value`` in the form in which ``function`` returns it: ipykernel has had both."""
    if not inspect.iscoroutinefunction(function):
        return value

    async def later() -> Any:
        return value

    return later()
