"""The messages between the notebook and the ranks.

Every message is one JSON object, an envelope, followed by any number of raw buffers:

    {"v": 8, "op": "cell", "id": "7f3a...", "body": {...}}        a request
    {"v": 8, "op": "reply", "id": "7f3a...", "body": {...}}       its one reply
    {"v": 8, "op": "output", "id": "7f3a...", "body": {...}}      what comes before the reply

``body`` is one of the frozen dataclasses in ``ops``, where each operation stands with its request
and its reply. ``codec`` makes bytes of it and it of bytes. JSON only: nothing from these sockets is
unpickled, except values that a user pushes and pulls.
"""

from jaxcluster.agreement.messages import CellSpec, Refusal, Skipped
from jaxcluster.wire.codec import *
from jaxcluster.wire.inbox import Inbox
from jaxcluster.wire.ops.arrays import *
from jaxcluster.wire.ops.cells import *
from jaxcluster.wire.ops.start import *
from jaxcluster.wire.ops.status import *
