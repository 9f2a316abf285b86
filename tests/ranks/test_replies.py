"""Whatever happens in a cell, each rank sends its one reply, and the next cell runs."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from documents import document_with
from helpers import plain
from overhosts import send_signal
from pace import slowness

import jaxcluster
from jaxcluster.errors import CellFailed, CellInterrupted

pytestmark = pytest.mark.any_jax

LONG_S = 60.0
RANKS = range(4)


def works_on(cluster: jaxcluster.Cluster) -> None:
    """The next cell runs on all ranks, prints, displays and computes."""
    record = cluster.run(
        "print(rank, float(jnp.sum(x)))\nlen([rank])", show=False, timeout_s=LONG_S
    )
    assert [record.stdout(r) for r in RANKS] == [f"{r} 496.0\n" for r in RANKS]
    assert [record.result(r) for r in RANKS] == [{"text/plain": "1"}] * 4


def run(cluster: jaxcluster.Cluster, source: str) -> jaxcluster.model.outputs.CellRecord:
    """Run a cell that has to end in time, and check that all it put out is fit for a notebook."""
    record = cluster.run(source, show=False, timeout_s=LONG_S, on_notice=lambda told: None)
    check_outputs(record)
    return record


def fails(cluster: jaxcluster.Cluster, source: str) -> CellFailed:
    with pytest.raises(CellFailed) as caught:
        run(cluster, source)
    assert caught.value.ename != "TimeoutError"
    assert all(reply.error is not None for reply in cluster.last.replies.values())
    check_outputs(cluster.last)
    "\n".join(caught.value.traceback).encode()  # no half of a surrogate pair
    str(caught.value).encode()
    return caught.value


def check_outputs(record: Any) -> None:
    for rank in record.ranks:
        outputs = []
        for output in record.records[rank].outputs():
            if output.kind in ("stream", "display_data", "execute_result"):
                known = ("name", "text", "data", "metadata")
                content = {key: output.content[key] for key in known if key in output.content}
                outputs.append((output.kind, content))
        document = document_with(*outputs)
        json.dumps(document, allow_nan=False, ensure_ascii=False).encode()


# --------------------------------------------------------------------------- any cell

MAKE = """
class BadRepr:
    def __repr__(self): raise ValueError('no repr')
class Junk:
    def _repr_html_(self): return 5
    def _repr_mimebundle_(self, **kw): return {1: object(), 'text/plain': b'bytes', 'a/b': {1}}
class Deep:
    def __repr__(self): return repr(self)
class BadStr(Exception):
    def __str__(self): raise RuntimeError('no message')
class Custom(BaseException): pass
class Renders(Exception):
    def _render_traceback_(self): raise OSError('no rendering')
