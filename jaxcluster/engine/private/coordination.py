"""JAX's processes among each other: the coordination service, gloo's addresses and slices."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

_gloo_original: Any = None


def set_collectives_address(address: str) -> bool:
    """Make CPU collectives (gloo) listen on ``address`` instead of what the hostname resolves to.

    Debian's ``127.0.1.1 host`` line ends in "Connection refused" and an unresolvable name in
    "enforce fail at device.cc:99". Must come before the backend starts. JAX has no public setting
    for it (jax 0.10.2 and 0.12: ``xla_bridge.make_cpu_client`` calls
    ``_jax.make_gloo_tcp_collectives`` without a hostname).

    Returns:
      False where the private name has moved: gloo then uses the hostname, as in plain JAX.
    """
    global _gloo_original
    try:
        from jax._src.lib import _jax

        if _gloo_original is None:
            _gloo_original = _jax.make_gloo_tcp_collectives
        _jax.make_gloo_tcp_collectives = functools.partial(_gloo_original, hostname=address)
    except (ImportError, AttributeError):
        return False
    return True


def join_cpu_slices() -> bool:
    """Put the CPU devices of all machines into one slice, so that ``jax.make_mesh`` takes them.

    XLA makes a slice of each boot id, and ``make_mesh`` refuses devices of several: meant for TPU
    pods and GPUs, for which ``initialize(partition_index=0)`` is the remedy; the CPU client takes
    no such option (jax 0.10.2 and 0.12). Idempotent.

    Returns:
      False where a device's class can't be extended: ``Mesh(jax.devices(), ...)`` still works.
    """
    try:
        from jax._src.lib import _jax

        for name in ("slice_index", "partition_index"):
            setattr(_jax.Device, name, property(functools.partial(_slice_of, name=name)))
    except (ImportError, AttributeError, TypeError):
        return False
    return True


def _slice_of(device: Any, name: str) -> Any:
    return 0 if device.platform == "cpu" else device.__getattr__(name)


_SERVICE_OPTIONS = ("heartbeat_timeout", "shutdown_timeout", "recoverable")


def coordination_service(
    address: str, num_processes: int, heartbeat_timeout_s: int, shutdown_timeout_s: int
) -> Any:
    """JAX's coordination service, listening on ``address``; it lives as long as the object.

    ``jax.distributed.initialize`` makes it on rank 0 and nowhere else (jax 0.10.2 and 0.12:
    ``_jax.get_distributed_runtime_service``). Recoverable: a task that dies ends no other.

    Raises:
      ImportError, AttributeError, TypeError: the private name has moved.
    """
    from jax._src.lib import _jax

    return _jax.get_distributed_runtime_service(
        address,
        num_processes,
        heartbeat_timeout=heartbeat_timeout_s,
        shutdown_timeout=shutdown_timeout_s,
        recoverable=True,
    )


def can_coordinate_elsewhere() -> bool:
    """Whether the coordination service can run in a process of its own with this jax."""
    try:
        from jax._src import distributed
        from jax._src.lib import _jax

        # Its signature is the first line of its docstring: jaxlib 0.9.0 takes no ``recoverable``.
        taken = _jax.get_distributed_runtime_service.__doc__ or ""
        return (
            all(f"{name}:" in taken for name in _SERVICE_OPTIONS)
            and getattr(distributed, "_jax", None) is _jax
            and hasattr(distributed.global_state, "service")
        )
    except (ImportError, AttributeError):
        return False


@contextlib.contextmanager
def coordinator_elsewhere() -> Iterator[None]:
    """Inside it ``jax.distributed.initialize`` on rank 0 starts no service: there is one already.

    Everything else that ``initialize`` does stays JAX's own.
    """
    from jax._src.lib import _jax

    original = _jax.get_distributed_runtime_service
    service: Any = SimpleNamespace(shutdown=lambda: None)  # it is not this process's to end
    _jax.get_distributed_runtime_service = lambda *args, **kwargs: service
    try:
        yield
    finally:
        _jax.get_distributed_runtime_service = original


def coordination_client() -> Any:
    """JAX's client of the coordination service (its key-value store and barriers).

    Raises:
      NotImplementedError: the private name has moved.
    """
    try:
        from jax._src import distributed

        client = distributed.global_state.client
    except (ImportError, AttributeError) as error:
        raise NotImplementedError(f"this jax keeps its client elsewhere: {error}") from None
    return client


class Store:
    """A folder of the coordination service's key-value store; a call takes some 0.5 ms.

    Args:
      folder: a name that nothing else in the store begins with.
      client: JAX's client of the service.
    """

    def __init__(self, folder: str, client: Any) -> None:
        self.folder = folder
        self.client = client

    def write(self, key: str, value: str) -> None:
        self.client.key_value_set(f"{self.folder}/{key}", value, allow_overwrite=True)

    def read(self, folder: str) -> dict[str, str]:
        """What stands under ``folder``, by the last part of its key."""
        found = self.client.key_value_dir_get(f"{self.folder}/{folder}/")
        return {key.rpartition("/")[2]: value for key, value in found}

    def delete(self, key: str) -> None:
        self.client.key_value_delete(f"{self.folder}/{key}")


def store(folder: str) -> Store | None:
    """A folder of the store that all ranks share; None if this jax has none."""
    try:
        client = coordination_client()
    except NotImplementedError:
        return None
    wanted = ("key_value_set", "key_value_dir_get", "key_value_delete")
    return Store(folder, client) if all(hasattr(client, name) for name in wanted) else None


_COMMUNICATORS = "cpu:gloo/"


def communicators() -> list[list[int]]:
    """The device ids of each communicator that CPU processes have made, in its own order.

    Each set of devices that has had a collective has one, and another for each order of them.
    XLA's CPU client shares their addresses through the coordination service, under
    ``cpu:gloo/0,2048/...`` (jaxlib 0.10.2 and 0.12); that of other platforms does not. Any thread;
    some 1 ms.

    Returns:
      None of them where the name has moved, or on another platform.
    """
    try:
        client = coordination_client()
        keys = [key for key, _ in client.key_value_dir_get_bytes(_COMMUNICATORS)]
        found = {key.partition(_COMMUNICATORS)[2].partition("/")[0] for key in keys}
        return sorted([int(id) for id in ids.split(",")] for ids in found)
    except (NotImplementedError, AttributeError, RuntimeError, ValueError):
        return []


def could_not_connect(message: str) -> bool:
    """Whether an error says that CPU processes have not all come to the first program of a group.

    Who was there gives up after 30 s, and keeps the error for all later programs of the group
    (jaxlib 0.10.2 and 0.12).
    """
    return "Gloo context initialization failed" in message


def refuse_what_ends_ranks() -> None:
    """Have calls that cut this rank off from the others raise, and change nothing.

    ``jax.distributed.shutdown`` leaves a rank that can reach no new set of processes, and
    ``jax.extend.backend.clear_backends`` one that can't start its backend again: its topology
    is in the coordinator's store already (jax 0.10.2 and 0.12). Where a name has moved, the
    call does what it does in plain JAX.
    """
    import jax

    try:
        from jax._src import api, distributed
    except ImportError:
        return

    def refuse(name: str, *owners: Any) -> None:
        attribute = name.rpartition(".")[2]
        original = getattr(owners[0], attribute, None)
        if original is None:
            return

        @functools.wraps(original)
        def refused(*args: Any, **kwargs: Any) -> None:
            raise RuntimeError(f"{name}() must not be called on a rank: the others need it")

        for owner in owners:  # in all, or it can't be pickled by its name
            setattr(owner, attribute, refused)

    refuse("jax.distributed.shutdown", distributed, jax.distributed)
    # Before jax.extend is imported, which takes the name from there.
    extended = [m for m in [sys.modules.get("jax.extend.backend")] if m is not None]
    refuse("jax.extend.backend.clear_backends", api, *extended)


@contextlib.contextmanager
def scripts_may_initialize() -> Iterator[None]:
    """Inside it a script's own ``jax.distributed.initialize`` and ``shutdown`` are what they mean.

    It is initialized already, and goes on after the script: they do nothing. A script that asks for
    another world than this one is told so.
    """
    import jax

    try:
        from jax._src import distributed
    except ImportError:
        yield
        return
    owners = [distributed, jax.distributed]
    kept = [(owner, name, getattr(owner, name, None)) for owner in owners for name in _INITIALIZED]

    @functools.wraps(jax.distributed.initialize)
    def initialize(
        coordinator_address: str | None = None,
        num_processes: int | None = None,
        process_id: int | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        here = f"jaxcluster run has initialized JAX: this is process {jax.process_index()} of "
        here += f"{jax.process_count()}"
        if num_processes not in (None, jax.process_count()):
            raise RuntimeError(
                f"{here}, and the script asks for num_processes={num_processes}. Leave that out, "
                f"or start as many: jaxcluster run -n {num_processes}"
            )
        if process_id not in (None, jax.process_index()):
            raise RuntimeError(
                f"{here}, and the script asks for process_id={process_id}. Leave that out."
            )

    @functools.wraps(jax.distributed.shutdown)
    def shutdown() -> None:
        """The end of the run does it."""

    for owner in owners:
        owner.initialize, owner.shutdown = initialize, shutdown  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for owner, name, original in kept:
            setattr(owner, name, original)


_INITIALIZED = ("initialize", "shutdown")
