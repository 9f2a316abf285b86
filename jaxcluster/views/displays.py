"""Displays whose contents change, also when the user does nothing: an idle kernel looks idle.

Jupyter's server takes any message of a kernel as use of it, but those of types that it does not
track, in answer to others that it does not track either
(``MappingKernelManager.untracked_message_types``). So ``refresh`` sends an ``update_display_data``
in answer to a ``kernel_info_request``. Frontends find the display by its id.
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

    def refresh(self, bundle: Bundle) -> None:
        """Show this in place of what it shows, and count as no use of the kernel. Any thread."""
        kernel = self._shell.kernel
        session = kernel.session
        session.send(
            kernel.iopub_socket,
            "update_display_data",
            {"data": bundle, "metadata": {}, "transient": {"display_id": self._id}},
            parent={"header": session.msg_header("kernel_info_request")},
            ident=f"kernel.{kernel.ident}.update_display_data".encode(),
        )
