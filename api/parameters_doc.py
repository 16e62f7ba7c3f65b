"""What each query parameter and header means, for the OpenAPI document. Headers begin with a capital letter."""

from typing import Any, Final

PARAMETERS: Final[dict[str, dict[str, Any]]] = {
    "at": {
        "description": "The state after this entry, at this time (2030-01-31T14:05:00Z, yesterday 14:05), or so long"
        " ago (-10m, -1h30m).",
        "schema": {"type": "string"},
    },
    "min_seq": {"description": "Wait until this entry has been seen.", "schema": {"type": "integer", "minimum": 0}},
    "after": {
        "description": "Go on after this one: a job's id in the list of jobs (newest first), a sequence of events.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "limit": {
        "description": "At most so many.",
        "schema": {"type": "integer", "minimum": 1, "maximum": 1000, "default": 100},
    },
    "follow": {"description": "1 to go on with what comes in.", "schema": {"type": "integer", "enum": [0, 1]}},
    "full": {
        "description": "1 for steps 1 and 2 of a placed job too, as they were at the basis of its allocation.",
        "schema": {"type": "integer", "enum": [0, 1]},
    },
    "state": {"description": "States or their codes, separated by commas.", "schema": {"type": "string"}},
    "user": {"description": "Only of this user, or of these, separated by commas.", "schema": {"type": "string"}},
    "queue": {"description": "Only of this queue, or of these, separated by commas.", "schema": {"type": "string"}},
    "jobs": {"description": "Only these jobs: ids, separated by commas.", "schema": {"type": "string"}},
    "rank": {"description": "Which worker.", "schema": {"type": "integer", "minimum": 0, "default": 0}},
    "attempt": {
        "description": "Which attempt; the last one if left out. Agents keep what ended workers wrote for a while.",
        "schema": {"type": "integer", "minimum": 1},
    },
    "timeout": {
        "description": "Seconds to wait.",
        "schema": {"type": "number", "minimum": 0, "maximum": 300, "default": 30},
    },
    "start": {
        "description": "1 for the expected start of the first hundred that wait.",
        "schema": {"type": "integer", "enum": [0, 1]},
    },
    "from": {"description": "It begins at or after this moment, as for `at`.", "schema": {"type": "string"}},
    "job": {"description": "Only what concerns this job.", "schema": {"type": "integer", "minimum": 1}},
    "node": {"description": "Only what concerns this node.", "schema": {"type": "string"}},
    "kind": {
        "description": "Only these types of events, separated by commas: `JobAllocated`, `job-allocated`.",
        "schema": {"type": "string"},
    },
    "until_event": {
        "description": "The last entry that is told: its sequence, or the type of which it is the first.",
        "schema": {"type": "string"},
    },
    "all": {
        "description": "1 for what only follows from other entries too: commands, and time going by.",
        "schema": {"type": "integer", "enum": [0, 1]},
    },
    "name": {"description": "Only jobs with this in their name.", "schema": {"type": "string"}},
    "since": {"description": "Only jobs submitted (with `ended`, ended) from then on.", "schema": {"type": "string"}},
    "until": {"description": "Only jobs submitted (with `ended`, ended) until then.", "schema": {"type": "string"}},
    "ended": {
        "description": "1 for jobs that have ended, by the time of their end.",
        "schema": {"type": "integer", "enum": [0, 1]},
    },
    "by": {
        "description": "Sums instead of jobs.",
        "schema": {"type": "string", "enum": ["user", "queue", "state", "day", "week", "month"]},
    },
    "to": {"description": "It ends not after this moment, as for `at`.", "schema": {"type": "string"}},
    "source": {
        "description": "What is audited: the log, or this server's mirror of it.",
        "schema": {"type": "string", "enum": ["log", "mirror"], "default": "log"},
    },
    "expect": {"description": "SEQ:CHAIN, a chain hash kept elsewhere.", "schema": {"type": "string"}},
    "prune": {
        "description": "1 to remove the queues that the body does not name.",
        "schema": {"type": "integer", "enum": [0, 1]},
    },
    "dry_run": {
        "description": "1 (or true) to be told what would change, and change nothing.",
        "schema": {"type": "integer", "enum": [0, 1]},
    },
    "wait_for_capacity": {
        "description": "1 to accept a job that today's nodes, limits and lanes could never take.",
        "schema": {"type": "integer", "enum": [0, 1]},
    },
    "Last-Event-ID": {
        "description": "Resume after this sequence.",
        "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"},
    },
    "Idempotency-Key": {
        "description": "The same key with the same body makes one job, however often it is sent.",
        "schema": {"type": "string", "minLength": 1, "maxLength": 255},
    },
    "Muster-User": {
        "description": "Who asks: a name for the record, no proof.",
        "schema": {"type": "string", "default": "anonymous"},
    },
}
