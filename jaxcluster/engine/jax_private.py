"""Every private name of JAX that jaxcluster uses, each with what to do where it has moved.

``self_test`` names those that are missing, and ``WITHOUT`` says what that costs: ``%jaxcluster
doctor`` shows it, and a unit test fails. ``python -m jaxcluster.engine.jax_private`` prints what is
missing and its cost as JSON, for those who may not import jax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import io
import operator
import pickle
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from jaxcluster.engine.fingerprint import of_lowered

if TYPE_CHECKING:
    from jaxcluster.engine.journal import Journal, Program

# What each group of private names is for, and what happens where they have moved.
WITHOUT = {
    "gloo address": "CPU collectives use this host's name, which must lead to an address of it",
    "one slice": "jax.make_mesh refuses the CPU devices of several machines",
    "launch journal": "ranks that break lockstep are not found; hangs are told by stacks alone",
    "replay of launches": "ranks come back into lockstep by new processes, which takes longer",
    "saved variables": "restored scalars lose their weak type; classes must be registered again",
    "coordinator process": "rank 0 hosts JAX's coordinator, and its death ends all ranks",
    "coordination client": "there is no strict mode",
    "fast paths": "each switch of strict mode makes all programs compile again",
    "refused calls": "jax.extend.backend.clear_backends() leaves ranks that compute no more",
    "device_put hint": "nothing is said where device_put compares large arrays on all processes",
}

LARGE_NBYTES = 64 << 20  # from here on device_put's comparison takes a second or more

_gloo_original: Any = None
_recording: Any = None


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


def record_launches(journal: Journal) -> bool:
    """Have ``journal`` hear of every launch of a program that spans processes.

    JAX's C++ fast path calls no Python, so two routes are taken (jax 0.10.2 and 0.12):

    - the first call of each program, programs with effects, ahead-of-time compiled ones, and on a
      CPU process with one device all that may wait for others go through
      ``pxla.ExecuteReplicated``. A subclass of it has an executable that counts *before* it
      launches, since on one CPU device a launch may block until the others have made it too. All
      that JAX checks and converts comes before that, and where XLA refuses the launch the count is
      taken back;
    - every other call keeps the fast path (0.5 to 2.5 us more): its output tree begins with a node
      whose unflattening records, right *after* the launch and before any code of the user's own
      classes in that tree: an interrupt that came during the launch would be raised there,
      uncounted.

    Programs of one process take neither and cost nothing. Must come before any program is
    compiled.

    Returns:
      False where a private name has moved: then nothing is recorded.
    """
    global _recording
    if _recording is not None:
        return _recording is journal
    from jaxcluster.engine.journal import COUNTING

    try:
        from jax._src import pjit, tree_util
        from jax._src.interpreters import pxla

        original_build: Any = pxla.UnloadedMeshExecutable.build_unsafe_call
        original_fastpath = pjit._get_fastpath_data
        original_cpp_call = pxla.MeshExecutable.create_cpp_call
        original_compile: Any = pxla.MeshComputation.compile
        register: Any = tree_util.dispatch_registry.register_node
        slots = [s for s in pxla.ExecuteReplicated.__slots__ if s != "__weakref__"]
    except (ImportError, AttributeError):
        return False

    class CountedExecutable:
        """What ``RecordedExecute`` launches: XLA's executable, each launch of which is counted."""

        __slots__ = ("executable", "owner")

        def __init__(self, executable: Any, owner: RecordedExecute) -> None:
            self.executable = executable
            self.owner = owner

        def execute_sharded(self, arguments: Any, with_tokens: bool = False) -> Any:
            program = self.owner.program
            if journal.before_launch is not None:  # may wait for long, and be interrupted
                journal.before_launch(program)
            results = self.launch(program, arguments, with_tokens)
            if journal.interrupted:
                journal.raise_if_interrupted()
            return results

        def launch(self, program: Program, arguments: Any, with_tokens: bool) -> Any:
            count, value = journal.counts.get(program.processes, (0, 0))
            journal.launched(program)
            try:
                return self.executable.execute_sharded(arguments, with_tokens=with_tokens)
            except BaseException as error:
                if _launched_nothing(error, arguments):
                    journal.take_back(program, count, value)
                else:
                    why = f"by {type(error).__name__}"
                    journal.broke_off(program, why, for_good=program.collective, seq=count)
                raise

    COUNTING.add(CountedExecutable.launch.__code__)

    class RecordedExecute(pxla.ExecuteReplicated):
        __slots__ = ("program",)
        program: Program

    class Counted:
        __slots__ = ("program",)

        def __init__(self, program: Program) -> None:
            self.program = program

    class Recorded:
        __slots__ = ("first", "value")

        def __init__(self, program: Program, value: Any) -> None:
            self.first = Counted(program)
            self.value = value

    # Nodes are made in the order of the leaves, inner ones first, so this one before the value's.
    register(Counted, lambda node: ((), node.program), journal.launched)
    value_of = operator.itemgetter(1)  # no Python here: what counts is told by its frame
    register(Recorded, lambda node: ((node.first, node.value), value_of), operator.call)

    def build_unsafe_call(self: Any) -> Any:
        call = original_build(self)
        if self.device_list is None or self.device_list.is_fully_addressable:
            return call
        recorded = RecordedExecute.__new__(RecordedExecute)
        for slot in slots:
            setattr(recorded, slot, getattr(call, slot))
        recorded.xla_executable = CountedExecutable(call.xla_executable, recorded)
        recorded.program = describe_program(self)
        for callback in self.host_callbacks:
            if isinstance(callback, _Callback):
                callback.program = recorded.program
        return recorded

    def get_fastpath_data(executable: Any, *args: Any, **kwargs: Any) -> Any:
        data = original_fastpath(executable, *args, **kwargs)
        if data is None or not isinstance(executable.unsafe_call, RecordedExecute):
            return data
        call = executable.unsafe_call
        if journal.before_launch is not None or (call.program.waits and _runs_inline(call)):
            return None
        node = Recorded(call.program, 0)
        _, outer = tree_util.dispatch_registry.flatten(node, None)
        # Composed, not unflattened and flattened again: key arrays and many users' classes can't be
        # made of placeholders.
        return data._replace(out_pytree_def=outer.compose(data.out_pytree_def))

    # Under its old name, or cloudpickle takes it, and the journal with it, for a part of every
    # jitted function.
    functools.update_wrapper(get_fastpath_data, original_fastpath)

    def create_cpp_call(self: Any, params: Any) -> Any:
        if isinstance(self.unsafe_call, RecordedExecute):
            return None
        return original_cpp_call(self, params)

    def compile(self: Any, compiler_options: Any = None, **kwargs: Any) -> Any:
        if callbacks := self.compile_args.get("host_callbacks"):
            devices = kwargs.get("device_assignment") or self._device_list or ()
            if len({d.process_index for d in devices}) > 1:
                self.compile_args["host_callbacks"] = [_Callback.of(c, journal) for c in callbacks]
        executable = original_compile(self, compiler_options, **kwargs)
        _sign(executable, self, compiler_options)
        return executable

    for owner, name, replacement in (
        (pxla.UnloadedMeshExecutable, "build_unsafe_call", build_unsafe_call),
        (pxla.MeshExecutable, "create_cpp_call", create_cpp_call),
        (pxla.MeshComputation, "compile", compile),
        (pjit, "_get_fastpath_data", get_fastpath_data),
    ):
        setattr(owner, name, replacement)
    _recording = journal
    return True


