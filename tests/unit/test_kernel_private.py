"""The private names of IPython, ipykernel and comm are where ``kernel_private`` has them."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

from comm.base_comm import BaseComm
from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelbase import Kernel
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.interactiveshell import InteractiveShell

from jaxcluster.host import kernel_private


def test_what_is_replaced_is_what_is_called() -> None:
    assert "_last_traceback" in inspect.getsource(ZMQInteractiveShell._showtraceback)
    assert "_showtraceback" in inspect.getsource(InteractiveShell.showtraceback)
    assert "_cancel_on_sigint" in inspect.getsource(IPythonKernel.do_execute)
    assert "_allow_stdin" in inspect.getsource(Kernel.raw_input) and hasattr(Kernel, "_allow_stdin")
    assert "_parent_ident" in inspect.getsource(Kernel)
    assert "_closed" in inspect.getsource(BaseComm.close)


def test_a_shell_without_the_names_shows_errors_as_ipython_does() -> None:
    shell = SimpleNamespace()
    assert kernel_private.last_traceback(shell) == []
    kernel_private.replace_traceback_display(shell, lambda present: present)
    assert not hasattr(shell, "_showtraceback")
    assert not kernel_private.allows_stdin(shell)


def test_what_is_set_is_where_ipykernel_looks() -> None:
    shell, kernel = (
        SimpleNamespace(),
        SimpleNamespace(_allow_stdin=True, _parent_ident={"shell": b"x"}),
    )
    kernel_private.set_last_traceback(shell, ["line"])
    assert shell._last_traceback == kernel_private.last_traceback(shell) == ["line"]
    kernel_private.replace_cancelling(kernel, str)
    assert kernel._cancel_on_sigint is str
    assert kernel_private.allows_stdin(kernel)
    assert kernel_private.shell_ident(kernel) == b"x"
    kernel_private.mark_closed(shell)
    assert shell._closed is True
