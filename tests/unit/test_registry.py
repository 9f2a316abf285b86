"""Where running clusters are found."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jaxcluster import wire
from jaxcluster.errors import NoCluster, UsageError
from jaxcluster.hosts.records import registry
from jaxcluster.hosts.records.registry import ClusterRecord
from jaxcluster.supervision.processes import pid_space, process_token


def test_an_owner_that_has_ended_is_none() -> None:
    ours = {"owner": process_token(os.getpid()), "pid_space": pid_space()}
    assert dataclasses.replace(record(), **ours).has_owner
    gone = {"owner": f"{os.getpid()}:1", "pid_space": pid_space()}
    assert not dataclasses.replace(record(), **gone).has_owner
    assert not dataclasses.replace(record(), owner="", pid_space=pid_space()).has_owner
    assert dataclasses.replace(record(), owner="1:2", pid_space="elsewhere").has_owner


def record(name: str = "main", created_ns: int = 1) -> ClusterRecord:
    facts = wire.EngineFacts(0, 12, "box", "key", "0.10", ["0"])
    reply = wire.InitializeReply([wire.DeviceInfo(0, "cpu", "cpu")])
    return ClusterRecord(
        name=name,
        spec=wire.ClusterSpec(name, 1, env={"A": "1"}, local_device_ids=[[0]]),
        owner="1:2",
        created_ns=created_ns,
        hostname="box",
        pids=[12],
        facts=[facts],
        devices=[reply],
    )


def save(record: ClusterRecord) -> None:
    registry.folder(record.name).mkdir()
    registry.write(record)


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", ".hidden", "-n", "a" * 32, "é"])
def test_other_names_are_refused_with_an_example(name: str) -> None:
    assert registry.check_name("exp_1.b-2") == "exp_1.b-2"
    with pytest.raises(NoCluster):
        registry.read(name)
    with pytest.raises(UsageError) as caught:
        registry.folder(name)
    assert repr(name) in str(caught.value)
    assert caught.value.hint == "For example: %jaxcluster start --name exp1"


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


def broken(change: Callable[[dict[str, Any]], object]) -> str:
    """A good record as JSON, changed."""
    body = json.loads(json.dumps(dataclasses.asdict(record("odd"))))
    made = change(body)
    return json.dumps(made if isinstance(made, list | str | int) else body)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[" * 100_000,
        "\udcff",
        broken(lambda b: b.pop("spec")),
        broken(lambda b: b.update(spec={"name": "odd"})),
        broken(lambda b: b.update(devices="none")),
        broken(lambda b: b.update(created_ns="1")),
        broken(lambda b: b.update(name="other")),
        broken(lambda b: b["spec"].update(num_processes=7)),
    ],
)
def test_a_record_of_another_shape_is_no_clusters(text: str) -> None:
    save(record("good"))
    registry.folder("odd").mkdir()
    path = registry.folder("odd") / "cluster.json"
    path.write_bytes(text.encode(errors="surrogateescape"))
    assert [r.name for r in registry.records()] == ["good"]
    with pytest.raises(NoCluster):
        registry.read("odd")
    assert path.exists()


def test_a_record_comes_back_without_what_a_newer_version_adds() -> None:
    save(record("new"))
    assert registry.read("new") == record("new")
    path = registry.folder("new") / "cluster.json"
    body = json.loads(path.read_text()) | {"colour": "red", "protocol": 99}
    path.write_text(json.dumps(body))
    assert registry.read("new") == dataclasses.replace(record("new"), protocol=99)


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
    with pytest.raises(NoCluster, match=r"Type %jaxcluster stop a$"):
        registry.read("exp", "stop")


def test_whether_somebody_is_connected(root: Path) -> None:
    assert not registry.is_held("none")
    registry.hold("none")()  # nothing to hold is not an error
    registry.folder("main").mkdir()
    assert not registry.is_held("main")
    first, second = registry.hold("main"), registry.hold("main")
    assert registry.is_held("main")
    first()
    first()
    assert registry.is_held("main")
    second()
    assert not registry.is_held("main")