class _Callback:
    """A Python function that a program calls while it runs; the journal hears where it raises.

    XLA then breaks the program off on that device, and the processes that wait for it in one of the
    program's collectives wait for ever.
    """

    __slots__ = ("call", "journal", "program")

    def __init__(self, call: Callable[..., Any], journal: Journal) -> None:
        self.call = call
        self.journal = journal
        self.program: Program | None = None

    @classmethod
    def of(cls, call: Any, journal: Journal) -> Any:
        return cls(call, journal) if callable(call) and not isinstance(call, cls) else call

    def __call__(self, *args: Any) -> Any:
        try:
            return self.call(*args)
        except BaseException as error:
            if self.program is not None:
                why = f"by {type(error).__name__} in a Python function that it calls"
                self.journal.broke_off(self.program, why, for_good=self.program.collective)
            raise


def _launched_nothing(error: BaseException, arguments: Any) -> bool:
    """Whether XLA refused a launch on all of this process's devices alike, by what it was given."""
    if any(argument.is_deleted() for argument in arguments):
        return True
    return "INVALID_ARGUMENT" in str(error)


def forget_fast_paths() -> None:
    """Have every jitted function take JAX's Python path once, which decides on its fast path again.

    What is compiled stays compiled (jax 0.10.2 and 0.12: the last three lines of
    ``jax.clear_caches``). Where the names have moved all of JAX's caches are cleared, and programs
    compile again.
    """
    try:
        from jax._src import pjit
        from jax._src.lib import _jax

        caches = [pjit._cpp_pjit_cache_fun_only, pjit._cpp_pjit_cache_explicit_attributes]
        clear_all = _jax.PjitFunctionCache.clear_all
    except (ImportError, AttributeError):
        import jax

        jax.clear_caches()
        return
    for cache in caches:
        cache.clear()
    clear_all()


