"""Private names of IPython, ipykernel and ``comm``, seen in IPython 9.18, ipykernel 7.4, comm 0.2.

``tests/unit/test_kernel_private.py`` fails loudly when one has moved. Where that costs something,
it is said below; a cell runs all the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

# Where there may be something of IPython's own syntax: it begins a line (as ``str.splitlines`` has
# them), follows ``=``, or asks for help.
_OWN_SYNTAX = re.compile(
    r"(?:\A|[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029])\s*[%!,;/]|=[\s\\]*[%!]|\?"
)

# ------------------------------------------------------------------ IPython


def last_traceback(shell: Any) -> list[str]:
    """The lines of the error that was shown last; else the report has the error's own line."""
    return getattr(shell, "_last_traceback", None) or []


def set_last_traceback(shell: Any, lines: list[str] | None) -> None:
    """``lines`` are what of an error is shown, and goes into the reply."""
    shell._last_traceback = lines


def replace_traceback_display(
    shell: Any, make: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> None:
    """Have an error's rendered lines shown by another function, which is made of the present one.

    Where the name has moved, errors are shown by IPython alone.
    """
    if (present := getattr(shell, "_showtraceback", None)) is not None:
        shell._showtraceback = make(present)


def compile_profiled(shell: Any, name: Callable[[], str]) -> None:
    """Have what ``%%prun`` runs compiled under a name, from now on.

    Where IPython's own has moved, its lines say of no launch where it comes from.
    """
    magics = getattr(shell.find_cell_magic("prun"), "__self__", None)
    present = getattr(magics, "_run_with_profiler", None)
    if present is None or present.__name__ == "run_profiled":
        return

    def run_profiled(code: Any, *args: Any) -> Any:
        if isinstance(code, str):
            if not code.startswith("#\n"):  # a statement of the magic's own line comes first
                code = code.replace("\n#\n", "\n", 1)
            code = compile(code, name(), "exec", dont_inherit=True)
        return present(code, *args)

    magics._run_with_profiler = run_profiled  # type: ignore[union-attr]


def keep_lines(shell: Any) -> Callable[[], None]:
    r"""Have the lines below a magic or command that goes on (``%time \``) keep their numbers.

    IPython makes one line of it. Returns what ends this. Where the name has moved, there is nothing
    to end.

    Meanwhile it reads the tokens of a cell only where one may be of its own syntax: for each line
    that takes some 3 us.
    """
    manager = getattr(shell, "input_transformer_manager", None)
    transform = getattr(manager, "do_one_token_transform", None)
    if transform is None:
        return lambda: None

    def keeping(lines: list[str]) -> tuple[bool, list[str]]:
        own = {one.__module__ for one in manager.token_transformers}  # type: ignore[union-attr]
        if own == {"IPython.core.inputtransformer2"} and not _OWN_SYNTAX.search("".join(lines)):
            return False, lines
        changed, made = transform(lines)
        if (joined := len(lines) - len(made)) > 0:
            pairs = enumerate(zip(lines, made, strict=False))
            at = next((n for n, (old, new) in pairs if old != new), len(made))
            made = [*made[: at + 1], *["\n"] * joined, *made[at + 1 :]]
        return changed, made

    manager.do_one_token_transform = keeping  # type: ignore[union-attr]
    return lambda: setattr(manager, "do_one_token_transform", transform)


# ------------------------------------------------------------------ ipykernel


def replace_cancelling(kernel: Any, cancelling: Callable[..., Any]) -> None:
    """Have a signal cancel a client's awaited code by ``cancelling``."""
    kernel._cancel_on_sigint = cancelling


def allows_stdin(kernel: Any) -> bool:
    """Whether the page of the running cell answers questions; where it is not known, not."""
    return bool(getattr(kernel, "_allow_stdin", False)) and hasattr(kernel, "_parent_ident")


def shell_ident(kernel: Any) -> Any:
    """Who has sent the running cell: who is to be asked."""
    return kernel._parent_ident["shell"]


# ------------------------------------------------------------------ comm


def mark_closed(comm: Any) -> None:
    """Keep a comm from telling the page of its end, which another takes over or knows."""
    comm._closed = True
