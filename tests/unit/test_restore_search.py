"""New processes against random graphs of objects; ``restoresearch`` has the machine.

``JAXCLUSTER_RESTORE_GRAPHS`` is how many, ``JAXCLUSTER_RESTORE_SEED`` the first one's seed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import restoresearch

from jaxcluster.engine.state import classes, loading, objects, pickling


@pytest.mark.timeout(1800)  # 100,000 graphs beside others
def test_what_names_lead_to_has_the_same_form_in_new_processes_or_is_named() -> None:
    many = int(os.environ.get("JAXCLUSTER_RESTORE_GRAPHS", "1000"))
    seed, wrong = restoresearch.search(int(os.environ.get("JAXCLUSTER_RESTORE_SEED", "0")), many)
    assert seed == -1, wrong


# Each of what parted or lost objects in silence once: (what of it to break, kinds that show it).
HOLES: dict[str, tuple[Callable[[pytest.MonkeyPatch], object], list[str]]] = {
    "globals of a library's function": (
        lambda patch: patch.setattr(pickling.Pickler, "_is_of_module", lambda *_: False),
        ["wrapped", "keeper"],
    ),
    "globals of a cell's function": (
        lambda patch: patch.setattr(loading.Loader, "persistent", _another_namespace),
        ["function"],
    ),
    "dicts that objects share": (
        lambda patch: patch.setattr(objects, "shares_dict", lambda obj: False),
        ["plain", "vars"],
    ),
    "views of dicts": (
        lambda patch: [patch.delitem(pickling._HOW, kind) for kind in pickling._VIEWS],
        ["keys", "proxy"],
    ),
    "slots": (
        lambda patch: patch.setattr(classes, "complete", lambda cls, reduced: reduced),
        ["slots"],
    ),
    "attributes, and items behind methods": (
        lambda patch: patch.setattr(objects, "way_of", lambda cls: None),
        ["subclass"],
    ),
    "attributes of what Python makes": (
        lambda patch: patch.setattr(objects, "_with_attributes", lambda obj, base: None),
        ["subclass"],
    ),
    "jitted functions' own": (
        lambda patch: patch.setattr(pickling, "_set_jitted", lambda function, state: None),
        ["grad"],
    ),
}


def _another_namespace(loader: Any, pid: Any, one: Any) -> Any:
    return {} if pid == ("namespace",) else _persistent(loader, pid, one)


_persistent = loading.Loader.persistent


@pytest.mark.parametrize("name", HOLES)
def test_a_hole_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was found: else nobody knows whether the search still looks there."""
    break_it, kinds = HOLES[name]
    break_it(monkeypatch)
    seed, wrong = restoresearch.search(0, 1000, [*kinds, "list", "dict"])
    assert seed >= 0, f"{name}: not seen"
    assert wrong
