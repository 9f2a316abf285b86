"""``jaxcluster mcp``, as the SDK's own client finds it."""

from __future__ import annotations

import base64
import contextlib
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import psutil
import pytest
from helpers import DEADLINE_S, Home, until

import jaxcluster
from jaxcluster.errors import Divergence

pytestmark = [
    pytest.mark.any_jax,
    pytest.mark.skipif(find_spec("mcp") is None, reason="the SDK is not installed"),
    pytest.mark.one_machine("an assistant finds the clusters of its own machine"),
]

SKIP = "if jax.process_index() != 1:\n    jnp.sum(x).block_until_ready()"
# A cell that runs until it is stopped. Its source has not what it prints.
ENDLESS = "print(f'{rank} is in it', flush=True)\ntime.sleep(600)"


class Assistant:
    """The SDK's client, with a server of its own, asked of one cluster."""

    def __init__(self, portal: Any, client: Any, cluster: str) -> None:
        self.portal, self.client, self.cluster = portal, client, cluster

    def tools(self) -> dict[str, Any]:
        return {tool.name: tool for tool in self.portal.call(self.client.list_tools).tools}

    def begin(self, tool: str, **arguments: Any) -> Any:
        """Ask, and don't wait for the answer."""
        asked = {"cluster": self.cluster} | arguments
        return self.portal.start_task_soon(self.client.call_tool, tool, asked)

    def ok(self, tool: str, **arguments: Any) -> str:
        answer = self.begin(tool, **arguments).result(DEADLINE_S)
        assert not answer.is_error, answer.content
        return said(answer)

    def refused(self, tool: str, **arguments: Any) -> str:
        answer = self.begin(tool, **arguments).result(DEADLINE_S)
        assert answer.is_error, answer.content
        return said(answer)

    def wait_until_all_run(self) -> None:
        """Until all ranks are in ``ENDLESS``: where the machine is busy some begin it late."""

        def are_in_it() -> bool:
            shown = self.ok("outputs")
            printed = [f"{rank} is in it" in shown for rank in range(4)]
            return all(printed) and "has been running since" in shown

        until(are_in_it, "what all ranks print")


def said(answer: Any) -> str:
    return "\n".join(part.text for part in answer.content if part.type == "text")


@contextlib.contextmanager
def assistant(home: Home, cluster: jaxcluster.Cluster, *words: str) -> Iterator[Assistant]:
    from anyio.from_thread import start_blocking_portal
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client  # takes half a second

    server = StdioServerParameters(
        command=sys.executable, args=["-m", "jaxcluster", "mcp", *words], env=home.environ()
    )
    with start_blocking_portal() as portal:
        opened = portal.wrap_async_context_manager(Client(stdio_client(server)))
        with opened as client:
            yield Assistant(portal, client, cluster.name)


@pytest.fixture(scope="module")
def looker(home: Home, cluster: jaxcluster.Cluster) -> Iterator[Assistant]:
    with assistant(home, cluster) as opened:
        yield opened


@pytest.fixture(scope="module")
def runner(home: Home, cluster: jaxcluster.Cluster) -> Iterator[Assistant]:
    with assistant(home, cluster, "--allow-run") as opened:
        yield opened


# --------------------------------------------------------------------------- looking


def test_without_allow_run_there_are_tools_to_look_alone_and_no_port(looker: Assistant) -> None:
    tools = looker.tools()
    assert {"list_clusters", "status", "report", "stacks", "logs", "outputs", "shards"} <= {*tools}
    assert not {"run_cell", "interrupt"} & {*tools}
    assert all(tool.annotations.read_only_hint for tool in tools.values())
    assert "Unknown tool" in looker.refused("run_cell", code="1")
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


def test_it_sees_clusters_and_what_their_ranks_do(
    looker: Assistant, cluster: jaxcluster.Cluster
) -> None:
    assert cluster.name in said(looker.portal.call(looker.client.call_tool, "list_clusters", {}))
    assert looker.ok("status").count(" idle ") == 4
    assert "── rank 2 ──" in looker.ok("logs", ranks="2", lines=5)
    assert "no cluster 'none'" in looker.refused("status", cluster="none")
    cell = cluster.submit(ENDLESS)
    cell.run_in_background(lambda record: None)
    try:
        looker.wait_until_all_run()
        until(lambda: "time.sleep(600)" in looker.ok("stacks"), "all ranks sleep")
        assert looker.ok("status").count(" running ") == 4
    finally:
        cell.stop()
        until(lambda: cell.done, "the cell's end")


