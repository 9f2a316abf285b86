"""What tells programs apart: a digest of a program as it was lowered, before the compiler's passes.

What the compiler makes of a program may differ between processes that compile the same one (each
tunes its kernels by its own timings), and its text for fingerprints leaves constants out. What JAX
lowered has every constant in full, and nothing of the process that lowered it, but for what is
taken out here: source lines and names of variables, results and inner functions, and addresses of
Python objects.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

# Custom calls whose text holds an address in the process that lowered them. What they stand for is
# Python that runs while the program is compiled, which is not compared.
_ADDRESSED = {"CustomSPMDPartitioning", "InspectSharding"}


class Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def of_lowered(module: Any, constants: Iterable[Any] = ()) -> bytes:
    """A digest of a lowered module (``jax.extend.mlir.ir.Module``), equal for equal programs.

    Takes a few percent of the time that the compiler takes, and 5 ms for each MiB of constants.

    Args:
      constants: those that JAX passes as arguments instead of writing them into the module.
    """
    from jaxlib.mlir import ir, passmanager  # jax.extend.mlir's: that imports for 0.1 s

    digest = hashlib.blake2b(digest_size=16)
    with module.context:
        copy = module.operation.clone(ip=False)
        passmanager.PassManager.parse("builtin.module(strip-debuginfo)").run(copy.operation)
        _forget_names(ir, copy)
        # Not kept, but hashed: large constants are never held twice.
        copy.operation.write_bytecode(file=SimpleNamespace(write=digest.update))
    for constant in constants:
        _add_constant(digest, constant)
    return digest.digest()


def _forget_names(ir: Any, module: Any) -> None:
    """Take out what two functions that compute the same may have called in two ways."""
    inner: dict[str, str] = {}

    def number(name: str) -> str:
        return inner.setdefault(name, f"f{len(inner)}")

    for op in _operations(module.operation):
        attributes, name = op.attributes, op.name
        if name == "func.func":
            own = ir.StringAttr(attributes["sym_name"]).value
            if own != "main":
                attributes["sym_name"] = ir.StringAttr.get(number(own))
            if "res_attrs" in attributes:
                attributes["res_attrs"] = ir.ArrayAttr.get(
                    [_without(ir, each, "jax.result_info") for each in attributes["res_attrs"]]
                )
        elif name in ("func.call", "call"):
            callee = ir.FlatSymbolRefAttr(attributes["callee"]).value
            attributes["callee"] = ir.FlatSymbolRefAttr.get(number(callee))
        elif name == "stablehlo.custom_call":
            target = ir.StringAttr(attributes["call_target_name"]).value
            if target in _ADDRESSED and "backend_config" in attributes:
                del attributes["backend_config"]


def _operations(op: Any) -> Iterator[Any]:
    """An operation's own ones, all the way down, and then itself.

    MLIR's ``walk`` makes a RuntimeError of whatever is raised in its callback: of an interrupt and
    of a handler's TimeoutError too, which may come at any moment.
    """
    for region in op.regions:
        for block in region.blocks:
            for one in block.operations:
                yield from _operations(one.operation)
    yield op


def calls_into_process(module: Any) -> bool:
    """Whether a lowered module holds an address in this process, as far as its calls' names tell.

    Another process of the same fork server may have something else at the same address.
    """
    from jaxlib.mlir import ir

    for op in _operations(module.operation):
        if op.name == "stablehlo.custom_call":
            target = ir.StringAttr(op.attributes["call_target_name"]).value
            if target in _ADDRESSED or "callback" in target:
                return True
    return False


def _without(ir: Any, attributes: Any, name: str) -> Any:
    kept = {each.name: each.attr for each in ir.DictAttr(attributes)}
    kept.pop(name, None)
    return ir.DictAttr.get(kept)


def _add_constant(digest: Hash, constant: Any) -> None:
    """A constant's type, and its value where this process has all of it."""
    import jax

    aval = jax.typeof(constant)
    digest.update(aval.str_short().encode())
    if not getattr(constant, "is_fully_addressable", True):
        digest.update(str(constant.sharding).encode())
        return
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.extended):
        constant = jax.random.key_data(constant)
    digest.update(np.ascontiguousarray(np.asarray(constant)).view(np.uint8).reshape(-1))
