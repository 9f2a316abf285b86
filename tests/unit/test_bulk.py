"""Large values in parts: every byte comes to its place, and no more parts are on their way."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from jaxcluster.agent import requests
from jaxcluster.agent.folder import Folder
from jaxcluster.allocation import bulk
from jaxcluster.allocation.fleet import Host
from jaxcluster.errors import LaunchError


class Asked:
    def __init__(self, agent: Agent, request: requests.Request[Any], data: Any) -> None:
        self.agent = self.host = agent
        self.request, self.data = request, bytes(data or b"")

    def wait(self, timeout_s: float) -> Any:
        self.agent.under_way -= 1
        body, data = requests.answer(self.agent.folder, self.request, self.data)
        return body, memoryview(data)


class Agent:
    """An agent's requests, carried out when they are waited for."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        self.folder, self.name, self.memory = Folder(path, path), path.name, str(path)
        self.under_way = self.most = 0
        self.is_here = False

    def begin(self, request: requests.Request[Any], data: Any = None) -> Asked:
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        asked = Asked(self, request, data)
        if isinstance(request, requests.Remove):  # which nobody waits for
            requests.answer(self.folder, request)
        return asked


@pytest.fixture
def places(tmp_path: Path) -> list[Host]:
    return [cast(Host, Agent(tmp_path / name)) for name in ("h1", "h2")]


def test_what_is_put_on_two_hosts_comes_back(
    places: list[Host], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "PART_NBYTES", 100)
    rng = np.random.default_rng(0)
    one, two = (rng.integers(0, 255, n, np.uint8) for n in (3210, 77))
    with bulk.memory(dict(enumerate(places))) as memory:
        empty = memoryview(b"")
        memory.put("value", {0: one.data, 3264: two.data, 3392: empty})
        want = bytes(one) + bytes(54) + bytes(two)
        assert [memory.get(n, "value", len(want)) for n in (0, 1)] == [want] * 2
        for place in places:
            assert 1 < cast(Agent, place).most <= bulk.WINDOW + 2
    assert not any(Path(memory.path(n)).exists() for n in (0, 1))


@pytest.mark.parametrize(
    ("why", "raised"), [(os.strerror(errno.ENOSPC), bulk.NoRoom), ("no", LaunchError)]
)
def test_a_host_that_has_no_room_is_told_apart(
    places: list[Host], monkeypatch: pytest.MonkeyPatch, why: str, raised: type[Exception]
) -> None:
    """Then its bytes go another way; and nothing of them is left in the others' memory."""
    with pytest.raises(raised), bulk.memory(dict(enumerate(places))) as memory:

        def refuse(asked: Asked, timeout_s: float) -> None:
            raise LaunchError(f"Host h1 can't put: {why}.")

        with monkeypatch.context() as patch:
            patch.setattr(Asked, "wait", refuse)
            memory.put("value", {0: memoryview(b"abc")})
    assert not any(Path(memory.path(n)).exists() for n in (0, 1))
