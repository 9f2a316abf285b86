"""Programs: what tells them apart, equal on all processes."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from typing import Any

from jaxcluster.agreement.refusals import Program

# What was compiled is kept where an executable keeps what it needs to stay alive: JAX never looks
# there, and it is serialized with the executable.
_SIGNED = "jaxcluster: fingerprint"
# Custom calls whose text holds an address in the process that lowered them.
ADDRESSED = "CustomSPMDPartitioning", "InspectSharding"
_CALLING = re.compile(rf"custom_call @(?:(?:{'|'.join(ADDRESSED)})\b|[^\s(]*callback)")


def describe(executable: Any) -> Program:
    """What tells a compiled program from others, for whoever announces its launches.

    It is made of what was compiled, as compilers may make two programs of one: XLA's own
    fingerprint covers the source lines, so the same program at another line, which a branch on the
    rank does, has another (jaxlib 0.10.2 and 0.12). On other platforms than CPU each process tunes
    its kernels by its own timings.
    """
    text = _hlo_text(executable.xla_executable)
    source = _source_signed(executable)
    if source is None:  # deserialized, and not compiled by a rank
        on_cpu = executable.backend.platform == "cpu"
        source = hash_of(text if on_cpu else repr(_COLLECTIVE.findall(text)))
    devices = [d.id for d in executable.device_list]
    inputs = ", ".join(a.str_short() for a in executable.input_avals)
    outside = repr((executable.name, devices, inputs, source))
    processes = tuple(sorted({d.process_index for d in executable.device_list}))
    name = _readable(executable.name)
    is_collective = not text or _COLLECTIVE.search(text) is not None  # it may be, where unknown
    return Program(processes, hash_of(outside) or 1, name, inputs, is_collective)


def sign(executable: Any, source: int) -> None:
    """Note of an executable that spans processes of what it was compiled: see ``source_of``."""
    unloaded = getattr(executable, "_unloaded_executable", None)
    if unloaded is not None and _source_signed(unloaded) is None:
        unloaded.keepalive = [*(unloaded.keepalive or ()), (_SIGNED, source)]


def _source_signed(executable: Any) -> int | None:
    kept = executable.keepalive
    signed = kept and isinstance(kept[-1], tuple) and kept[-1][0] == _SIGNED
    return kept[-1][1] if signed else None


def source_of(computation: Any, compiler_options: Any) -> int:
    """What tells programs apart before they are compiled: what is compiled, and by what options."""
    options = dict(computation._compiler_options_kvs) | dict(compiler_options or {})
    # Where a process writes to and what it has measured are its own.
    common = {k: v for k, v in options.items() if "dump" not in k and "profile" not in k}
    try:
        lowered = of_lowered(computation._hlo)
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError):
        lowered = b""  # it has moved: names and types are left
    return hash_of(repr((computation._name, sorted(common.items(), key=str), lowered)))


def of_lowered(module: Any) -> bytes:
    """A digest of a lowered module (``jax.extend.mlir.ir.Module``), equal for equal programs.

    What the compiler makes of it may differ between processes, and its text for fingerprints leaves
    constants out. Here they are in full. Constants that JAX passes as arguments are host values.
    What is the process's own is left out: source lines, names of results, addresses in custom calls
    that stand for Python which runs while the program is compiled.
    """
    from jaxlib.mlir import ir, passmanager  # jax.extend.mlir's: that imports for 0.1 s

    def forget(operation: Any) -> Any:
        attributes = operation.attributes
        if "res_attrs" in attributes:
            results = [{a.name: a.attr for a in one} for one in attributes["res_attrs"]]
            kept = [{n: v for n, v in one.items() if n != "jax.result_info"} for one in results]
            attributes["res_attrs"] = ir.ArrayAttr.get([*map(ir.DictAttr.get, kept)])
        if "call_target_name" in attributes and attributes["call_target_name"].value in ADDRESSED:
            attributes["backend_config"] = ir.StringAttr.get("")
        return ir.WalkResult.ADVANCE

    file = io.BytesIO()
    with module.context:
        copy = module.operation.clone(ip=False)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(copy)
        copy.walk(forget)
        copy.write_bytecode(file)
    return hashlib.blake2b(file.getbuffer(), digest_size=16).digest()


def calls_into_process(module: Any) -> bool:
    """Whether a lowered module holds an address in this process, as far as its calls' names tell.

    Another process of the same fork server may have something else at the same address.
    """
    text = module.operation.get_asm(large_elements_limit=16, assume_verified=True)
    return _CALLING.search(text) is not None


def uncompiled(computation: Any, source: int, processes: tuple[int, ...]) -> Program:
    """What is announced of a program that is to be compiled, and then launched."""
    inputs = computation.compile_args.get("global_in_avals", ())
    signature = ", ".join(a.str_short() for a in inputs)
    name = f"{_readable(computation._name)}, to compile it"
    return Program(processes, source, name, signature)


def is_made_together(backend: Any, devices: Iterable[Any]) -> bool:
    """Whether processes may wait for each other where they compile a program for these devices.

    On GPU each of them times a part of its kernels, and waits up to a day for the other parts
    (``xla_gpu_shard_autotuning``): also for those of a rank that has loaded the program instead,
    where another host has it no longer.
    """
    # Where jax has no such name any more, nothing is announced.
    return (
        getattr(backend, "platform", "cpu") != "cpu" and len({d.process_index for d in devices}) > 1
    )


def _hlo_text(executable: Any) -> str:
    """A compiled program's text for fingerprints; "" if it can't be read."""
    try:
        options = hlo_print_options().fingerprint()
        return "".join(module.to_string(options) for module in executable.hlo_modules())
    except (ImportError, AttributeError, RuntimeError):  # moved, or a platform that keeps no HLO
        return ""


def hlo_print_options() -> Any:
    """XLA's class of options for a program's text; jaxlib 0.9.1 has it in another place.

    Raises:
      ImportError, AttributeError: the private name has moved.
    """
    try:
        from jaxlib import _hlo  # type: ignore[attr-defined]
    except ImportError:
        from jaxlib import _jax as _hlo
    return _hlo.HloPrintOptions


def hash_of(text: str) -> int:
    """56 bits, equal on all processes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


_COLLECTIVE = re.compile(
    r"\s(all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute"
    r"|ragged-all-to-all|reduce-scatter)(-start)?\("
)


def _readable(name: str) -> str:
    """``jit(step)`` for XLA's ``jit_step``."""
    kind, _, rest = name.partition("_")
    return f"{kind}({rest})" if kind in ("jit", "pmap", "pjit") and rest else name
