"""Several starts, users, namespaces and versions on one machine: none wrecks another's cluster."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import overhosts
import psutil
import pytest
from helpers import DEADLINE_S, GONE_S, Home, python, until

import jaxcluster
from jaxcluster import wire
from jaxcluster.cluster import (
    attach,
    connect,
    live_records,
    make_spec,
    start_spec,
    stop_by_name,
)
from jaxcluster.errors import (
    ClusterExists,
    NoCluster,
    RankDied,
    VersionMismatch,
)
from jaxcluster.hosts.here import quit_warm
from jaxcluster.hosts.records import claims, registry
from jaxcluster.wire.ops.status import State

pytestmark = pytest.mark.any_jax

Start = Callable[..., jaxcluster.Cluster]


@pytest.fixture
def alone(private_home: Home) -> Iterator[Home]:
    """A home of the test's own, for clusters that this process starts."""
    yield private_home
    quit_warm()


UNSHARE = shutil.which("unshare")


def unshared(*flags: str) -> list[str]:
    """How a command in namespaces of its own begins; skips where that is refused."""
    command = [UNSHARE or "unshare", "-f", *flags, "--"]
    try:
        allowed = subprocess.run([*command, "true"], capture_output=True, check=False).returncode
    except OSError:
        allowed = 1
    if allowed != 0:
        pytest.skip("no namespaces can be made here")
    return command


# --------------------------------------------------------------------------- two starts at once


STARTER = """
import jaxcluster
input()
try:
    cluster = jaxcluster.start(2, name={name!r})
except jaxcluster.JaxClusterError as error:
    print(type(error).__name__, 0, flush=True)
else:
    pid = cluster.run("import os; print(os.getpid())", show=False).stdout(1).strip()
    print(cluster.name, pid, flush=True)
input()
"""


def test_starts_at_once_get_one_name_each(private_home: Home) -> None:
    pipe, env = subprocess.PIPE, private_home.environ()
    sources = [STARTER.format(name=name) for name in ("same", "same", None, None)]
    commands = [(sys.executable, "-c", source) for source in sources]
    made = [subprocess.Popen(c, env=env, stdin=pipe, stdout=pipe, text=True) for c in commands]
    try:
        for process in made:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        heard = [process.stdout.readline().split() for process in made if process.stdout]
        assert sorted(said for said, _ in heard) == ["ClusterExists", "main", "main-2", "same"]
        assert {int(pid) for _, pid in heard} - {0} == {one.pids[1] for one in live_records()}
    finally:
        for process in made:
            process.communicate("\n", timeout=DEADLINE_S)


def test_a_cluster_keeps_its_name_while_it_gets_new_processes(alone: Home) -> None:
    """The next start would take it otherwise, and the restart would find it taken."""
    taken: list[claims.Claim | None] = []
    with jaxcluster.start(2, name="mine") as cluster:
        cluster.run("kept = 42")
        cluster.restart(lambda line: taken.append(claims.claim("mine")))
        assert len(taken) > 3 and not any(taken)
        assert cluster.pull("kept") == 42
        assert [r.name for r in live_records()] == ["mine"]
    assert live_records() == []
    assert claims.life("mine") is claims.Life.DEAD


def test_a_cluster_that_is_just_being_started_is_not_attached_to_yet(alone: Home) -> None:
    told: list[str] = []

    def look(line: str) -> None:
        if line.startswith("initializing"):
            with pytest.raises(NoCluster) as caught:
                attach("early")
            told.append(str(caught.value))

    start_spec(make_spec(1, name="early"), look).stop()
    assert told == ["Cluster 'early' is being started.\nIn a moment: %jaxcluster attach early"]


# --------------------------------------------------------------------------- a folder of others


