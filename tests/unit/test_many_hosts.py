"""Many hosts, each of one rank: what grows with them, and how much. No times are measured here."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from manyhosts import ManyHosts

import jaxcluster
from jaxcluster.errors import Divergence, LaunchError
from jaxcluster.launchers import commands
from jaxcluster.wire.link import Link

NUM_HOSTS = 8


@pytest.fixture(scope="module")
def hosts() -> Iterator[ManyHosts]:
    with ManyHosts(NUM_HOSTS) as made:
        yield made


@pytest.fixture
def cluster(hosts: ManyHosts) -> Iterator[jaxcluster.Cluster]:
    with jaxcluster.start(**hosts.options) as made:
        yield made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests there were to ranks, of each kind."""
    found: Counter[str] = Counter()
    request_each = Link.request_each

    def count(self: Link, each: Mapping[int, Any], **more: Any) -> list[str]:
        for request in each.values():
            found[request.op] += 1
        return request_each(self, each, **more)

    monkeypatch.setattr(Link, "request_each", count)
    return found


def test_a_start_asks_each_rank_for_each_step_once(hosts: ManyHosts, asked: Counter[str]) -> None:
    with jaxcluster.start(**hosts.options) as cluster:
        assert cluster.num_processes == NUM_HOSTS
    assert asked == dict.fromkeys(("facts", "initialize", "serve"), NUM_HOSTS)


def test_threads_do_not_grow_with_the_hosts(hosts: ManyHosts) -> None:
    before = set(threading.enumerate())
    with jaxcluster.start(**hosts.options) as cluster:
        cluster.run("pass", show=False)
        new = [t.name for t in threading.enumerate() if t not in before]
    pooled = ("jaxcluster-ssh", "jaxcluster-controller")  # and end by themselves
    assert len([name for name in new if not name.startswith(pooled)]) <= 4, new


def test_cells_run_and_end_on_all_of_them(cluster: jaxcluster.Cluster, asked: Counter[str]) -> None:
    cluster.run("pass", show=False)
    record = cluster.run("# prints", show=False)
    assert asked == {"cell": 2 * NUM_HOSTS}
    assert [record.stdout(rank) for rank in (0, 7)] == ["rank 0 prints\n", "rank 7 prints\n"]


def test_one_that_skips_a_launch_is_named_and_the_others_as_ranges(
    cluster: jaxcluster.Cluster,
) -> None:
    with pytest.raises(Divergence) as caught:
        cluster.run("import jax\ns = jnp.sum(x)  # skipped by 3", show=False)
    said = str(caught.value)
    assert re.match(r"cell \[\d+\]: rank 3 \(h003\) ended the cell without the launch that", said)
    assert re.search(r"ranks 0-2, 4-7 .* line 2   s = jnp.sum\(x\)  # skipped by 3   jit_sum", said)
    assert len(said.splitlines()) <= 6, said
    cluster.run("pass", show=False)


def test_hosts_that_can_not_be_logged_in_to_are_told_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commands, "OTHERS_S", 60.0)  # until all have come or failed
    refused = "ssh: connect to host x port 22: Connection refused\n"
    broken = {1: refused, 3: refused, 4: "Permission denied (publickey).\n"}
    with ManyHosts(6, broken) as hosts, pytest.raises(LaunchError) as caught:
        jaxcluster.start(timeout_s=30, **hosts.options)
    assert caught.value.message.startswith("No agent on h001: ssh ended with code 255.")
    assert caught.value.message.endswith(" Others failed, too: h003, h004.")
    assert "Try: " in caught.value.hint and "h001 true" in caught.value.hint
