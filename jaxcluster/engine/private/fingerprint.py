"""What tells programs apart: a digest of a program as it was lowered, before the compiler's passes.

What the compiler makes of a program may differ between processes that compile the same one (each
tunes its kernels by its own timings), and its text for fingerprints leaves constants out. What JAX
lowered has every constant in full, and nothing of the process that lowered it, but for what is
taken out here: source lines and names of variables, results and inner functions, and addresses of
Python objects.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, Protocol

import numpy as np

# Custom calls whose text holds an address in the process that lowered them. What they stand for is
# Python that runs while the program is compiled, which is not compared.
_ADDRESSED = "CustomSPMDPartitioning|InspectSharding"
LARGE = 1024  # elements from which on a constant's bytes are hashed, not its text
_LEFT_OUT = "__elided__"
_STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_SYMBOL = rf"@(?:{_STRING}|[\w.$-]+)"  # in quotes if it is no identifier
_ADDRESS = re.compile(rf"(custom_call @(?:{_ADDRESSED})\b[^\n]*?backend_config = ){_STRING}")
_NAMED = re.compile(
    rf"jax\.result_info = {_STRING}"
    rf"|(?P<kept>{_STRING}|custom_call {_SYMBOL})"
    rf"|(?P<symbol>{_SYMBOL})"
)
_CALLING = re.compile(rf"custom_call @(?:{_ADDRESSED}\b|[^\s(]*callback)")


class Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def of_lowered(module: Any, constants: Iterable[Any] = ()) -> bytes:
    """A digest of a lowered module (``jax.extend.mlir.ir.Module``), equal for equal programs.

    Takes a few percent of the time that the compiler takes, and 3 ms for each MiB of constants.

    Args:
      constants: those that JAX passes as arguments instead of writing them into the module.
    """
    inner: dict[str, str] = {}

    def forget(found: re.Match[str]) -> str:
        """Two functions that compute the same may have called inner ones in two ways."""
        if (symbol := found["symbol"]) is not None:
            return inner.setdefault(symbol, f"@f{len(inner)}")
        return found["kept"] or ""

    text = module.operation.get_asm(large_elements_limit=LARGE, assume_verified=True)
    large = list(_large_values(module.operation)) if _LEFT_OUT in text else []
    if text.count(_LEFT_OUT) != len(large):  # some are where it has not looked
        large, text = [], module.operation.get_asm(assume_verified=True)
    text = _ADDRESS.sub(r'\1""', text)
    digest = hashlib.blake2b(_NAMED.sub(forget, text).encode(), digest_size=16)
    for value in large:
        try:
            digest.update(memoryview(value))
        except (BufferError, TypeError):  # of bfloat16, int4 and the like
            digest.update(str(value).encode())
    for constant in constants:
        _add_constant(digest, constant)
    return digest.digest()


def _large_values(operation: Any) -> Iterator[Any]:
    """The constants in an operation and below it that its text leaves out."""
    from jaxlib.mlir import ir  # jax.extend.mlir's: that imports for 0.1 s

    for attribute in dict(operation.attributes).values():
        is_elements = isinstance(attribute, ir.DenseElementsAttr)
        if is_elements and len(attribute) > LARGE and not attribute.is_splat:
            yield attribute
    for region in operation.regions:
        for block in region.blocks:
            for one in block.operations:
                yield from _large_values(one.operation)


def calls_into_process(module: Any) -> bool:
    """Whether a lowered module holds an address in this process, as far as its calls' names tell.

    Another process of the same fork server may have something else at the same address.
    """
    text = module.operation.get_asm(large_elements_limit=16, assume_verified=True)
    return _CALLING.search(text) is not None


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
