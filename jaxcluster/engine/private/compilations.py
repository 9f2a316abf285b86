"""Where JAX compiles: what an earlier process of this cluster has compiled is loaded instead."""

from __future__ import annotations

import functools
import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any

from jaxcluster.engine import log
from jaxcluster.engine.compiled import CompiledFolder
from jaxcluster.engine.fingerprint import calls_into_process
from jaxcluster.engine.private import loaded, programs

_kept: CompiledFolder | None = None


def keep_compiled(folder: CompiledFolder) -> bool:
    """Have each program that JAX compiles here kept in ``folder``, and loaded from there.

    JAX compiles in one place (``compiler.compile_or_get_cached``, jax 0.10.2 and 0.12), at the
    first call of a program. Its own persistent cache does not serve a cluster: process 0 alone
    writes to it, so what other ranks compile for their own devices, or for meshes without rank 0,
    is never found again; files are neither locked nor renamed, so a rank may read half of one that
    rank 0 is writing; and what took less than a second to compile is left out. A folder that the
    user has given to JAX's cache wins over this one.

    Must come before anything is compiled.

    Returns:
      False where a private name has moved: new processes compile again.
    """
    global _kept
    if _kept is not None:
        return _kept is folder
    try:
        from jax._src import compilation_cache, compiler, config

        original: Any = compiler.compile_or_get_cached
        key_of = compilation_cache.get_cache_key
        users, is_on = config.compilation_cache_dir, config.enable_compilation_cache
        profiled = config.enable_pgle, config.compilation_cache_expect_pgle
    except (ImportError, AttributeError):
        return False
    if not loaded.serialize_as_loaded():
        return False

    def key(backend: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> str | None:
        """What a program is kept under; None if it is not."""
        if callbacks or users.value or not is_on.value or any(each.value for each in profiled):
            return None
        if (
            is_made_together(backend, devices.flat)
            or _is_dumped(options)
            or calls_into_process(module)
        ):
            return None
        return _key(key_of(module, devices, options, backend), backend, devices)

    def load(name: str, backend: Any, options: Any, device_list: Any) -> Any:
        """A program that was kept; None if it was not."""
        if (found := folder.read(name)) is None:
            return None
        told, _, packed = found.partition(b"\n")
        text = programs.Text.parse(json.loads(told))
        return loaded.load(backend, packed, text, device_list, options)

    def keep(name: str, executable: Any) -> None:
        def make() -> bytes:
            told = json.dumps(programs.Text.of(executable).plain).encode()
            return told + b"\n" + loaded.pack(executable.serialize())

        folder.write(name, make)

    @functools.wraps(original)
    def compile_or_get_cached(
        backend: Any, module: Any, devices: Any, options: Any, callbacks: Any, device_list: Any,
        *rest: Any, **more: Any,
    ) -> Any:  # fmt: skip
        name = None
        try:
            name = key(backend, module, devices, options, callbacks)
            if name is not None:
                executable = load(name, backend, options, device_list)
                if executable is not None:
                    return executable
        except Exception as error:  # it is compiled, as without the folder
            _tell("loaded", error)
        executable = original(
            backend, module, devices, options, callbacks, device_list, *rest, **more
        )
        loaded.keep(executable)
        if name is not None:
            try:
                keep(name, executable)
            except Exception as error:
                _tell("kept", error)
        return executable

    compiler.compile_or_get_cached = compile_or_get_cached  # type: ignore[assignment]
    _kept = folder
    return True


def can_keep() -> bool:
    """Whether the names are there, by which programs are kept and loaded."""
    from jax._src import compilation_cache, compiler, config
    from jax._src.lib import _jax

    options = ("compilation_cache_dir", "enable_compilation_cache", "enable_pgle")
    return (
        hasattr(compiler, "compile_or_get_cached")
        and hasattr(compilation_cache, "get_cache_key")
        and all(hasattr(config, name) for name in (*options, "compilation_cache_expect_pgle"))
        and hasattr(_jax.LoadedExecutable, "serialize")
        and hasattr(_jax.Client, "serialize_executable")
        and hasattr(_jax.Client, "deserialize_executable")
    )


@functools.cache
def _once(what: str) -> None:
    """Add to the log what it does not say yet."""
    log.write(what)


def _tell(done: str, error: Exception) -> None:
    _once(f"A compiled program could not be {done} ({type(error).__name__}: {error}).")


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


def _is_dumped(options: Any) -> bool:
    """Whether the compiler's own files are wanted, which it writes where it compiles."""
    flags = os.environ.get("XLA_FLAGS", "")
    return "--xla_dump" in flags or any("dump" in flag for flag, _ in options.env_option_overrides)


def _key(known: str, backend: Any, devices: Any) -> str:
    """What a program is kept under: all that it was made from and for.

    Args:
      known: JAX's own key: the program, the compiler's version, options and flags, the kind of the
        devices. On GPU it leaves out which devices they are, and it never has the others'.
    """
    import jax

    places = [(d.id, d.process_index) for d in devices.flat]
    text = repr((jax.__version__, known, places, _world(backend)))
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


@functools.cache
def _world(backend: Any) -> str:
    """All devices of the cluster."""
    world = [(d.id, d.process_index, d.device_kind) for d in backend.devices()]
    return hashlib.blake2b(repr(world).encode()).hexdigest()
