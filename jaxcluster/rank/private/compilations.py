"""JAX's compiler, which loads programs that earlier processes of this cluster have compiled.

It is in a private folder beside the ranks' logs, which is removed with the cluster. A damaged file
counts as missing: the program is then compiled.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import stat
import sys
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax

from jaxcluster.host.free_space import memory_room
from jaxcluster.rank import log
from jaxcluster.rank.arrays import is_ready
from jaxcluster.rank.private import needs_names, programs

MAX_NBYTES = 512 << 20  # of all programs together: then the folder is emptied
SHARE = 8  # at most an eighth of the free space, which may be memory


def read(folder: Path, key: str) -> bytes | None:
    """The bytes written under ``key``; None if they are missing, damaged, or not private."""
    with contextlib.suppress(OSError, zlib.error):
        if _is_private(folder):
            return zlib.decompress((folder / key).read_bytes())  # it has a checksum
    return None


def write(folder: Path, key: str, content: bytes) -> None:
    """Keep it. A full folder is emptied first.

    Raises:
      OSError: it can't be written.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(folder):
        return
    others = dict[Path, int]()
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another rank has just renamed it
            others[path] = path.stat().st_size
    # A fifth of the bytes, in 1 % of the time to compile them.
    packed, total = zlib.compress(content, 1), sum(others.values())
    most = min(MAX_NBYTES, (total + memory_room(folder)) // SHARE)
    if len(packed) > most:
        return
    for path in others if total + len(packed) > most else ():
        path.unlink(missing_ok=True)
    # Ranks compile the same program at the same time, and each renames its own.
    with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
        file.write(packed)
    Path(file.name).rename(folder / key)


def _is_private(folder: Path) -> bool:
    """Whether nobody else can have put a program there, which a rank would then run."""
    about = os.lstat(folder)
    is_mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return is_mine and not about.st_mode & 0o022


@needs_names("compiled programs", "new processes compile all programs again")
def keep_compiled(folder: Path) -> None:
    """Have each program that JAX compiles here kept in ``folder``, and loaded from there.

    JAX compiles in one place (``compiler.compile_or_get_cached``, jax 0.10.2 and 0.12). Its own
    persistent cache does not serve a cluster. Only process 0 writes to it, so programs of other
    ranks' devices are never found again. Files are neither locked nor renamed. A folder that the
    user has given to JAX's cache wins. Must come before anything is compiled.

    Args:
      folder: its parent is there, and private.
    """
    from jax._src import compilation_cache, compiler, config
    from jax._src.lib import _jax

    original: Any = compiler.compile_or_get_cached
    key_of = compilation_cache.get_cache_key
    classes: Any = _jax
    by_itself, by_client = classes.LoadedExecutable.serialize, classes.Client.serialize_executable
    is_on, jaxs_folder = config.enable_compilation_cache, config.compilation_cache_dir

    def name_of(backend: Any, module: Any, devices: Any, options: Any) -> str | None:
        """The key of a program: all that it was made from and for; None if it is not kept.

        JAX's own key has the program, the compiler's version, options and flags, and the kind of
        the devices. On GPU it leaves out which devices they are, and it never has the others'.
        """
        flags = [os.environ.get("XLA_FLAGS", ""), *(key for key, _ in options.env_option_overrides)]
        is_off = not is_on.value or bool(jaxs_folder.value)
        is_off |= any("xla_dump" in flag for flag in flags)  # files are wanted from the compiler
        is_off |= programs.is_made_together(backend, devices.flat)
        if is_off or programs.calls_into_process(module):
            return None
        known = jax.__version__, key_of(module, devices, options, backend)
        places = [(d.id, d.process_index) for d in devices.flat]
        world = [(d.id, d.process_index, d.device_kind) for d in backend.devices()]
        return hashlib.blake2b(repr((known, places, world)).encode(), digest_size=20).hexdigest()

    @functools.wraps(original)
    def compile_or_get_cached(*given: Any, **more: Any) -> Any:
        name = None
        try:
            backend, module, devices, options, callbacks, device_list, *_ = given
            name = None if callbacks else name_of(backend, module, devices, options)
            if name is not None and (kept := read(folder, name)) is not None:
                executable = backend.deserialize_executable(kept, device_list, options)
                hold(executable, functools.partial(read, folder, name))
                return executable
        except Exception as error:  # go on as without the folder
            _tell_once(f"A compiled program could not be loaded ({type(error).__name__}: {error}).")
        executable = original(*given, **more)
        hold(executable)
        try:
            if name is not None and not (folder / name).exists():
                write(folder, name, executable.serialize())
        except Exception as error:
            _tell_once(f"A compiled program could not be kept ({type(error).__name__}: {error}).")
        return executable

    def as_loaded(original: Callable[..., bytes]) -> Callable[..., bytes]:
        # On CPU XLA's own bytes of a loaded executable lack its machine code. That shows only when
        # they are run: "Function wrapped_sine not found" (jaxlib 0.10.2 and 0.12).
        return lambda *given: _held.get(id(given[-1]), _NONE)[1]() or original(*given)

    compiler.compile_or_get_cached = compile_or_get_cached
    classes.LoadedExecutable.serialize = as_loaded(by_itself)
    classes.Client.serialize_executable = as_loaded(by_client)


_tell_once = functools.cache(log.write)
Held = tuple[Any, Callable[[], bytes | None]]  # with what reads the bytes it was loaded from
_NONE: Held = (None, bytes)
_held: dict[int, Held] = {0: (object(), bytes)}  # by id: executables take no weak references
_OURS = sys.getrefcount(_held.get(0, _NONE)[0])  # references where nobody else has it


def hold(executable: Any, loaded: Callable[[], bytes | None] = bytes) -> None:
    """Keep an executable until nobody else has it, nothing runs, and another one comes.

    CUDA unloads a program only once its device is idle. The thread that drops the last reference
    waits for that with Python's lock. It may be the garbage collector's, on any thread.
    """
    unused = [n for n in list(_held) if sys.getrefcount(_held.get(n, _NONE)[0]) <= _OURS]
    if unused and all(map(is_ready, jax.live_arrays())):
        for number in unused:
            _held.pop(number, None)
    _held[id(executable)] = executable, loaded
