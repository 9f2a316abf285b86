"""Tab, Shift-Tab and ``name?`` in ``%%spmd`` cells, answered from rank 0's namespace."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

from IPython.core.completer import Completion

from jaxcluster import cluster
from jaxcluster.errors import JaxClusterError, UsageError
from jaxcluster.model.rewrite import stays_in_notebook
from jaxcluster.options import arguments
from jaxcluster.wire.link import unwrap
from jaxcluster.wire.ops.cells import Help

TYPED = "_jupyter_types_experimental"  # where ipykernel has completions with their types
ANSWER_S = 0.7  # rank 0 may take so long; then the notebook's own answer is used


def ask_rank_0(shell: Any, auto: Callable[[], bool]) -> Callable[[], None]:
    """Have rank 0 answer a shell's completer and, in a notebook, its kernel's inspection.

    Args:
      auto: whether every cell is an ``%%spmd`` cell.

    Returns:
      what undoes that.
    """
    completer, kernel = shell.Completer, getattr(shell, "kernel", None)
    complete, do_inspect = completer.completions, getattr(kernel, "do_inspect", None)

    def completions(text: str, offset: int) -> Iterator[Completion]:
        start = body_start(text)
        if is_spmd(text, auto()) and offset >= start:
            found = _ask(Help(text[start:], offset - start)).get("metadata", {}).get(TYPED, [])
            for one in found:
                begin, end = start + one["start"], start + one["end"]
                yield Completion(begin, end, one["text"], type=one["type"] or "")
            if found:
                return
        yield from complete(text, offset)

    async def look(
        code: str, cursor_pos: int, detail_level: int = 0, omit_sections: Any = ()
    ) -> Any:
        start = body_start(code)
        if is_spmd(code, auto()) and cursor_pos >= start:
            answer = _ask(Help(code[start:], cursor_pos - start, detail_level))
            if answer.get("found"):
                return answer
        own = do_inspect(code, cursor_pos, detail_level, omit_sections)  # type: ignore[misc]
        return await own if inspect.isawaitable(own) else own

    def undo() -> None:
        completer.completions = complete
        if kernel is not None:
            kernel.do_inspect = do_inspect

    completer.completions = completions
    if kernel is not None:
        kernel.do_inspect = look
    return undo


def is_spmd(code: str, auto: bool) -> bool:
    """Whether a cell's names are the ranks'."""
    if code.lstrip().startswith(("%%spmd", "%spmd")):
        return True
    return auto and not stays_in_notebook(code.splitlines())


def body_start(code: str) -> int:
    """The position of a cell's body, after the magic's line or options."""
    if code.lstrip().startswith("%%spmd") and "\n" in code.lstrip():
        return code.index("\n", code.index("%%spmd")) + 1
    if code.lstrip().startswith("%spmd "):
        line = code.partition("%spmd ")[2]
        with contextlib.suppress(UsageError):
            line = arguments.split_spmd(line)[1]
        return len(code) - len(line)
    return 0


def _ask(request: Help) -> dict[str, Any]:
    try:
        return unwrap(cluster.current().world.ask([0], request, timeout_s=ANSWER_S)[0])
    except JaxClusterError:
        return {}
