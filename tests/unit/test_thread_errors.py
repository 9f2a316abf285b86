"""What a thread has ended with is kept for the cell that runs then, and the one after."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from jaxcluster.engine.thread_errors import ThreadErrors


class Bad(Exception):
    def __str__(self) -> str:
        raise OSError


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    found: list[type] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: found.append(args.exc_type))
    return found


def run(work: Callable[[], object]) -> None:
    thread = threading.Thread(target=work, name="loader")
    thread.start()
    thread.join()


def test_the_place_is_the_innermost_line_of_the_users(shown: list[type]) -> None:
    now = [4]
    errors = ThreadErrors({"/cells/3-a.py": 3}, lambda: now[0])
    errors.listen()
    scope: dict[str, Any] = {}
    exec(compile("import json\ndef work():\n    json.loads('{')", "/cells/3-a.py", "exec"), scope)
    assert errors.latest() is None
    run(scope["work"])
    told = errors.latest()
    assert told is not None
    assert (told.thread, told.ename, told.place) == (
        "loader", "JSONDecodeError", "cell [3] line 3",
    )  # fmt: skip
    assert told.evalue.startswith("Expecting property name")
    now[0] = 5
    assert errors.latest() is told
    assert (errors.take_untold(), errors.take_untold()) == (told, None)
    now[0] = 6
    assert errors.latest() is None
    assert [one.__name__ for one in shown] == ["JSONDecodeError"]


def test_a_module_of_the_users_is_named_by_its_file(shown: list[type]) -> None:
    errors = ThreadErrors({}, lambda: 1)
    errors.listen()
    scope: dict[str, Any] = {}
    exec(compile("def work():\n    1 / 0", "/home/me/data.py", "exec"), scope)
    run(scope["work"])
    told = errors.latest()
    assert told is not None
    assert (told.ename, told.place) == ("ZeroDivisionError", "data.py line 2")


def test_an_exception_that_can_say_nothing_of_itself_is_kept_and_shown(shown: list[type]) -> None:
    errors = ThreadErrors({}, lambda: 1)
    errors.listen()

    def fail() -> None:
        raise Bad

    run(fail)
    told = errors.latest()
    assert told is not None
    assert told.ename == "Bad"
    assert shown == [Bad]


def test_a_thread_that_leaves_has_not_failed(shown: list[type]) -> None:
    errors = ThreadErrors({}, lambda: 1)
    errors.listen()

    def leave() -> None:
        raise SystemExit

    run(leave)
    assert errors.latest() is None
