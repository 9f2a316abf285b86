"""Facts about processes and the means by which none is left behind (standard library only)."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping

WARNINGS = "JAXCLUSTER_PYTHONWARNINGS"
FILES = 4096  # a rank and ipyparallel's controller have 70 to 200 open, and users open some
SOCKET_LENGTH = 107  # of a Unix socket's path
TRACKER_S = 1.0  # that a resource tracker gets to remove what others have left: milliseconds

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def start_time(pid: int) -> str | None:
    """When a process started, in the kernel's ticks since boot; None if it is gone or a zombie.

    Pid and start time together name one process for ever; a pid alone is reused. Where there is
    no /proc the answer is ``"?"`` for any living pid.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()
    except FileNotFoundError:
        if os.path.isdir("/proc/self"):
            return None
        try:
            os.kill(pid, 0)
        except OSError:
            return None
        return "?"
    except OSError:
        return None
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()


def process_token(pid: int) -> str:
    """``pid:start_time``, which names one process even after its pid is reused."""
    return f"{pid}:{start_time(pid)}"


def is_alive(token: str) -> bool:
    """Whether the process that ``process_token`` named still runs."""
    pid, _, started = token.partition(":")
    return pid.isdecimal() and start_time(int(pid)) == started


def pid_space() -> str:
    """Where this process's pids mean something: the kernel's boot id and the pid namespace.

    The pid of a process in another container, or on another host, is some other process's here,
    or nobody's. The host's name where there is no /proc.
    """
    return _pid_space_of(os.getpid())


@functools.lru_cache(maxsize=1)  # it never changes, and each cell asks
def _pid_space_of(own_pid: int) -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as boot_id:
            return f"{boot_id.read().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return os.uname().nodename


def pid_space_mark() -> str:
    """``pid_space`` in a few letters, which differ from those of any other host."""
    return hashlib.blake2s(pid_space().encode(), digest_size=6).hexdigest()


def send_signal(token: str, sig: int | str) -> None:
    """Send a signal, a number or a name, to the process that ``token`` names.

    Raises:
      ValueError: there is no such signal.
      ProcessLookupError: the process has ended.
    """
    if isinstance(sig, str) and sig not in signal.Signals.__members__:
        raise ValueError(f"there is no signal {sig!r}")
    if not is_alive(token):
        raise ProcessLookupError("this engine's process has ended")
    try:
        os.kill(int(token.partition(":")[0]), signal.Signals[sig] if isinstance(sig, str) else sig)
    except OSError as problem:
        if problem.errno == errno.EINVAL:
            raise ValueError(f"there is no signal {sig!r}") from None
        raise


def findable(env: Mapping[str, str], cwd: str) -> dict[str, str]:
    """``env`` for a ``python -P -m jaxcluster...`` that runs in the folder ``cwd``.

    With -P no module is taken from the current folder, which may be another user's. A checkout of
    jaxcluster itself that is used from its own folder must then be named.

    PYTHONWARNINGS is the user's wish for the user's code: as errors, the warnings of ipykernel and
    its like would end every rank. It goes by another name (see ``apply_warnings``).
    """
    env = dict(env)
    if (warnings := env.pop("PYTHONWARNINGS", None)) is not None:
        env[WARNINGS] = warnings
    checkout = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if os.path.realpath(cwd) != os.path.realpath(checkout):
        return dict(env)
    paths = [checkout, *filter(None, [env.get("PYTHONPATH")])]
    return {**env, "PYTHONPATH": os.pathsep.join(paths)}


def busy_s() -> float:
    """For how long this process has computed, or was ready to and got no core, in seconds.

    It stands still while all threads of the process wait for something. Some 10 us for each thread,
    in which it keeps Python's global lock: beside a thread that computes in Python, every call that
    gives the lock away waits 5 ms for it.
    """
    waited_ns = 0
    try:
        for thread in os.listdir("/proc/self/task"):
            fields = _read_keeping_gil(f"/proc/self/task/{thread}/schedstat").split()
            waited_ns += int(fields[1]) if len(fields) > 1 else 0  # it has ended, or is not counted
    except OSError:
        pass  # no /proc
    return time.process_time() + waited_ns / 1e9


def _read_keeping_gil(path: str) -> bytes:
    """What a short file of the kernel's says; nothing if there is none."""
    libc = ctypes.PyDLL(None)  # unlike CDLL it keeps the lock
    file = libc.open(path.encode(), os.O_RDONLY | os.O_CLOEXEC)
    if file < 0:
        return b""
    buffer = ctypes.create_string_buffer(128)
    nbytes = libc.read(file, buffer, len(buffer))
    libc.close(file)
    return buffer.raw[: max(0, nbytes)]


