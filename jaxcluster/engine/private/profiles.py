"""JAX's profiler: its files are named by the rank, since JAX names them by the host.

Ranks of one host would overwrite each other's, and where JAX makes Perfetto's file of them, find
several and fail.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENDINGS = (".xplane.pb", "perfetto_trace.json.gz", ".trace.json.gz")
_JAXS_OWN = re.compile(r"\d{4}(_\d\d){5}")  # a session that nobody has named


@dataclass(frozen=True)
class Name:
    """How a profile of this rank is called. ``session`` is the folder of all its ranks' files.

    ``links``: this is the rank that may wait until a browser has fetched Perfetto's file.
    """

    rank: int
    session: str
    links: bool = True


def name_by_rank(make: Callable[[], Name]) -> bool:
    """Have each profile that is written from now on named by ``make``.

    In jax 0.10.2 ``stop_trace`` writes them all, in 0.12 ``export_profile_data``; both are looked
    up in ``jax._src.profiler`` by all other ways to write one.

    Returns:
      False where these names have moved: then ranks of one host overwrite each other's.
    """
    import jax

    try:
        from jax._src import profiler

        writes_in = _writer(profiler)
    except (ImportError, AttributeError):
        return False
    original = getattr(profiler, writes_in)
    if hasattr(original, "__wrapped__"):
        return True
    wrapped = _exporting(original, make) if writes_in != "stop_trace" else _stopping(original, make)
    setattr(profiler, writes_in, wrapped)
    setattr(jax.profiler, writes_in, wrapped)
    return True


def can_name() -> bool:
    """Whether the names are there, by which profiles are named and taken."""
    from jax._src import profiler as known

    profiler: Any = known
    names = ("_profile_state", "clear_metadata", "_profiler")
    is_new = _writer(profiler) == "export_profile_data"
    made = profiler.ProfileSession.__init__.__code__.co_names if is_new else ()
    return (
        all(hasattr(profiler, name) for name in names)
        and hasattr(profiler._profiler.ProfilerSession, "stop")
        and (not is_new or {"_raw_session", "_is_running"} <= {*made})
    )


def why_refused(error: BaseException) -> str:
    """What to do where JAX has refused to begin a second profile; "" of any other error."""
    if type(error) is RuntimeError and str(error).startswith("Profile has already been started"):
        return (
            "A cell that profiles itself runs without --profile. "
            "jax.profiler.stop_trace() ends a profile that an earlier cell has begun."
        )
    return ""


def is_on() -> bool:
    """Whether this process is being profiled by JAX's functions."""
    return _raw_session() is not None


def take() -> bytes:
    """The profile that JAX is making, which ends: a serialized XSpace.

    ``stop_trace`` would also write all of it as JSON, which takes as long again, and more for a
    million events (jax 0.10.2 and 0.12).
    """
    from jax._src import profiler

    state: Any = profiler._profile_state
    with state.lock:
        found: bytes = _raw_session().stop()
        if (session := getattr(state, "session", None)) is not None:
            session._raw_session, session._is_running = None, False
        state.reset()
        profiler.clear_metadata()
    return found


def _raw_session() -> Any:
    """XLA's, which runs; else None."""
    from jax._src import profiler

    state: Any = profiler._profile_state
    if hasattr(state, "profile_session"):  # 0.10.2
        return state.profile_session
    return state.session and state.session._raw_session


def _writer(profiler: Any) -> str:
    """The name of the function that writes profiles.

    Raises:
      AttributeError: this version of jax has no name that is known here.
    """
    if hasattr(profiler, "export_profile_data"):
        return "export_profile_data"
    profiler._profile_state.log_dir  # noqa: B018
    return "stop_trace"


def _exporting(original: Callable[..., Any], make: Callable[[], Name]) -> Callable[..., Any]:
    """``export_profile_data`` of jax 0.12."""

    @functools.wraps(original)
    def export_profile_data(
        profile_data: Any,
        log_dir: Any,
        create_perfetto_link: bool = False,
        create_perfetto_trace: bool = False,
        session_id: str | None = None,
    ) -> None:
        name = make()
        wants_trace, links = create_perfetto_trace or create_perfetto_link, create_perfetto_link
        with _own_folder(os.fspath(log_dir), name) as folder:
            original(profile_data, folder, links and name.links, wants_trace, session_id)

    return export_profile_data


def _stopping(original: Callable[..., Any], make: Callable[[], Name]) -> Callable[..., Any]:
    """``stop_trace`` of jax 0.10.2."""
    from jax._src import profiler

    state: Any = profiler._profile_state

    @functools.wraps(original)
    def stop_trace() -> None:
        if state.profile_session is None:
            original()
        name = make()
        with _own_folder(state.log_dir, name) as folder:
            before, state.log_dir = state.log_dir, folder
            state.create_perfetto_link = state.create_perfetto_link and name.links
            try:
                original()
            finally:
                if state.profile_session is not None:  # it can be stopped once more
                    state.log_dir = before

    return stop_trace


@contextlib.contextmanager
def _own_folder(folder: str, name: Name) -> Iterator[str]:
    """A folder that no other rank writes to; what is in it in the end goes to ``folder``."""
    if "://" in folder:  # a store, in which nothing is moved
        yield f"{folder}/rank-{name.rank}"
        return
    target = Path(folder).absolute()
    own = target / f".rank-{name.rank}~"
    shutil.rmtree(own, ignore_errors=True)
    try:
        yield str(own)
    finally:
        _gather(own, target, name)
        shutil.rmtree(own, ignore_errors=True)


def _gather(own: Path, target: Path, name: Name) -> None:
    """Bring what JAX has written to where TensorBoard looks for the files of one run."""
    for file in sorted(own.glob("plugins/profile/*/*")):
        ending = next((one for one in ENDINGS if file.name.endswith(one)), None)
        if ending is None:
            continue
        session = name.session if _JAXS_OWN.fullmatch(file.parent.name) else file.parent.name
        to = target / "plugins" / "profile" / session
        to.mkdir(parents=True, exist_ok=True)
        file.replace(to / f"rank-{name.rank}.{ending.removeprefix('.')}")
