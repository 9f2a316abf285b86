"""Sums over all devices, and over each communicator: are the ranks in lockstep for real?

Counts and hashes say what was launched. Whether all of it has met its counterparts, and nothing is
left over in the transport, only a collective can say. The check is one small program: a chain of
sums, one for each way in which the communicators divide the devices, since what is left over in one
of them is seen by none of the others. The numbers that are summed change from check to check, so an
older check's leftovers, or a cell's, give another result.

It hangs where something is left over, so its caller bounds the wait. It is recorded as any launch
is: if another thread of a rank launches something in the meantime, counts and hashes show that the
order was not the same everywhere.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxcluster.engine.control import Request
from jaxcluster.engine.journal import Journal
from jaxcluster.engine.private import contexts, coordination
from jaxcluster.host import limits
from jaxcluster.wire.ops.lockstep import Checked, PrepareCheck

POLL_S = 0.0005
MODULUS = 131071  # of what goes from one sum into the next: 16,384 devices fit into an int32

Division = tuple[tuple[int, ...], ...]  # all devices, by their place among all, in groups


class SelfCheck:
    """One rank's part in the check."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self._compiled: dict[tuple[Division, ...], Any] = {}
        self._lock = threading.Lock()

    def on_prepare(self, request: Request[PrepareCheck]) -> list[Division]:
        """``prepare_check``: compile it; without divisions those of now are taken.

        Any thread. Some 50 ms of computing, once for the same divisions.
        """
        return list(self.prepare(request.body.divisions or find_divisions()))

    def prepare(self, divisions: Sequence[Sequence[Sequence[int]]]) -> tuple[Division, ...]:
        key = tuple(tuple(tuple(group) for group in groups) for groups in divisions)
        with self._lock:
            if key not in self._compiled:
                self._compiled[key] = _compile(key)
        return key

    @limits.lifted()
    def check(
        self, divisions: Sequence[Sequence[Sequence[int]]], number: int, timeout_s: float
    ) -> Checked:
        """``self_check``: take part in the sums; all ranks are idle. On the main thread."""
        key = self.prepare(divisions)
        self.journal.unchecked = False  # what breaks off from here on is looked at by the next one
        why = ""
        with self.journal.unannounced(), contexts.exactly():
            sums = self._compiled[key](_numbers(number))
            deadline = time.monotonic() + timeout_s
            while not sums.is_ready() and time.monotonic() < deadline:
                time.sleep(POLL_S)
            if not sums.is_ready():
                why = "did not end"
            elif not _is_right(sums, expected(key, number)):
                why = "came out wrong"
        return Checked(not why, why, self.journal.launches())


def _is_right(sums: Any, wanted: np.ndarray[Any, Any]) -> bool:
    """Whether each of this rank's devices has what it must have."""
    return all((np.asarray(s.data) == wanted[s.index]).all() for s in sums.addressable_shards)


def find_divisions() -> list[list[list[int]]]:
    """How the communicators divide the devices; the first division is all devices in one group.

    One that lies within a process has nobody to wait for and is left out.
    """
    import jax

    devices = jax.devices()
    place = {device.id: i for i, device in enumerate(devices)}
    groups = [
        [place[id] for id in ids]
        for ids in coordination.communicators()
        if set(ids) <= place.keys() and len({devices[place[id]].process_index for id in ids}) > 1
    ]
    return divide(groups, len(devices))


def divide(groups: Sequence[Sequence[int]], num_devices: int) -> list[list[list[int]]]:
    """Each group in one of as few divisions as come easily; who is in none of one, is alone in it.

    Equal on all ranks for equal groups.
    """
    everybody = list(range(num_devices))
    divisions = [[everybody]]
    for group in sorted([list(group) for group in groups]):
        if group == everybody:
            continue
        for division in divisions[1:]:
            if not set(group) & {i for other in division for i in other}:
                division.append(group)
                break
        else:
            divisions.append([group])
    for division in divisions:
        found = {i for group in division for i in group}
        division += [[i] for i in everybody if i not in found]
    return divisions


def expected(divisions: Sequence[Division], number: int) -> np.ndarray[Any, Any]:
    """What each device (first axis) must have as the sum of each division."""
    values = _start(sum(map(len, divisions[0])), number)
    sums = []
    for groups in divisions:
        values = values % MODULUS
        for group in groups:
            values[list(group)] = values[list(group)].sum()
        sums.append(values)
    return np.stack(sums, axis=1)


def _start(num_devices: int, number: int) -> np.ndarray[Any, Any]:
    return (np.arange(num_devices) + number).astype(np.int32)


def _sharding() -> Any:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    mesh = Mesh(np.array(jax.devices()), ("all",))
    return NamedSharding(mesh, PartitionSpec("all"))


def _numbers(number: int) -> Any:
    """Each device's own number; nothing is launched for it."""
    import jax

    numbers = _start(len(jax.devices()), number)
    return jax.make_array_from_callback(numbers.shape, _sharding(), lambda index: numbers[index])


@contexts.exactly()
def _compile(divisions: Sequence[Division]) -> Any:
    import jax

    def jaxcluster_check(values: Any) -> Any:
        sums = []
        for groups in divisions:
            # One after the other, on all devices alike: each takes up what the last one gave.
            values = jax.lax.psum(values % MODULUS, "all", axis_index_groups=groups)
            sums.append(values)
        return jax.numpy.stack(sums, axis=1)

    sharding = _sharding()
    spec = sharding.spec
    check = jax.shard_map(
        jaxcluster_check, mesh=sharding.mesh, in_specs=spec, out_specs=spec, check_vma=False
    )
    shape = jax.ShapeDtypeStruct((len(jax.devices()),), np.int32, sharding=sharding)
    return jax.jit(check).lower(shape).compile()
