"""Clusters on this machine's NVIDIA cards; without one, every test here skips and says so.

Two ranks: each with a card of its own, or both on the only one where NCCL allows that. Where it
does not, there is one rank, and tests of what happens between ranks skip.

``JAXCLUSTER_GPU_TESTS=cpu`` runs the same tests on CPU devices: so they can be tried where there is
no card. It shows nothing of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpucards import SETUP, Cards, find_cards
from helpers import Home

import jaxcluster
from jaxcluster.allocation.here import quit_warm
from jaxcluster.host.gpus import gpu_uses


@pytest.fixture(scope="session")
def cards() -> Cards:
    if isinstance(found := find_cards(), str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="session")
def home(cards: Cards) -> Iterator[Home]:
    """Folders of this session's own."""
    home = Home.make()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in home.variables.items():
            patch.setenv(name, value)
        yield home
        quit_warm()
        home.wait_until_empty()
    home.remove()


@pytest.fixture(scope="module")
def shared(home: Home, cards: Cards) -> Iterator[jaxcluster.Cluster]:
    with cards.start("gpu") as cluster:
        yield cluster


@pytest.fixture
def ranks(shared: jaxcluster.Cluster) -> jaxcluster.Cluster:
    """The module's cluster, with its variables: what a test before has lost is made again."""
    shared.run(SETUP, show=False)
    return shared


@pytest.fixture
def several(cards: Cards, ranks: jaxcluster.Cluster) -> jaxcluster.Cluster:
    """The same, for what happens between ranks."""
    if cards.num_ranks < 2:
        pytest.skip(cards.why_one)
    return ranks


@pytest.fixture
def used_before(cards: Cards) -> dict[str, int]:
    """What is in use of each card's memory, by its name."""
    return {use.name: use.used_nbytes for use in gpu_uses(cards.visible)}
