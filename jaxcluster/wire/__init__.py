"""What the notebook and the ranks say to each other.

Every message is one JSON object, an envelope, followed by any number of raw buffers:

    {"v": 4, "op": "cell", "id": "7f3a...", "body": {...}}        a request
    {"v": 4, "op": "reply", "id": "7f3a...", "body": {...}}       its one reply
    {"v": 4, "op": "output", "id": "7f3a...", "body": {...}}      what comes before the reply

``body`` is one of the frozen dataclasses in ``messages`` and ``ops``, where each operation stands
with its request and its reply. ``codec`` makes bytes of it and it of bytes. JSON only: nothing that
arrives on these sockets is unpickled, except the values that a user pushes and pulls on purpose.
"""

from jaxcluster.wire import cell_ends
from jaxcluster.wire.codec import (
    PROTOCOL_VERSION,
    OtherVersion,
    WrongFields,
    clean,
    decode,
    encode,
    encode_body,
    envelope,
    parse,
    parse_strictly,
    plain,
    read,
    shorten,
    told,
    type_name,
)
from jaxcluster.wire.comms import VIEW_MIME, WIDGET, CommState, opening_order
from jaxcluster.wire.inbox import Inbox
from jaxcluster.wire.journals import LastLaunches, reports_of
from jaxcluster.wire.launches import (
    BROKEN_OFF,
    CROSSING,
    HASH_FACTOR,
    HASH_MODULUS,
    OURS,
    Launch,
    LaunchTimes,
    compiling_fingerprint,
    crossing,
    crossing_began,
    fingerprint,
    is_compiling,
    is_of_source,
    next_hash,
    unpacked,
)
from jaxcluster.wire.messages import (
    TOO_LATE,
    ArrayInfo,
    CellReply,
    CellRequest,
    ClusterSpec,
    CommMessage,
    CommPush,
    CopyNote,
    Death,
    DeviceInfo,
    EngineFacts,
    ErrorInfo,
    Failure,
    GpuUse,
    InitializeReply,
    InitializeRequest,
    MemoryReport,
    MeshInfo,
    NameChanges,
    Named,
    NamedBytes,
    Paused,
    PollReply,
    Question,
    RankOutput,
    RankReport,
    RankResources,
    RankState,
    Script,
    ShardCheck,
    ShardInfo,
    Spoiled,
    ThreadError,
    ValueReport,
    VariableInfo,
)
