"""A rank's last cells, kept within bounds for those who did not send them."""

from __future__ import annotations

import threading

from jaxcluster import wire
from jaxcluster.engine import recent
from jaxcluster.engine.recent import Recent


def cell(seq: int, number: int | None = None) -> wire.CellRequest:
    return wire.CellRequest(seq, f"source {seq}", seq if number is None else number, [0], [0])


def texts(kept: wire.RecentCell) -> list[str]:
    return [output.content["text"] for output in kept.outputs if output.kind == "stream"]


def test_what_is_printed_in_a_row_is_one_text() -> None:
    kept = Recent(3)
    kept.begin(cell(1))
    for name, text in [("stdout", "a"), ("stdout", "b\n"), ("stderr", "c"), ("stdout", "d")]:
        kept.text(name, text)
    (found,) = kept.cells()
    assert [(o.content["name"], o.content["text"]) for o in found.outputs] == [
        ("stdout", "ab\n"),
        ("stderr", "c"),
        ("stdout", "d"),
    ]
    assert (found.status, found.source, found.outputs[0].rank) == ("running", "source 1", 3)


def test_a_cell_is_found_by_its_number_and_the_last_one_without() -> None:
    kept = Recent(0)
    for seq, number in [(1, 7), (2, 8), (3, 7)]:
        kept.begin(cell(seq, number))
        kept.text("stdout", f"in {seq}")
        kept.end(wire.CellReply(0, seq, "ok", 0.5))
    assert [found.seq for found in kept.cells()] == [3]
    assert [found.seq for found in kept.cells(number=8)] == [2]
    assert [found.seq for found in kept.cells(last=9)] == [1, 2, 3]
    assert kept.cells(number=9) == []
    assert kept.cells()[0].status == "ok"


def test_text_without_end_leaves_its_end(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(recent, "KEPT_NBYTES", 10_000)
    kept = Recent(0)
    kept.begin(cell(1))
    for number in range(5_000):
        kept.text("stdout", f"{number:06}\n")
    (found,) = kept.cells()
    (shown,) = texts(found)
    assert shown.endswith("004999\n")
    assert 0 < len(shown) <= 10_000
    assert len(shown) + found.dropped_chars == 5_000 * 7


def test_many_figures_leave_the_last_ones(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(recent, "KEPT_NBYTES", 10_000)
    kept = Recent(0)
    kept.begin(cell(1))
    for number in range(50):
        kept.add("display_data", {"data": {"image/png": f"{number:04}" * 500}, "metadata": {}})
    (found,) = kept.cells()
    shown = [output.content["data"]["image/png"][:4] for output in found.outputs]
    assert shown[-1] == "0049"
    assert len(shown) == 4
    assert found.dropped_chars > 0


def test_only_so_many_cells_are_kept() -> None:
    kept = Recent(0)
    for seq in range(1, 100):
        kept.begin(cell(seq))
    assert [found.seq for found in kept.cells(last=1000)] == list(
        range(100 - recent.KEPT_CELLS, 100)
    )


def test_what_no_assistant_can_read_is_left_out() -> None:
    kept = Recent(0)
    kept.begin(cell(1))
    data = {"text/plain": "a", "application/vnd.jaxcluster.shards+json": {"big": 1}}
    kept.add("display_data", {"data": data, "transient": {"display_id": "d"}})
    kept.add("clear_output", {"wait": True})
    (found,) = kept.cells()
    assert found.outputs[0].content["data"] == {"text/plain": "a"}
    assert found.outputs[0].content["transient"] == {"display_id": "d"}
    assert found.outputs[1].content == {"wait": True}


def test_text_of_before_any_cell_is_no_cells() -> None:
    kept = Recent(0)
    kept.text("stdout", "a")
    kept.add("display_data", {"data": {}})
    kept.end(wire.CellReply(0, 1, "ok", 0.0))
    assert kept.cells() == []


def test_it_can_be_asked_while_threads_print() -> None:
    kept = Recent(0)
    kept.begin(cell(1))
    over = threading.Event()

    def print_on() -> None:
        while not over.is_set():
            kept.text("stdout", "x" * 100)

    printing = [threading.Thread(target=print_on) for _ in range(3)]
    for thread in printing:
        thread.start()
    try:
        for _ in range(50):
            assert set("".join(texts(kept.cells()[0]))) <= {"x"}
    finally:
        over.set()
        for thread in printing:
            thread.join()
