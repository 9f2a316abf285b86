"""Every launch of a program that spans processes is announced first, with what it is given."""

from __future__ import annotations

import copy
import functools
import operator
import sys
from typing import TYPE_CHECKING, Any

from jaxcluster.agreement.client import Agreement
from jaxcluster.agreement.messages import Program
from jaxcluster.rank.private import needs_names, programs

if TYPE_CHECKING:  # it imports jax
    from jaxcluster.rank.given import Given

MAKERS = (
    "make_array_from_callback",
    "make_array_from_process_local_data",
    "make_array_from_single_device_arrays",
)
SWITCH_S = 0.0005
NOT_LAST = None, None  # of the inputs of the fast path
_is_agreed = False


def is_agreed() -> bool:
    """Whether launches of this process are agreed on already."""
    return _is_agreed


def agree_on_launches(agreement: Agreement, given: Given) -> bool:
    """Have this process's launches be agreed on. The main thread, before any program is compiled.

    Returns:
      False if this jax has moved a private name: launches are not checked.
    """
    global _is_agreed
    if not announce_launches(agreement):
        return False
    _is_agreed = True
    hear_host_values(given)
    agreement.watch_threads()
    agreement.guard_signals()
    # Beside a busy thread, such as a data loader's, the wait for the GIL would take longer than the
    # agreement. This makes it shorter.
    sys.setswitchinterval(SWITCH_S)
    return True


@needs_names(
    "launches", "launches are not checked: a program that ranks launch differently hangs them"
)
def announce_launches(agreement: Agreement) -> None:
    """Have ``agreement`` asked before each launch of a program that spans processes.

    Two routes are taken (jax 0.10.2 and 0.12):

    - ``ExecuteReplicated`` runs first calls, programs with effects, those without inputs, and
      ahead-of-time compiled ones. It is given an executable that asks. All that JAX checks and
      converts comes before;
    - every other call keeps JAX's C++ fast path. Right before a launch, this path asks the last
      input's layout for XLA's form, or has Python convert an input that does not span the devices.
      Right after the launch, C alone makes the first node of the output tree, which confirms it.

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
    original_shard: Any = pxla.shard_args
    call_class: Any = pxla.ExecuteReplicated
    # A copy of a layout gets another way to XLA's form.
    _ = call_class.xla_executable, vars(layout.Layout(())), layout.Layout._to_xla_layout
    if original_shard.__name__ not in pxla.cc_shard_arg.__code__.co_names:
        raise AttributeError(original_shard.__name__)

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
        """The layout that JAX asks for before an executable is launched; None for others."""
        asking = getattr(executable.unsafe_call, "xla_executable", None)
        return asking.program if isinstance(asking, AskingExecutable) else None

    class Confirming:
        """A node of an output tree that confirms the launch when it is made."""

    class Confirmed:
        """A node in front of an output tree, which has that one before the tree."""

    # Nodes are made in the order of the leaves, inner ones first.
    value_of = operator.itemgetter(1)
    register(Confirming, lambda node: ((), agreement.confirmations()), next)
    register(Confirmed, lambda node: ((Confirming(), 0), value_of), operator.call)

    def build_unsafe_call(self: Any) -> Any:
        call = original_build(self)
        if self.device_list is not None and not self.device_list.is_fully_addressable:
            program = programs.describe(self)
            if agreement.rank in program.processes:
                call.xla_executable = AskingExecutable(call.xla_executable, program)
        return call

    def get_fastpath_data(executable: Any, out: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The fast path that calls Python right before the launch, or None if there is none."""
        data = original_fastpath(executable, out, inputs, *args, **kwargs)
        if data is None or (program := program_of(executable)) is None:
            return data
        arguments = zip([*data.const_args, *inputs], data.kept_var_bitvec, strict=True)
        kept = [argument for argument, is_kept in arguments if is_kept]
        if not kept:
            return None
        *others, own = data.in_device_local_layouts
        # As C++ sees it: of a key array, its numbers.
        last, known = tree_util.dispatch_registry.flatten(kept[-1], None)[0][-1], own
        is_array = type(last) is ArrayImpl
        if known is None and is_array and not last.is_deleted():
            known = last.format.layout
        if (known := known or executable._xla_in_layouts[-1]) is None:  # this runtime tells none
            return None
        asked: Any = copy.copy(known)
        spans = len(executable._unloaded_executable.device_list)
        if is_array and last.sharding.num_devices == spans:
            preparations = agreement.preparations(program, known._to_xla_layout(last.dtype))
            asked._to_xla_layout = functools.partial(next, preparations)  # of a dtype, unused
        else:
            asked.converted = own, agreement.preparations(program, None)
        _, outer = tree_util.dispatch_registry.flatten(Confirmed(), None)
        # Composed, not unflattened and flattened again: key arrays and many users' classes can't be
        # made of placeholders.
        out_pytree_def = outer.compose(data.out_pytree_def)
        layouts = [*others, asked]
        return data._replace(in_device_local_layouts=layouts, out_pytree_def=out_pytree_def)

    # Under its old name, or cloudpickle takes it for a part of every jitted function.
    functools.update_wrapper(get_fastpath_data, original_fastpath)

    def shard_args(shardings: Any, layouts: Any, *args: Any, **kwargs: Any) -> Any:
        """Convert inputs; the fast path has its last one converted right before the launch."""
        own, preparations = getattr(layouts[0], "converted", NOT_LAST) if layouts else NOT_LAST
        if preparations is None:
            return original_shard(shardings, layouts, *args, **kwargs)
        arrays = original_shard(shardings, [own], *args, **kwargs)
        next(preparations)
        return arrays

    agreement.converts = shard_args.__code__

    def create_cpp_call(self: Any, params: Any) -> Any:
        return None if program_of(self) is not None else original_cpp_call(self, params)

    def compile(self: Any, compiler_options: Any = None, **kwargs: Any) -> Any:
        devices = kwargs.get("device_assignment") or self._device_list or ()
        processes = programs.processes_of(devices)
        if len(processes) > 1:
            program = programs.sign(self, compiler_options, processes)
            waits = programs.is_made_together(self.compile_args.get("backend"), devices)
            # Ahead of time it is compiled, and launched later or never.
            is_launched = sys._getframe(1).f_globals.get("__name__") != stages.__name__
            if waits and is_launched and agreement.rank in processes:
                agreement.launch(program, bool)
        return original_compile(self, compiler_options, **kwargs)

    for owner, name, replacement in (
        (pxla.UnloadedMeshExecutable, "build_unsafe_call", build_unsafe_call),
        (pxla.MeshExecutable, "create_cpp_call", create_cpp_call),
        (pxla.MeshComputation, "compile", compile),
        (pjit, "_get_fastpath_data", get_fastpath_data),
        (pxla, "shard_args", shard_args),
    ):
        setattr(owner, name, replacement)


