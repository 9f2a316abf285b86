"""Where JAX compiles: what an earlier process of this cluster has compiled is loaded instead.

It is in a private folder beside the ranks' logs, which is removed with the cluster. What is not
whole there is not there: the program is compiled, as it would be without the folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxcluster.engine import log
from jaxcluster.engine.private import loaded, programs
from jaxcluster.engine.private.fingerprint import calls_into_process
from jaxcluster.host.free_space import memory_room

# With one of these JAX keeps programs, or compiles them again on purpose.
OTHERS = "compilation_cache_dir", "enable_pgle", "compilation_cache_expect_pgle"
MAX_NBYTES = 512 << 20  # of all programs together: then the folder is emptied
SHARE = 8  # an eighth of what may be written there, at most: it may be memory
DEAD_S = 30.0  # a file that has not been whole for that long is nobody's: its writer has died
PART = ".part"


class CompiledFolder:
    """Compiled programs by their keys, in a folder whose parent is there and private."""

    def __init__(self, path: Path, max_nbytes: int = MAX_NBYTES) -> None:
        self.path, self.max_nbytes = path, max_nbytes

    def read(self, key: str) -> bytes | None:
        """What was written under ``key``; None if it is not there or not whole."""
        with contextlib.suppress(OSError):
            if self._is_private():
                packed = (self.path / key).read_bytes()
                with contextlib.suppress(zlib.error):
                    return zlib.decompress(packed)  # it has a checksum
                (self.path / key).unlink()
        return None

    def write(self, key: str, make: Callable[[], bytes]) -> None:
        """Keep what ``make`` returns, unless it is there or another rank is writing it.

        Ranks compile the same program at the same time. The first one to be done writes it.

        Raises:
          Exception: whatever ``make`` raises.
        """
        path, part = self.path / key, self.path / f"{key}{PART}"
        with contextlib.suppress(OSError):
            self.path.mkdir(mode=0o700, exist_ok=True)
            if not self._is_private() or path.exists():
                return
            others = self._others()
            with open(part, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
                try:
                    # A fifth of the bytes, in 1 % of the time to compile them.
                    packed, total = zlib.compress(make(), 1), sum(others.values())
                    most = min(self.max_nbytes, (total + memory_room(self.path)) // SHARE)
                    for other in others if len(packed) <= most < total + len(packed) else ():
                        other.unlink(missing_ok=True)
                    if len(packed) <= most:
                        file.write(packed)
                        file.flush()
                        os.rename(part, path)
                finally:
                    part.unlink(missing_ok=True)

    def _is_private(self) -> bool:
        """Whether nobody else can have put a program there, which a rank would then run."""
        about = os.lstat(self.path)
        is_mine = stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
        return is_mine and not about.st_mode & 0o022

    def _others(self) -> dict[Path, int]:
        """All programs and their sizes. What dead writers have left behind is removed."""
        found = {}
        for path in self.path.iterdir():
            with contextlib.suppress(FileNotFoundError):  # another rank has just renamed it
                about = path.stat()
                if path.suffix != PART:
                    found[path] = about.st_size
                elif about.st_mtime < time.time() - DEAD_S:
                    path.unlink()
        return found


def keep_compiled(folder: CompiledFolder) -> None:
    """Have each program that JAX compiles here kept in ``folder``, and loaded from there.

    JAX compiles in one place (``compiler.compile_or_get_cached``, jax 0.10.2 and 0.12). Its own
    persistent cache does not serve a cluster: process 0 alone writes to it, so what other ranks
    compile for their own devices is never found again, and files are neither locked nor renamed. A
    folder that the user has given to JAX's cache wins. Must come before anything is compiled.
    Where a private name has moved, new processes compile again.
    """
    if not can_keep():
        return
    from jax._src import compiler

    original: Any = compiler.compile_or_get_cached

    @functools.wraps(original)
    def compile_or_get_cached(*given: Any, **more: Any) -> Any:
        name = None
        with _told("loaded"):
            backend, module, devices, options, callbacks, device_list, *_ = given
            name = None if callbacks else _name(backend, module, devices, options)
            if name is not None and (kept := folder.read(name)) is not None:
                text, _, serialized = kept.partition(b"\n")
                executable = backend.deserialize_executable(serialized, device_list, options)
                read = lambda: (folder.read(name) or b"").partition(b"\n")[2]  # noqa: E731
                loaded.note(executable, json.loads(text), read)
                return executable
        executable = original(*given, **more)
        loaded.note(executable)

        def make() -> bytes:
            text = json.dumps(programs.has_collectives(executable)).encode()
            return b"\n".join((text, executable.serialize()))

        with _told("kept"):
            if name is not None:
                folder.write(name, make)
        return executable

    loaded.serialize_as_loaded()
    compiler.compile_or_get_cached = compile_or_get_cached


def can_keep() -> bool:
    """Whether the names are there, by which programs are kept and loaded."""
    from jax._src import compilation_cache, compiler, config
    from jax._src.lib import _jax

    names = [(compiler, "compile_or_get_cached"), (compilation_cache, "get_cache_key")]
    names += [(config, name) for name in ("enable_compilation_cache", *OTHERS)]
    client = "deserialize_executable", "serialize_executable"
    classes = [(_jax.LoadedExecutable, "serialize"), *((_jax.Client, name) for name in client)]
    return all(hasattr(owner, name) for owner, name in (*names, *classes))


def _name(backend: Any, module: Any, devices: Any, options: Any) -> str | None:
    """What a program is kept under; None if it is not."""
    from jax._src import compilation_cache, config

    is_off = not config.enable_compilation_cache.value
    is_off |= any(getattr(config, name).value for name in OTHERS)
    flags = [os.environ.get("XLA_FLAGS", ""), *(flag for flag, _ in options.env_option_overrides)]
    is_off |= any("xla_dump" in flag for flag in flags)  # files are wanted that the compiler writes
    if is_off or programs.is_made_together(backend, devices.flat) or calls_into_process(module):
        return None
    known = compilation_cache.get_cache_key(module, devices, options, backend)
    return _key(known, backend, devices)


def _key(known: str, backend: Any, devices: Any) -> str:
    """What a program is kept under: all that it was made from and for.

    JAX's own key has the program, the compiler's version, options and flags, and the kind of the
    devices. On GPU it leaves out which devices they are, and it never has the others'.
    """
    import jax

    places = [(d.id, d.process_index) for d in devices.flat]
    world = [(d.id, d.process_index, d.device_kind) for d in backend.devices()]
    text = repr((jax.__version__, known, places, world))
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


_tell = functools.cache(log.write)  # what the log does not say yet


@contextlib.contextmanager
def _told(done: str) -> Iterator[None]:
    """Go on after an error, as without the folder, and say it in the log."""
    try:
        yield
    except Exception as error:
        _tell(f"A compiled program could not be {done} ({type(error).__name__}: {error}).")
