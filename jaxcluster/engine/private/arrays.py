"""Arrays and pytrees, where JAX has no public way to ask or to make them."""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Callable, Iterator
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


def with_type(array: Any, weak_type: bool, committed: bool) -> Any:
    """The same array, which may span processes, of that type. Nothing is launched.

    ``jax.make_array_from_single_device_arrays`` makes strong types alone, and commits the array to
    its devices (jax 0.10.2 and 0.12: it ends in ``ArrayImpl``, to which both are given). Where that
    has moved they stay.
    """
    if committed and not weak_type:
        return array
    try:
        aval = array.aval.update(weak_type=weak_type)
        pieces = [shard.data for shard in array.addressable_shards]
        return type(array)(aval, array.sharding, pieces, committed=committed)
    except (AttributeError, TypeError):
        return array


@contextlib.contextmanager
def exactly() -> Iterator[None]:
    """Within, what is ours is made with its dtype and values, whatever the cells have set.

    An array that was made in ``jax.enable_x64`` would be cut to 32 bits outside of it, and with
    ``jax_no_tracing`` a new process could make no key. This is public.
    """
    import jax

    with (
        jax.enable_x64(True),
        jax.no_tracing(False),
        jax.debug_nans(False),
        jax.debug_infs(False),
        jax.transfer_guard("allow"),
    ):
        yield