def hint_at_device_put(tell: Callable[[str], None]) -> bool:
    """Tell once what ``jax.device_put`` of a large array onto several processes costs.

    It compares the copies of all processes by ``multihost_utils.assert_equal`` first, which sends
    the whole array to each of them (jax 0.10.2 and 0.12: ``dispatch._device_put_sharding_impl``,
    by a message that says so).

    Returns:
      False where the name has moved: then nothing is told.
    """
    from jax.experimental import multihost_utils

    original = getattr(multihost_utils, "assert_equal", None)
    if original is None:
        return False

    @functools.wraps(original)
    def assert_equal(in_tree: Any, fail_message: str = "") -> None:
        nonlocal tell
        nbytes = getattr(in_tree, "nbytes", 0)
        if nbytes >= LARGE_NBYTES and _OF_DEVICE_PUT in fail_message:
            tell(
                f"Hint: jax.device_put of {nbytes >> 20} MiB onto several processes sends the "
                "array to each of them, to compare it with their own. Where they agree anyway,\n"
                "jax.make_array_from_callback(x.shape, sharding, lambda index: x[index]) is many "
                "times faster."
            )
            tell = lambda line: None  # noqa: E731
        original(in_tree, fail_message)

    multihost_utils.assert_equal = assert_equal
    return True


_OF_DEVICE_PUT = "passed to device_put is not the same"


def _runs_inline(call: Any) -> bool:
    """Whether a launch blocks until it is done: a CPU process with one device runs it inline."""
    devices = call._local_devices
    return len(devices) == 1 and devices[0].platform == "cpu"


def describe_program(executable: Any) -> Program:
    """What the journal keeps of a compiled program."""
    from jaxcluster.engine.journal import Program

    hlo = _hlo_text(executable)
    processes = sorted({d.process_index for d in executable.device_list})
    fingerprint = _signature_of(executable)
    if fingerprint is None:  # deserialized, and not compiled by a rank
        fingerprint = _fingerprint(executable, hlo, b"")
    return Program(
        name=_readable(executable.name),
        fingerprint=fingerprint,
        processes=",".join(map(str, processes)),
        signature=_inputs(executable),
        executable=executable,
        waits=may_wait(hlo),
        collective=not hlo or bool(collectives_of(hlo)),
    )


# The fingerprint of a program is kept where its executable keeps what it needs to stay alive: JAX
# never looks there, and it is serialized with the executable.
_SIGNED = "jaxcluster: fingerprint"


def _sign(executable: Any, computation: Any, compiler_options: Any) -> None:
    """Give an executable that spans processes the fingerprint of what it was compiled from."""
    unloaded = getattr(executable, "_unloaded_executable", None)
    if unloaded is None or _signature_of(unloaded) is not None:
        return
    if unloaded.device_list is None or unloaded.device_list.is_fully_addressable:
        return
    options = dict(computation._compiler_options_kvs) | dict(compiler_options or {})
    # Where a process writes to and what it has measured are its own.
    common = {k: v for k, v in options.items() if "dump" not in k and "profile" not in k}
    try:
        lowered = of_lowered(computation._hlo, computation.const_args)
    except Exception:  # what is left is the compiled text, on all ranks alike
        lowered = b""
    source = lowered + repr(sorted(common.items(), key=str)).encode()
    fingerprint = _fingerprint(unloaded, _hlo_text(unloaded), source)
    unloaded.keepalive = [*(unloaded.keepalive or ()), (_SIGNED, fingerprint)]


