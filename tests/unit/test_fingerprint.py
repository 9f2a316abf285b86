"""The digest of a lowered program. In a process of its own (law 1)."""

from __future__ import annotations

import json

from helpers import python

SCRIPT = """
import json
import jax, jax.numpy as jnp, numpy as np
from jaxcluster.rank.private import programs

def digest(function, *args):
    lowered = jax.jit(function).lower(*args)
    return programs.of_lowered(lowered.compiler_ir())

def scaled(by):
    return lambda a: jnp.sum(a * by)

x = np.arange(8.0, dtype=np.float32)
large = np.zeros(1 << 20, np.float32)
other = large.copy()
other[12345] = 1e-30

def calling(target):
    return lambda a: jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(a.shape, a.dtype))(a)

def one(first):
    return {"loss": jax.jit(lambda u: u + 1)(first)}

def two(second):
    def inner(w):
        with jax.named_scope("elsewhere"):
            return w + 1
    inner.__name__ = "<lambda>"
    return {"result": jax.jit(inner)(second)}

two.__name__ = "one"

print(json.dumps({
    "equal": digest(scaled(2.5), x) == digest(scaled(2.5), x),
    "scalar": digest(scaled(2.5), x) != digest(scaled(3.5), x),
    "large": digest(lambda a: a + large, large) != digest(lambda a: a + other, large),
    "large equal": digest(lambda a: a + large, large) == digest(lambda a: a + large.copy(), large),
    "no identifier": digest(calling("my-add"), x) != digest(calling("my-mul"), x),
    "address": programs.calls_into_process(
        jax.jit(calling("my-callback")).lower(x).compiler_ir()
    ),
    "names": digest(one, x) == digest(two, x),
    "operation": digest(jnp.max, x) != digest(jnp.min, x),
    "callback": digest(lambda a: jax.pure_callback(np.sin, a, a), x)
        == digest(lambda a: jax.pure_callback(np.cos, a, a), x),
    "untouched": "result_info" in jax.jit(one).lower(x).as_text(),
}))
"""


def test_what_is_computed_is_in_the_digest_and_names_are_not() -> None:
    done = python("-c", SCRIPT)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert [what for what, is_so in found.items() if not is_so] == []
