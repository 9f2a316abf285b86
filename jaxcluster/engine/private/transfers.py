"""``device_put`` from one process's devices to another's: on CPU made to work, and announced.

JAX's runtime has such transfers on GPU and TPU. For other platforms it has a server of its own,
which ``jax_cross_host_transfer_socket_address`` turns on: the receiver connects to the sender at
the address that is in the sender's setting, as it is there. So port 0 can't be: the server
listens on one that is free, the receiver dials port 0, and waits for ever (jax 0.10.2 and 0.12).

A transfer is no program, but it must keep the order all the same. Each process numbers the
transfers that it has asked for, and sender and receiver find each other by these numbers. Where a
process leaves one out, whether it takes part in it or not, later ones hang, or bring another
array's values. So each is announced as a launch of all processes. Three ways lead to them, by
which XLA takes numbers:

- ``device_put`` to a sharding. One call numbers its arrays in groups, of the same devices, in the
  order of a hash table that each process seeds again: so each group has a call of its own.
- ``device_put`` to a device, by another function, which is not counted: so it goes the first way.
- What puts arrays onto devices of this process, as ``make_array_from_callback`` does, where one of
  them is another process's: it is refused.
"""

from __future__ import annotations

import functools
import hashlib
import random
import socket
from collections.abc import Callable, Sequence
from typing import Any

from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.refusals import Program
from jaxcluster.engine.private import is_there

NAME = "batched_copy_array_to_devices_with_sharding"  # what asks for transfers
PUT = "batched_device_put"  # what asks for them too, where it is given another process's array
IMPL = "_device_put_sharding_impl"
NAMES = (
    f"dispatch:xc.{NAME} dispatch:xc.{PUT} dispatch:{IMPL} dispatch:_batched_device_put_impl "
    "dispatch:_device_put_impl xla_bridge:CROSS_HOST_TRANSFER_SOCKET_ADDRESS"
)
SOCKETS = 4  # of the data, as JAX has it by default, on all of the machine's addresses
PORTS = range(10_000, 32_000)  # that no operating system hands out by itself
TRIES = 20
# The first transfer from a process waits for that one's server, which starts with its own part.
TIMEOUT_S = 7 * 24 * 3600


def announce_transfers(agreement: Agreement) -> bool:
    """Have ``agreement`` asked before each transfer between processes.

    Returns:
      False where a private name has moved (jax 0.10.2 and 0.12: ``dispatch.xc``,
      ``dispatch._device_put_sharding_impl``).
    """
    if not is_there(NAMES):
        return False
    from jax._src import dispatch

    client: Any = dispatch.xc
    if isinstance(client, _Client):
        return client.agreement is agreement
    copy = getattr(client, NAME)
    dispatch.xc = _Client(client, copy, agreement)  # type: ignore[assignment]
    setattr(client, PUT, _refuse_others(getattr(client, PUT)))
    setattr(dispatch, IMPL, _by_sharding(getattr(dispatch, IMPL)))
    return True


def _by_sharding(put: Callable[..., Any]) -> Callable[..., Any]:
    """``device_put`` of one array, which goes to another process's device as to its sharding."""
    from jax._src.array import ArrayImpl
    from jax._src.lib import xla_client
    from jax.sharding import SingleDeviceSharding

    device_type: Any = xla_client.Device

    @functools.wraps(put)
    def by_sharding(x: Any, aval: Any, device: Any, copy: Any) -> Any:
        # Of what isn't committed each process has its own: nothing is sent.
        one = isinstance(x, ArrayImpl) and x._committed and x.sharding.num_devices == 1
        is_one = one and isinstance(device, device_type)
        if is_one and {d.process_index for d in x.sharding.device_set} != {device.process_index}:
            device = SingleDeviceSharding(device)
        return put(x, aval, device, copy)

    return by_sharding


