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
    CellSyntaxError,
    RankError,
    UsageError,
)

FACTS: dict[str, Any] = {
    "message": "It broke.",
    "hint": "Type this.",
    "missing": (1, 2),
    "ranks": (0, 3),
    "ename": "ValueError",
    "traceback": ("Cell In[3], line 2", "ValueError: no"),
    "report": {"launch": 3},
}


def classes() -> list[type]:
    found = vars(errors).values()
    return [c for c in found if isinstance(c, type) and c.__module__ == errors.__name__]


every_error = pytest.mark.parametrize("error_class", classes(), ids=lambda c: c.__name__)


def make(error_class: type) -> Any:
    names = list(inspect.signature(error_class).parameters)
    return error_class(**{name: FACTS[name] for name in names})


@every_error
def test_every_error_survives_pickling_with_its_facts(error_class: type) -> None:
    error = make(error_class)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is error_class
        assert str(again) == str(error)
        assert {k: v for k, v in vars(again).items() if k != "__notes__"} == vars(error)


@every_error
def test_every_error_is_shown_without_a_frame_of_ours(error_class: type) -> None:
    try:
        raise make(error_class)
    except BaseException as error:
        lines = error._render_traceback_()  # type: ignore[attr-defined]
    assert all(isinstance(line, str) for line in lines)
    text = "\n".join(lines)
    assert "Traceback" not in text
    assert __file__ not in text
    assert "jaxcluster/" not in text


def test_an_error_is_shown_as_its_class_and_text() -> None:
    (line,) = UsageError("No such word.", "Try another.")._render_traceback_()
    assert re.sub(r"\x1b\[[0-9;]*m", "", line) == "UsageError: No such word.\nTry another."


def test_a_failed_cell_shows_the_ranks_traceback_and_then_the_hint() -> None:
    error = CellFailed("ValueError on rank 1: no", "hint", [1], "ValueError", ["one", "two"])
    assert error._render_traceback_() == ["one", "two", "hint"]
    assert error.ranks == (1,)
    assert error.ename == "ValueError"
    assert isinstance(error, RankError)


def test_a_syntax_error_is_shown_as_ipython_shows_it() -> None:
    lines = ["  Cell In[2], line 2", "    def f(:", "SyntaxError: invalid syntax"]
    assert CellSyntaxError("m", "", lines)._render_traceback_() == lines


def test_a_stopped_cell_is_a_keyboard_interrupt() -> None:
    """So that no ``except Exception`` in a notebook goes on with the next thing."""
    error = CellInterrupted("cell [3] was stopped on rank 1.", [1])
    assert isinstance(error, KeyboardInterrupt)
    assert not isinstance(error, Exception)
    assert "KeyboardInterrupt" in error._render_traceback_()[0]
