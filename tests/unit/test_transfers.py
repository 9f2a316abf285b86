"""Transfers between processes are counted as launches are: once, and not where none was made."""

from __future__ import annotations

import socket
import types
from typing import Any

import pytest
from journals import launched

from jaxcluster.engine.counted import Program
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.private import transfers

PROGRAM = Program("device_put", 7, "0,1,2", "float32[8]", None)
COPY = transfers.NAME


@pytest.fixture(autouse=True)
def described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfers, "_describe", lambda arrays, shardings: PROGRAM)


def on(*devices: int, memory: str = "device") -> Any:
    """A sharding over these devices."""
    made = [types.SimpleNamespace(id=device) for device in devices]
    return types.SimpleNamespace(_device_assignment=made, memory_kind=memory)


def array(deleted: bool = False, sharding: Any = None) -> Any:
    return types.SimpleNamespace(is_deleted=lambda: deleted, sharding=sharding or on(0))


ONE = ([array()], ["devices"], [on(3)], ["semantics"])


def client(journal: Journal, copy: Any) -> Any:
    return transfers._Client(types.SimpleNamespace(other=5), copy, journal)


def test_a_transfer_is_counted_before_it_is_made_and_all_else_is_left_alone() -> None:
    journal = Journal()

    def copy(*what: Any) -> list[str]:
        assert journal.launches()["0,1,2"][0] == 1
        return [f"copied {len(what)}"]

    stands_in = client(journal, copy)
    assert getattr(stands_in, COPY)(*ONE) == ["copied 4"]
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
        getattr(client(journal, copy), COPY)([array(bool(deleted))], *ONE[1:])
    assert journal.counts.get("0,1,2", [0])[0] == counted
    if counted:
        launched(other, PROGRAM)
        assert journal.launches() != other.launches()


def test_what_goes_to_several_places_is_sent_and_counted_place_by_place() -> None:
    """XLA numbers the places of one call in an order of each process's own."""
    journal, sent = Journal(), []

    def copy(arrays: Any, devices: Any, *how: Any) -> list[str]:
        sent.append(list(devices))
        return [f"at {device}" for device in devices]

    arrays = [array(), array(sharding=on(1)), array(), array(), array()]
    to = [on(3), on(3), on(4), on(3), on(3, memory="host")]
    copied = getattr(client(journal, copy), COPY)(arrays, list("abcde"), to, ["s"] * 5)
    assert copied == ["at a", "at b", "at c", "at d", "at e"]
    assert sent == [["a", "d"], ["b"], ["c"], ["e"]]
    assert journal.counts["0,1,2"][0] == 4


def test_in_strict_mode_nothing_is_sent_that_others_do_not_send() -> None:
    journal = Journal()

    def refuse(program: Program) -> None:
        raise ValueError("the ranks were about to launch different programs")

    journal.before_launch = refuse
    with pytest.raises(ValueError, match="about to"):
        getattr(client(journal, lambda *what: pytest.fail("it was made")), COPY)(*ONE)
    assert journal.counts == {}


def test_an_interrupt_during_a_transfer_is_raised_after_it() -> None:
    journal = Journal()
    journal.interrupted = True
    made: list[Any] = []

    def copy(*what: Any) -> list[Any]:
        made.append(what)
        return [None]

    with pytest.raises(KeyboardInterrupt):
        getattr(client(journal, copy), COPY)(*ONE)
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
    with pytest.raises(OSError, match="no port on a loopback address"):
        transfers._free_address()
    assert taken.calls == transfers.TRIES


def test_what_is_kept_and_what_is_given_away_are_sent_apart() -> None:
    """XLA numbers the arrays of each way together: copies, and those that are donated."""
    arrays, to = [array() for _ in range(3)], [on(3)] * 3
    assert transfers._groups(arrays, to, ["copy", "donate", "copy"]) == [[0, 2], [1]]
