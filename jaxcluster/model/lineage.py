"""Which cells have made a variable, so that a lost one can be made again. Pure.

A cell that makes another value than the one that was lost is worse than none. So nothing is said of
a name where anything else may have bound it since: a cell that failed half-way, a push, a restored
checkpoint, another notebook's cell.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Mapping

Makers = Mapping[str, tuple[int, ...]]  # name -> the cells that made it, in their order
MOST_CELLS = 4  # that are named; after more of them nobody runs them all again


class Lineage:
    """Which cells made what, as far as one notebook knows."""

    def __init__(self) -> None:
        self._now: Makers = {}
        self._before: Makers = {}  # the cell that has ended last, ``_ended``
        self._sent = self._ended = 0

    def sent(self, seq: int) -> None:
        """This notebook sends a cell: what has come between was another's, and may bind anything.

        Args:
          seq: the cell's number on the cluster.
        """
        if seq != self._sent + 1:
            self.forget_all()
        self._sent = seq

    def ended(self, seq: int, source: str, cell: int, *, is_whole: bool) -> None:
        """A cell has ended, ``is_whole`` as it should."""
        known = after(self._now, source, cell) if is_whole else before(self._now, source)
        self._before, self._now, self._ended = self._now, known, seq

    def undone(self, seq: int, in_doubt: Iterable[str]) -> None:
        """A cell that had ended was taken back, but perhaps for these names."""
        if seq != self._ended:
            return self.forget_all()
        self._now = self._before
        self.bound(in_doubt)

    def bound(self, names: Iterable[str]) -> None:
        """No cell has bound these names."""
        gone = set(names)
        self._now = {name: cells for name, cells in self._now.items() if name not in gone}
        self._before = {name: cells for name, cells in self._before.items() if name not in gone}

    def forget_all(self) -> None:
        """Anything may have been bound."""
        self._now = self._before = {}

    def known(self, last: int) -> Makers:
        """What is known now; nothing where the ``last`` cell of the cluster is another's."""
        return self._now if last <= self._sent else {}


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


def before(makers: Makers, source: str) -> Makers:
    """What is known still once a cell has failed: nothing of what it may have bound by then."""
    try:
        made, changed = _bound(source)
    except (SyntaxError, ValueError):
        return after(makers, source, 0)
    return {name: cells for name, cells in makers.items() if name not in made | changed}


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
