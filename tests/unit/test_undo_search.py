"""Undo against random graphs of objects and random cells; ``undosearch`` has the machine.

``JAXCLUSTER_UNDO_GRAPHS`` is how many, ``JAXCLUSTER_UNDO_SEED`` the first one's seed.
"""

from __future__ import annotations

import decimal
import enum
import functools
import os
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import undosearch

from jaxcluster.engine import changes, value_copies
from jaxcluster.engine.undo import Undo
from jaxcluster.engine.value_copies import FIXED, Kind


@pytest.mark.timeout(1800)  # 100,000 graphs beside others
def test_every_difference_is_put_back_or_named() -> None:
    many = int(os.environ.get("JAXCLUSTER_UNDO_GRAPHS", "1000"))
    seed, wrong = undosearch.search(int(os.environ.get("JAXCLUSTER_UNDO_SEED", "0")), many)
    assert seed == -1, wrong


# Each of what undo did not see once, and the like: (what of it to break, kinds that show it).
HOLES: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], list[str]]] = {}


def hole(*made: str) -> Callable[[Any], Any]:
    def note(function: Any) -> Any:
        HOLES[function.__name__] = function, [*made, "list", "dict", "plain"]
        return function

    return note


def _fixed(cls: type, *made: str) -> None:
    name = f"{cls.__name__} is fixed"
    HOLES[name] = (lambda patch: patch.setitem(value_copies._KINDS, cls, FIXED)), [*made, "list"]


def _inside(patch: pytest.MonkeyPatch, kind: Kind, inside: Callable[[Any], Any]) -> None:
    """Kinds are frozen: what they are is told at their ``__dict__``."""
    patch.setitem(vars(kind), "inside", inside)


_fixed(types.BuiltinFunctionType, "builtin")
_fixed(decimal.Context, "context")
_fixed(functools.partial, "partial")
_fixed(weakref.ReferenceType, "weak", "plain")
_fixed(types.CellType, "closure")
_fixed(functools.cached_property, "dynamic", "class")
_fixed(types.MethodType, "method")
_fixed(types.ModuleType, "module")
_fixed(types.GeneratorType, "generator")
_fixed(np.random.SeedSequence, "rng", "bits")


@hole("derived")
def a_base_class(patch: pytest.MonkeyPatch) -> None:
    _inside(patch, value_copies.CLASS, lambda copy: [*copy[0].values()])


@hole("wrapped", "manager")
def a_librarys_function(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "is_in_module", lambda function: True)


@hole("grad")
def a_function_of_jax(patch: pytest.MonkeyPatch) -> None:
    _inside(patch, value_copies.WRAPPER, lambda copy: ())


@hole("member")
def members_of_an_enum(patch: pytest.MonkeyPatch) -> None:
    whole = value_copies._classify_users
    patch.setattr(
        value_copies,
        "_classify_users",
        lambda cls: FIXED if issubclass(cls, enum.Enum) else whole(cls),
    )


@hole("data", "slots", "dict", "dict")
def keys_of_a_dict(patch: pytest.MonkeyPatch) -> None:
    _inside(patch, value_copies.DICT, dict.values)


@hole("cached")
def cached_results(patch: pytest.MonkeyPatch) -> None:
    _inside(patch, value_copies.kind_of(type(functools.lru_cache(len))), lambda copy: copy[:2])


@hole()
def another_class(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "_is_same", lambda one: one.kind.is_same(one.value, one.copy))


@hole("generator", "iterator", "library")
def what_names_share(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Undo, "_shared", lambda *_: {})


@hole("foreign")
def what_was_executed_elsewhere(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(changes, "is_of_module", lambda names: True)


@hole("slots")
def slots(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(value_copies, "_slot", lambda descriptor, value: value_copies.MISSING)


@hole("extended")
def methods_of_a_class_that_extends_a_builtin(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(value_copies._BUILTIN, list, FIXED)


@hole("array")
def that_an_array_may_be_written_to(patch: pytest.MonkeyPatch) -> None:
    kind = value_copies.NUMPY
    patch.setitem(vars(kind), "copy", lambda v: (np.array(v), True))
    patch.setitem(vars(kind), "is_same", lambda v, copy: v.tobytes() == copy[0].tobytes())


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_that_is_made_by_hand_is_found(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    make, made = HOLES[name]
    undosearch.search(0, 20, made)  # what a type is is remembered, and must not be the hole's
    make(monkeypatch)
    seed, wrong = undosearch.search(0, 4000, made)
    assert seed >= 0
    assert "named" in wrong or "put back" in wrong
    monkeypatch.undo()
    assert undosearch.search(seed, 1, made) == (-1, "")


def test_a_story_is_shrunk_to_what_is_wrong_with_it() -> None:
    story = undosearch.story_of(3)
    least = undosearch.shrink(story, lambda one: len(one.makes) >= 2)
    assert [kind for kind, _ in least.makes] == ["list", "list"]
    assert len(least.cell) == len(least.binds) == 1
