"""The errors survive pickling, and are shown without a frame of ours."""

from __future__ import annotations

import inspect
import pickle
import re
from typing import Any

import pytest

from jaxcluster import errors
from jaxcluster.errors import (
    CellFailed,
    CellInterrupted,
    UsageError,
)

FACTS: dict[str, Any] = {
    "message": "It broke.",
    "hint": "Type this.",
    "ranks": (0, 3),
    "ename": "ValueError",
    "traceback": ("Cell In[3], line 2", "ValueError: no"),
}


def classes() -> list[type]:
    found = vars(errors).values()
    return [c for c in found if isinstance(c, type) and c.__module__ == errors.__name__]


@pytest.mark.parametrize("error_class", classes(), ids=lambda c: c.__name__)
def test_every_error_survives_pickling_and_is_shown_without_a_frame_of_ours(
    error_class: type,
) -> None:
    names = inspect.signature(error_class).parameters
    try:
        raise error_class(**{name: FACTS[name] for name in names})
    except BaseException as caught:
        error: Any = caught
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again)) == (error_class, str(error))
    assert {k: v for k, v in vars(again).items() if k != "__notes__"} == vars(error)
    text = "\n".join(error._render_traceback_())
    assert not any(word in text for word in ("Traceback", __file__, "jaxcluster/"))


def test_what_an_error_shows_is_its_text_or_the_ranks_traceback_and_what_to_type() -> None:
    (line,) = UsageError("No such word.", "Try another.")._render_traceback_()
    assert re.sub(r"\x1b\[[0-9;]*m", "", line) == "UsageError: No such word.\nTry another."
    failed = CellFailed("ValueError on rank 1: no", "hint", [1], "ValueError", ["one", "two"])
    assert failed._render_traceback_() == ["one", "two", "hint"]
    # So that no ``except Exception`` in a notebook goes on with the next thing.
    stopped = CellInterrupted("cell [3] was stopped on rank 1.", [1])
    assert isinstance(stopped, KeyboardInterrupt)
    assert "KeyboardInterrupt" in stopped._render_traceback_()[0]