def _signature_of(executable: Any) -> int | None:
    kept = executable.keepalive
    if kept and isinstance(kept[-1], tuple) and kept[-1][0] == _SIGNED:
        fingerprint: int = kept[-1][1]
        return fingerprint
    return None


def _inputs(executable: Any) -> str:
    return ", ".join(a.str_short() for a in executable.input_avals)


def _hlo_text(executable: Any) -> str:
    """A compiled program's text for fingerprints; "" where there is none to be had."""
    try:
        from jaxlib import _hlo  # type: ignore[attr-defined]

        options = _hlo.HloPrintOptions.fingerprint()
        modules = executable.xla_executable.hlo_modules()
        return "".join(module.to_string(options) for module in modules)
    except (ImportError, AttributeError, RuntimeError):  # moved, or a platform that keeps no HLO
        return ""


def _fingerprint(executable: Any, hlo: str, lowered: bytes) -> int:
    """What tells programs apart, equal on all processes that compiled the same one.

    XLA's own fingerprint is not: it covers the source lines, so the same program compiled at
    another line, which a branch on the rank does, has another (jaxlib 0.10.2 and 0.12). The text
    for fingerprints leaves them out, and most constants with them: these are in ``lowered``. It
    takes 0.1 % of the time that the compilation took.

    On other platforms than CPU each process tunes its kernels by its own timings, so even that text
    may differ. There the collectives in their order must do.
    """
    devices = [d.id for d in executable.device_list]
    outputs = [a.str_short() for a in executable.output_avals]
    inputs = [str(s) for s in executable.input_shardings]
    outside = repr((_inputs(executable), outputs, inputs))
    if executable.backend.platform != "cpu":
        hlo = repr(collectives_of(hlo))
    text = f"{executable.name} {devices} {outside} {hlo}".encode()
    digest = hashlib.blake2b(text + lowered, digest_size=7).digest()
    return int.from_bytes(digest, "little")


_COLLECTIVE = re.compile(
    r"(\S+) (all-reduce|all-gather|all-to-all|ragged-all-to-all|reduce-scatter|"
    r"collective-permute|collective-broadcast)(?:-start)?\("
)


def collectives_of(hlo: str) -> list[tuple[str, str]]:
    """The collectives of a program in its text's order: (shape, operation)."""
    return _COLLECTIVE.findall(hlo)


_WAITING = re.compile(
    r"(?<= )(?:all-|ragged-|reduce-scatter|collective-|send|recv|infeed|outfeed|custom-call|async-)"
)


def may_wait(hlo: str) -> bool:
    """Whether a program may wait for other processes, or for what can't be told from its text."""
    return not hlo or _WAITING.search(hlo) is not None


def _readable(name: str) -> str:
    """``jit(step)`` for XLA's ``jit_step``."""
    kind, _, rest = name.partition("_")
    return f"{kind}({rest})" if kind in ("jit", "pmap", "pjit") and rest else name


def export_program(executable: Any) -> bytes:
    """A compiled program as bytes that ``load_program`` takes on another rank.

    By the pickler behind ``jax.experimental.serialize_executable`` (jax 0.10.2 and 0.12), which
    has no public way to serialize a program without the call that compiled it. Needs no main
    thread. A pickle: load it only where the ranks are trusted, which they are, being one program.

    Raises:
      NotImplementedError: the private names have moved.
      Exception: whatever pickling the program raises.
    """
    try:
        from jax.experimental.serialize_executable import _JaxPjrtPickler

        # What the program closes over is replaced by zeros when it is run there.
        slim = dataclasses.replace(executable, all_args_info=None, pgle_profiler=None, mut=None)
        devices = [d.id for d in executable.device_list]
    except (ImportError, AttributeError, TypeError) as error:
        raise NotImplementedError(f"this jax serializes programs in another way: {error}") from None
    file = io.BytesIO()
    pickle.dump(devices, file)
    _JaxPjrtPickler(file).dump(slim)
    return file.getvalue()


