"""The private names of ipykernel and comm are where ``kernel_private`` has them."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

from comm.base_comm import BaseComm
from ipykernel.kernelbase import Kernel

from jaxcluster.host import kernel_private


def test_the_names_are_those_that_ipykernel_and_comm_use() -> None:
    assert "_allow_stdin" in inspect.getsource(Kernel.raw_input) and hasattr(Kernel, "_allow_stdin")
    assert "_parent_ident" in inspect.getsource(Kernel)
    assert "_closed" in inspect.getsource(BaseComm.close)


def test_what_is_read_and_set_is_where_ipykernel_has_it() -> None:
    kernel = SimpleNamespace(_allow_stdin=True, _parent_ident={"shell": b"x"})
    assert not kernel_private.allows_stdin(SimpleNamespace())
    assert kernel_private.allows_stdin(kernel)
    assert kernel_private.shell_ident(kernel) == b"x"
    kernel_private.mark_closed(kernel)
    assert kernel._closed is True
