"""What ipyparallel sees of a cluster: engines by rank, and its own interfaces beside ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq
from helpers import DEADLINE_S, Notebook, python, until
from zmq.utils.monitor import recv_monitor_message

import jaxcluster
from jaxcluster.cluster.engines import Client
from jaxcluster.hosts.records import registry

pytestmark = pytest.mark.any_jax


@pytest.fixture(scope="module")
def client(cluster: jaxcluster.Cluster) -> Iterator[Any]:
    client = cluster.client
    yield client
    client.close()
    del cluster.world.client


def test_a_new_client_hears_the_end_of_its_first_cell(cluster: jaxcluster.Cluster) -> None:
    file = str(registry.client_file(cluster.name))
    with zmq.Context() as context:
        for _ in range(20):
            client = Client(file, context=context)
            result = client[:].execute("pass")
            result.get(DEADLINE_S)
            assert result.wait_for_output(5)
            client.close()


def test_engine_ids_are_ranks_and_both_work_on_the_same_names(
    cluster: jaxcluster.Cluster, client: Any
) -> None:
    assert client.ids == [0, 1, 2, 3]
    cluster.run("ours = os.getpid(), rank")
    pids = cluster.record.pids
    assert client[:].pull("ours", block=True) == [(pid, rank) for rank, pid in enumerate(pids)]
    client[2].push({"theirs": "from ipyparallel"}, block=True)
    record = cluster.run("print(theirs)", ranks=[2], show=False)
    assert record.stdout(2) == "from ipyparallel\n"


def test_a_client_in_another_process_finds_the_engines(cluster: jaxcluster.Cluster) -> None:
    done = python(
        "-c",
        "import jaxcluster\n"
        f"client = jaxcluster.attach({cluster.name!r}).client\n"
        "print(client.ids, client[:].apply_sync(lambda: 1 + 1))",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[0, 1, 2, 3] [2, 2, 2, 2]\n"


# Each launch takes a few ms, and there is a pause after it: signals find the ranks launching.
WORK = """
large = jax.make_array_from_callback(
    (4, 1 << 17), NamedSharding(mesh, P("i", "j")), lambda _: np.ones((1, 1 << 16), np.float32)
)
work = jax.jit(lambda v: jnp.sin(jnp.sin(jnp.sin(v))))
work(large).block_until_ready()
"""
LAUNCH = "while True:\n    work(large)\n    time.sleep(0.002)"


def begun(client: Any, source: str, folder: Path) -> Any:
    """A cell of ipyparallel's that has begun on all engines."""
    folder.mkdir()
    mark = (  # pids of two hosts may be equal
        "import os, pathlib, socket, time\nme = f'{socket.gethostname()}-{os.getpid()}'\n"
        f"pathlib.Path({str(folder)!r}, me).touch()\n"
    )
    result = client[:].execute(mark + source, block=False)
    until(lambda: len(list(folder.iterdir())) == 4, "it has begun on all engines")
    return result


def test_signals_stop_what_ipyparallel_runs_and_leave_idle_ranks_alone(
    cluster: jaxcluster.Cluster, client: Any, tmp_path: Path
) -> None:
    cluster.run(WORK)
    for attempt in range(5):
        result = begun(client, LAUNCH, tmp_path / str(attempt))
        client.send_signal("SIGINT", block=True)
        result.wait(DEADLINE_S)
        stopped = result.get(return_exceptions=True)
        assert [error.ename for error in stopped] == ["KeyboardInterrupt"] * 4
        client.send_signal("SIGINT", block=True)
        # No launch is counted and not made.
        assert cluster.run("print(float(jnp.sum(x)))", show=False).stdout(3) == "496.0\n"


def test_cells_with_await_are_answered_and_stopped(
    cluster: jaxcluster.Cluster, client: Any, tmp_path: Path
) -> None:
    """On ipyparallel's own engines they are never answered (ipykernel 7.4)."""
    awaited = client[:].execute("import asyncio\nawait asyncio.sleep(0.01)\nslept = 5", block=False)
    awaited.wait(DEADLINE_S)
    assert client[:].pull("slept", block=True) == [5] * 4
    result = begun(client, "await asyncio.sleep(1000)", tmp_path / "begun")
    # A cell of ours, which runs meanwhile, can be stopped, and is.
    running = cluster.submit("while True: time.sleep(0.01)")
    until(lambda: all(s.state == "running" for s in cluster.status()), "our cell runs")
    assert cluster.interrupt() == [0, 1, 2, 3]
    with pytest.raises(KeyboardInterrupt):
        running.wait()
    assert not result.ready()
    client.send_signal("SIGINT", block=True)
    until(result.ready, "the awaiting cell has ended")
    names = {error.ename for error in result.get(return_exceptions=True)}
    assert names <= {"CancelledError", "KeyboardInterrupt"}


@pytest.mark.one_machine("the controller asks the kernel of its own host")
def test_a_client_hears_at_once_of_an_engine_that_dies(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    """Not after a minute of missed heartbeats."""
    running = start(2)
    client = running.client
    result = client[1].execute("import os\nos._exit(3)", block=False)
    until(result.ready, "the task of the dead engine has ended", 30)
    assert "EngineError" in repr(result.exception())
    until(lambda: client.ids == [0], "the engine is gone from the list")


def test_the_stop_button_stops_a_px_cell(open_notebook: Callable[..., Notebook]) -> None:
    notebook = open_notebook()
    notebook.ok("%jaxcluster start -n 2")
    notebook.ok("import jaxcluster, ipyparallel\nview = jaxcluster.current().client[:]")
    notebook.ok("view.activate()")
    # Again and again: a client hears an engine from a moment after it has connected.
    loop = "while True: print('begun', flush=True); time.sleep(0.3)"
    cell = notebook.begin(f"%%px --block\nimport time\n{loop}")
    begun = {"[stdout:0]", "[stdout:1]"}
    notebook.until(lambda: all(one in cell.text for one in begun), "it has begun on both ranks")
    notebook.press_stop()
    notebook.wait(cell, 30)
    assert "Sending signal SIGINT to engines" in cell.stderr
    assert notebook.ok("%%spmd\nprint('free')").stdout == "free\n"


def test_what_is_printed_can_be_read_by_nobody_else(client: Any) -> None:
    """ipyparallel's ports are open to every user of the machine; the keys are in our files."""
    url = client._iopub_socket.getsockopt_string(zmq.LAST_ENDPOINT)
    with zmq.Context() as context, context.socket(zmq.SUB) as listener:
        listener.linger = 0
        listener.subscribe("")
        with context.socket(zmq.PAIR) as monitor:
            monitor.linger = 0
            listener.monitor("inproc://events", zmq.EVENT_ALL)
            monitor.connect("inproc://events")
            listener.connect(url)
            refused = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
            refused |= zmq.EVENT_DISCONNECTED
            event: Any = 0
            while not event & (refused | zmq.EVENT_HANDSHAKE_SUCCEEDED):
                assert monitor.poll(30_000)
                event = recv_monitor_message(monitor)["event"]
            assert event & refused
            listener.disable_monitor()
        result = client[:].execute("print('a secret')", block=True)
        result.wait_for_output()
        assert result.stdout == ["a secret\n"] * 4
        assert not listener.poll(0)