def test_it_sees_each_ranks_outputs_of_a_cell_that_another_has_run(
    looker: Assistant, cluster: jaxcluster.Cluster
) -> None:
    cluster.run(
        "from IPython.display import Image, display\nprint('this is rank', rank)\n"
        "display(Image(b'\\x89PNG\\r\\n\\x1a\\n' + b'0' * 64, format='png'))",
        show=False,
    )
    answer = looker.begin("outputs").result(DEADLINE_S)
    assert [f"this is rank {rank}" in said(answer) for rank in range(4)] == [True] * 4
    assert "print('this is rank', rank)" in said(answer)
    (image,) = [part for part in answer.content if part.type == "image"]
    assert base64.b64decode(image.data).startswith(b"\x89PNG")
    alone = looker.ok("outputs", ranks="2")
    assert "this is rank 2" in alone and "this is rank 1" not in alone
    assert "not a list of ranks" in looker.refused("outputs", ranks="x")
    assert "no cell 987654" in looker.refused("outputs", cell=987654)


def test_it_reads_reports_and_who_holds_which_part_of_an_array(
    looker: Assistant, cluster: jaxcluster.Cluster
) -> None:
    with pytest.raises(Divergence):
        cluster.run(SKIP, show=False)
    shown = looker.ok("report")
    assert "rank 1 ended the cell without the launch that rank" in shown
    assert "`if jax.process_index() != 1" in shown
    assert "no report of cell [987654]" in looker.ok("report", cell=987654)
    assert "P('i', 'j')" in looker.ok("variables")
    shown = looker.ok("shards", name="x", check=True)
    assert "8 parts on 8 devices of 4 processes" in shown
    assert "No rank has" in looker.refused("shards", name="nothing")


# --------------------------------------------------------------------------- running


def test_it_runs_cells_on_the_notebooks_variables(
    runner: Assistant, cluster: jaxcluster.Cluster
) -> None:
    tools = runner.tools()
    assert not tools["run_cell"].annotations.read_only_hint
    for tool in tools.values():
        assert tool.description
        for name, taken in tool.input_schema["properties"].items():
            assert taken.get("description"), (tool.name, name)
    assert "── ranks 0-3 ──\n496.0" in runner.ok("run_cell", code="mine = rank; float(jnp.sum(x))")
    some = runner.ok("run_cell", code="print('r', rank)", ranks="1,3")
    assert ("r 1" in some, "r 3" in some, "r 0" in some) == (True, True, False)
    assert cluster.run("print(mine)", show=False).stdout(2) == "2\n"


def test_errors_and_divergences_are_told_with_the_rank_and_line(runner: Assistant) -> None:
    shown = runner.refused("run_cell", code="print('a')\n1 / 0 if rank == 2 else 1")
    assert "ZeroDivisionError on rank 2: division by zero" in shown
    assert "----> 2 1 / 0" in shown
    assert "\x1b" not in shown
    shown = runner.refused("run_cell", code=SKIP)
    assert "rank 1 ended the cell without the launch that ranks 0, 2, 3 wait for" in shown
    assert "Divergence in cell" in runner.ok("report")
    shown = runner.refused("run_cell", code="while True: pass", timeout_s=0.5)
    assert "took more than 0.5 s" in shown


def test_interrupt_is_heard_while_a_cell_runs(runner: Assistant) -> None:
    running = runner.begin("run_cell", code=ENDLESS)
    runner.wait_until_all_run()
    assert "Interrupted ranks 0-3" in runner.ok("interrupt")
    ending = running.result(DEADLINE_S)
    assert ending.is_error and "was stopped on ranks 0-3" in said(ending)
    assert "3 is in it" in said(ending)
    assert "No rank was running" in runner.ok("interrupt")


def test_its_cells_end_with_it(home: Home, cluster: jaxcluster.Cluster) -> None:
    with assistant(home, cluster, "--allow-run") as opened:
        asked = opened.begin("run_cell", code=ENDLESS)
        opened.wait_until_all_run()
        asked.cancel()
    until(lambda: {s.state for s in cluster.status()} == {"idle"}, "the cell's end")
    assert "KeyboardInterrupt" not in cluster.run("print(1)", show=False).stdout()
