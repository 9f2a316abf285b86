"""Every launch of a program that spans processes reaches the journal: JAX's private call paths."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jaxcluster.engine.private import programs

if TYPE_CHECKING:
    from jaxcluster.engine.journal import Journal, Program


_recording: Any = None


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
        recorded.program = programs.describe_program(self)
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
        programs.sign(executable, self, compiler_options)
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


def _runs_inline(call: Any) -> bool:
    """Whether a launch blocks until it is done: a CPU process with one device runs it inline."""
    devices = call._local_devices
    return len(devices) == 1 and devices[0].platform == "cpu"


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
