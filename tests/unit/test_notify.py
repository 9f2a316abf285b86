"""A command of the user's that is run at the end of long cells."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from jaxcluster import arguments, wire
from jaxcluster.cluster import notify
from jaxcluster.cluster.notify import Notifier
from jaxcluster.errors import CellFailed, CellInterrupted, UsageError
from jaxcluster.model.outputs import CellRecord
from jaxcluster.notebook import commands


def record(*statuses: str) -> CellRecord:
    made = CellRecord(5, 7, "x = 1", list(range(len(statuses))))
    for rank, status in enumerate(statuses):
        error = wire.ErrorInfo("ValueError", "no such file", []) if status == "error" else None
        made.add_reply(wire.CellReply(rank, 5, status, 0.1, error))
    return made


def told(
    tmp_path: Path, seconds: float, error: BaseException | None = None, *statuses: str
) -> str | None:
    notifier = Notifier()
    notifier.command = f'echo "$CELL_STATUS $CELL_NUMBER $CELL_TEXT" > {tmp_path}/told'
    thread = notifier.ended("main", record(*(statuses or ("ok", "ok"))), seconds, error)
    if thread is None:
        return None
    thread.join(30)
    return (tmp_path / "told").read_text().strip()


def test_the_end_of_a_long_cell_is_told(tmp_path: Path) -> None:
    assert told(tmp_path, 125) == "ended 7 Cell [7] of cluster 'main' ended after 2 min."


def test_how_it_has_failed_is_told_in_one_line(tmp_path: Path) -> None:
    error = CellFailed("Rank 2 raised\nmore", "a hint", [2], "ValueError")
    expected = "failed 7 Cell [7] of cluster 'main' failed after 2 min: Rank 2 raised"
    assert told(tmp_path, 125, error, "ok", "error") == expected
    expected = "failed 7 Cell [7] of cluster 'main' failed after 2 min: no such file"
    assert told(tmp_path, 125, None, "ok", "error") == expected  # one that nobody waits for


def test_a_short_cell_and_one_that_was_stopped_are_not_told(tmp_path: Path) -> None:
    assert told(tmp_path, 59) is None
    assert told(tmp_path, 125, CellInterrupted("cell [7] was stopped")) is None
    assert Notifier().ended("main", record("ok"), 125, None) is None


def test_what_went_wrong_with_the_command_is_said() -> None:
    said = notify.run("echo no route; exit 3", {})
    assert said == "the command of %jaxcluster notify ended with exit status 3: no route"


def test_a_command_that_does_not_end_is_ended_with_all_that_it_has_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "RUN_S", 0.5)
    said = notify.run(f"sleep 100 & echo $! > {tmp_path}/pid; wait", {})
    assert "was ended after 0.5 s" in said
    pid = int((tmp_path / "pid").read_text())
    until = time.monotonic() + 10
    while time.monotonic() < until and os.path.exists(f"/proc/{pid}/exe"):
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pid}/exe")


def test_its_line_is_the_shells_but_for_the_options_before_it() -> None:
    command = """curl -d "$CELL_TEXT" --after 3 'a b'"""
    assert arguments.notify_line(f" --after 600 --test {command} ") == (600.0, True, command)
    assert arguments.notify_line("false --test") == (None, True, "false")
    assert arguments.notify_line("a --test b --after 3 --test") == (3.0, True, "a --test b")
    assert arguments.notify_line("off") == (None, False, "off")
    assert arguments.notify_line("") == (None, False, "")


@pytest.mark.parametrize("line", ["--after", "--after soon x", "--after -1 x", "--every 3 x"])
def test_a_wrong_option_is_refused(line: str) -> None:
    with pytest.raises(UsageError):
        arguments.notify_line(line)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """``%jaxcluster notify`` with a notifier of its own."""
    monkeypatch.setattr(commands, "notifier", Notifier())
    return commands.Commands._notify


def test_a_command_whose_test_fails_is_not_kept(
    typed: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    typed("--after 5 true")
    with pytest.raises(UsageError) as caught:
        typed("false --after 600 --test")
    assert str(caught.value) == (
        "The command of %jaxcluster notify ended with exit status 1.\n"
        "It was not kept. Run at the end of cells of 5 s and more: true"
    )
    typed("")
    typed("--test")
    typed("off --test")
    assert capsys.readouterr().out.splitlines() == [
        *["Run at the end of cells of 5 s and more: true"] * 3,
        "The command ran without an error.",
        "Nothing is run when a cell ends. For example: "
        '%jaxcluster notify curl -d "$CELL_TEXT" ntfy.sh/my-topic',
    ]


@pytest.mark.parametrize(
    ("word", "choices", "told"),
    [
        ("maybe", ("on", "off"), "'maybe' is not on or off. It is off.\nx on|off sets it."),
        ("On", ("a", "b", "c"), "'On' is not a, b or c. It is off.\nx a|b|c sets it."),
    ],
)
def test_a_word_that_a_setting_does_not_take_is_named(
    word: str, choices: tuple[str, ...], told: str
) -> None:
    with pytest.raises(UsageError) as caught:
        commands.Commands._is_choice(word, choices, "It is off.", "x")
    assert str(caught.value) == told