def load_program(payload: bytes | memoryview) -> Any:
    """The executable that ``export_program`` made bytes of, on this rank's devices.

    Raises:
      NotImplementedError: the private names have moved.
    """
    import jax

    try:
        from jax.experimental.serialize_executable import _JaxPjrtUnpickler
    except ImportError as error:
        raise NotImplementedError(f"this jax serializes programs in another way: {error}") from None
    file = io.BytesIO(payload)
    ids = pickle.load(file)
    by_id = {d.id: d for d in jax.devices()}
    devices = [by_id[i] for i in ids]
    return _JaxPjrtUnpickler(file, jax.local_devices()[0].client, devices).load()


def compiled_text(executable: Any) -> str:
    """What was compiled, as ``replayable`` reads it; "" where there is none to be had.

    Of one that came as bytes too (jax 0.10.2 and 0.12).
    """
    try:
        return "\n".join(m.to_string() for m in executable.xla_executable.hlo_modules())
    except (AttributeError, RuntimeError):  # moved, or a platform that keeps no HLO
        return ""


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


_COMMUNICATORS = "cpu:gloo/"


def calls_python(executable: Any) -> bool:
    """Whether a program calls back into Python or orders its effects (debug.print, io_callback)."""
    signed = _signature_of(executable) is not None
    return bool(
        executable.host_callbacks
        or len(executable.keepalive or ()) > signed
        or executable.ordered_effects
        or executable.unordered_effects
    )


def launch_with_zeros(program: Program, executable: Any) -> list[Any]:
    """Launch a program with zeros for all its inputs; it counts as a launch of ``program``.

    The launch goes through the same recorded call as the user's own, so the journal's count and
    hash move exactly as on the ranks that launched it themselves. The fingerprint is taken from
    ``program``: XLA gives a deserialized executable another one.
    """
    call = executable.build_unsafe_call()
    call.program = program
    inputs = [
        _zeros(aval, sharding)
        for aval, sharding in zip(executable.input_avals, executable.input_shardings, strict=True)
    ]
    # The avals are those of the inputs that are used, and of the refs that the program closes over.
    call.kept_var_idx = set(range(len(inputs)))
    call.mut = None
    call.pgle_profiler = None
    outputs: list[Any] = call(*inputs)
    return outputs


def _zeros(aval: Any, sharding: Any) -> Any:
    """A jax.Array of zeros, made of local shards alone: nothing is launched."""
    import jax

    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        impl = aval.dtype._impl
        bits = _zero_bits((*aval.shape, *impl.key_shape), np.dtype("uint32"), sharding)
        return jax.random.wrap_key_data(bits, impl=impl)
    return _zero_bits(aval.shape, aval.dtype, sharding)


