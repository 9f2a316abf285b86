"""A Cloud TPU host's facts of its slice, and whether its chips are free. No jax is imported.

The slice is read as JAX's own detection reads it (``jax/_src/clusters/cloud_tpu_cluster.py`` of jax
0.10.2 and 0.12). It is in the virtual machine's metadata, or (on GKE) in the pod's environment.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

ASK_S = 2.0  # the metadata server is on the same machine, or there is none
# libtpu keeps this file locked while its process lives, and does not load where another has it.
LOCK = Path("/tmp/libtpu_lockfile")
# If these are set, several processes of a host share its chips, and libtpu takes no lock.
SHARED = "ALLOW_MULTIPLE_LIBTPU_LOAD"


@dataclass(frozen=True)
class TpuWorker:
    """Which host of a TPU slice this one is."""

    number: int  # in the slice, which JAX makes its process's rank
    hosts: tuple[str, ...]  # names or addresses of all, in the order of their numbers
    slices: int = 1  # that work together (Multislice)


def metadata(key: str, environ: Mapping[str, str] = os.environ) -> str:
    """An attribute of this virtual machine; "" where there is none, or no metadata server."""
    server = environ.get("GCE_METADATA_IP", "metadata.google.internal")
    path = f"/computeMetadata/v1/instance/attributes/{key}"
    connection = http.client.HTTPConnection(server, timeout=ASK_S)
    try:
        connection.request("GET", path, headers={"Metadata-Flavor": "Google"})
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == 200 else ""
    except (OSError, http.client.HTTPException, UnicodeDecodeError):
        return ""
    finally:
        connection.close()


def tpu_worker(
    chips: int,
    environ: Mapping[str, str] = os.environ,
    ask: Callable[[str, Mapping[str, str]], str] = metadata,
) -> TpuWorker | None:
    """Which host of a TPU slice this is; None where it has no TPU, or nothing says which.

    Only on a host with TPU chips (or JAX_FORCE_TPU_INIT, as in JAX), ``ask`` gets the metadata.
    Each call may take ``ASK_S``.
    """
    if not chips and "JAX_FORCE_TPU_INIT" not in environ:
        return None
    has_metadata = "TPU_SKIP_MDS_QUERY" not in environ
    slices = environ.get("MEGASCALE_NUM_SLICES", "")
    # In JAX's order: a virtual machine of a slice first, then a pod. An endpoint is
    # NAME:NUMBER:ADDRESS, or a name; a pod's host may have a port.
    if has_metadata and (number := ask("agent-worker-number", environ)):
        listed = ask("worker-network-endpoints", environ)
    else:
        number, listed = environ.get("TPU_WORKER_ID", ""), _hosts_in(environ)
    hosts = [word.strip().split(":") for word in listed.split(",") if word.strip()]
    if not number.strip().isdecimal() or not hosts:
        return None
    if has_metadata and not slices:
        found = re.search(r"MEGASCALE_NUM_SLICES\s*:\s*'?(\d+)", ask("tpu-env", environ))
        slices = found[1] if found else ""
    names = tuple(host[2] if len(host) == 3 else host[0] for host in hosts)
    return TpuWorker(int(number), names, max(1, int(slices) if slices.isdecimal() else 1))


def _hosts_in(environ: Mapping[str, str]) -> str:
    """The slice's hosts as GKE names them to a pod."""
    if path := environ.get("TPU_PROCESS_ADDRESSES_PATH"):
        try:
            return Path(path).read_text()
        except (OSError, UnicodeDecodeError):
            return ""
    return environ.get("TPU_PROCESS_ADDRESSES") or environ.get("TPU_WORKER_HOSTNAMES") or ""


def wait_for_libtpu(timeout_s: float, path: Path = LOCK) -> None:
    """Return once libtpu's lock is free: the process before may still be giving its chips back.

    Raises:
      RuntimeError: it is not within ``timeout_s``, or may not be opened.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            # Another user's process may hold what only that user may write.
            with open(path, "rb") as file:  # closing it gives the lock back
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            os.close(os.open(path, os.O_RDWR))
            return
        except FileNotFoundError:  # libtpu makes it
            return
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"The TPU of this host is held by another process, which has locked {path} "
                    f"for longer than {timeout_s:g} s. Find it and end it: sudo lsof -w {path}"
                ) from None
        except OSError as error:
            raise RuntimeError(
                f"libtpu can't open {path} ({error.strerror}): another user's process has left it. "
                f"Remove it: sudo rm {path}"
            ) from None
        time.sleep(0.1)
