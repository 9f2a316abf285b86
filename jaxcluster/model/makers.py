"""Which cells have made a variable, so that a lost one can be made again. Pure."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping

Makers = Mapping[str, tuple[int, ...]]  # name -> the cells that made it, in their order
MOST_CELLS = 4  # that are named; after more of them nobody runs them all again


def after(makers: Makers, source: str, cell: int) -> dict[str, tuple[int, ...]]:
    """What is known once a cell has run: those that it bound, and what they were made of.

    A name that was bound to what it was before, as in ``x = f(x)``, needs the cells before it, too.
    Of the names in a cell that can't be parsed nothing is known any more.
    """
    try:
        made, changed = _bound(source)
    except (SyntaxError, ValueError):  # IPython's own syntax: what it binds can't be read
        words = set(re.findall(r"\w+", source))
        return {name: cells for name, cells in makers.items() if name not in words}
    known = {**makers, **dict.fromkeys(made, (cell,))}
    for name in changed:
        if name in makers and makers[name][-1:] != (cell,):
            known[name] = (*makers[name], cell)
    return known


def tell(makers: Makers, names: Iterable[str]) -> str:
    """Which cells to run again to have names back: ``cells [1], [3]``; "" if that is not known."""
    wanted = [makers[name] for name in names if name in makers]
    cells = sorted({cell for each in wanted if len(each) <= MOST_CELLS for cell in each})
    if not cells or len(cells) > MOST_CELLS:
        return ""
    return f"cell{'s' if len(cells) > 1 else ''} {', '.join(f'[{cell}]' for cell in cells)}"


@functools.lru_cache(maxsize=256)  # a cell is often run again
def _bound(source: str) -> tuple[set[str], set[str]]:
    """(the names that a cell binds to new values, those whose new values depend on the old)."""
    made, changed, seen = set[str](), set[str](), set[str]()
    for statement in ast.parse(source).body:
        stored, loaded = _names(statement)
        seen |= loaded
        for name in stored - made:
            (changed if name in seen else made).add(name)
        seen |= stored
    return made, changed


def _names(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """(the names that a statement of a cell binds, those that it reads)."""
    stored, loaded = set[str](), set[str]()
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return {statement.name}, loaded  # what its body binds is its own
    for node in ast.walk(statement):
        if isinstance(node, ast.Name):
            (loaded if isinstance(node.ctx, ast.Load) else stored).add(node.id)
        elif isinstance(node, ast.alias) and node.name != "*":
            stored.add(node.asname or node.name.partition(".")[0])
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            loaded.add(node.target.id)
    return stored, loaded