def _refuse_others(put: Callable[..., Any]) -> Callable[..., Any]:
    """``batched_device_put``, which refuses what would be a transfer that nobody counts."""
    import jax

    @functools.wraps(put)
    def batched_device_put(
        aval: Any, sharding: Any, xs: Sequence[Any], devices: Sequence[Any], *args: Any, **kw: Any
    ) -> Any:
        for x, device in zip(xs, devices, strict=False):
            of: Any = x.sharding.device_set if isinstance(x, jax.Array) else {device}
            if {one.process_index for one in of} != {device.process_index}:
                raise ValueError(
                    "this would send an array from one process to another, and the other processes "
                    "would not know of it. Send it with jax.device_put(x, sharding) on all ranks."
                )
        return put(aval, sharding, xs, devices, *args, **kw)

    return batched_device_put


class _Client:
    """Stands for ``xla_client`` in the module that asks for transfers, and in no other."""

    def __init__(self, client: Any, copy: Callable[..., Any], agreement: Agreement) -> None:
        self.client = client
        self.copy = copy
        self.agreement = agreement

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def batched_copy_array_to_devices_with_sharding(
        self, arrays: Sequence[Any], devices: Any, shardings: Sequence[Any], semantics: Any
    ) -> list[Any]:
        copied: list[Any] = [None] * len(arrays)
        for group in _groups(arrays, shardings, semantics):
            parts = [
                [column[i] for i in group] for column in (arrays, devices, shardings, semantics)
            ]
            for i, array in zip(group, self.copy_group(*parts), strict=True):
                copied[i] = array
        return copied

    def copy_group(
        self, arrays: Sequence[Any], devices: Any, shardings: Sequence[Any], semantics: Any
    ) -> Any:
        if any(array.is_deleted() for array in arrays):
            return self.copy(arrays, devices, shardings, semantics)  # which refuses it
        program = _describe(arrays, shardings)
        return self.agreement.launch(program, self.copy, arrays, devices, shardings, semantics)


def _groups(
    arrays: Sequence[Any], shardings: Sequence[Any], semantics: Sequence[Any]
) -> list[list[int]]:
    """The places of the arrays that XLA numbers together, in order of first appearance."""
    groups: dict[Any, list[int]] = {}
    for i, (array, to, how) in enumerate(zip(arrays, shardings, semantics, strict=True)):
        ends = [
            (tuple(d.id for d in sharding._device_assignment), sharding.memory_kind)
            for sharding in (array.sharding, to)
        ]
        groups.setdefault((*ends, str(how)), []).append(i)
    return list(groups.values())


def _describe(arrays: Sequence[Any], shardings: Sequence[Any]) -> Program:
    import jax

    signature = ", ".join(array.aval.str_short() for array in arrays)
    ways = [
        (str(array.sharding.spec if hasattr(array.sharding, "spec") else array.sharding),
         [d.id for d in array.sharding._device_assignment],
         [d.id for d in sharding._device_assignment])
        for array, sharding in zip(arrays, shardings, strict=True)
    ]  # fmt: skip
    text = f"device_put {signature} {ways}".encode()
    fingerprint = int.from_bytes(hashlib.blake2b(text, digest_size=7).digest(), "little")
    return Program(tuple(range(jax.process_count())), fingerprint, "device_put", signature)


def allow_transfers() -> str:
    """Have transfers on CPU go by this machine's loopback. Before the backend starts.

    Each process has a loopback address of its own, so that its port, which JAX takes only for the
    first transfer, is free then too.

    Returns:
      the address; "" where the user has set one, or JAX has no such setting.
    """
    import jax
    from jax._src import xla_bridge

    if xla_bridge.CROSS_HOST_TRANSFER_SOCKET_ADDRESS.value:
        return ""
    host, port = _free_address()
    jax.config.update("jax_cross_host_transfer_socket_address", f"{host}:{port}")
    jax.config.update("jax_cross_host_transport_addresses", ",".join([f"{host}:0"] * SOCKETS))
    jax.config.update("jax_cross_host_transfer_timeout_seconds", TIMEOUT_S)
    return f"{host}:{port}"


def _free_address() -> tuple[str, int]:
    draw = random.SystemRandom()
    for _ in range(TRIES):
        host = f"127.{draw.randrange(1, 255)}.{draw.randrange(256)}.{draw.randrange(1, 255)}"
        port = draw.choice(PORTS)
        with socket.socket() as trial:
            try:
                trial.bind((host, port))
            except OSError:  # taken on all addresses
                continue
        return host, port
    raise OSError("no port on a loopback address could be bound")