def test_nothing_beside_the_notebook_runs_but_what_cells_import(
    private_home: Home, tmp_path: Path
) -> None:
    """Another user's file in a shared folder may have the name of a module that we import."""
    ran = tmp_path / "ran"
    for name in ("cloudpickle", "token", "zmq", "jax", "ipykernel", "secrets", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(f"open({str(ran)!r}, 'a').write({name!r} + ' ')\n")
    (tmp_path / "beside.py").write_text("answer = 42\n")
    source = """
    import jaxcluster
    with jaxcluster.start(2) as cluster:
        record = cluster.run('''
            import sys, os, beside
            os.chdir("/")
            import importlib; importlib.reload(beside)
            print(beside.answer, sys.path[:2], sys.path.count(""))
        '''.replace("            ", ""), show=False)
        print(record.stdout(1))
    """
    env = private_home.environ()
    done = python("-P", "-c", textwrap.dedent(source), env=env, cwd=tmp_path)
    first = ["", str(tmp_path)]
    if overhosts.hosts():  # what was brought there comes before the folder that the rank is in
        first.reverse()
    assert done.stdout.strip() == f"42 {first} 1", done.stderr
    assert not ran.exists(), ran.read_text()


# --------------------------------------------------------------------------- other namespaces


def test_another_pid_namespace_deletes_nothing_and_can_use_and_stop_a_cluster(
    alone: Home,
) -> None:
    """There the owner's pid is nobody's, or somebody else's."""
    command = [*unshared("-p", "--mount-proc"), sys.executable]
    cli = ("-m", "jaxcluster")
    source = """
    import jaxcluster
    cluster = jaxcluster.attach("seen")
    print(cluster.run("print(6 * 7)", show=False).stdout(1).strip(), cluster.owned)
    cluster.stop()
    """

    def there(*words: str) -> str:
        argv, env = [*command, *words], alone.environ()
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
        return done.stdout + done.stderr

    with jaxcluster.start(2, name="seen") as cluster:
        for _ in range(2):
            assert "seen" in there(*cli, "list")
            there(*cli, "stop", "nobody")
        assert [r.name for r in live_records()] == ["seen"]
        with pytest.raises(ClusterExists):
            jaxcluster.start(2, name="seen")
        assert there("-c", textwrap.dedent(source)) == "42 False\n"
        until(lambda: cluster.closed, "its owner hears of it")
        assert live_records() == []


def test_a_cluster_of_another_host_is_listed_and_left_alone(
    private_home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A home directory that several hosts share: their locks and pids are not seen here."""
    ended = python("-c", "from jaxcluster.hosts.records import claims; claims.claim('far')",
                   env=private_home.environ())  # fmt: skip
    assert ended.returncode == 0
    monkeypatch.setattr(claims, "pid_space", lambda: "another kernel")
    monkeypatch.setattr(socket, "gethostname", lambda: "another")
    record = registry.ClusterRecord("far", wire.ClusterSpec("far", 0), "12:345", 1, "gpu-07")
    registry.write(record)
    assert [(r.name, r.hostname) for r in live_records()] == [("far", "gpu-07")]
    for action in (attach, stop_by_name):
        with pytest.raises(NoCluster) as caught:
            action("far")
        assert "'far' was started on host gpu-07 and can't be reached from here" in str(
            caught.value
        )
        assert "jaxcluster stop far" in caught.value.hint
    assert registry.read("far") == record


# --------------------------------------------------------------------------- nobody connected


def test_who_died_while_nobody_was_connected_is_known_after_attach(alone: Home) -> None:
    cluster = jaxcluster.start(2, name="kept", detach=True)
    victim = overhosts.process_of(cluster, 1)
    why = f"killed by SIGKILL{overhosts.place(cluster, 1)}"
    cluster.close()
    victim.send()
    until(lambda: not victim.state, "its end")
    attached = attach("kept")
    assert {rank: death.why for rank, death in attached.dead.items()} == {1: why}
    assert f"Rank 1 died ({why})." in attached.summary()
    assert [s.state for s in attached.status()] == ["idle", "dead"]
    with pytest.raises(RankDied, match="Rank 1 died"):
        attached.run("1")
    attached.stop()
    alone.wait_until_empty()


@pytest.mark.parametrize("what", ["everything", "the socket"])
def test_a_detached_cluster_that_nobody_can_find_any_more_ends_itself(
    alone: Home, what: str
) -> None:
    cluster = jaxcluster.start(1, name="kept", detach=True)
    record = cluster.record
    cluster.close()
    if what == "everything":
        shutil.rmtree(registry.runtime_root())
    else:  # the one here by which its last host's agent is reached
        Path(record.hosts[-1].endpoint.removeprefix("ipc://")).unlink()
    alone.wait_until_empty(GONE_S)
    until(lambda: claims.life("kept") is claims.Life.DEAD, "the kernel has closed its files")
    with jaxcluster.start(1, name="kept") as again:
        assert again.run("print(1)", show=False).stdout() == "1\n"


def test_a_cluster_whose_folder_is_gone_says_so_and_gets_another(alone: Home) -> None:
    """Its own notebook is connected still, so it goes on."""
    with jaxcluster.start(2, name="mine") as cluster:
        cluster.run("kept = 42")
        shutil.rmtree(registry.folder("mine"))
        cluster.run("kept += 0")
        cluster.restart()
        assert cluster.pull("kept") == 42


# --------------------------------------------------------------------------- who can reach what


def folder_of(cluster: jaxcluster.Cluster) -> Path:
    """Where the sockets and logs of ranks of this machine lie."""
    return Path(cluster.record.hosts[0].folder) / "ranks"


@pytest.mark.one_machine("on several hosts it can only listen on a port: docs/security.md")
def test_jaxs_coordinator_is_reached_through_the_users_own_folder_alone(
    cluster: jaxcluster.Cluster,
) -> None:
    """Whoever reaches it can end ranks, and it asks nobody who he is."""
    coordinator = psutil.Process(cluster.record.coordinator_pid)
    listening = [c for c in coordinator.net_connections("inet") if c.status == "LISTEN"]
    assert listening == []
    cluster.run("from jax._src import distributed")
    shown = cluster.run("print(distributed.global_state.coordinator_address)", show=False)
    assert shown.stdout(3).strip() == f"unix:{folder_of(cluster)}/jax.sock"
    if os.getuid() == 0:  # then we can be somebody else
        source = (
            "import os, socket, sys\nos.setgid(65534); os.setuid(65534)\n"
            "try: socket.socket(socket.AF_UNIX).connect(sys.argv[1])\n"
            "except PermissionError: print('refused')"
        )
        path = f"{folder_of(cluster)}/jax.sock"
        assert python("-c", source, path).stdout == "refused\n"


def test_the_folder_may_have_any_name(alone: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC reads a socket's path as a URI's: %20 is a space to it, and a space is refused."""
    folder = alone.path / "é %20b"
    monkeypatch.setenv("JAXCLUSTER_RUNTIME_DIR", str(folder))
    with jaxcluster.start(2, name="odd") as cluster:
        cluster.run("import jax")
        assert cluster.run("print(jax.process_count())", show=False).stdout(1) == "2\n"
        assert overhosts.hosts() or (folder_of(cluster) / "jax.sock").is_socket()
        attached = connect(registry.read("odd"))
        assert [state.state for state in attached.status()] == ["idle", "idle"]
        attached.close()
    quit_warm()


# --------------------------------------------------------------------------- other versions


def test_a_rank_of_another_version_is_told_as_that_and_is_not_dead(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = start(2)
    ours = wire.codec.PROTOCOL_VERSION
    monkeypatch.setattr(wire.codec, "PROTOCOL_VERSION", 99)
    with pytest.raises(VersionMismatch, match=f"protocol {ours}, not 99") as caught:
        running.pull("x")
    assert "%jaxcluster start" in caught.value.hint
    with pytest.raises(jaxcluster.JaxClusterError, match="VersionMismatch"):
        running.run("1")
    found, reasons = running.world.ask_some(State())
    assert not found
    assert f"protocol {ours}, not 99" in reasons[1]
    assert [s.state for s in running.status()] == ["silent", "silent"]
    assert running.dead == {}
    monkeypatch.undo()
    with pytest.raises(VersionMismatch, match=f"protocol 99, here {ours}"):
        connect(dataclasses.replace(running.record, protocol=99))


def test_broken_records_beside_a_cluster_harm_nothing(alone: Home) -> None:
    with jaxcluster.start(1, name="good") as cluster:
        root = registry.runtime_root()
        text = (root / "good" / "cluster.json").read_text()
        dear = alone.path / "dear"
        dear.mkdir()
        (dear / "thesis.txt").touch()
        changes: list[dict[str, Any]] = [
            {"name": "../dear"},
            {"name": str(dear)},
            {"spec": 7},
            {"facts": None},
            {"owner": "x:y"},
            {"hosts": [json.loads(text)["hosts"][0] | {"folder": str(dear), "memory": str(dear)}]},
        ]
        for number, change in enumerate(changes):
            (root / f"bad{number}").mkdir()
            body = json.loads(text) | change
            (root / f"bad{number}" / "cluster.json").write_text(json.dumps(body))
        env = alone.environ()
        for words in (["stop", "bad5"], ["stop", "--all"]):
            done = python("-m", "jaxcluster", *words, env=env)
            assert "Traceback" not in done.stderr
        assert (dear / "thesis.txt").exists()
        until(lambda: cluster.closed, "it was stopped")


# --------------------------------------------------------------------------- what a user may type


def test_warnings_that_are_to_be_errors_end_no_rank(private_home: Home) -> None:
    """ipykernel warns of its own names; as errors these ended every rank."""
    source = """
    import jaxcluster, textwrap
    with jaxcluster.start(2, env=ENV) as cluster:
        cluster.run(textwrap.dedent('''
            import warnings, os
            warnings.warn("mine")
            print(os.environ["PYTHONWARNINGS"])
        '''))
    """
    env = private_home.environ(PYTHONWARNINGS="error")
    # Nothing of the notebook's environment goes to other hosts but what is asked for.
    asked_for = {"PYTHONWARNINGS": "error"} if overhosts.hosts() else {}
    source = textwrap.dedent(source).replace("ENV", repr(asked_for))
    done = python("-c", source, env=env)
    assert "UserWarning: mine" in done.stdout, done.stderr
    assert done.stdout.endswith("error\n")
