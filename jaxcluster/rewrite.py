"""A cell's source before it is sent: its line numbers, its syntax, its names, and auto mode."""

from __future__ import annotations

import ast
from typing import Any

from jaxcluster.errors import CellSyntaxError

# What belongs to the notebook, whatever the mode.
OWN_MAGICS = ("%jaxcluster", "%push", "%pull", "%shards", "%load_ext", "%unload_ext", "%reload_ext")


def with_magic_line(line: str, body: str) -> str:
    """The cell with its ``%%spmd`` line as a comment, so that line numbers are the notebook's.

    A body that begins with a cell magic (``%%time``) must keep it on its first line.
    """
    if body.lstrip().startswith("%%"):
        return body
    return f"# %%spmd {line}".rstrip() + "\n" + body


def check_syntax(shell: Any, source: str) -> None:
    """Find a cell's SyntaxError here, before any rank has seen it.

    IPython's own syntax (magics, ``!``, ``?``) and top-level ``await`` are fine.

    Raises:
      CellSyntaxError: it has one.
    """
    name = f"Cell In[{shell.displayhook.prompt_count}]"
    flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        compile(shell.transform_cell(source), name, "exec", flags)
    except SyntaxError as error:
        lines = shell.SyntaxTB.structured_traceback(type(error), error, [])
        raise CellSyntaxError(f"{type(error).__name__}: {error}", "", lines) from None


def names_in(shell: Any, source: str) -> list[str]:
    """The names that a cell reads."""
    tree = ast.parse(shell.transform_cell(source))
    return sorted(
        {
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
    )


class AutoMode:
    """An input transformer that makes every following cell an ``%%spmd`` cell.

    Cells of the notebook stay there: those that begin with a cell magic, with one of jaxcluster's
    own line magics, or that are line magics (``%``, ``!``, ``?``) throughout.
    """

    def __init__(self) -> None:
        self.on = False

    def transform(self, lines: list[str]) -> list[str]:
        if not self.on or stays_in_notebook(lines):
            return lines
        return ["%%spmd --no-magic-line\n", *lines]


def stays_in_notebook(lines: list[str]) -> bool:
    code = [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    if not code or code[0].startswith("%%"):
        return True
    if code[0].split()[0] in OWN_MAGICS:
        return True
    return all(line.startswith(("%", "!", "?")) or line.endswith("?") for line in code)
