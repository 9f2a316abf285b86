"""Every private name of JAX that jaxcluster uses, each with what to do where it has moved.

``self_test`` names those that are missing; ``%jaxcluster doctor`` and a unit test show them.
"""

from __future__ import annotations

import functools
import hashlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxcluster.engine.journal import Journal, Program

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


def record_launches(journal: Journal) -> bool:
    """Have ``journal`` hear of every launch of a program that spans processes.

    JAX's C++ fast path calls no Python, so two routes are taken (jax 0.10.2 and 0.12):

    - the first call of each program, programs with effects, ahead-of-time compiled ones, and all
      of them on a CPU process with one device go through ``pxla.ExecuteReplicated``; a subclass of
      it records *before* the launch, which on one CPU device blocks inside it;
    - every other call keeps the fast path (2-3 us more): its output tree is wrapped in a node whose
      unflattening records, right *after* the (asynchronous) launch.

    Programs of one process take neither and cost nothing. Must come before any program is
    compiled.

    Returns:
      False where a private name has moved: then nothing is recorded.
    """
    try:
        from jax._src import pjit, tree_util
        from jax._src.interpreters import pxla

        original_build = pxla.UnloadedMeshExecutable.build_unsafe_call
        original_fastpath = pjit._get_fastpath_data
        original_cpp_call = pxla.MeshExecutable.create_cpp_call
        original_call = pxla.ExecuteReplicated.__call__
        register = tree_util.dispatch_registry.register_node
        slots = [s for s in pxla.ExecuteReplicated.__slots__ if s != "__weakref__"]
    except (ImportError, AttributeError):
        return False

    class RecordedExecute(pxla.ExecuteReplicated):  # type: ignore[misc]
        __slots__ = ("program",)

        def __call__(self, *args: Any) -> Any:
            journal.about_to_launch(self.program)
            return original_call(self, *args)

    class Recorded:
        __slots__ = ("program", "value")

        def __init__(self, program: Program, value: Any) -> None:
            self.program = program
            self.value = value

    def unflatten(program: Program, children: Any) -> Any:
        journal.launched(program)
        return children[0]

    register(Recorded, lambda node: ((node.value,), node.program), unflatten)

    def build_unsafe_call(self: Any) -> Any:
        call = original_build(self)
        if self.device_list is None or self.device_list.is_fully_addressable:
            return call
        recorded = RecordedExecute.__new__(RecordedExecute)
        for slot in slots:
            setattr(recorded, slot, getattr(call, slot))
        recorded.program = _describe(self)
        return recorded

    def get_fastpath_data(executable: Any, *args: Any, **kwargs: Any) -> Any:
        data = original_fastpath(executable, *args, **kwargs)
        if data is None or not isinstance(executable.unsafe_call, RecordedExecute):
            return data
        if journal.before_launch is not None or _runs_inline(executable.unsafe_call):
            return None
        tree = data.out_pytree_def
        value = tree_util.tree_unflatten(tree, [0] * tree.num_leaves)
        node = Recorded(executable.unsafe_call.program, value)
        _, wrapped = tree_util.dispatch_registry.flatten(node, None)
        return data._replace(out_pytree_def=wrapped)

    def create_cpp_call(self: Any, params: Any) -> Any:
        if isinstance(self.unsafe_call, RecordedExecute):
            return None
        return original_cpp_call(self, params)

    pxla.UnloadedMeshExecutable.build_unsafe_call = build_unsafe_call
    pxla.MeshExecutable.create_cpp_call = create_cpp_call
    pjit._get_fastpath_data = get_fastpath_data
    return True


def _runs_inline(call: Any) -> bool:
    """Whether a launch blocks until it is done: a CPU process with one device runs it inline."""
    devices = call._local_devices
    return len(devices) == 1 and devices[0].platform == "cpu"


def _describe(executable: Any) -> Program:
    from jaxcluster.engine.journal import Program

    mark = getattr(executable.xla_executable, "fingerprint", None)
    signature = ", ".join(a.str_short() for a in executable.input_avals)
    if not isinstance(mark, bytes):
        outputs = [a.str_short() for a in executable.output_avals]
        shardings = [str(s) for s in executable.input_shardings]
        mark = repr((executable.name, signature, outputs, shardings)).encode()
    digest = hashlib.blake2b(mark, digest_size=7).digest()
    processes = sorted({d.process_index for d in executable.device_list})
    return Program(
        name=_readable(executable.name),
        fingerprint=int.from_bytes(digest, "little"),
        processes=",".join(map(str, processes)),
        signature=signature,
        executable=executable,
    )


def _readable(name: str) -> str:
    """``jit(step)`` for XLA's ``jit_step``."""
    kind, _, rest = name.partition("_")
    return f"{kind}({rest})" if kind in ("jit", "pmap", "pjit") and rest else name


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
        from jax._src import pjit, tree_util
        from jax._src.interpreters import pxla

        found["launch journal"] = (
            hasattr(pxla.UnloadedMeshExecutable, "build_unsafe_call")
            and hasattr(pxla.MeshExecutable, "create_cpp_call")
            and hasattr(pjit, "_get_fastpath_data")
            and hasattr(tree_util.dispatch_registry, "register_node")
        )
    except (ImportError, AttributeError):
        found["launch journal"] = False
    return found
