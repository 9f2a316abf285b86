"""How ranks profile a cell."""

from __future__ import annotations

from jaxcluster.wire import messages
from jaxcluster.wire.ops import Operation


class ProfileReady(Operation[None], op="profile_ready"):
    """A cell with this token is to be profiled, into this folder."""

    token: str
    folder: str
    session: str


class Profile(Operation[None], op="profile"):
    """Profile the cell that runs now, for so long or to its end, and reply then."""

    token: str
    folder: str
    session: str
    seconds: float


class ProfileStop(Operation[None], op="profile_stop"):
    """The ``Profile`` that runs ends now; replies when it has ended."""

    token: str


class ReadTracks(Operation[messages.ProfileTracks], op="profile_tracks"):
    """What is in a file that this rank, or one before it, has written: so many slices at ``most``.

    ``texts``: with the compiled texts of its programs.
    """

    path: str
    most: int
    texts: bool
