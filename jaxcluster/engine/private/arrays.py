"""Arrays and pytrees, where JAX has no public way to ask or to make them."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

LARGE_NBYTES = 64 << 20  # from here on device_put's comparison takes a second or more
OF_DEVICE_PUT = "passed to device_put is not the same"


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
        if nbytes >= LARGE_NBYTES and OF_DEVICE_PUT in fail_message:
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


def why_copies_differ(error: BaseException) -> str:
    """Why ``device_put`` found the copies of all processes unequal, where they are equal.

    It sends them as JAX holds them and compares that with the array as it was given: float64 loses
    its last digits, int64 its first, and NaN is unequal to itself (jax 0.10.2 and 0.12:
    ``multihost_utils.assert_equal``, whose ``out`` and ``expected_in_tree`` are looked at).

    Returns:
      A hint where that alone is certain to be the reason on this process; else "".
    """
    if type(error) is not AssertionError or OF_DEVICE_PUT not in str(error):
        return ""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    found = frames[-1].f_locals if frames else {}
    sent, own = found.get("out"), found.get("expected_in_tree")
    if not isinstance(own, np.ndarray) or not hasattr(sent, "dtype"):
        return ""
    sent = np.asarray(sent)
    if own.dtype != sent.dtype and np.array_equal(own.astype(sent.dtype), sent, equal_nan=True):
        return (
            f"All processes have the same values: {own.dtype} is {sent.dtype} in JAX, and the "
            f"two differ. Convert it first: jax.device_put(x.astype('{sent.dtype}'), ...)."
        )
    is_float = own.dtype == sent.dtype and own.dtype.kind in "fc"
    if is_float and np.isnan(own).any() and np.array_equal(own, sent, equal_nan=True):
        return (
            "All processes have the same values, but NaN is not equal to itself: "
            "jax.make_array_from_callback(x.shape, sharding, lambda index: x[index]) does not "
            "compare them."
        )
    return ""


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


def weakly_typed(array: Any) -> Any:
    """The same array, which may span processes, with a weak type. Nothing is launched.

    ``jax.make_array_from_single_device_arrays`` makes strong types alone (jax 0.10.2 and 0.12: it
    ends in ``ArrayImpl``, to which the type is given). Where that has moved the type is strong.
    """
    try:
        aval = array.aval.update(weak_type=True)
        pieces = [shard.data for shard in array.addressable_shards]
        return type(array)(aval, array.sharding, pieces, committed=True)
    except (AttributeError, TypeError):
        return array
