"""The AsyncAPI 3.0 document: the log's subjects and events, and the telemetry, from their types."""

from typing import Any, Final

import msgspec

from muster import __version__
from muster.events import telemetry
from muster.events import types as t

_REF: Final = "#/components/schemas/{name}"
_STREAMS: Final[dict[str, tuple[str, str, tuple[Any, ...]]]] = {
    "submission": ("muster.submission.{queue}", "Jobs as they were submitted.", (t.JobSubmitted,)),
    "job": ("muster.job.{queue}.{event}", "What people ask of jobs.", (t.JobCancelRequested,)),
    "admin": ("muster.admin.{event}", "What operators decide.", t.AdminFact.__args__),
    "node": ("muster.node.{node}.{event}", "What agents report.", t.NodeFact.__args__),
    "decision": (
        "muster.decision.{queue}.{event}",
        "What the scheduler observed and decided; `_cluster` stands where there is no queue.",
        (*t.Observation.__args__, *t.Decision.__args__),
    ),
    "command": ("muster.command.{node}", "What agents are told.", t.Command.__args__),
    "heartbeat": ("muster.heartbeat.{node}", "Agents are alive; kept for a while.", (telemetry.Heartbeat,)),
    "gpu": ("muster.gpu.{node}", "Devices as they were sampled; kept for a while.", (telemetry.GpuSampled,)),
}
_PARAMETERS: Final = {
    "queue": {"description": "The leaf name of the job's queue."},
    "event": {"description": "The event's name, in lower case with dashes."},
    "node": {"description": "The node's name."},
}


def asyncapi_document() -> dict[str, Any]:
    """The document as JSON-like data."""
    kinds = [kind for _, _, kinds in _STREAMS.values() for kind in kinds]
    _, schemas = msgspec.json.schema_components(kinds, ref_template=_REF)
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Muster's log",
            "version": __version__,
            "description": "One ordered log of immutable events on NATS JetStream. Each message is one event in JSON; "
            "its type and version are in `type`. New fields have defaults; a new meaning is a new type or version.",
        },
        "defaultContentType": "application/json",
        "servers": {"broker": {"host": "127.0.0.1:4222", "protocol": "nats"}},
        "channels": {name: _channel(name) for name in _STREAMS},
        "operations": {
            f"follow-{name}": {
                "action": "send",
                "channel": {"$ref": f"#/channels/{name}"},
                "summary": summary,
            }
            for name, (_, summary, _) in _STREAMS.items()
        },
        "components": {
            "schemas": schemas,
            "messages": {kind.__name__: _message(kind) for kind in kinds},
        },
    }


def _channel(name: str) -> dict[str, Any]:
    address, summary, kinds = _STREAMS[name]
    return {
        "address": address,
        "summary": summary,
        "parameters": {token: text for token, text in _PARAMETERS.items() if f"{{{token}}}" in address},
        "messages": {kind.__name__: {"$ref": f"#/components/messages/{kind.__name__}"} for kind in kinds},
    }


def _message(kind: Any) -> dict[str, Any]:
    return {
        "name": str(kind.__struct_config__.tag),
        "title": kind.__name__,
        "summary": " ".join((kind.__doc__ or "").split()),
        "contentType": "application/json",
        "payload": {"$ref": _REF.format(name=kind.__name__)},
    }
