"""Another process's memory, read where it is: one copy, and no page is made for it."""

from __future__ import annotations

import ctypes
import os
from typing import Any

PR_SET_PTRACER = 0x59616D61  # "Yama"
_libc = ctypes.CDLL(None, use_errno=True)


class _Span(ctypes.Structure):
    _fields_ = (("address", ctypes.c_void_p), ("nbytes", ctypes.c_size_t))


def allow_reader(pid: int) -> None:
    """Let this process's memory be read by that one, where the system's default is to refuse it.

    Source: Linux's Documentation/admin-guide/LSM/Yama.rst, ``ptrace_scope`` 1.
    """
    _libc.prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


def read_memory(pid: int, address: int, into: Any) -> None:
    """Fill a contiguous array with what a process of this user has at an address.

    Other threads run meanwhile.

    Raises:
      OSError: it may not be read (PermissionError), or is gone (ProcessLookupError).
    """
    target, left, one = into.ctypes.data, into.nbytes, ctypes.c_ulong(1)
    while left:
        here, there = _Span(target, left), _Span(address, left)
        count = _libc.process_vm_readv(
            pid, ctypes.byref(here), one, ctypes.byref(there), one, ctypes.c_ulong(0)
        )
        if count <= 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
        target, address, left = target + count, address + count, left - count


_libc.process_vm_readv.restype = ctypes.c_ssize_t
