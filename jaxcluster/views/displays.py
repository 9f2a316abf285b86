"""Displays whose contents change, also without a word from the user: an idle kernel stays idle.

A page that shows how things go on wants it fresh, and a kernel whose ranks are idle must look idle
to whatever culls those. Jupyter's server takes any message of a kernel for a sign that somebody
uses it, but those of types that it does not track, in answer to others that it does not track
either (``MappingKernelManager.untracked_message_types``; a server without it counts them). So these
are messages of type ``update_display_data`` in answer to a ``kernel_info_request``. Frontends find
the display by its id, whatever the message answers.
"""

from __future__ import annotations

import uuid
from typing import Any

Bundle = dict[str, Any]  # what is shown, by its MIME type


class Display:
    """A place in a notebook's output, for one MIME bundle in place of the other."""

    def __init__(self, shell: Any) -> None:
        self._shell, self._id, self.is_shown = shell, "", False

    def show(self, bundle: Bundle) -> None:
        self._id = self._id or uuid.uuid4().hex  # not before: most cells have one, and show none
        place = {"display_id": self._id}
        self._shell.display_pub.publish(bundle, {}, transient=place, update=self.is_shown)
        self.is_shown = True


def update_display(kernel: Any, data: Bundle, display_id: str) -> None:
    """Show a MIME bundle in place of what the display of this id shows. Any thread."""
    session = kernel.session
    session.send(
        kernel.iopub_socket,
        "update_display_data",
        {"data": data, "metadata": {}, "transient": {"display_id": display_id}},
        parent={"header": session.msg_header("kernel_info_request")},
        ident=f"kernel.{kernel.ident}.update_display_data".encode(),
    )
