"""JAX's processes among each other: the coordination service, gloo's addresses and slices."""

from __future__ import annotations

import ctypes
import functools
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.messages import Program
from jaxcluster.rank.private import needs_names
from jaxcluster.rank.private.programs import hash_of

PR_SET_TIMERSLACK = 29  # Linux's prctl(2)
LOOK_MS = 200  # between looks whether a wait for a key is to end
GETS = ("blocking_key_value_get", "blocking_key_value_get_bytes")


@needs_names(
    "gloo address", "CPU collectives use this host's name, which must resolve to its own address"
)
def set_collectives_address(address: str, slack_ns: int) -> None:
    """Make CPU collectives (gloo) listen on ``address`` instead of what the hostname resolves to.

    Debian's ``127.0.1.1 host`` line ends in "Connection refused" and an unresolvable name in
    "enforce fail at device.cc:99". Must come before the backend starts. JAX has no public setting
    for it (jax 0.10.2 and 0.12: ``xla_bridge.make_cpu_client`` calls
    ``_jax.make_gloo_tcp_collectives`` without a hostname).

    Args:
      slack_ns: how late the timer of gloo's thread may come; 0: as usual. Messages wake it at once.
        It wakes 100 times a second otherwise, also while nothing is sent. But each connection that
        is closed waits for it, so this is for processes that end without closing any.
    """
    from jax._src import xla_bridge

    client: Any = xla_bridge._jax
    make = functools.partial(client.make_gloo_tcp_collectives, hostname=address)
    set_slack = functools.partial(ctypes.CDLL(None).prctl, PR_SET_TIMERSLACK)

    def make_with_slack(*args: Any, **options: Any) -> Any:
        set_slack(ctypes.c_ulong(slack_ns))  # the new thread inherits it
        try:
            return make(*args, **options)
        finally:
            set_slack(ctypes.c_ulong(0))  # this thread's own default

    client.make_gloo_tcp_collectives = make_with_slack


@needs_names("one slice", "jax.make_mesh refuses the CPU devices of several machines")
def join_cpu_slices() -> None:
    """Put the CPU devices of all machines into one slice, so that ``jax.make_mesh`` takes them.

    XLA makes a slice of each boot id, and ``make_mesh`` refuses devices of several slices. This is
    for TPU pods and GPUs, with ``JAX_PARTITION_INDEX`` as the remedy. The CPU client has no such
    option (jax 0.10.2 and 0.12). ``Mesh(jax.devices(), ...)`` needs none of this.
    """
    from jax._src.lib import _jax

    look = _jax.Device.__getattr__

    def slice_of(device: Any, name: str) -> Any:
        return 0 if device.platform == "cpu" else look(device, name)

    for name in ("slice_index", "partition_index"):
        setattr(_jax.Device, name, property(functools.partial(slice_of, name=name)))


# --------------------------------------------------------------------------- the coordinator


def coordination_service(address: str, num_processes: int, heartbeat_s: int, end_s: int) -> Any:
    """JAX's coordination service, listening on ``address``; it lives as long as the object.

    ``jax.distributed.initialize`` makes it on rank 0 and nowhere else (jax 0.10.2 and 0.12).
    Recoverable: a task that dies ends no other.

    Raises:
      ImportError, AttributeError, TypeError: the private name has moved.
    """
    from jax._src.lib import _jax

    limits = {"heartbeat_timeout": heartbeat_s, "shutdown_timeout": end_s}
    return _jax.get_distributed_runtime_service(address, num_processes, **limits, recoverable=True)


@needs_names("coordinator process", "rank 0 hosts JAX's coordinator, and its death ends all ranks")
def coordinate_elsewhere() -> None:
    """Have ``jax.distributed.initialize`` on rank 0 start no service: another process has one.

    Everything else that ``initialize`` does stays JAX's own.
    """
    from jax._src import distributed

    client: Any = distributed._jax
    _ = client.get_distributed_runtime_service
    service = SimpleNamespace(shutdown=lambda: None)  # it is not this process's to end
    client.get_distributed_runtime_service = lambda *args, **kwargs: service


# --------------------------------------------------------------------------- waits


