"""Every exception that jaxcluster raises.

    JaxClusterError
    ├── UsageError            what was typed is wrong; nothing was sent
    ├── NoCluster             there is no cluster to talk to
    ├── ClusterExists         a cluster of that name is already running
    ├── VersionMismatch       notebook and ranks speak different protocol versions
    ├── LaunchError           the cluster did not come up; nothing was left running
    │   ├── LauncherUnavailable
    │   ├── EnginesMissing    some ranks never reported
    │   ├── PlanError         the ranks can't be laid out on these devices
    │   └── InitializeFailed  jax.distributed.initialize failed on some ranks
    ├── RankError             something happened on ranks of a running cluster
    │   ├── CellFailed
    │   ├── RankDied
    │   └── RankHung
    ├── Divergence            ranks were about to launch different programs; none was launched
    ├── TransferError         a value could not travel
    │   ├── NotAddressable
    │   └── NotSerialisable
    └── RecoveryError

    KeyboardInterrupt
    └── CellInterrupted       the user stopped a cell on the ranks

``hint`` says what to type next. Pickling keeps all attributes, and IPython shows an exception
without jaxcluster's own frames.
"""

from __future__ import annotations

from collections.abc import Sequence

# JAX's exceptions for failures of XLA, by JAX's versions.
XLA_ERRORS = ("JaxRuntimeError", "XlaRuntimeError")
# Said wherever a restart is the way out: it loses nothing that can be saved.
RESTART_HINT = (
    "%jaxcluster restart gives the ranks new processes, and keeps the variables of those that live."
)


class JaxClusterError(Exception):
    """An error: what went wrong (``message``), what to type next (``hint``), and the ``ranks``."""

    def __init__(self, message: str = "", hint: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(message, hint)  # what else there is, pickle takes from ``vars``
        self.message = message
        self.hint = hint
        self.ranks = tuple(ranks)

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message

    def _render_traceback_(self) -> list[str]:
        """IPython's hook: the message alone, since the frames below it are ours."""
        return [f"\x1b[0;31m{type(self).__name__}\x1b[0m: {self}"]


class UsageError(JaxClusterError):
    """The typed line is wrong; nothing was sent to any rank."""


class NoCluster(JaxClusterError):
    """There is no running cluster (of that name)."""


class ClusterExists(JaxClusterError):
    """A cluster of that name is already running."""


class VersionMismatch(JaxClusterError):
    """The notebook and the ranks run jaxcluster versions that can't talk to each other."""


class LaunchError(JaxClusterError):
    """The cluster did not come up. All that had been started was ended."""


class LauncherUnavailable(LaunchError):
    """This machine lacks what this launcher needs."""


class EnginesMissing(LaunchError):
    """The ranks in ``ranks`` never reported."""


class PlanError(LaunchError):
    """The ranks can't be laid out on the devices that are here."""


class InitializeFailed(LaunchError):
    """``jax.distributed.initialize`` failed on some ranks."""


class RankError(JaxClusterError):
    """Something happened on one or more ranks."""


class CellFailed(RankError):
    """A cell raised on some ranks.

    Attributes:
      ranks: the ranks that raised.
      ename: the name of the first rank's exception class, e.g. ``"ZeroDivisionError"``.
      traceback: the text to show: equal errors once, with the ranks that raised them.
    """

    def __init__(
        self,
        message: str = "",
        hint: str = "",
        ranks: Sequence[int] = (),
        ename: str = "",
        traceback: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint, ranks)
        self.ename = ename
        self.traceback = tuple(traceback)

    def _render_traceback_(self) -> list[str]:
        lines = list(self.traceback) or super()._render_traceback_()
        return [*lines, self.hint] if self.hint and self.traceback else lines


class CellInterrupted(KeyboardInterrupt):
    """The user stopped a cell, and the ranks have left it.

    It is a KeyboardInterrupt, so ``except Exception`` does not catch it.

    Attributes:
      ranks: the ranks that were interrupted.
    """

    def __init__(self, message: str = "", ranks: Sequence[int] = ()) -> None:
        super().__init__(message, tuple(ranks))
        self.message = message
        self.ranks = tuple(ranks)

    def __str__(self) -> str:
        return self.message

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[0;31mKeyboardInterrupt\x1b[0m: {self}"]


class RankDied(RankError):
    """A rank's process ended."""


class RankHung(RankError):
    """A rank did not answer within the time allowed."""


class Divergence(JaxClusterError):
    """The ranks of a cell were about to launch different programs. Nothing was launched.

    ``ranks`` are those that differ.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"\x1b[0;31m{type(self).__name__}\x1b[0m in {self}"]


class TransferError(JaxClusterError):
    """A value could not travel between the notebook and the ranks."""


class NotAddressable(TransferError):
    """Some part of an array is held by no rank that answers."""


class NotSerialisable(TransferError):
    """A value can't be pickled."""


class RecoveryError(JaxClusterError):
    """A cluster could not be brought back."""
