"""What a Cloud TPU host can say of its slice, and who holds its chips. No jax is imported.

The slice is read as JAX's own detection reads it (``jax/_src/clusters/cloud_tpu_cluster.py`` of jax
0.10.2 and 0.12): from the virtual machine's metadata, else (on GKE) from the pod's environment.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jaxcluster.host.procfs import named

ASK_S = 2.0  # the metadata server is on the same machine, or there is none
# libtpu keeps this file locked while its process lives, and does not load where another has it.
LOCK = Path("/tmp/libtpu_lockfile")
# Where they are set, several processes of a host share its chips, and libtpu leaves the lock.
SHARED = "ALLOW_MULTIPLE_LIBTPU_LOAD"
_FLOCK = "hhqqi4x"  # struct flock of 64-bit Linux: type, whence, start, length, pid


@dataclass(frozen=True)
class TpuWorker:
    """Which host of a TPU slice this one is.

    Attributes:
      number: its worker number in the slice, which JAX makes its process's rank.
      hosts: the names or addresses of all hosts of the slice, in the order of their numbers.
      slices: how many slices work together (Multislice); 1 for one alone.
    """

    number: int
    hosts: tuple[str, ...]
    slices: int = 1


def tpu_worker(
    chips: int,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[str, Mapping[str, str]], str | None] | None = None,
) -> TpuWorker | None:
    """Which host of a TPU slice this is; None where it has no TPU, or nothing says which.

    Only a host with TPU chips (or JAX_FORCE_TPU_INIT, as in JAX) is asked for its metadata: that
    may take ``ASK_S``.

    Args:
      chips: how many TPU chips this host has.
      ask: for an attribute of the virtual machine's; ``metadata`` by default.
    """
    if not chips and "JAX_FORCE_TPU_INIT" not in environ:
        return None
    ask = ask or metadata
    asked = "TPU_SKIP_MDS_QUERY" not in environ
    # In JAX's order: a virtual machine of a slice first, then a pod.
    number = (asked and ask("agent-worker-number", environ)) or ""
    hosts = _endpoints(ask("worker-network-endpoints", environ) or "") if number else ()
    if not number:
        number, hosts = environ.get("TPU_WORKER_ID", ""), _hosts_in(environ)
    if not number.strip().isdecimal() or not hosts:
        return None
    slices = environ.get("MEGASCALE_NUM_SLICES")
    if slices is None and asked:
        slices = _tpu_env(ask("tpu-env", environ) or "").get("MEGASCALE_NUM_SLICES")
    count = int(slices) if slices is not None and slices.isdecimal() else 1
    return TpuWorker(int(number), hosts, max(1, count))


def metadata(key: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """An attribute of this virtual machine; None where there is none, or no metadata server."""
    server = environ.get("GCE_METADATA_IP", "metadata.google.internal")
    path = f"/computeMetadata/v1/instance/attributes/{key}"
    connection = http.client.HTTPConnection(server, timeout=ASK_S)
    try:
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else None
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return None
    finally:
        connection.close()


def _hosts_in(environ: Mapping[str, str]) -> tuple[str, ...]:
    """The slice's hosts as GKE names them to a pod."""
    if path := environ.get("TPU_PROCESS_ADDRESSES_PATH"):
        try:
            text = Path(path).read_text()
        except (OSError, UnicodeDecodeError):
            text = ""
    else:
        text = environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES") or ""
    return tuple(word.strip().partition(":")[0] for word in text.split(",") if word.strip())


def _endpoints(text: str) -> tuple[str, ...]:
    """The addresses in ``worker-network-endpoints``: ``NAME:NUMBER:ADDRESS``, or names alone."""
    words = [word.strip().split(":") for word in text.split(",") if word.strip()]
    return tuple(word[2] if len(word) == 3 else word[0] for word in words)


def _tpu_env(text: str) -> dict[str, str]:
    """The lines ``KEY: 'VALUE'`` of ``tpu-env``."""
    found = re.findall(r"^\s*(\w+)\s*:\s*'?(.*?)'?\s*$", text, re.MULTILINE)
    return dict(found)


# ------------------------------------------------------------------------- who holds the chips


def wait_for_libtpu(timeout_s: float, path: Path = LOCK) -> None:
    """Return once libtpu's lock is free: the process before may still be giving its chips back.

    Raises:
      RuntimeError: it is not within ``timeout_s``, or may not be opened; naming who has it.
    """
    deadline = time.monotonic() + timeout_s
    while (holder := _holder(path)) is not None:
        if time.monotonic() > deadline:
            raise RuntimeError(
                f"The TPU of this host is held by {_whose(holder)}, which has locked {path} for "
                f"longer than {timeout_s:g} s. End that process; `sudo lsof -w {path}` lists "
                "those of other users, too."
            )
        time.sleep(0.1)
    try:
        os.close(os.open(path, os.O_RDWR))
    except FileNotFoundError:
        pass  # libtpu makes it
    except OSError as error:
        raise RuntimeError(
            f"libtpu can't open {path} ({error.strerror}): another user's process has left it. "
            f"Remove it: sudo rm {path}"
        ) from None


def _holder(path: Path) -> int | None:
    """The pid of the process that has the lock, 0 where it can't be seen from here; None: nobody.

    The lock is a record lock (``lockf``), which the kernel tells of; asking for it would take it.
    """
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return None
    try:
        # A read lock conflicts with libtpu's write lock, and can be asked about with O_RDONLY.
        asked = struct.pack(_FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(file, fcntl.F_GETLK, asked))
        return None if kind == fcntl.F_UNLCK else max(0, pid)
    finally:
        os.close(file)


def _whose(pid: int) -> str:
    return named(pid, 80) if pid else "a process of another container"
