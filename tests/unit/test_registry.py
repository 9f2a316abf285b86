"""Where running clusters are found, and who takes turns on them."""

from __future__ import annotations

import dataclasses
import os
import stat
import threading
from pathlib import Path

import pytest

from jaxcluster import registry, wire
from jaxcluster.errors import JaxClusterError, NoCluster, UsageError
from jaxcluster.registry import ClusterRecord


@pytest.fixture(autouse=True)
def root(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(registry, "MAX_SOCKET_PATH", 1000)  # pytest's folders have long names
    folder = tmp_path_factory.mktemp("run")
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(folder))
    return folder


def record(name: str = "main", created_ns: int = 1) -> ClusterRecord:
    facts = wire.EngineFacts(0, 12, "box", "key", "127.0.0.1", "3.11", "0.10", ["0"])
    reply = wire.InitializeReply(0, 1, 1, [wire.DeviceInfo(0, "cpu", "cpu", 0)], 0.1)
    return ClusterRecord(
        name=name,
        spec=wire.ClusterSpec(name, 1, env={"A": "1"}, local_device_ids=[[0]]),
        owner="1:2",
        created_ns=created_ns,
        host_key="key",
        hostname="box",
        supervisor="/run/fork.sock",
        addresses=["ipc:///run/rank-0.sock"],
        pids=[12],
        logs=["/run/rank-0.log"],
        facts=[facts],
        devices=[reply],
    )


def save(record: ClusterRecord) -> None:
    registry.folder(record.name).mkdir()
    registry.write(record)


# --------------------------------------------------------------------------- the folder


def test_only_this_user_can_enter_the_folder(root: Path) -> None:
    root.chmod(0o755)
    assert registry.runtime_root() == root
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_the_folder_is_made_where_the_session_keeps_such_things(tmp_path: Path) -> None:
    made = registry.runtime_root({"XDG_RUNTIME_DIR": str(tmp_path)})
    assert made == tmp_path / "jaxcluster"
    assert stat.S_IMODE(made.stat().st_mode) == 0o700


def test_the_chosen_folder_comes_first(tmp_path: Path) -> None:
    environ = {"JAXCLUSTER_RUNTIME_DIR": str(tmp_path / "mine"), "XDG_RUNTIME_DIR": "/nowhere"}
    assert registry.runtime_root(environ) == tmp_path / "mine"


def test_a_path_too_long_for_sockets_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_SOCKET_PATH", 100)
    assert registry.runtime_root({"JAXCLUSTER_RUNTIME_DIR": "/tmp/" + "long" * 20}) == Path(
        f"/tmp/jaxcluster-{os.getuid()}"
    )


def test_another_users_folder_is_refused(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry.os, "getuid", lambda: 12345)
    with pytest.raises(JaxClusterError) as caught:
        registry.runtime_root()
    assert str(caught.value) == (
        f"{root} belongs to another user.\n"
        "Set JAXCLUSTER_RUNTIME_DIR to a folder of your own with a short path."
    )


# --------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["main", "main-2", "exp_1.b", "4x2", "a" * 31])
def test_names_are_like_file_names(name: str) -> None:
    assert registry.check_name(name) == name


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", ".hidden", "-n", "a" * 32, "é"])
def test_other_names_are_refused_with_an_example(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        registry.check_name(name)
    assert repr(name) in str(caught.value)
    assert caught.value.hint == "For example: %jaxcluster start --name exp1"


# --------------------------------------------------------------------------- records


def test_a_record_comes_back_as_it_was_written() -> None:
    save(record())
    assert registry.read("main") == record()


def test_all_records_are_listed_oldest_first_and_broken_ones_left_out() -> None:
    save(record("b", created_ns=2))
    save(record("a", created_ns=3))
    save(record("c", created_ns=1))
    registry.folder("broken").mkdir()
    (registry.folder("broken") / "cluster.json").write_text("{")
    registry.folder("starting").mkdir()
    assert [r.name for r in registry.records()] == ["c", "b", "a"]


def test_a_reader_never_sees_half_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    save(record())
    monkeypatch.setattr(Path, "replace", lambda *_: None)  # it ends before the last step
    registry.write(dataclasses.replace(record(), hostname="other"))
    assert registry.read("main").hostname == "box"


def test_a_removed_cluster_is_no_more() -> None:
    save(record())
    registry.remove("main")
    assert registry.records() == []
    registry.remove("main")


def test_an_unknown_cluster_says_which_are_running() -> None:
    with pytest.raises(NoCluster) as caught:
        registry.read("exp")
    assert str(caught.value) == (
        "There is no cluster 'exp' here; none is running.\nStart one: %jaxcluster start -n 4"
    )
    save(record("a", 1))
    save(record("b", 2))
    with pytest.raises(NoCluster) as caught:
        registry.read("exp")
    assert str(caught.value) == (
        "There is no cluster 'exp' here (running: a, b).\nType %jaxcluster attach a"
    )


# --------------------------------------------------------------------------- turns


def test_cells_are_numbered_in_the_order_of_their_turns() -> None:
    registry.folder("main").mkdir()
    seen = []
    for _ in range(3):
        with registry.turn("main") as seq:
            seen.append(seq)
    assert seen == [1, 2, 3]


def test_a_turn_excludes_every_other() -> None:
    registry.folder("main").mkdir()
    inside, overlaps, seen = [], [], []

    def take_turns() -> None:
        for _ in range(50):
            with registry.turn("main") as seq:
                inside.append(seq)
                overlaps.append(len(inside))
                seen.append(seq)
                inside.remove(seq)

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert set(overlaps) == {1}
    assert seen == list(range(1, 201))


def test_each_rank_is_told_which_cell_comes_before() -> None:
    registry.folder("main").mkdir()
    seen = []
    for ranks in ([0, 1], [1], [0, 1], []):
        with registry.turn("main", ranks) as seq:
            seen.append((seq, seq.after))
    assert seen == [
        (1, {0: 0, 1: 0}),
        (2, {1: 1}),
        (3, {0: 1, 1: 2}),
        (4, {}),
    ]


def test_whether_somebody_is_connected(root: Path) -> None:
    assert not registry.is_held("none")
    registry.hold("none")()  # nothing to hold is no error
    registry.folder("main").mkdir()
    assert not registry.is_held("main")
    first, second = registry.hold("main"), registry.hold("main")
    assert registry.is_held("main")
    first()
    first()
    assert registry.is_held("main")
    second()
    assert not registry.is_held("main")
