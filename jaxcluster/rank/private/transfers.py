"""``device_put`` from one process's devices to another's: on CPU made to work, and announced.

JAX's runtime has such transfers on GPU and TPU. For other platforms it has another server, at
``jax_cross_host_transfer_socket_address``. The receiver connects to what the sender's setting has.
Port 0 can't be in it: the receiver dials port 0, and waits for ever (jax 0.10.2 and 0.12).

Each process numbers the transfers that it has asked for, and sender and receiver find each other by
these numbers. If a process leaves one out, even without a part in it, later ones hang, or bring
wrong values. So each is announced as a launch of all processes. Three ways lead to them:

- ``device_put`` to a sharding. One call numbers its arrays in the order of a hash table, which each
process seeds differently. So each array gets its own call.
- ``device_put`` to a device, by another function, which is not counted: so it goes the first way.
- Functions that put arrays onto this process's devices, such as ``make_array_from_callback``, with
an array of another process: they are refused.
"""

from __future__ import annotations

import functools
import random
import socket
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.messages import Program
from jaxcluster.rank.private import needs_names
from jaxcluster.rank.private.programs import hash_of, processes_of

SOCKETS = 4  # of the data, as JAX has it by default, on all of the machine's addresses
# The first transfer from a process waits for its server, which that process starts in its part.
TIMEOUT_S = 7 * 24 * 3600


@needs_names(
    "transfers",
    "device_put from process to process is refused on CPU, and not checked on GPU and TPU",
)
def announce_transfers(agreement: Agreement) -> None:
    """Have ``agreement`` asked before each transfer between processes (jax 0.10.2 and 0.12)."""
    import jax
    from jax._src import dispatch, xla_bridge

    caller: Any = dispatch
    client: Any = dispatch.xc
    device_type, array_type = client.Device, client.ArrayImpl
    copy, put = client.batched_copy_array_to_devices_with_sharding, client.batched_device_put
    put_one = caller._device_put_sharding_impl
    _ = xla_bridge.CROSS_HOST_TRANSFER_SOCKET_ADDRESS

    def describe(array: Any, to: Any) -> Program:
        signature = array.aval.str_short()
        source = getattr(array.sharding, "spec", array.sharding)
        ends = [[d.id for d in each._device_assignment] for each in (array.sharding, to)]
        fingerprint = hash_of(f"device_put {signature} {source} {ends}")
        return Program(tuple(range(jax.process_count())), fingerprint, "device_put", signature)

    def copy_agreed(*columns: Sequence[Any]) -> list[Any]:
        copied = list[Any]()
        for array, devices, sharding, semantics in zip(*columns, strict=True):
            one = [array], [devices], [sharding], [semantics]
            if array.is_deleted():
                copied += copy(*one)  # which refuses it
            else:
                copied += agreement.launch(describe(array, sharding), copy, *one)
        return copied

    @functools.wraps(put)
    def put_own(aval: Any, to: Any, xs: Any, devices: Sequence[Any], *args: Any, **kw: Any) -> Any:
        for x, device in zip(xs, devices, strict=False):
            of = x.sharding.device_set if isinstance(x, jax.Array) else [device]
            if processes_of(of) != (device.process_index,):
                raise ValueError(
                    "this would send an array from one process to another, and the other processes "
                    "would not know of it. Send it with jax.device_put(x, sharding) on all ranks."
                )
        return put(aval, to, xs, devices, *args, **kw)

    @functools.wraps(put_one)
    def put_by_sharding(x: Any, aval: Any, to: Any, copy: Any) -> Any:
        # An array that isn't committed is each process's own: nothing is sent.
        of = x.sharding.device_set if type(x) is array_type and x._committed else ()
        is_sent = len(of) == 1 and isinstance(to, device_type)
        if is_sent and processes_of(of) != (to.process_index,):
            to = jax.sharding.SingleDeviceSharding(to)
        return put_one(x, aval, to, copy)

    client.batched_device_put = put_own
    # Copies that other modules ask for stay within a process.
    its = {**vars(client), "batched_copy_array_to_devices_with_sharding": copy_agreed}
    caller.xc, caller._device_put_sharding_impl = SimpleNamespace(**its), put_by_sharding


def allow_transfers() -> None:
    """Have transfers on CPU go by this machine's loopback. Before the backend starts.

    Each process has its own loopback address. So its port is still free when JAX takes it, at the
    first transfer. An address that the user has set stays.

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