def allow_files() -> None:
    """Raise the soft limit of open files, as Jupyter does; shells often start with few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = FILES if hard == resource.RLIM_INFINITY else min(FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel end this process when its parent's main thread ends (Linux only)."""
    if not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent_pid:  # it died before prctl took effect
        os._exit(0)


def adopt_orphans() -> None:
    """Become the parent of what this process's descendants leave behind (Linux only).

    A user's process may have begun a session of its own, where no signal to its group finds it.
    """
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def children() -> list[int]:
    """The pids of this process's children, zombies too; none where there is no /proc."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/children") as listed:
                found += map(int, listed.read().split())
    return found


def kill_groups(leaders: Iterable[int]) -> None:
    """SIGKILL to processes and all of their groups, but for multiprocessing's resource trackers.

    A tracker ends by itself when all that used it are gone, and removes the semaphores and shared
    memory that they have left in /dev/shm: nobody else would. Takes one look at all processes.
    """
    leaders, killed = {pid for pid in leaders if _has_members(pid)}, set[int]()
    while leaders and any(map(_is_tracker, members := _members(leaders))):
        # A child that was just forked leads no group yet.
        others = ({pid for pid in members if not _is_tracker(pid)} | leaders) - killed
        if not others:
            return
        for pid in others:
            _kill(os.kill, pid)
        killed |= others  # and look again: one may have started another one meanwhile
    for pid in leaders:
        _kill(os.killpg, pid)
        _kill(os.kill, pid)


def end_children(deadline_s: float) -> None:
    """Kill all children, those too that become ours by that (``adopt_orphans``), and reap them.

    Resource trackers get a second to end by themselves: see ``kill_groups``.
    """
    started = time.monotonic()
    while (pids := children()) and (waited_s := time.monotonic() - started) < deadline_s:
        for pid in pids:
            if waited_s > TRACKER_S or not _is_tracker(pid):
                _kill(os.kill, pid)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.005)


def _kill(send: Callable[[int, int], None], pid: int) -> None:
    with contextlib.suppress(OSError):
        send(pid, signal.SIGKILL)


def _has_members(leader: int) -> bool:
    """Whether it, or anybody of its group, is there."""
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return start_time(leader) is not None
    except PermissionError:
        pass
    return True


def processes() -> dict[int, tuple[int, int]]:
    """The living processes of this machine: pid to (parent, process group)."""
    found = {}
    for name in os.listdir("/proc") if os.path.isdir("/proc/self") else ():
        if name.isdecimal():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    fields = stat.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] not in (b"Z", b"X"):
                found[int(name)] = int(fields[1]), int(fields[2])
    return found


def _members(leaders: set[int]) -> list[int]:
    """The pids of these processes' groups, but for those that have ended."""
    return [pid for pid, (_, group) in processes().items() if group in leaders]


def _is_tracker(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as line:
            return b"multiprocessing.resource_tracker" in line.read()
    except OSError:
        return False


def is_still(path: str, file: os.stat_result) -> bool:
    """Whether ``path`` names this file or folder still. One that can't be looked at does."""
    try:
        return os.path.samestat(os.stat(path), file)
    except FileNotFoundError:
        return False
    except OSError:  # a file system that does not answer just now
        return True


def touch(paths: Iterable[str]) -> None:
    """Keep files and folders from those who clear /tmp of what is days old."""
    for path in paths:
        with contextlib.suppress(OSError):
            os.utime(path, follow_symlinks=False)


def share_files_in(folder: str) -> None:
    """Have multiprocessing keep its sockets in a folder of the cluster's, which goes with that.

    One of its own, in /tmp, it would remove at this process's exit, and ranks are killed.
    """
    from multiprocessing import current_process  # not for the agent, which comes here too

    if len(os.fsencode(f"{folder}/listener-12345678")) > SOCKET_LENGTH:
        return
    shutil.rmtree(folder, ignore_errors=True)  # of the rank's former process
    with contextlib.suppress(OSError):
        os.mkdir(folder, 0o700)
        # As ``multiprocessing.util.get_temp_dir`` reads it in Python 3.11 to 3.13.
        config: dict[str, object] = getattr(current_process(), "_config", {})
        config["tempdir"] = folder


def redirect_output(log_path: str) -> None:
    """Send this process's file descriptors 1 and 2 to a log (appending), and 0 to nothing."""
    log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.close(null)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    # What logs to the streams of the process's start logs there too (they are Final to mypy).
    for name in ("stdin", "stdout", "stderr"):
        setattr(sys, f"__{name}__", getattr(sys, name))
