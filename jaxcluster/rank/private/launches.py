"""Every launch of a program that spans processes is announced first: JAX's private call paths."""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Sequence
from typing import Any

from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.refusals import Program
from jaxcluster.rank.private import needs_names, programs


@needs_names(
    "launches", "launches are not checked: a program that ranks launch differently hangs them"
)
def announce_launches(agreement: Agreement) -> None:
    """Have ``agreement`` asked before each launch of a program that spans processes.

    Two routes are taken (jax 0.10.2 and 0.12):

    - the first call of each program, programs with effects, ahead-of-time compiled ones, and those
      whose last input is not an array that spans their devices go through ``ExecuteReplicated``. It
      is given an executable that asks. All that JAX checks and converts comes before;
    - every other call keeps JAX's C++ fast path. Right before it launches it asks the last input's
      layout for XLA's form of it, if the program has one for that input. Right after it the first
      node of the output tree is made, by C alone, which confirms the launch.

    Programs of one process take neither and cost nothing. Must come before any program is compiled.
    """
    from jax._src import layout, pjit, stages, tree_util
    from jax._src.array import ArrayImpl
    from jax._src.interpreters import pxla

    original_build: Any = pxla.UnloadedMeshExecutable.build_unsafe_call
    original_fastpath = pjit._get_fastpath_data
    original_cpp_call = pxla.MeshExecutable.create_cpp_call
    original_compile: Any = pxla.MeshComputation.compile
    register: Any = tree_util.dispatch_registry.register_node
    call_class: Any = pxla.ExecuteReplicated
    _ = programs.hlo_print_options().fingerprint, call_class.xla_executable
    _ = vars(layout.Layout(())), layout.Layout._to_xla_layout  # a copy gets one of its own

    class AskingExecutable:
        """XLA's executable, which is launched once that is agreed."""

        __slots__ = ("executable", "program")

        def __init__(self, executable: Any, program: Program) -> None:
            self.executable, self.program = executable, program

        def execute_sharded(self, arguments: Any, with_tokens: bool = False) -> Any:
            launch = self.executable.execute_sharded
            if any(argument.is_deleted() for argument in arguments):
                return launch(arguments, with_tokens)  # which XLA refuses
            return agreement.launch(self.program, launch, arguments, with_tokens)

    def program_of(executable: Any) -> Program | None:
        """What is asked for before an executable is launched; None for others."""
        asking = getattr(executable.unsafe_call, "xla_executable", None)
        return asking.program if isinstance(asking, AskingExecutable) else None

    class Confirming:
        __slots__ = ("confirmations",)

        def __init__(self) -> None:
            self.confirmations = agreement.confirmations()

    class Confirmed:
        __slots__ = ("first", "value")

        def __init__(self, value: Any) -> None:
            self.first, self.value = Confirming(), value

    # Nodes are made in the order of the leaves, inner ones first, so this one before the value's.
    register(Confirming, lambda node: ((), node.confirmations), next)
    value_of = operator.itemgetter(1)
    register(Confirmed, lambda node: ((node.first, node.value), value_of), operator.call)

    def asked(program: Program, own: Any, xla_layout: Any) -> Any:
        """A layout like ``own``: when JAX asks for XLA's form of it, it is about to launch."""
        asked = copy.copy(own)
        preparations = agreement.preparations(program, xla_layout)
        asked._to_xla_layout = functools.partial(next, preparations)  # of a dtype, unused
        return asked

    def asking(data: Any, program: Program, executable: Any, arguments: Sequence[Any]) -> Any:
        """A fast path that asks, or None where nothing of Python comes right before the launch."""
        kept = [a for a, keep in zip(arguments, data.kept_var_bitvec, strict=True) if keep]
        layouts = list(data.in_device_local_layouts)
        spans = len(executable._unloaded_executable.device_list)
        spread = [
            at
            for at, array in enumerate(kept)
            if type(array) is ArrayImpl and array.sharding.num_devices == spans
        ]
        # The last, or the last that was not donated: it knows its layout.
        for at in sorted(spread, key=lambda at: (kept[at].is_deleted(), -at)):
            # What is not spread, or has a layout of its own, is converted in Python.
            if any(b not in spread or layouts[b] is not None for b in range(at + 1, len(kept))):
                return None
            own = layouts[at]
            if own is None and not kept[at].is_deleted():
                own = kept[at].format.layout
            own = own or executable._xla_in_layouts[at]
            layouts[at] = asked(program, own, own._to_xla_layout(kept[at].dtype))
            return data._replace(in_device_local_layouts=layouts)
        return None

    def build_unsafe_call(self: Any) -> Any:
        call = original_build(self)
        if self.device_list is not None and not self.device_list.is_fully_addressable:
            program = programs.describe(self)
            if agreement.rank in program.processes:
                call.xla_executable = AskingExecutable(call.xla_executable, program)
        return call

    def get_fastpath_data(executable: Any, out: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        data = original_fastpath(executable, out, inputs, *args, **kwargs)
        if data is None or (program := program_of(executable)) is None:
            return data
        data = asking(data, program, executable, [*data.const_args, *inputs])
        if data is None:
            return None
        _, outer = tree_util.dispatch_registry.flatten(Confirmed(0), None)
        # Composed, not unflattened and flattened again: key arrays and many users' classes can't be
        # made of placeholders.
        return data._replace(out_pytree_def=outer.compose(data.out_pytree_def))

    # Under its old name, or cloudpickle takes it for a part of every jitted function.
    functools.update_wrapper(get_fastpath_data, original_fastpath)

    def create_cpp_call(self: Any, params: Any) -> Any:
        return None if program_of(self) is not None else original_cpp_call(self, params)

    def compile(self: Any, compiler_options: Any = None, **kwargs: Any) -> Any:
        devices = kwargs.get("device_assignment") or self._device_list or ()
        processes = tuple(sorted({d.process_index for d in devices}))
        if len(processes) < 2:
            return original_compile(self, compiler_options, **kwargs)
        source = programs.source_of(self, compiler_options)
        backend = self.compile_args.get("backend")
        # Ahead of time it is compiled, and launched later or never.
        is_launched = sys._getframe(1).f_globals.get("__name__") != stages.__name__
        waits = programs.is_made_together(backend, devices) and agreement.rank in processes
        if waits and is_launched:
            agreement.launch(programs.uncompiled(self, source, processes), bool)
        executable = original_compile(self, compiler_options, **kwargs)
        programs.sign(executable, source)
        return executable

    for owner, name, replacement in (
        (pxla.UnloadedMeshExecutable, "build_unsafe_call", build_unsafe_call),
        (pxla.MeshExecutable, "create_cpp_call", create_cpp_call),
        (pxla.MeshComputation, "compile", compile),
        (pjit, "_get_fastpath_data", get_fastpath_data),
    ):
        setattr(owner, name, replacement)
