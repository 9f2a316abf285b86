"""Every launch of a program that spans processes reaches the journal: JAX's private call paths."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from jaxcluster.engine.private import compilations, programs

if TYPE_CHECKING:
    from jaxcluster.engine.counted import Program
    from jaxcluster.engine.journal import Journal


_recording: Any = None


def record_launches(journal: Journal) -> bool:
    """Have ``journal`` hear of every launch of a program that spans processes.

    Two routes are taken (jax 0.10.2 and 0.12):

    - the first call of each program, programs with effects, ahead-of-time compiled ones, those
      without an array that spans their devices among their inputs, and on a CPU process with one
      device those that call Python go through ``pxla.ExecuteReplicated``. A subclass of it has an
      executable that the journal launches. All that JAX checks and converts comes before that;
    - every other call keeps JAX's C++ fast path. Right before it launches it asks the last array's
      layout for XLA's form of it, if the program has one for that input: so the journal hears of
      the launch *before* it. Right after it the first node of the output tree is made, by C alone,
      which confirms the launch. On a CPU process with one device a launch may run the program's
      collectives, and end in their error: so nothing of JAX's Python may come after the layout
      there, and what is begun and not confirmed has broken off.

    Programs of one process take neither and cost nothing. Must come before any program is
    compiled.

    Returns:
      False where a private name has moved: then nothing is recorded.
    """
    global _recording
    if _recording is not None:
        return _recording is journal
    try:
        from jax._src import layout, pjit, stages, tree_util
        from jax._src.array import ArrayImpl
        from jax._src.interpreters import pxla
        from jax._src.lib import guard_lib

        original_build: Any = pxla.UnloadedMeshExecutable.build_unsafe_call
        original_fastpath = pjit._get_fastpath_data
        original_cpp_call = pxla.MeshExecutable.create_cpp_call
        original_compile: Any = pxla.MeshComputation.compile
        original_guard = guard_lib.update_thread_guard_global_state
        register: Any = tree_util.dispatch_registry.register_node
        slots = [s for s in pxla.ExecuteReplicated.__slots__ if s != "__weakref__"]
    except (ImportError, AttributeError):
        return False

    class CountedExecutable:
        """What ``RecordedExecute`` launches: XLA's executable, each launch of which is counted."""

        __slots__ = ("executable", "is_new", "owner")
        is_new: bool  # it has not been launched

        def __init__(self, executable: Any, owner: RecordedExecute) -> None:
            self.executable = executable
            self.owner = owner
            self.is_new = True

        def execute_sharded(self, arguments: Any, with_tokens: bool = False) -> Any:
            program = self.owner.program
            if journal.before_launch is not None:  # may wait for long, and be interrupted
                journal.before_launch(program)
            elif self.is_new and journal.first is not None:
                journal.first.before_launch(program)
            refused = functools.partial(self.is_refused, arguments)
            launch = self.executable.execute_sharded
            results = journal.launch(program, refused, launch, arguments, with_tokens)
            self.is_new = False
            if journal.interrupted:
                journal.raise_if_interrupted()
            return results

        def is_refused(self, arguments: Any, error: BaseException) -> bool:
            refused = _launched_nothing(arguments, error)
            if refused and self.is_new and journal.first is not None:
                journal.first.taken_back()
            self.is_new &= refused
            return refused

    class RecordedExecute(pxla.ExecuteReplicated):
        __slots__ = ("program",)
        program: Program

    class Confirming:
        __slots__ = ("confirmations",)

        def __init__(self, program: Program) -> None:
            self.confirmations = journal.confirmations(program)

    class Confirmed:
        __slots__ = ("first", "value")

        def __init__(self, program: Program, value: Any) -> None:
            self.first = Confirming(program)
            self.value = value

    class AskedLayout(layout.Layout):
        """An input's own layout, which says when it is looked at."""

    # Nodes are made in the order of the leaves, inner ones first, so this one before the value's.
    register(Confirming, lambda node: ((), node.confirmations), next)
    value_of = operator.itemgetter(1)
    register(Confirmed, lambda node: ((node.first, node.value), value_of), operator.call)

    def asked(program: Program, own: Any, xla_layout: Any) -> Any:
        """A layout like ``own``: when JAX asks for XLA's form of it, it is about to launch."""
        asked: Any = AskedLayout(own.major_to_minor, own.tiling, own.sub_byte_element_size_in_bits)
        preparations = journal.preparations(program, xla_layout)
        asked._to_xla_layout = functools.partial(next, preparations)  # of a dtype, unused
        return asked

    def heard(data: Any, executable: Any, arguments: Sequence[Any]) -> Any:
        """A fast path that the journal hears of, or None where no input's layout is asked for."""
        kept = [a for a, keep in zip(arguments, data.kept_var_bitvec, strict=True) if keep]
        layouts = list(data.in_device_local_layouts)
        program = executable.unsafe_call.program
        spans = len(program.executable.device_list)
        spread = [
            at
            for at, array in enumerate(kept)
            if type(array) is ArrayImpl and array.sharding.num_devices == spans
        ]
        # The last, or the last that was not donated: it knows its layout.
        for at in sorted(spread, key=lambda at: (kept[at].is_deleted(), -at)):
            # What has no layout asked for, and is not spread, is converted in Python.
            is_last = all(b in spread and layouts[b] is None for b in range(at + 1, len(kept)))
            if program.may_break_off and not is_last:
                return None
            own = layouts[at] or kept[at].format.layout or executable._xla_in_layouts[at]
            layouts[at] = asked(program, own, own._to_xla_layout(kept[at].dtype))
            return data._replace(in_device_local_layouts=layouts)
        return None

    def build_unsafe_call(self: Any) -> Any:
        call = original_build(self)
        if self.device_list is None or self.device_list.is_fully_addressable:
            return call
        recorded = RecordedExecute.__new__(RecordedExecute)
        for slot in slots:
            setattr(recorded, slot, getattr(call, slot))
        recorded.xla_executable = CountedExecutable(call.xla_executable, recorded)
        recorded.program = programs.describe_program(self, _runs_inline(call))
        for callback in self.host_callbacks:
            if isinstance(callback, _Callback):
                callback.program = recorded.program
        return recorded

    def get_fastpath_data(executable: Any, out: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        data = original_fastpath(executable, out, inputs, *args, **kwargs)
        if data is None or not isinstance(executable.unsafe_call, RecordedExecute):
            return data
        call = executable.unsafe_call
        # What runs inline may be interrupted where it calls Python: see ``Journal.is_launching``.
        if journal.before_launch is not None or (call.program.calls_python and call.program.inline):
            return None
        data = heard(data, executable, [*data.const_args, *inputs])
        if data is None:
            return None
        _, outer = tree_util.dispatch_registry.flatten(Confirmed(call.program, 0), None)
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
        devices = kwargs.get("device_assignment") or self._device_list or ()
        if len({d.process_index for d in devices}) > 1:
            journal.check_own(self._name)
            if callbacks := self.compile_args.get("host_callbacks"):
                self.compile_args["host_callbacks"] = [_Callback.of(c, journal) for c in callbacks]
        source = None
        with contextlib.ExitStack() as announced:
            # Ahead of time it is compiled, and launched later or never.
            is_launched = sys._getframe(1).f_globals.get("__name__") != stages.__name__
            backend = self.compile_args.get("backend")
            if compilations.is_made_together(backend, devices):
                source = programs.source_of(self, compiler_options)
                if is_launched and backend.process_index() in {d.process_index for d in devices}:
                    program = programs.uncompiled(self, source, devices)
                    announced.enter_context(journal.announcing(journal.upcoming(program)))
            executable = original_compile(self, compiler_options, **kwargs)
        programs.sign(executable, self, compiler_options, source)
        return executable

    def update_thread_guard_global_state(is_set: bool) -> None:
        original_guard(is_set)
        journal.set_guard(is_set)

    for owner, name, replacement in (
        (pxla.UnloadedMeshExecutable, "build_unsafe_call", build_unsafe_call),
        (pxla.MeshExecutable, "create_cpp_call", create_cpp_call),
        (pxla.MeshComputation, "compile", compile),
        (pjit, "_get_fastpath_data", get_fastpath_data),
        (guard_lib, "update_thread_guard_global_state", update_thread_guard_global_state),
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
                self.journal.broke_off(self.program, why, for_good=False)
            raise


# What XLA's launch says where it has looked at its inputs, or at the thread, and begun nothing (the
# second is ``jax.thread_guard``'s; jax 0.10.2 and 0.12).
_REFUSALS = ("INVALID_ARGUMENT", "the thread guard was set")


def _launched_nothing(arguments: Any, error: BaseException) -> bool:
    """Whether XLA refused a launch on all of this process's devices alike, by what it was given."""
    if any(argument.is_deleted() for argument in arguments):
        return True
    return any(told in str(error) for told in _REFUSALS)


def _runs_inline(call: Any) -> bool:
    """Whether a launch may block until it is done: a CPU process with one device runs it inline.

    It does with a program that XLA takes for a cheap one (jaxlib 0.10.2 and 0.12); others run on a
    thread of XLA's, as where there are several devices.
    """
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
