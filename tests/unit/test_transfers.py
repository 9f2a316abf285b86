"""Transfers between processes are counted as launches are: once, and not where none was made."""

from __future__ import annotations

import socket
import types
from typing import Any

import pytest

from jaxcluster.engine.journal import Journal, Program
from jaxcluster.engine.private import transfers

PROGRAM = Program("device_put", 7, "0,1,2", "float32[8]", None)
COPY = transfers.NAME


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_describe", lambda arrays, shardings: PROGRAM)


def array(deleted: bool = False) -> Any:
    return types.SimpleNamespace(is_deleted=lambda: deleted)


def client(journal: Journal, copy: Any) -> Any:
    return transfers._Client(types.SimpleNamespace(other=5), copy, journal)


def test_a_transfer_is_counted_before_it_is_made_and_all_else_is_left_alone() -> None:
    journal = Journal()

    def copy(*what: Any) -> str:
        assert journal.counts["0,1,2"][0] == 1
        return f"copied {len(what)}"

    stands_in = client(journal, copy)
    assert getattr(stands_in, COPY)([array()], "devices", "shardings", "semantics") == "copied 4"
    assert stands_in.other == 5
    assert [entry.name for entry in journal.tail(5)] == ["device_put"]


@pytest.mark.parametrize(
    ("error", "deleted", "counted"),
    [
        (RuntimeError(f"Cross-host transfers are currently supported {transfers.REFUSED}"), 0, 0),
        (RuntimeError("Array has been deleted"), 1, 0),
        (RuntimeError("DEADLINE_EXCEEDED: the other process gave no address"), 0, 1),
    ],
)
def test_what_was_not_made_is_not_counted_and_what_may_have_been_agrees_with_nobody(
    error: Exception, deleted: int, counted: int
) -> None:
    """JAX has numbered the transfer by then, or has not: that decides."""
    journal, other = Journal(), Journal()

    def copy(*what: Any) -> None:
        raise error

    with pytest.raises(RuntimeError):
        getattr(client(journal, copy), COPY)([array(bool(deleted))], "d", "s", "c")
    assert journal.counts.get("0,1,2", [0])[0] == counted
    if counted:
        other.launched(PROGRAM)
        assert journal.launches() != other.launches()


def test_in_strict_mode_nothing_is_sent_that_others_do_not_send() -> None:
    journal = Journal()

    def refuse(program: Program) -> None:
        raise ValueError("the ranks were about to launch different programs")

    journal.before_launch = refuse
    with pytest.raises(ValueError, match="about to"):
        getattr(client(journal, lambda *what: pytest.fail("it was made")), COPY)([], "d", "s", "c")
    assert journal.counts == {}


def test_an_interrupt_during_a_transfer_is_raised_after_it() -> None:
    journal = Journal()
    journal.interrupted = True
    made = []
    with pytest.raises(KeyboardInterrupt):
        getattr(client(journal, lambda *what: made.append(what)), COPY)([array()], "d", "s", "c")
    assert made and journal.counts["0,1,2"][0] == 1


def test_each_process_has_a_loopback_address_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {transfers._free_address() for _ in range(8)}
    assert len(found) == 8
    for host, port in found:
        assert host.startswith("127.") and host != "127.0.0.1"
        assert port in transfers.PORTS
    taken = types.SimpleNamespace(calls=0)

    class Busy(socket.socket):
        def bind(self, address: Any) -> None:
            taken.calls += 1
            raise OSError("address in use")

    monkeypatch.setattr(transfers.socket, "socket", Busy)
    with pytest.raises(OSError, match="no loopback address"):
        transfers._free_address()
    assert taken.calls == transfers.TRIES
