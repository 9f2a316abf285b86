"""What a test leaves on a host of the rig is found."""

from __future__ import annotations

import pytest
from helpers import until
from rig import Rig

pytestmark = pytest.mark.any_jax


HIDDEN = "(setsid env -i sleep 1000 >/dev/null 2>&1 </dev/null &)"


@pytest.mark.parametrize(
    "command, found, undo",
    [
        (("sh", "-c", HIDDEN), "sleep 1000", ()),
        (("touch", "/tmp/left"), "file /tmp/left", ("rm", "/tmp/left")),
        (("touch", "/dev/shm/left"), "file /dev/shm/left", ("rm", "/dev/shm/left")),
        (("touch", "/run/left"), "file /run/left", ("rm", "/run/left")),
        (("mkdir", "-p", "HOME/.left"), "file HOME/.left", ("rmdir", "HOME/.left")),
    ],
    ids=["process", "tmp", "shm", "run", "home"],
)
def test_what_a_command_leaves_is_found(
    hosts: Rig, command: tuple[str, ...], found: str, undo: tuple[str, ...]
) -> None:
    host, home = hosts["h1"], hosts.home
    before = host.look()
    assert not host.leftovers(before)
    host.run(*(word.replace("HOME", home) for word in command))
    [left] = host.leftovers(before)
    assert found.replace("HOME", home) in left
    for pid in (process for process in host.processes() if not undo):
        if host.processes().get(pid) == "sleep 1000":
            host.kill(pid)
    if undo:
        host.run(*(word.replace("HOME", home) for word in undo))
    until(lambda: not host.leftovers(before), "nothing left over")
