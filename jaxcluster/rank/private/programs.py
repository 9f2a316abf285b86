"""Programs: what tells them apart, equal on all processes."""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from typing import Any

from jaxcluster.agreement.messages import Program

_SIGNED = "jaxcluster: "
# Custom calls whose text holds an address in the process that lowered them.
ADDRESSED = "CustomSPMDPartitioning", "InspectSharding"
_CALLING = re.compile(rf"custom_call @(?:(?:{'|'.join(ADDRESSED)})\b|[^\s(]*callback)")
_COLLECTIVE = re.compile(
    r"\s(all-gather|all-reduce|all-to-all|collective-broadcast|collective-permute"
    r"|ragged-all-to-all|reduce-scatter)(-start)?\("
)


def describe(executable: Any) -> Program:
    """The identity of a compiled program, with which its launches are announced.

    It is made of what was compiled (see ``sign``), as compilers may make two programs of one. On
    other platforms than CPU each process tunes its kernels by its own timings.
    """
    text = _hlo_text(executable.xla_executable)
    source = next((one for one in executable.keepalive or () if _is_signature(one)), None)
    if source is None:  # deserialized, and not compiled by a rank
        on_cpu = executable.backend.platform == "cpu"
        source = text if on_cpu else repr(_COLLECTIVE.findall(text))
    devices = [d.id for d in executable.device_list]
    inputs = _signature(executable.input_avals)
    fingerprint = hash_of(repr((executable.name, devices, inputs, source))) or 1
    is_collective = not text or _COLLECTIVE.search(text) is not None  # it may be, where unknown
    processes = processes_of(executable.device_list)
    return Program(processes, fingerprint, _readable(executable.name), inputs, is_collective)


def sign(computation: Any, compiler_options: Any, processes: tuple[int, ...]) -> Program:
    """The announcement of a program that is to be compiled: its text and its options.

    Its executable has that where it has what it needs to stay alive. JAX never looks there, and
    serializes it with the executable.
    """
    options = dict(computation._compiler_options_kvs) | dict(compiler_options or {})
    # A process's output folders and measurements are its own.
    common = {k: v for k, v in options.items() if "dump" not in k and "profile" not in k}
    try:
        lowered = of_lowered(computation._hlo)
    except (ImportError, AttributeError, TypeError, ValueError, RuntimeError):
        lowered = b""  # it has moved: names and types are left
    name, arguments = computation._name, computation.compile_args
    fingerprint = hash_of(repr((name, sorted(common.items(), key=str), lowered)))
    kept = [one for one in arguments.get("keepalive") or () if not _is_signature(one)]
    arguments["keepalive"] = [*kept, f"{_SIGNED}{fingerprint}"]
    inputs = _signature(arguments.get("global_in_avals", ()))
    return Program(processes, fingerprint, f"{_readable(name)}, to compile it", inputs)


def of_lowered(module: Any) -> bytes:
    """A digest of a lowered module (``jax.extend.mlir.ir.Module``), equal for equal programs.

    The compiler's result may differ between processes, and its text for fingerprints leaves
    constants out. Here they are in full. Constants that JAX passes as arguments are host values.
    The digest leaves out parts that differ between processes: source lines, names of results, and
    addresses of Python code that compilation calls.
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


def is_made_together(backend: Any, devices: Iterable[Any]) -> bool:
    """Whether processes may wait for each other where they compile a program for these devices.

    On GPU each process times a part of the kernels, and waits up to a day for the other parts
    (``xla_gpu_shard_autotuning``). If one host still has the program and another has not, the first
    one's ranks load it. The others then wait for parts that nobody times.
    """
    # If jax has no such name any more, nothing is announced.
    return getattr(backend, "platform", "cpu") != "cpu" and len(processes_of(devices)) > 1


def processes_of(devices: Iterable[Any]) -> tuple[int, ...]:
    """The processes that these devices belong to, in order."""
    return tuple(sorted({device.process_index for device in devices}))


def hash_of(text: str) -> int:
    """56 bits, equal on all processes."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=7).digest(), "little")


def _is_signature(kept_alive: Any) -> bool:
    return isinstance(kept_alive, str) and kept_alive.startswith(_SIGNED)


def _hlo_text(executable: Any) -> str:
    """A compiled program's text; "" if it can't be read."""
    try:
        return "".join(module.to_string() for module in executable.hlo_modules())
    except (AttributeError, RuntimeError):  # moved, or a platform that keeps no HLO
        return ""


def _signature(avals: Iterable[Any]) -> str:
    return ", ".join(aval.str_short() for aval in avals)


def _readable(name: str) -> str:
    """``jit(step)`` for XLA's ``jit_step``."""
    kind, _, rest = name.partition("_")
    return f"{kind}({rest})" if kind in ("jit", "pmap", "pjit") and rest else name
