"""Tab, Shift-Tab and name? in %%spmd cells: a real kernel's answers, made by rank 0."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from helpers import Notebook, plain, until

pytestmark = pytest.mark.any_jax


@pytest.fixture(scope="module", autouse=True)
def started(notebook: Notebook) -> None:
    notebook.ok("%jaxcluster start -n 2")
    notebook.ok(
        "%%spmd\nimport numpy as np, time\n"
        "only_on_the_ranks = np.arange(6).reshape(2, 3)\n"
        "settings = {'learning_rate': 0.1, 'momentum': 0.9}\n"
        "def documented(first, second=2):\n    'What it does.'\n"
        "class Thing:\n    attribute = 1\nthing = Thing()"
    )
    notebook.ok("only_in_the_notebook = 1")
    # A rank's first answers import what it takes, and the notebook waits only 0.7 s.
    complete_at_last(notebook, "%%spmd\nonly_|", "%%spmd\nonly_on_the_ranks")
    until(lambda: inspected(notebook, "%%spmd\ndocumented|"), "rank 0 tells of it")


def completed(notebook: Notebook, code: str) -> list[str]:
    """The cell as it would be after each of the matches was chosen. ``|`` is the cursor."""
    cursor = code.index("|")
    text = code.replace("|", "")
    answer = notebook.ask("complete", text, cursor)
    assert answer["status"] == "ok"
    start, end = answer["cursor_start"], answer["cursor_end"]
    return [text[:start] + match + text[end:] for match in answer["matches"]]


def complete_at_last(notebook: Notebook, code: str, result: str) -> None:
    until(lambda: result in completed(notebook, code), f"{result!r} is offered")


def inspected(notebook: Notebook, code: str) -> str:
    answer = notebook.ask("inspect", code.replace("|", ""), code.index("|"))
    assert answer["status"] == "ok"
    return plain(answer["data"].get("text/plain", "")) if answer["found"] else ""


# --------------------------------------------------------------------------- Tab


@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("%%spmd\nonly_on_|", "%%spmd\nonly_on_the_ranks"),
        ("%%spmd\nprint(thing.attr|)\nx = 1", "%%spmd\nprint(thing.attribute)\nx = 1"),
        ("%%spmd\nsettings['learn|']", "%%spmd\nsettings['learning_rate']"),
        ("%spmd only_on_|", "%spmd only_on_the_ranks"),
        ("%%spmd\nimport collections.ab|", "%%spmd\nimport collections.abc"),
    ],
)
def test_tab_completes_from_rank_0s_names(notebook: Notebook, code: str, result: str) -> None:
    complete_at_last(notebook, code, result)


def test_outside_of_spmd_cells_the_notebooks_own_names_are_offered(notebook: Notebook) -> None:
    assert completed(notebook, "only_|") == ["only_in_the_notebook"]


def test_a_busy_rank_0_still_answers_or_the_notebook_does_not_wait(notebook: Notebook) -> None:
    notebook.ok("%%spmd --async --out background\nwhile True: time.sleep(0.01)")
    try:
        began = time.monotonic()
        completed(notebook, "%%spmd\nonly_on_|")
        assert time.monotonic() - began < 20  # it gives rank 0 0.7 s
    finally:
        notebook.ok("background.stop()")
        assert "was stopped" in notebook.run("background.wait()").error


# --------------------------------------------------------------------------- Shift-Tab


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("%%spmd\ndocumented|", ["documented(first, second=2)", "What it does."]),
        ("%%spmd\ndocumented(|", ["documented(first, second=2)"]),
        ("%%spmd\nx = 1\ny = only_on_the_ranks|.sum()", ["ndarray", "[3 4 5]"]),
        ("%spmd documented|", ["What it does."]),
    ],
)
def test_shift_tab_tells_of_rank_0s_objects(
    notebook: Notebook, code: str, words: list[str]
) -> None:
    until(lambda: inspected(notebook, code), "rank 0 tells of it")
    text = inspected(notebook, code)
    for word in words:
        assert word in text


def test_shift_tab_outside_of_spmd_cells_tells_of_the_notebooks(notebook: Notebook) -> None:
    assert inspected(notebook, "documented|") == ""
    assert "int" in inspected(notebook, "only_in_the_notebook|")


# --------------------------------------------------------------------------- auto mode


def test_in_auto_mode_all_cells_are_answered_by_rank_0(notebook: Notebook) -> None:
    notebook.ok("%jaxcluster auto on")
    try:
        assert completed(notebook, "only_|") == ["only_on_the_ranks"]
        assert "What it does." in inspected(notebook, "documented|")
        assert any("%pull" in line for line in completed(notebook, "%pul|"))
    finally:
        notebook.ok("%jaxcluster auto off")


def test_without_a_cluster_the_notebook_answers_by_itself(
    open_notebook: Callable[..., Notebook],
) -> None:
    other = open_notebook()
    other.ok("only_in_the_notebook = 1")
    assert completed(other, "%%spmd\nonly_|") == ["%%spmd\nonly_in_the_notebook"]
