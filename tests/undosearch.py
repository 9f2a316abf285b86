"""Searches for what undo misses: random graphs and cells, and a picture before and after.

A picture (``undopicture``) is kept by ways of its own: for each object that any variable leads
to, what it holds, by identity. After a cell was taken back each variable leads to what it led to
before, or undo has named it. Where all is of the kinds that can be put back, nothing may be named.

    python tests/undosearch.py SEED...      what one graph is and does
    python tests/undosearch.py -n 100000    so many
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import random
import sys
import time
import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from undographs import HARD, KINDS, NAMES, ROOM, Builder, wraps
from undopicture import Picture
from undopokes import CELLS, begin, has_spawned, poke

from jaxcluster.cluster.undoing import Undone, plan_of
from jaxcluster.engine import changes
from jaxcluster.engine.retained import Memory
from jaxcluster.engine.undo import Leave, Undo


@dataclasses.dataclass(frozen=True)
class Story:
    """How a graph is made and what a cell does to it: data alone, so that it can be shrunk."""

    makes: tuple[tuple[str, int], ...]
    binds: tuple[tuple[str, int], ...]
    cell: tuple[str, ...]

    def __str__(self) -> str:
        makes = [f"  {kind} {seed}" for kind, seed in self.makes]
        binds = [f"  {name} = pool[{n}]" for name, n in self.binds]
        return "\n".join(["makes", *makes, "binds", *binds, "cell", *("  " + c for c in self.cell)])


def story_of(seed: int, kinds: list[str] = KINDS) -> Story:
    choose = random.Random(seed)
    many = choose.randint(1, 9)
    # Most graphs have nothing of which nothing is known, so that nothing may be named.
    easy = choose.random() < 0.6
    kinds = [kind for kind in kinds if kind not in HARD | {"entered"}] if easy else kinds
    makes = tuple((choose.choice(kinds), choose.randrange(1 << 16)) for _ in range(many))
    bound = choose.sample(NAMES, choose.randint(1, len(NAMES)))
    binds = tuple((name, choose.randrange(many)) for name in bound)
    cell = tuple(
        choose.choice(CELLS).format(
            choose.choice(bound), choose.choice(bound), choose.randrange(99), choose.randrange(99)
        )
        for _ in range(choose.randint(1, 3))
    )
    return Story(makes, binds, cell)


@functools.lru_cache(maxsize=100_000)
def _code(line: str) -> types.CodeType:
    return compile(line, "<cell>", "exec")


def try_story(story: Story) -> str:
    """Make it, run the cell, take it back: what is wrong then; "" if nothing is."""
    begin()
    namespace: dict[str, Any] = {"__name__": "__main__", "_oh": {}, "poke": poke, "wraps": wraps}
    undo = Undo()
    undo._memory = _memory()  # the same for all
    undo.namespace = namespace
    undo.display_hook = SimpleNamespace(_="", __="", ___="")
    builder = Builder(namespace)
    for kind, seed in story.makes:
        builder.make(kind, seed)
    for name, n in story.binds:
        namespace[name] = builder.pool[n % len(builder.pool)]
    builder.pool.clear()
    picture = Picture(users(namespace))
    undo.begin(1, "\n".join(story.cell))
    for line in story.cell:
        with contextlib.suppress(Exception):
            exec(_code(line), namespace)
    undo.end()
    plan = take_back(undo)
    differing = picture.differing(users(namespace))
    named = {*plan.lost, *plan.failed, *plan.unknown}
    unnamed = {name: how for name, how in differing.items() if name not in named}
    if unnamed:
        return f"changed, and neither put back nor named: {unnamed}; {plan}"
    if both := named & {*plan.back}:
        return f"called what it was, and not: {both}; {plan}"
    if named and not (builder.hard or has_spawned()):
        return f"all of it could be put back: {plan}"
    return ""


@functools.lru_cache
def _memory() -> Memory:
    return Memory()


def take_back(undo: Undo) -> Undone:
    """As ``cluster.undoing`` does it, of one rank."""
    look = undo.look(1)
    plan = plan_of([look])
    leave = Leave((*plan.failed, *look.too_large), plan.lost)
    return plan.with_failed(undo.undo(1, leave))


def users(namespace: dict[str, Any]) -> dict[str, Any]:
    return {name: v for name, v in namespace.items() if name in NAMES or name == "new"}


def shrink(story: Story, is_wrong: Callable[[Story], bool]) -> Story:
    """The least of it that still is wrong: without parts of it, and with simpler ones."""
    while True:
        for smaller in _smaller(story):
            if is_wrong(smaller):
                story = smaller
                break
        else:
            return story


def _smaller(story: Story) -> Iterator[Story]:
    for field in ("cell", "binds", "makes"):
        parts = getattr(story, field)
        for n in range(len(parts)):
            if len(parts) > 1:
                yield dataclasses.replace(story, **{field: parts[:n] + parts[n + 1 :]})
    for n, (kind, seed) in enumerate(story.makes):
        if kind != "list":
            makes = (*story.makes[:n], ("list", seed), *story.makes[n + 1 :])
            yield dataclasses.replace(story, makes=makes)


def search(first: int, many: int, kinds: list[str] = KINDS) -> tuple[int, str]:
    """Look at so many graphs; the first that is wrong, shrunk and told, or (-1, "")."""
    had = changes.MOST_ELEMENTS, changes.ONE_VALUE
    changes.MOST_ELEMENTS, changes.ONE_VALUE = ROOM, 1
    try:
        for seed in range(first, first + many):
            story = story_of(seed, kinds)
            if first := try_story(story):
                least = shrink(story, lambda smaller: bool(try_story(smaller)))
                return seed, f"seed {seed}\n{least}\n{try_story(least) or first}"
    finally:
        changes.MOST_ELEMENTS, changes.ONE_VALUE = had
    return -1, ""


def main(look: Callable[[int, int], tuple[int, str]]) -> None:
    """The command line of a search, for graphs by their seeds or for so many."""
    began = time.process_time()
    if sys.argv[1] == "-n":
        print(look(int((sys.argv[3:] or [0])[0]), int(sys.argv[2]))[1])
    else:
        for one in map(int, sys.argv[1:]):
            print(story_of(one), look(one, 1)[1], sep="\n")
    print(f"{time.process_time() - began:.1f} s")


if __name__ == "__main__":
    main(search)