def _zero_bits(shape: Any, dtype: Any, sharding: Any) -> Any:
    import jax

    shard: np.ndarray[Any, Any] = np.zeros(sharding.shard_shape(shape), dtype)
    return jax.make_array_from_callback(shape, sharding, lambda index: shard)


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

        return (
            hasattr(_jax, "get_distributed_runtime_service")
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

    class NoService:
        def shutdown(self) -> None:
            """The service is not this process's to end."""

    original = _jax.get_distributed_runtime_service
    no_service: Any = lambda *args, **kwargs: NoService()  # noqa: E731
    _jax.get_distributed_runtime_service = no_service
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


def refuse_what_ends_ranks() -> None:
    """Have calls that cut this rank off from the others raise, and change nothing.

    ``jax.distributed.shutdown`` leaves a rank that can reach no new set of processes, and
    ``jax.extend.backend.clear_backends`` one that can't start its backend again: its topology
    stands in the coordinator's store already (jax 0.10.2 and 0.12). Where a name has moved, the
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


def uncommitted(values: np.ndarray[Any, Any], weak_type: bool) -> Any:
    """A jax.Array on the default device, which jit may move; weakly typed where that was so.

    ``jax.numpy.asarray`` makes weak types of Python scalars alone (jax 0.10.2 and 0.12 have it in
    ``lax_internal._convert_element_type``). Without that name the array is strongly typed.
    """
    import jax

    array = jax.numpy.asarray(values)
    if weak_type:
        try:
            from jax._src.lax.lax import _convert_element_type

            array = _convert_element_type(array, array.dtype, weak_type=True)
        except (ImportError, TypeError):
            pass
    return array


def pytree_functions(cls: type) -> tuple[Any, Any] | None:
    """(flatten, unflatten) of a class that is registered as a pytree node; None for others.

    JAX has no public way to ask (jax 0.10.2 and 0.12: ``tree_util._registry``). Without it a
    restored class that a cell defines must be registered again by that cell.
    """
    try:
        from jax._src.tree_util import _registry

        entry = _registry.get(cls)
        return None if entry is None else (entry.to_iter, entry.from_iter)
    except (ImportError, AttributeError):
        return None


def self_test() -> dict[str, bool]:
    """Which private names are where this module expects them. Starts no backend."""
    found = {}
    try:
        from jax._src import xla_bridge
        from jax._src.lib import _jax

        found["gloo address"] = (
            hasattr(_jax, "make_gloo_tcp_collectives") and getattr(xla_bridge, "_jax", None) is _jax
        )
    except ImportError:
        found["gloo address"] = False
    try:
        from jax._src import sharding_impls
        from jax._src.lib import _jax

        found["one slice"] = (
            hasattr(_jax.Device, "__getattr__")
            and "slice_index" in sharding_impls.make_mesh.__code__.co_consts
        )
    except (ImportError, AttributeError):
        found["one slice"] = False
    try:
        from jax._src import pjit, tree_util
        from jax._src.interpreters import pxla
        from jaxlib import _hlo  # type: ignore[attr-defined]

        found["launch journal"] = (
            hasattr(_hlo.HloPrintOptions, "fingerprint")
            and hasattr(pxla.UnloadedMeshExecutable, "build_unsafe_call")
            and hasattr(pxla.MeshExecutable, "create_cpp_call")
            and hasattr(pxla.MeshComputation, "compile")
            and hasattr(pjit, "_get_fastpath_data")
            and hasattr(tree_util.dispatch_registry, "register_node")
        )
    except (ImportError, AttributeError):
        found["launch journal"] = False
    try:
        from jax._src.interpreters import pxla
        from jax.experimental import serialize_executable

        fields = {f.name for f in dataclasses.fields(pxla.UnloadedMeshExecutable)}
        found["replay of launches"] = (
            hasattr(serialize_executable, "_JaxPjrtPickler")
            and hasattr(serialize_executable, "_JaxPjrtUnpickler")
            and {"input_avals", "input_shardings", "device_list", "keepalive"} <= fields
        )
    except (ImportError, AttributeError, TypeError):
        found["replay of launches"] = False
    try:
        from jax._src import tree_util
        from jax._src.lax import lax

        found["saved variables"] = hasattr(tree_util, "_registry") and hasattr(
            lax, "_convert_element_type"
        )
    except ImportError:
        found["saved variables"] = False
    found["coordinator process"] = can_coordinate_elsewhere()
    try:
        from jax._src import distributed

        found["coordination client"] = hasattr(distributed.global_state, "client")
    except (ImportError, AttributeError):
        found["coordination client"] = False
    try:
        from jax._src import pjit
        from jax._src.lib import _jax

        found["fast paths"] = (
            hasattr(pjit, "_cpp_pjit_cache_fun_only")
            and hasattr(pjit, "_cpp_pjit_cache_explicit_attributes")
            and hasattr(_jax.PjitFunctionCache, "clear_all")
        )
    except (ImportError, AttributeError):
        found["fast paths"] = False
    try:
        from jax._src import dispatch
        from jax.experimental import multihost_utils

        constants = dispatch._device_put_sharding_impl.__code__.co_consts
        found["device_put hint"] = hasattr(multihost_utils, "assert_equal") and any(
            isinstance(c, str) and _OF_DEVICE_PUT in c for c in constants
        )
    except (ImportError, AttributeError):
        found["device_put hint"] = False
    try:
        from jax._src import api, distributed

        found["refused calls"] = hasattr(api, "clear_backends") and hasattr(distributed, "shutdown")
    except ImportError:
        found["refused calls"] = False
    return found


if __name__ == "__main__":
    import json

    import jax  # noqa: F401  # one that can't be imported is to be told as that

    print(json.dumps({what: WITHOUT[what] for what, found in self_test().items() if not found}))
