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

- ``device_put`` to a sharding. One call numbers its arrays in the order of a hash table that each
  process seeds again: so each array has a call of its own.
- ``device_put`` to a device, by another function, which is not counted: so it goes the first way.
- What puts arrays onto devices of this process, as ``make_array_from_callback`` does, where one of
  them is another process's: it is refused.
"""

from __future__ import annotations

import functools
import random
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.refusals import Program
from jaxcluster.rank.private import needs_names
from jaxcluster.rank.private.programs import hash_of

SOCKETS = 4  # of the data, as JAX has it by default, on all of the machine's addresses
# The first transfer from a process waits for that one's server, which starts with its own part.
TIMEOUT_S = 7 * 24 * 3600


@needs_names(
    "transfers",
    "device_put from process to process is refused on CPU, and not checked on GPU and TPU",
)
def announce_transfers(agreement: Agreement) -> None:
    """Have ``agreement`` asked before each transfer between processes (jax 0.10.2 and 0.12)."""
    import jax
    from jax._src import dispatch, xla_bridge
    from jax._src.array import ArrayImpl
    from jax.sharding import SingleDeviceSharding

    client: Any = dispatch.xc
    device_type = client.Device
    copy, put = client.batched_copy_array_to_devices_with_sharding, client.batched_device_put
    put_one: Any = dispatch._device_put_sharding_impl
    _ = xla_bridge.CROSS_HOST_TRANSFER_SOCKET_ADDRESS

    def copy_agreed(*columns: Sequence[Any]) -> list[Any]:
        copied = list[Any]()
        for array, devices, sharding, semantics in zip(*columns, strict=True):
            one = [array], [devices], [sharding], [semantics]
            if array.is_deleted():
                copied += copy(*one)  # which refuses it
            else:
                copied += agreement.launch(_describe(array, sharding), copy, *one)
        return copied

    @functools.wraps(put)
    def put_own(
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

    @functools.wraps(put_one)
    def put_by_sharding(x: Any, aval: Any, device: Any, copy: Any) -> Any:
        # Of what isn't committed each process has its own: nothing is sent.
        is_one = isinstance(x, ArrayImpl) and x._committed and x.sharding.num_devices == 1
        if is_one and isinstance(device, device_type):
            (of,) = x.sharding.device_set
            if of.process_index != device.process_index:
                device = SingleDeviceSharding(device)
        return put_one(x, aval, device, copy)

    client.batched_device_put = put_own
    # Copies that other modules ask for stay within a process.
    its = {**vars(client), "batched_copy_array_to_devices_with_sharding": copy_agreed}
    dispatch.xc = SimpleNamespace(**its)  # type: ignore[assignment]
    dispatch._device_put_sharding_impl = put_by_sharding


def _describe(array: Any, to: Any) -> Program:
    import jax

    signature = array.aval.str_short()
    source = getattr(array.sharding, "spec", array.sharding)
    ends = [[d.id for d in each._device_assignment] for each in (array.sharding, to)]
    fingerprint = hash_of(f"device_put {signature} {source} {ends}")
    return Program(tuple(range(jax.process_count())), fingerprint, "device_put", signature)


def allow_transfers() -> None:
    """Have transfers on CPU go by this machine's loopback. Before the backend starts.

    Each process has a loopback address of its own, so that its port, which JAX takes only for the
    first transfer, is free then too. An address that the user has set stays.

    Raises:
      ImportError, AttributeError: JAX has no such setting.
    """
    import jax
    from jax._src import xla_bridge

    if xla_bridge.CROSS_HOST_TRANSFER_SOCKET_ADDRESS.value:
        return
    draw = random.SystemRandom().randrange
    host = f"127.{draw(1, 255)}.{draw(256)}.{draw(1, 255)}"
    with socket.create_server((host, 0)) as trial:
        port = trial.getsockname()[1]
    jax.config.update("jax_cross_host_transfer_socket_address", f"{host}:{port}")
    jax.config.update("jax_cross_host_transport_addresses", ",".join([f"{host}:0"] * SOCKETS))
    jax.config.update("jax_cross_host_transfer_timeout_seconds", TIMEOUT_S)