@needs_names("waits", "a wait in JAX's coordination service can't be stopped")
def announce_waits(agreement: Agreement) -> None:
    """Have waits for other processes in the coordination service be agreed on.

    Libraries (Orbax) reach it by ``jax._src.distributed.global_state.client``.
    """
    import jax
    from jax._src.lib import _jax

    its: Any = _jax.DistributedRuntimeClient
    wait = its.wait_at_barrier

    def wait_at_barrier(
        client: Any, barrier_id: str, timeout_in_ms: int, process_ids: Sequence[int] | None = None
    ) -> None:
        """Go on once all processes are there. A stop, an early end or a death ends the wait."""
        arguments = client, barrier_id, timeout_in_ms, process_ids
        everyone = range(jax.process_count())
        processes = tuple(sorted(map(int, process_ids))) if process_ids else tuple(everyone)
        if agreement.rank not in processes:  # an error of JAX's
            wait(*arguments)
            return
        name, seconds = f"wait_at_barrier({str(barrier_id)!r})", timeout_in_ms / 1000
        program = Program(processes, hash_of(name), name, meets_all=True)
        late = jax.errors.JaxRuntimeError(
            f"DEADLINE_EXCEEDED: Barrier timed out. Id: {barrier_id}. Not all of processes "
            f"{', '.join(map(str, processes))} were there within {seconds:g} s."
        )
        with agreement.limited(seconds, late):
            agreement.launch(program, wait, *arguments)

    def in_steps(get: Any) -> Any:
        """A function that waits for a value. A stop ends the wait."""

        def get_in_steps(client: Any, key: str, timeout_in_ms: int) -> Any:
            deadline = time.monotonic() + timeout_in_ms / 1000
            while True:
                left_ms = int(1000 * (deadline - time.monotonic()))
                try:
                    return get(client, key, max(1, min(left_ms, LOOK_MS)))
                except RuntimeError as error:
                    if "DEADLINE_EXCEEDED" not in str(error) or left_ms <= LOOK_MS:
                        raise

        return get_in_steps

    gets = [(name, in_steps(getattr(its, name))) for name in GETS]
    for name, replacement in (("wait_at_barrier", wait_at_barrier), *gets):
        setattr(its, name, replacement)


# --------------------------------------------------------------------------- scripts


def fit_in(say: Callable[[str], None]) -> None:
    """Make a script's calls for its own world fit in with this one.

    ``jax.distributed.initialize`` and ``shutdown`` return with one line: the cluster does both. An
    ``initialize`` for another world is an error. JAX refuses any ``jax_num_cpu_devices`` once
    there are devices (jax 0.10.2 and 0.12). Here it may be set to the number that this process or
    the cluster has. All of this is public.
    """
    import jax

    n, rank = jax.process_count(), jax.process_index()
    here = f"this is process {rank} of {n}"
    config: Any = type(jax.config)
    public: Any = jax.distributed
    original = config.update

    @functools.wraps(jax.distributed.initialize)
    def initialize(
        where: Any = None, num_processes: Any = None, process_id: Any = None, *_: Any, **__: Any
    ) -> None:
        if num_processes not in (None, n) or process_id not in (None, rank):
            raise RuntimeError(
                f"jaxcluster has initialized JAX: {here}, and the call asks for num_processes="
                f"{num_processes}, process_id={process_id}. Leave both out, or start that many "
                "ranks with -n."
            )
        say(f"jaxcluster has initialized JAX already: {here}.")

    @functools.wraps(jax.distributed.shutdown)
    def shutdown() -> None:
        say("jax.distributed.shutdown() does nothing here: the cluster's end shuts JAX down.")

    @functools.wraps(original)
    def update(self: Any, name: str, val: Any) -> None:
        is_cpu = name == "jax_num_cpu_devices" and jax.default_backend() == "cpu"
        there = (jax.local_device_count(), jax.device_count()) if is_cpu else ()
        if type(val) is not int or val not in there:
            original(self, name, val)

    public.initialize, public.shutdown = initialize, shutdown
    config.update = update


def job() -> tuple[Any, int, int, str]:
    """This process's place in a job: JAX's client, its number, how many there are, the address.

    Raises:
      ImportError, AttributeError: the private name has moved.
    """
    from jax._src import distributed

    state = distributed.global_state
    return state.client, state.process_id, state.num_processes, state.coordinator_address or ""


def leave_without_others() -> None:
    """At the end of this process don't wait for the others, some of which have failed.

    JAX's ``shutdown`` waits for all of them. Its service in process 0 aborts the process if it is
    destroyed before the client, so neither is.
    """
    from jax._src import distributed

    state = distributed.global_state
    for kept in (state.client, state.service):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))
    state.shutdown = lambda: None  # type: ignore[method-assign]