leaked, deep = [], []
jax.make_jaxpr(lambda a: leaked.append(a))(1.0)
for _ in range(100_000): deep = [deep]
"""


@pytest.mark.parametrize(
    "source",
    [
        "leaked[0]",
        "BadRepr()",
        "Junk()",
        "Deep()",
        "'half a pair: \\ud83d'",
        "{'k\\udc00': float('nan')}",
        "y = x + 0; y.delete(); y",
        "jax.new_ref(jnp.ones(2))",
        "display({'application/json': deep}, raw=True)",
        "from IPython.display import update_display\nupdate_display('u', display_id='none\\udc00')",
        "get_ipython().payload_manager.write_payload({'source': 'page', 'data': {1: object()}})",
    ],
)
def test_a_cell_may_end_in_any_object_and_show_any(
    cluster: jaxcluster.Cluster, source: str
) -> None:
    cluster.run(MAKE)
    try:
        run(cluster, source)
    except CellFailed as error:
        assert error.ename not in ("InternalError", "TimeoutError"), error.traceback
        check_outputs(cluster.last)
    works_on(cluster)


@pytest.mark.parametrize(
    ("source", "ename"),
    [
        ("raise Custom('base')", "Custom"),
        ("raise Renders('r')", "Renders"),
        ("raise SystemExit(3)", "SystemExit"),
        ("import asyncio; await asyncio.sleep(0); raise asyncio.CancelledError", "CancelledError"),
        ("raise ValueError('half \\ud83d')", "ValueError"),
        ("raise ValueError('long' * 2_500_000)", "ValueError"),
        ("raise ExceptionGroup('two', [ValueError('first'), BadStr()])", "ExceptionGroup"),
        ("def f(): f()\nf()", "RecursionError"),
        ("e = ValueError('loop'); e.__cause__ = e; raise e", "ValueError"),
        ("%%time\n1/0", "ZeroDivisionError"),
    ],
)
def test_any_exception_is_one_reply(cluster: jaxcluster.Cluster, source: str, ename: str) -> None:
    cluster.run(MAKE)
    error = fails(cluster, source)
    assert error.ename == ename
    assert sum(map(len, error.traceback)) < 300_000
    assert len(str(error)) < 100_000
    works_on(cluster)


# --------------------------------------------------------------------------- a broken process

BREAKS = [
    "sys.stdout.close(); sys.stderr = None",
    "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "import asyncio\nfor t in asyncio.all_tasks(asyncio.get_event_loop()): t.cancel()",
    "sys.setrecursionlimit(120)\ndef f(): f()\nf()",
    "import threading\nthreading.excepthook = None\n"
    "threading.Thread(target=lambda: 1/0).start()",
    "import gc; gc.disable()",
    "del In, Out, _oh, _dh",
]  # fmt: skip
MENDS = """
sys.setrecursionlimit(3000)
import gc, sys as _sys; gc.enable()
_ip = get_ipython()
_sys.displayhook, _sys.excepthook = _ip.displayhook, _sys.__excepthook__
_ip.user_ns.setdefault('_oh', {}); _ip.user_ns.setdefault('Out', _ip.user_ns['_oh'])
"""


@pytest.fixture(scope="module")
def own(home: Any) -> Any:
    """A cluster that may be broken."""
    with jaxcluster.start(4, devices_per_process=1, name="replies") as running:
        running.run(SETUP)
        yield running


SETUP = """
import jax, jax.numpy as jnp, numpy as np, os, sys, time
from jax.sharding import NamedSharding, PartitionSpec as P
rank = jax.process_index()
mesh = jax.make_mesh((jax.process_count(), jax.local_device_count()), ("i", "j"))
x = jax.device_put(np.arange(32).reshape(4, 8), NamedSharding(mesh, P("i", "j")))
"""


@pytest.mark.parametrize("source", BREAKS)
def test_a_cell_may_break_what_it_runs_in(own: jaxcluster.Cluster, source: str) -> None:
    for cell in (source, "1/0", MENDS):
        try:
            run(own, cell)
        except (CellFailed, CellInterrupted):
            check_outputs(own.last)
    assert not own.world.is_broken
    works_on(own)
    with pytest.raises(CellFailed, match=r"took more than 0\.3 s"):  # SIGINT is heard
        own.run("while True: time.sleep(0.01)", timeout_s=0.3)
    works_on(own)


def test_an_ipython_that_is_gone_is_told_as_what_it_is(
    start: Callable[..., jaxcluster.Cluster],
) -> None:
    cluster = start(4, devices_per_process=1)
    cluster.run(SETUP + "\nget_ipython().run_cell_async = None")
    error = fails(cluster, "print(1)")
    text = plain("\n".join(error.traceback))
    assert error.ename == "InternalError"
    assert "failed around the cell's code: TypeError: 'NoneType' object is not callable" in text
    assert "%jaxcluster logs 0 has the whole traceback: please report it" in text
    assert "%jaxcluster restart gives the ranks new processes, with their variables." in text
    cluster.restart()
    works_on(cluster)


@pytest.mark.parametrize("event", ["pre_run_cell", "post_run_cell", "pre_execute", "post_execute"])
@pytest.mark.parametrize("error", ["ValueError('hook')", "KeyboardInterrupt()"])
def test_hooks_that_raise_cost_no_reply(
    cluster: jaxcluster.Cluster, event: str, error: str
) -> None:
    sources = [
        f"events = get_ipython().events\n"
        f"def hook(*args):\n    events.unregister({event!r}, hook)\n    raise {error}\n"
        f"events.register({event!r}, hook)",
        "1",
    ]
    for source in sources:
        try:
            run(cluster, source)
        except CellFailed as failed:
            assert failed.ename != "TimeoutError"
    works_on(cluster)


@pytest.mark.parametrize("awaits", [False, True])
def test_a_forked_child_ends_with_the_cell(cluster: jaxcluster.Cluster, awaits: bool) -> None:
    first = "import asyncio, os; await asyncio.sleep(0)\n" if awaits else "import os\n"
    record = run(
        cluster,
        f"{first}pid = os.fork()\nif pid == 0:\n"
        "    print('child of', rank)\n    display('of the child')\n    print('no end', end='')\n"
        "    try: 1 / 0\n    except ZeroDivisionError: get_ipython().showtraceback()\n"
        "    raise ValueError('in the child')\n"
        "os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])",
    )
    assert [record.result(rank) for rank in RANKS] == [{"text/plain": "1"}] * 4
    told = ["child of 0", "'of the child'\n", "no end", "in the child", "ZeroDivisionError"]
    assert [text in record.stdout() for text in told] == [True] * 5
    works_on(cluster)


def test_interrupts_at_any_moment_cost_no_reply_and_no_lock(cluster: jaxcluster.Cluster) -> None:
    """SIGINT from outside, at random moments of short cells that print, display, fail and await."""
    import random
    import threading

    sources = [
        "for k in range(30): print('line', k)",
        "display('one'); display('two'); 'three'",
        "1/0",
        "import asyncio\nawait asyncio.sleep(0.001)",
        "",
        "float(jnp.sum(jnp.ones(3)))",
    ]
    draw = random.Random(5)
    stop = threading.Event()
    pause_s = 0.004 * slowness()  # more often than a slow machine can end them, no cell would end

    def shoot() -> None:
        while not stop.is_set():
            send_signal(cluster, draw.randrange(4), signal.SIGINT)
            stop.wait(draw.random() * pause_s)

    shooter = threading.Thread(target=shoot)
    shooter.start()
    began = time.monotonic()
    cells = 0
    try:
        while cells < 20 or (cells < 150 and time.monotonic() - began < 8):
            try:
                cluster.run(draw.choice(sources), show=False, timeout_s=LONG_S)
            except (CellFailed, CellInterrupted) as error:
                assert getattr(error, "ename", "") not in ("InternalError", "TimeoutError"), error
            assert len(cluster.last.replies) == 4
            told = [record.text("stderr") for record in cluster.last.records.values()]
            assert not any("itself failed" in text for text in told)
            cells += 1
    finally:
        stop.set()
        shooter.join()
    works_on(cluster)
