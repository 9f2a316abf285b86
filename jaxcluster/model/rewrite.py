"""A cell's source before it is sent: its line numbers, its names, and auto mode."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable

# These belong to the notebook in each mode.
OWN_MAGICS = ("%jaxcluster", "%push", "%pull", "%shards", "%load_ext", "%unload_ext", "%reload_ext")

# Cell magics whose body is Python that runs in the cell's namespace.
PYTHON_MAGIC = re.compile(r"\s*%%(time|timeit|capture|prun)\b[^\n]*\n")
ASSIGNS_MAGIC = re.compile(r"(\s*[\w.,\s]+)=\s*[%!]")


def with_magic_line(body: str) -> str:
    """The cell with a line for its ``%%spmd`` line, so that line numbers are the notebook's.

    A body that begins with a cell magic (``%%time``) must keep it on its first line. So an empty
    one comes after it if the rest is Python, and none if not.
    """
    end = 0  # of the lines of magics whose body is Python
    while (found := PYTHON_MAGIC.match(body, end)) is not None:
        end = found.end()
    if body[end:].lstrip().startswith("%%"):
        return body
    return with_all_lines(f"{body[:end]}\n{body[end:]}", "# %%spmd")


def with_all_lines(source: str, first: str = "#") -> str:
    """A cell that begins with empty lines, so that the ranks count these too.

    IPython strips them before it compiles, and tracebacks would name other lines than the notebook
    has. A cell magic must stay the first thing there. The comment ``first`` is indented as the code
    is, so that IPython takes the indentation of a pasted cell away.
    """
    code = source.lstrip()
    above = source[: len(source) - len(code)]
    if "\n" not in above or not code or code.startswith("%%"):
        return source
    return above.rpartition("\n")[2] + first + "\n" + source.partition("\n")[2]


@functools.lru_cache(maxsize=256)  # each look at the ranks asks for them
def assigned_names(source: str) -> tuple[str, ...]:
    """The names that a cell binds, by any statement, in their order."""
    try:
        tree = ast.parse(without_magics(source))
    except (SyntaxError, RecursionError, MemoryError):
        return ()
    nodes = list(ast.walk(tree))
    names = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    declared = [name for node in nodes if isinstance(node, ast.Global) for name in node.names]
    return tuple(sorted({*names, *declared}))


def without_magics(source: str) -> str:
    """The cell without IPython's own syntax: each line of Python is where it was."""
    lines: list[str] = []
    goes_on = False  # a magic, on the next line
    for line in source.splitlines():
        code = line.lstrip()
        assigns = ASSIGNS_MAGIC.match(line)
        is_magic = goes_on or bool(assigns) or code[:1] in {"%", "!", "?"} or code[-1:] == "?"
        instead = f"{assigns[1]}= None" if assigns else f"{line[: len(line) - len(code)]}pass"
        lines.append(("" if goes_on else instead) if is_magic else line)
        goes_on = is_magic and line.endswith("\\")
    return "\n".join(lines)


def ask_for_help(lines: list[str]) -> list[str]:
    """``%jaxcluster start?`` as ``%jaxcluster start --help``: IPython knows no words of magics."""
    found = re.fullmatch(r"\s*%jaxcluster\s+(\w+)\s*\?+\s*", "".join(lines))
    return [f"%jaxcluster {found[1]} --help\n"] if found is not None else lines


class AutoMode:
    """An input transformer that makes every following cell an ``%%spmd`` cell.

    Some cells stay in the notebook. They begin with a cell magic or one of jaxcluster's own line
    magics, or all their lines are line magics (``%``, ``!``, ``?``).

    Args:
      is_silent: whether a frontend or the kernel's debugger runs its own line, and not a cell.

    Attributes:
      on: the switch.
    """

    def __init__(self, is_silent: Callable[[], bool] = lambda: False) -> None:
        self.on = False
        self._is_silent = is_silent

    def transform(self, lines: list[str]) -> list[str]:
        if not self.on or stays_in_notebook(lines) or self._is_silent():
            return lines
        return ["%%spmd --no-magic-line\n", *lines]


def stays_in_notebook(lines: list[str]) -> bool:
    code = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not code or code[0].startswith("%%"):
        return True
    if code[0].split()[0] in OWN_MAGICS:
        return True
    return all(line.startswith(("%", "!", "?")) or line.endswith("?") for line in code)
