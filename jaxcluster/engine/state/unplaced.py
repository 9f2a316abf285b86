"""Arrays that fit no mesh of the ranks that there are now: they wait until somebody places them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from jaxcluster.engine.private import contexts
from jaxcluster.errors import UsageError

Read = Callable[[Sequence[slice]], np.ndarray[Any, Any]]


class NotPlaced(RuntimeError):
    """An array was used that fits no mesh, and was not placed yet.

    It is no TypeError: JAX would replace that by an error of its own.
    """


class Unplaced:
    """The values of an array that spans processes, without devices.

    Whatever would use it as an array raises ``NotPlaced``; ``jaxcluster.place`` makes one of it.

    Attributes:
      shape, dtype: those of the array; of a key array ``dtype`` is that of its integers.
      why: why it has no devices.
    """

    __slots__ = ("_key_impl", "_read", "dtype", "shape", "why")

    def __init__(
        self, shape: Sequence[int], dtype: Any, read: Read, why: str, key_impl: str | None = None
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.why = why
        self._read = read
        self._key_impl = key_impl

    @contexts.exactly()
    def on(self, sharding: Any) -> Any:
        """The array, sharded so. Each rank makes its own part: nothing is launched or sent."""
        import jax

        def read(index: Any) -> np.ndarray[Any, Any]:
            return self._read(index)

        array = jax.make_array_from_callback(self.shape, sharding, read, dtype=self.dtype)
        if self._key_impl is not None:
            array = jax.random.wrap_key_data(array, impl=self._key_impl)
        return array

    def __repr__(self) -> str:
        shape = ",".join(map(str, self.shape))
        return f"<{self.dtype}[{shape}], not placed: {self.why}. Use jaxcluster.place(x, sharding)>"

    def __reduce__(self) -> Any:
        whole = np.array(self._read([slice(0, size) for size in self.shape]))
        return _again, (whole, self.why, self._key_impl)

    def __getattr__(self, name: str) -> NoReturn:
        raise AttributeError(self._refusal if not name.startswith("__") else name)

    @property
    def __jax_array__(self) -> NoReturn:
        """JAX asks whether there is one, and says itself of what is called that it can't be."""
        raise NotPlaced(self._refusal)

    @property
    def _refusal(self) -> str:
        shape = ",".join(map(str, self.shape))
        return (
            f"this {self.dtype}[{shape}] was not placed on the devices of this cluster: "
            f"{self.why}. Place it first: x = jaxcluster.place(x, sharding)"
        )


def _refuse(self: Unplaced, *args: object, **kwargs: object) -> NoReturn:
    raise NotPlaced(self._refusal)


USES = (
    "__array__ __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ __matmul__ "
    "__rmatmul__ __truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ "
    "__rpow__ __neg__ __pos__ __abs__ __lt__ __le__ __gt__ __ge__ __getitem__ __iter__ __len__ "
    "__bool__ __int__ __float__ __index__ __complex__"
)
for _name in USES.split():
    setattr(Unplaced, _name, _refuse)


def _again(whole: np.ndarray[Any, Any], why: str, key_impl: str | None) -> Unplaced:
    return Unplaced(whole.shape, whole.dtype, lambda index: whole[tuple(index)], why, key_impl)


def place(value: Any, sharding: Any) -> Any:
    """See ``jaxcluster.place``."""
    jax = sys.modules.get("jax")
    if jax is None:
        raise UsageError(
            "jaxcluster.place works on ranks.", "Write it in a cell that begins with %%spmd."
        )

    def one(leaf: Any, where: Any) -> Any:
        return leaf.on(where) if isinstance(leaf, Unplaced) else jax.device_put(leaf, where)

    if isinstance(sharding, jax.sharding.Sharding):
        return jax.tree.map(lambda leaf: one(leaf, sharding), value)
    return jax.tree.map(one, value, sharding)