@needs_names(
    "host values",
    "values that should be equal on all ranks are compared only where arrays are pulled",
)
def hear_host_values(given: Given) -> None:
    """Report to ``given`` the values that become arrays of several processes (jax 0.9.1 to 0.12).

    An argument may be no array on all of a program's devices. JAX gives it to
    ``pxla.shard_arg_handlers``, on its fast path too.
    """
    import jax
    import numpy as np
    from jax._src import array as jax_array
    from jax._src import literals
    from jax._src.interpreters import pxla

    handlers: Any = pxla.shard_arg_handlers
    # JAX turns Python's own numbers into numpy arrays. jax 0.9 turns all numpy arrays into its own
    # type, which is none of numpy's.
    arrays = jax_array.ArrayImpl, literals.TypedNdArray, np.ndarray, np.generic
    kinds = *arrays, *literals.typed_scalar_types
    makers = {name: getattr(jax_array, name) for name in MAKERS}

    def shard(handle: Any, values: Any, shardings: Any, *args: Any) -> Any:
        arrays = handle(values, shardings, *args)
        for value, sharding in zip(values, shardings, strict=False):
            is_local = getattr(value, "is_fully_addressable", True)
            if is_local and not sharding.is_fully_addressable:
                given.add(value, sharding)
        return arrays

    def telling(make: Any) -> Any:
        # Under its own name: by that cloudpickle finds it, and takes no part of it along.
        @functools.wraps(make)
        def make_and_tell(*args: Any, **kwargs: Any) -> Any:
            made = make(*args, **kwargs)
            for array in jax.tree.leaves(made):  # one array, or those of a pytree
                given.made(array)
            return made

        return make_and_tell

    for kind, handle in list(handlers.items()):
        if issubclass(kind, kinds):
            handlers[kind] = functools.partial(shard, handle)
    for name, make in makers.items():
        told = telling(make)
        for module in (jax, jax_array):
            setattr(module, name, told)
