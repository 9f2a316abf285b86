"""What the notebook and the ranks say to each other.

Every message is one JSON object, an envelope, followed by any number of raw buffers:

    {"v": 2, "op": "cell", "id": "7f3a...", "body": {...}}        a request
    {"v": 2, "op": "reply", "id": "7f3a...", "body": {...}}       its one reply
    {"v": 2, "op": "output", "id": "7f3a...", "body": {...}}      what comes before the reply

``body`` is one of the frozen dataclasses in ``messages``, and ``codec`` makes bytes of it and it of
bytes. JSON only: nothing that arrives on these sockets is unpickled, except the values that a user
pushes and pulls on purpose.
"""

from jaxcluster.wire.codec import (
    PROTOCOL_VERSION,
    OtherVersion,
    clean,
    decode,
    encode,
    parse,
    parse_strictly,
    plain,
    shorten,
    told,
    type_name,
)
from jaxcluster.wire.comms import VIEW_MIME, WIDGET, CommState, opening_order
from jaxcluster.wire.messages import (
    BROKEN_OFF,
    CROSSING,
    HASH_FACTOR,
    HASH_MODULUS,
    ArrayInfo,
    CellReply,
    CellRequest,
    ClusterSpec,
    CommMessage,
    DeviceInfo,
    EngineFacts,
    ErrorInfo,
    GpuUse,
    InitializeReply,
    InitializeRequest,
    Launch,
    MemoryReport,
    MeshInfo,
    NameChanges,
    NamedBytes,
    RankOutput,
    RankReport,
    RankResources,
    RankState,
    RecentCell,
    ShardCheck,
    ShardInfo,
    ValueReport,
    VariableInfo,
    crossing,
    next_hash,
)

__all__ = [
    "BROKEN_OFF",
    "CROSSING",
    "HASH_FACTOR",
    "HASH_MODULUS",
    "PROTOCOL_VERSION",
    "VIEW_MIME",
    "WIDGET",
    "ArrayInfo",
    "CellReply",
    "CellRequest",
    "ClusterSpec",
    "CommMessage",
    "CommState",
    "DeviceInfo",
    "EngineFacts",
    "ErrorInfo",
    "GpuUse",
    "InitializeReply",
    "InitializeRequest",
    "Launch",
    "MemoryReport",
    "MeshInfo",
    "NameChanges",
    "NamedBytes",
    "OtherVersion",
    "RankOutput",
    "RankReport",
    "RankResources",
    "RankState",
    "RecentCell",
    "ShardCheck",
    "ShardInfo",
    "ValueReport",
    "VariableInfo",
    "clean",
    "crossing",
    "decode",
    "encode",
    "next_hash",
    "opening_order",
    "parse",
    "parse_strictly",
    "plain",
    "shorten",
    "told",
    "type_name",
]
