"""The output of the ranks, folded: one rank's in order, and equal ones of several ranks once."""

from __future__ import annotations

from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.model import outputs
from jaxcluster.model.outputs import (
    CellRecord,
    RankRecord,
    group_outputs,
    traceback_lines,
)


def text(text: str, rank: int = 0, name: str = "stdout") -> wire.RankOutput:
    return wire.RankOutput(rank, 1, "stream", {"name": name, "text": text})


def shown(data: str, rank: int = 0, id: str | None = None, kind: str = "display_data") -> Any:
    transient = {} if id is None else {"display_id": id}
    bundle = {"data": {"text/plain": data}, "metadata": {}, "transient": transient}
    return wire.RankOutput(rank, 1, kind, bundle)


def result(data: str, rank: int = 0) -> wire.RankOutput:
    return wire.RankOutput(
        rank, 1, "execute_result", {"data": {"text/plain": data}, "metadata": {}}
    )


def clear(wait: bool, rank: int = 0) -> wire.RankOutput:
    return wire.RankOutput(rank, 1, "clear_output", {"wait": wait})


def record_of(*pieces: wire.RankOutput) -> RankRecord:
    record = RankRecord(pieces[0].rank if pieces else 0)
    for piece in pieces:
        record.add(piece)
    return record


def cell(n: int = 4) -> CellRecord:
    return CellRecord(seq=1, execution_count=7, source="pass", ranks=list(range(n)))


def reply(rank: int, status: str = "ok", error: wire.ErrorInfo | None = None) -> wire.CellReply:
    return wire.CellReply(rank, 1, status, 0.1, error)


def failure(evalue: str = "no", lineno: int = 2, ename: str = "ValueError") -> wire.ErrorInfo:
    return wire.ErrorInfo(
        ename, evalue, [f"Cell In[7], line {lineno}", f"{ename}: {evalue}"], lineno
    )


# --------------------------------------------------------------------------- one rank


def test_neighbouring_text_is_joined_and_stdout_and_stderr_keep_their_order() -> None:
    record = record_of(text("a"), text("b\n"), text("c", name="stderr"), text("d"))
    assert [(o.content["name"], o.content["text"]) for o in record.outputs()] == [
        ("stdout", "ab\n"),
        ("stderr", "c"),
        ("stdout", "d"),
    ]
    assert record.text("stdout") == "ab\nd"
    assert record.text() == "ab\ncd"


def test_cleared_output_waits_for_what_comes_next() -> None:
    record = record_of(text("old"), clear(True))
    assert record.text() == "old"
    record.add(text("new"))
    assert record.text() == "new"
    record.add(text("er"))
    assert record.text() == "newer"
    record.add(clear(False))
    assert record.outputs() == []


def test_an_updated_display_is_kept_as_it_is_now() -> None:
    record = record_of(
        shown("first", id="a"),
        text("text"),
        shown("other", id="b"),
        shown("second", id="a", kind="update_display_data"),
    )
    assert [o.content["data"]["text/plain"] for o in record.outputs() if "data" in o.content] == [
        "second",
        "other",
    ]


def test_kept_text_is_bounded_and_says_what_was_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outputs, "KEPT_CHARS", 10)
    record = record_of(text("0123456"), text("789abc"), text("def"))
    assert record.text("stdout") == "0123456789"
    assert record.text("stderr") == "\n[6 more characters not kept]\n"
    record.add(clear(False))
    record.add(text("new"))
    assert record.text() == "new"


# --------------------------------------------------------------------------- a cell


def test_a_cell_is_read_by_its_first_rank_unless_one_is_named() -> None:
    record = CellRecord(1, 7, "pass", [2, 3])
    record.add_output(text("two", rank=2))
    record.add_output(text("three", rank=3))
    record.add_output(result("2", rank=2))
    assert record.stdout() == "two"
    assert record.stdout(3) == "three"
    assert record.result() == {"text/plain": "2"}
    assert record.result(3) is None


def test_a_cell_is_ok_only_when_all_its_ranks_are() -> None:
    record = cell(2)
    record.add_reply(reply(0))
    assert not record.ok
    record.add_reply(reply(1))
    assert record.ok
    record.add_reply(reply(1, "interrupted"))
    assert not record.ok
    assert repr(record).startswith("<cell [7] on ranks 0, 1: failed")


# --------------------------------------------------------------------------- several ranks


def test_addresses_and_display_ids_make_no_difference() -> None:
    record = cell(2)
    for rank in range(2):
        record.add_output(result(f"<object at 0x7f00000{rank}>", rank))
        record.add_output(shown("bar", rank, id=f"made-up-{rank}"))
    assert [ranks for ranks, _ in group_outputs(record.records)] == [[0, 1]]


# --------------------------------------------------------------------------- errors


def test_errors_that_differ_in_numbers_show_one_traceback() -> None:
    record = cell(3)
    for rank, value in enumerate(("[0.25\n 1.e-3]", "[-7 0.5]", "[0.25\n 1.e-3]")):
        record.add_reply(reply(rank, "error", failure(f"bad batch {value}")))
    assert [outputs.ANSI.sub("", line) for line in traceback_lines(record)] == [
        "On all 3 ranks (this is rank 0's):",
        *failure("bad batch [0.25\n 1.e-3]").traceback,
        "On rank 1: ValueError: bad batch [-7 0.5]",
    ]
    record.add_reply(reply(2, "error", failure("another")))
    record.records[3] = outputs.RankRecord(3)
    record.add_reply(reply(3, "interrupted", failure("", ename="KeyboardInterrupt")))
    named = traceback_lines(record, {0: "h1", 1: "h1", 2: "h2"})
    heads = [line for line in (outputs.ANSI.sub("", line) for line in named) if "On r" in line]
    assert [head.partition(" (this")[0] for head in heads] == [
        "On ranks 0, 1 (h1)", "On rank 1 (h1): ValueError: bad batch [-7 0.5]", "On rank 2 (h2):",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("written", "seen"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("100%\rdone", "done"),
        ("1/10 long\b\b\b\b\b\b\b\b\b\r2/10", "2/10"),  # as Keras does it
        ("at work |\b/\b-\b ok", "at work  ok"),
        ("x\r\n\x1b[31m\x1b[Kfound\x1b[m\x1b[K it", "x\n\x1b[31mfound\x1b[m it"),
        ("50%\r\x1b[0m", "50%\x1b[0m"),
        ("50%\r\x1b[2K", ""),
        ("99% of it\r\x1b[Kdone", "done"),
        ("99% of it\x1b[2K\rdone", "done"),
        ("\x1b[31m50%\x1b[0m\r\x1b[32m100%\x1b[0m", "\x1b[32m100%\x1b[0m"),
        ("\x1b[31mno bar\x1b[K", "\x1b[31mno bar\x1b[K"),
        # tqdm's bars inside of bars; the inner one is left, or not.
        ("\ro 0%\n\ri 0%\x1b[A\n\ri 9%\x1b[A\ri 9%\n\ro 9%\n", "i 9%\no 9%\n"),
        ("\ro 0%\n\ri 0%\x1b[A\n\ri 9%\x1b[A\n\r    \r\x1b[A\ro 9%\nend", "o 9%\nend"),
    ],
)
def test_lines_that_were_written_over_are_what_is_to_be_seen(written: str, seen: str) -> None:
    assert outputs.as_seen(written) == seen
