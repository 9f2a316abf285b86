"""The private names of ipykernel and comm are where ``kernel_private`` has them."""

from __future__ import annotations

import inspect

from comm.base_comm import BaseComm
from ipykernel.kernelbase import Kernel


def test_the_names_are_those_that_ipykernel_and_comm_use() -> None:
    assert "_allow_stdin" in inspect.getsource(Kernel.raw_input) and hasattr(Kernel, "_allow_stdin")
    assert "_parent_ident" in inspect.getsource(Kernel)
    assert "_closed" in inspect.getsource(BaseComm.close)
