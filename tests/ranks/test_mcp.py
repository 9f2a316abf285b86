"""``jaxcluster mcp``, as the SDK's own client finds it."""

from __future__ import annotations

import base64
import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from helpers import DEADLINE_S, Home, until

import jaxcluster
from jaxcluster.errors import Divergence

pytest.importorskip("mcp", reason="the Model Context Protocol's SDK is not installed")

from anyio.from_thread import BlockingPortal, start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.one_machine("an assistant finds the clusters of its own machine"),
]


class Assistant:
    """The SDK's client, with a server of its own."""

    def __init__(self, portal: BlockingPortal, client: Client) -> None:
        self.portal, self.client = portal, client

    def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in self.portal.call(self.client.list_tools).tools}

    def call(self, tool: str, **arguments: Any) -> Any:
        return self.portal.call(self.client.call_tool, tool, arguments)

    def ok(self, tool: str, **arguments: Any) -> str:
        answer = self.call(tool, **arguments)
        assert not answer.is_error, answer.content
        return said(answer)

    def refused(self, tool: str, **arguments: Any) -> str:
        answer = self.call(tool, **arguments)
        assert answer.is_error, answer.content
        return said(answer)


def said(answer: Any) -> str:
    return "\n".join(part.text for part in answer.content if part.type == "text")


@contextlib.contextmanager
def assistant(home: Home, *words: str) -> Iterator[Assistant]:
    server = StdioServerParameters(
        command=sys.executable, args=["-m", "jaxcluster", "mcp", *words], env=home.environ()
    )
    with start_blocking_portal() as portal:
        opened = portal.wrap_async_context_manager(Client(stdio_client(server)))
        with opened as client:
            yield Assistant(portal, client)


@pytest.fixture(scope="module")
def looker(home: Home) -> Iterator[Assistant]:
    with assistant(home) as opened:
        yield opened


@pytest.fixture(scope="module")
def runner(home: Home) -> Iterator[Assistant]:
    with assistant(home, "--allow-run") as opened:
        yield opened


SKIP = """
if jax.process_index() != 1:
    jnp.sum(x).block_until_ready()
"""


# A cell that runs until it is stopped. Its source has not what it prints.
ENDLESS = "print(f'{rank} is in it', flush=True)\ntime.sleep(600)"


def wait_for_all(assistant: Assistant, cluster: jaxcluster.Cluster) -> None:
    """Until all ranks are in ``ENDLESS``: where the machine is busy some begin it late."""

    def are_in_it() -> bool:
        shown = assistant.ok("outputs", cluster=cluster.name)
        printed = [f"{rank} is in it" in shown for rank in range(cluster.num_processes)]
        return all(printed) and "ranks 0-3: running" in shown

    until(are_in_it, "what all ranks print")


# --------------------------------------------------------------------------- looking


def test_without_allow_run_there_are_tools_to_look_alone(looker: Assistant) -> None:
    tools = looker.tools()
    assert {"list_clusters", "status", "report", "stacks", "logs", "outputs", "shards"} <= {*tools}
    assert not {"run_cell", "interrupt"} & {*tools}
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert "Unknown tool" in looker.refused("run_cell", code="1")


def test_the_tools_say_what_they_take(runner: Assistant) -> None:
    tools = runner.tools()
    assert not tools["run_cell"].annotations.read_only_hint
    for tool in tools.values():
        assert tool.description
        for name, taken in tool.input_schema["properties"].items():
            assert taken.get("description"), (tool.name, name)


def test_it_sees_clusters_and_what_their_ranks_do(
    looker: Assistant, cluster: jaxcluster.Cluster
) -> None:
    assert cluster.name in looker.ok("list_clusters")
    shown = looker.ok("status", cluster=cluster.name)
    assert shown.count(" idle ") == 4
    assert " waited " not in shown
    assert "── rank 2 ──" in looker.ok("logs", cluster=cluster.name, ranks="2", lines=5)
    assert "no cluster 'none'" in looker.refused("status", cluster="none")


def test_it_sees_each_ranks_outputs_of_a_cell_that_another_has_run(
    looker: Assistant, cluster: jaxcluster.Cluster
) -> None:
    cluster.run("print('this is rank', rank)", show=False)
    shown = looker.ok("outputs", cluster=cluster.name)
    assert [f"this is rank {rank}" in shown for rank in range(4)] == [True] * 4
    assert "print('this is rank', rank)" in shown
    alone = looker.ok("outputs", cluster=cluster.name, ranks="2")
    assert "this is rank 2" in alone and "this is rank 1" not in alone
    assert "not a list of ranks" in looker.refused("outputs", cluster=cluster.name, ranks="x")
    assert "no cell 987654" in looker.refused("outputs", cluster=cluster.name, cell=987654)


def test_it_sees_figures(looker: Assistant, cluster: jaxcluster.Cluster) -> None:
    cluster.run(
        "import base64\nfrom IPython.display import Image, display\n"
        "display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + b'0' * 64, format='png'))",
        show=False,
    )
    answer = looker.call("outputs", cluster=cluster.name)
    (image,) = [part for part in answer.content if part.type == "image"]
    assert base64.b64decode(image.data).startswith(b"\x89PNG")


