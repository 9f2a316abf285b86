"""A rank reads a checkpoint, and binds it or drops it: until then nothing is to be seen of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jaxcluster.engine.lost_names import LostNames
from jaxcluster.engine.state import restoring
from jaxcluster.engine.state.restoring import Restoring
from jaxcluster.engine.state.saved import CannotRestore, read, state_path, write
from jaxcluster.engine.state.saving import save
from jaxcluster.wire.ops.state import RestoreBind, RestoreLook, Take


class Reads:
    """Does something when it is unpickled."""

    when: Any = staticmethod(lambda: None)

    def __init__(self) -> None:
        self.value = 1

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        Reads.when()


@pytest.fixture
def body(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RestoreLook:
    names = {"lr": 0.5, "first": Reads(), "second": [Reads()], "third": json}
    write(save(names, 0), state_path(tmp_path, 0))
    monkeypatch.setattr(Reads, "when", staticmethod(lambda: None))
    return RestoreLook("a", str(tmp_path))


def bind(one: Restoring, namespace: dict[str, Any], **body: Any) -> Any:
    made = RestoreBind(**{"token": "a", "unbind": [], "lost": {}, **body})
    return one.bind(namespace, made, LostNames(), None)


def test_what_is_read_is_bound_when_it_is_told_so(body: RestoreLook) -> None:
    one, namespace = Restoring(), {"lr": 5.0}
    looked = one.look(namespace, 0, body)
    assert (looked.restored, looked.lost) == (["first", "lr", "second", "third"], {})
    assert namespace == {"lr": 5.0}
    assert bind(one, namespace).restored == looked.restored
    assert namespace["lr"] == 0.5


def test_what_a_rank_is_to_take_is_bound_alone(body: RestoreLook, tmp_path: Path) -> None:
    one, namespace = Restoring(), dict[str, Any]()
    take = Take(str(tmp_path), ["first"], texts={"r": "1", "n": "2"})
    assert one.look(namespace, 0, RestoreLook("a", take=take)).restored == ["first", "n", "r"]
    assert namespace == {}
    assert bind(one, namespace, unbind=["r"]).restored == ["first", "n"]
    assert namespace.keys() == {"first", "n"} and namespace["n"] == 2


def test_what_another_rank_has_lost_is_unbound(body: RestoreLook) -> None:
    one, namespace = Restoring(), {"lr": 5.0, "first": 1}
    one.look(namespace, 0, body)
    found = bind(one, namespace, unbind=["first"], lost={"first": "was lost"})
    assert "first" not in namespace and "first" not in found.restored


def test_what_was_dropped_is_not_bound(body: RestoreLook) -> None:
    one, namespace = Restoring(), {"lr": 5.0}
    one.look(namespace, 0, body)
    one.drop("a")
    with pytest.raises(KeyError):
        bind(one, namespace)
    assert namespace == {"lr": 5.0}


def test_what_is_dropped_is_read_no_further(
    body: RestoreLook, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Restoring()
    made: list[None] = []

    def drop() -> None:
        made.append(None)
        one.drop("a")

    monkeypatch.setattr(Reads, "when", staticmethod(drop))
    with pytest.raises(CannotRestore, match="it was cancelled"):
        one.look({}, 0, body)
    with pytest.raises(CannotRestore, match="it was cancelled"):  # before it has begun
        one.look({}, 0, body)
    assert not one._loaded
    with pytest.raises(KeyError):
        bind(one, {})


def test_what_nobody_comes_for_is_not_kept(
    body: RestoreLook, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Restoring()
    one.look({}, 0, body)
    one.tidy()
    assert one._loaded
    monkeypatch.setattr(restoring, "HELD_S", -1.0)
    one.tidy()
    assert not one._loaded


@pytest.mark.parametrize("mode, fault", [(0o666, "file"), (0o620, "file"), (0o770, "folder")])
def test_what_others_can_write_to_is_refused(tmp_path: Path, mode: int, fault: str) -> None:
    path = state_path(tmp_path, 0)
    write(save({"a": 1}, 0), path)
    assert read(path).rank == 0
    (path if fault == "file" else tmp_path).chmod(mode)
    with pytest.raises(CannotRestore, match=r"other users can write to .* chmod go-w"):
        read(path)
    tmp_path.chmod(0o700)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_what_another_user_has_is_refused(tmp_path: Path) -> None:
    path = state_path(tmp_path, 0)
    write(save({"a": 1}, 0), path)
    os.chown(tmp_path, 12345, -1)
    with pytest.raises(CannotRestore, match="belongs to another user"):
        read(path)
    os.chown(tmp_path, os.getuid(), -1)
    os.chown(path, 12345, -1)
    with pytest.raises(CannotRestore, match="belongs to another user"):
        read(path)
