"""Several notebooks, and none, on a cluster of two hosts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from helpers import until
from rig import HostNotebook, Rig

pytestmark = pytest.mark.any_jax

START = "%jaxcluster start --launcher ssh --hosts h1:1,h2:1"
WHERE = "%%spmd --all\nprint(kept, socket.gethostname())"


@pytest.fixture
def first(ssh: Rig, open_notebook: Callable[..., HostNotebook]) -> HostNotebook:
    notebook = open_notebook()
    notebook.ok("%load_ext jaxcluster")
    return notebook


second = first


def remember(notebook: HostNotebook) -> None:
    notebook.ok("%%spmd\nimport socket\nkept = 41")


def is_whole(notebook: HostNotebook) -> bool:
    text = notebook.ok(WHERE).text
    return "41 h1" in text and "41 h2" in text


def test_the_owners_new_ranks_are_attached_to_again(
    first: HostNotebook, second: HostNotebook
) -> None:
    first.ok(START)
    remember(first)
    second.ok("%jaxcluster attach")
    first.ok("%jaxcluster restart")
    assert "%jaxcluster attach" in second.run(WHERE).text
    second.ok("%jaxcluster attach")
    assert is_whole(second)
    second.kill()  # which ends nothing
    assert is_whole(first)
    first.ok("%jaxcluster stop")


def test_a_detached_cluster_outlives_its_notebook(
    first: HostNotebook, second: HostNotebook
) -> None:
    first.ok(f"{START} --detach")
    remember(first)
    first.client.shutdown()
    process = first.manager.provisioner.process  # type: ignore[union-attr]
    until(lambda: process.poll() is not None, "the kernel's end")
    assert "detached" in second.ok("%jaxcluster list").text
    second.ok("%jaxcluster attach")
    assert is_whole(second)
    second.ok("%jaxcluster stop")
    assert "detached" not in second.ok("%jaxcluster list").text


def test_a_cluster_that_is_reached_by_tcp_is_attached_to_from_another_host(
    ssh: Rig, open_notebook: Callable[..., HostNotebook]
) -> None:
    env = {"JAXCLUSTER_RUNTIME_DIR": str(ssh.shared / "clusters")}  # which the hosts share
    first = open_notebook(**env)
    first.ok(f"%load_ext jaxcluster\n{START} --direct --detach")
    remember(first)
    elsewhere = "import jaxcluster\nc = jaxcluster.attach()\nprint(c['kept'])\nc.stop()"
    assert ssh["h3"].run(ssh.python, "-c", elsewhere, env=env).stdout == "41\n"
    first.close()  # which may look into the folder until then
    ssh["h0"].run("rm", "-r", env["JAXCLUSTER_RUNTIME_DIR"])


def test_output_of_ranks_on_hosts_is_there_for_the_next_notebook(
    ssh: Rig, first: HostNotebook, second: HostNotebook
) -> None:
    def files(host: str) -> str:
        return str(
            ssh[host].run("sh", "-c", "find /tmp -path '*agent*' -name history", check=False).stdout
        )

    first.ok(f"{START} --detach")
    remember(first)
    cell = first.begin(
        "%%spmd --all\nimport time\nfor i in range(80):\n    time.sleep(0.1)\n"
        "    print('line', i, 'on', socket.gethostname(), flush=True)"
    )
    first.until(lambda: "line 3" in cell.text, "the cell prints")
    first.kill()
    attached = second.ok("%jaxcluster attach")
    second.until(lambda: "has ended after" in attached.text, "the cell's end, shown there")
    shown = second.ok("%jaxcluster outputs --cell 2").text
    for host in ("h1", "h2"):
        lines = [f"line {i} on {host}" for i in range(80)]
        assert "\n".join(lines) in attached.text
        assert "\n".join(lines) in shown
        assert "history" in files(host)
    second.ok("%jaxcluster stop")
    until(lambda: "history" not in files("h1") + files("h2"), "its files are gone")


def test_a_cluster_whose_notebook_was_killed_is_gone(
    first: HostNotebook, second: HostNotebook
) -> None:
    first.ok(START)
    second.ok("%jaxcluster attach")  # what it is connected to then is gone as well
    first.kill()
    none = "none is running"
    until(lambda: none in second.run("%jaxcluster attach").text, "its end", 60)
    until(lambda: second.run(START).text.startswith("Cluster 'main'"), "the name is free", 10)
    second.ok("%jaxcluster stop")


def test_of_a_detached_cluster_with_a_host_out_of_reach_the_rest_is_found_and_can_be_ended(
    ssh: Rig, first: HostNotebook, second: HostNotebook
) -> None:
    first.ok(f"{START} --detach")
    remember(first)
    first.kill()
    with ssh["h2"].cut_off():
        until(lambda: "(h2 unreachable)" in second.ok("%jaxcluster list").text, "it is told", 60)
        told = second.ok("%jaxcluster attach main", 60).text
        assert "Rank 1 can't be reached (host h2 can't be reached from here: " in told
        assert "idle" in second.ok("%jaxcluster status").text
        refused = second.run("%pull kept").text
        assert "Rank 1 can't be reached: host h2 can't be reached from here: " in refused
        assert "died" not in refused
        assert "%jaxcluster attach main" in second.run(WHERE).text
    until(
        lambda: "can't be reached" not in second.ok("%jaxcluster attach main", 60).text,
        "it is back",
    )
    assert is_whole(second)
    with ssh["h2"].cut_off():
        until(lambda: "unreachable" in second.ok("%jaxcluster list").text, "the cut is seen", 60)
        refused = second.run("%jaxcluster stop").text
        assert "was not stopped: h2 can't be reached" in refused and "stop main --force" in refused
        assert "Stopped ranks 0, 1" in second.ok("%jaxcluster stop --force").text
        assert "No cluster is running" in second.ok("%jaxcluster list").text
        until(lambda: not jaxclusters(ssh, "h1"), "the end of all on the host in reach", 30)


def jaxclusters(rig: Rig, host: str) -> list[str]:
    return [line for line in rig[host].processes().values() if "jaxcluster" in line]