def test_it_sees_a_cell_that_runs(looker: Assistant, cluster: jaxcluster.Cluster) -> None:
    cell = cluster.submit(ENDLESS)
    cell.run_in_background(lambda record: None)

    def are_in_one_place() -> bool:
        stacks = looker.ok("stacks", cluster=cluster.name)
        return "ranks 0-3" in stacks and "time.sleep(600)" in stacks

    try:
        wait_for_all(looker, cluster)
        until(are_in_one_place, "all ranks sleep")
        assert looker.ok("status", cluster=cluster.name).count(" running ") == 4
        assert "running" in looker.ok("outputs", cluster=cluster.name)
    finally:
        cell.stop()
        until(lambda: cell.done, "the cell's end")


def test_it_reads_the_report_of_a_divergence(
    looker: Assistant, cluster: jaxcluster.Cluster
) -> None:
    with pytest.raises(Divergence):
        cluster.run(SKIP, show=False)
    shown = looker.ok("report", cluster=cluster.name)
    assert "rank 1 ended the cell without the launch that rank" in shown
    assert "`if jax.process_index() != 1" in shown
    assert "no report of cell [987654]" in looker.ok("report", cluster=cluster.name, cell=987654)


def test_it_says_who_holds_which_part_of_an_array(
    looker: Assistant, cluster: jaxcluster.Cluster
) -> None:
    assert "P('i', 'j')" in looker.ok("variables", cluster=cluster.name)
    shown = looker.ok("shards", cluster=cluster.name, name="x", check=True)
    assert "8 parts on 8 devices of 4 processes" in shown
    assert "No rank has" in looker.refused("shards", cluster=cluster.name, name="nothing")


def test_it_opens_no_port(looker: Assistant, cluster: jaxcluster.Cluster) -> None:
    looker.ok("status", cluster=cluster.name)
    servers = [
        process
        for process in psutil.Process().children(recursive=True)
        if process.status() != psutil.STATUS_ZOMBIE  # of another test
        and process.cmdline()[-2:] == ["jaxcluster", "mcp"]
    ]
    assert servers
    for server in servers:
        opened = server.net_connections("inet")
        assert [one for one in opened if one.status == psutil.CONN_LISTEN] == []


# --------------------------------------------------------------------------- running


def test_it_runs_cells_on_the_notebooks_variables(
    runner: Assistant, cluster: jaxcluster.Cluster
) -> None:
    shown = runner.ok("run_cell", cluster=cluster.name, code="print(rank); float(jnp.sum(x))")
    assert shown.count("496.0") == 4
    some = runner.ok("run_cell", cluster=cluster.name, code="print('r', rank)", ranks="1,3")
    assert ("r 1" in some, "r 3" in some, "r 0" in some) == (True, True, False)
    cluster.run("print(float(jnp.sum(x)))", show=False)
    assert cluster.last is not None and cluster.last.stdout() == "496.0\n"


def test_errors_and_divergences_are_told_with_the_rank_and_line(
    runner: Assistant, cluster: jaxcluster.Cluster
) -> None:
    shown = runner.refused(
        "run_cell", cluster=cluster.name, code="print('a')\n1 / 0 if rank == 2 else 1"
    )
    assert "ZeroDivisionError on rank 2: division by zero" in shown
    assert "----> 2 1 / 0" in shown
    assert "\x1b" not in shown
    shown = runner.refused("run_cell", cluster=cluster.name, code=SKIP)
    assert "rank 1 ended the cell without the launch that ranks 0, 2, 3 wait for" in shown
    assert "Divergence in cell" in runner.ok("report", cluster=cluster.name)
    shown = runner.refused("run_cell", cluster=cluster.name, code="while True: pass", timeout_s=0.5)
    assert "took more than 0.5 s" in shown
    assert runner.ok("status", cluster=cluster.name).count(" idle ") == 4


def test_interrupt_is_heard_while_a_cell_runs(
    runner: Assistant, cluster: jaxcluster.Cluster
) -> None:
    endings: list[Any] = []

    def run() -> None:
        endings.append(runner.call("run_cell", cluster=cluster.name, code=ENDLESS))

    running = threading.Thread(target=run)
    running.start()
    wait_for_all(runner, cluster)
    assert "Interrupted ranks 0-3" in runner.ok("interrupt", cluster=cluster.name)
    running.join(DEADLINE_S)
    (ending,) = endings
    assert ending.is_error and "was stopped on ranks 0-3" in said(ending)
    assert "3 is in it" in said(ending)
    assert "No rank was running" in runner.ok("interrupt", cluster=cluster.name)


def test_its_cells_end_with_it(home: Home, cluster: jaxcluster.Cluster) -> None:
    with assistant(home, "--allow-run") as opened:
        run = {"cluster": cluster.name, "code": ENDLESS}
        asked = opened.portal.start_task_soon(opened.client.call_tool, "run_cell", run)
        wait_for_all(opened, cluster)
        asked.cancel()
    until(lambda: {s.state for s in cluster.status()} == {"idle"}, "the cell's end")
    assert "KeyboardInterrupt" not in cluster.run("print(1)", show=False).stdout()
