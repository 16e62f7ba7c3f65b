"""All routes, in one table: the server is built from it, and so is the OpenAPI document."""

from typing import Final, NamedTuple

import msgspec

from muster.api import (
    auditing,
    cordons,
    diffing,
    documents,
    explaining,
    history,
    insight,
    logs,
    queues,
    reading,
    replaying,
    streams,
    submissions,
    whatif,
)
from muster.api.configuring import PolicySet, QueuesChanged
from muster.api.cordons import CordonSet
from muster.api.explaining import ExplainView
from muster.api.history import HistoryView
from muster.api.http_types import Handler
from muster.api.log_views import AuditView, EventPage
from muster.api.node_views import NodeAnswer, NodePage
from muster.api.queue_views import PolicyView, QueueAnswer, QueuePage
from muster.api.views import (
    Accepted,
    HealthView,
    JobPage,
    JobView,
    QueueView,
    StateView,
)
from muster.api.whatif_view import WhatIfView
from muster.core.policy_check import QueuesDocument
from muster.events.policy import Policy, QueueSpec
from muster.events.spec import JobSpec


class Route(NamedTuple):
    """One route. `path` is as OpenAPI writes it; `parameters` are query parameters, headers with a capital letter."""

    method: str
    path: str
    handler: Handler
    summary: str
    answer: type[msgspec.Struct] | str
    parameters: tuple[str, ...] = ()
    body: type[msgspec.Struct] | None = None
    statuses: tuple[int, ...] = (200,)
    problems: tuple[int, ...] = ()
    timeless: str = ""  # why it has no `at`, where one would ask for it

    @property
    def pattern(self) -> str:
        """The path as the router wants it: a job's id is digits, a device's number too, a queue's path may have
        slashes."""
        digits = self.path.replace("{id}", r"{id:[0-9]+}").replace("{index}", r"{index:[0-9]+}")
        return digits.replace("{path}", "{path:.+}")

    @property
    def query(self) -> frozenset[str]:
        """The names of its query parameters."""
        return frozenset(name for name in self.parameters if not name[0].isupper())

    @property
    def operation_id(self) -> str:
        """A name for the operation."""
        return self.handler.__name__


READ: Final = ("at", "min_seq")
PAGE: Final = ("after", "limit")
WINDOW: Final = ("from", "to", "min_seq")
STREAM: Final = (*READ, *PAGE, "follow", "Accept", "Last-Event-ID")
WRITE: Final = ("Muster-User",)

ROUTES: Final = (
    Route(
        "POST", "/v1/jobs", submissions.submit, "Submit a job", Accepted,
        ("wait_for_capacity", "Idempotency-Key", *WRITE), JobSpec, (200, 201), (400, 413, 415, 422, 503, 507),
    ),
    Route(
        "GET", "/v1/jobs", reading.list_jobs, "List jobs, newest first", JobPage,
        ("state", "user", "queue", *PAGE, *READ), problems=(404,),
    ),
    Route("GET", "/v1/jobs/{id}", reading.show_job, "Show a job", JobView, READ, problems=(404,)),
    Route(
        "GET", "/v1/jobs/{id}/events", streams.list_job_events, "What concerns a job", EventPage, STREAM,
        problems=(404,),
    ),
    Route(
        "GET", "/v1/jobs/{id}/explain", explaining.explain_job, "Why it waits, or runs where it does", ExplainView,
        ("full", *READ), problems=(404, 409),
    ),
    Route(
        "GET", "/v1/jobs/{id}/logs", logs.show_logs, "What a worker wrote", "application/octet-stream",
        ("rank", "attempt", "follow", "min_seq"), problems=(404, 503),
        timeless="a worker's output is kept as a whole, without times",
    ),
    Route(
        "GET", "/v1/jobs/{id}/wait", reading.wait_job, "Wait for a job to end", JobView, ("timeout", "min_seq"),
        problems=(404, 409), timeless="what is past has happened; the job itself takes at",
    ),
    Route(
        "POST", "/v1/jobs/{id}/cancel", submissions.cancel, "Cancel a job", Accepted,
        ("min_seq", *WRITE), submissions.CancelBody, (200, 202), (404, 409, 415, 422, 503, 507),
    ),
    Route(
        "GET", "/v1/queue", reading.show_queue, "What runs and what waits", QueueView,
        ("start", "state", "user", "queue", "limit", *READ), problems=(404,),
    ),
    Route("GET", "/v1/nodes", reading.list_nodes, "List the nodes", NodePage, READ),
    Route("GET", "/v1/nodes/{name}", reading.show_node, "Show a node", NodeAnswer, READ, problems=(404,)),
    Route(
        "POST", "/v1/nodes/{name}/cordon", cordons.cordon, "Give a node no new work", CordonSet,
        WRITE, cordons.CordonBody, problems=(404, 415, 422, 503, 507),
    ),
    Route(
        "POST", "/v1/nodes/{name}/uncordon", cordons.uncordon, "Give a node work again", CordonSet,
        WRITE, problems=(404, 409, 415, 503, 507),
    ),
    Route(
        "POST", "/v1/nodes/{name}/devices/{index}/cordon", cordons.cordon_device, "Give a device no new work",
        CordonSet, WRITE, cordons.CordonBody, problems=(404, 415, 422, 503, 507),
    ),
    Route(
        "POST", "/v1/nodes/{name}/devices/{index}/uncordon", cordons.uncordon_device, "Give a device work again",
        CordonSet, WRITE, problems=(404, 409, 415, 503, 507),
    ),
    Route("GET", "/v1/queues", queues.list_queues, "List the queues, with what each holds", QueuePage, READ),
    Route(
        "PUT", "/v1/queues", queues.put_queues, "Make or change queues, all or none", QueuesChanged,
        ("prune", "dry_run", *WRITE), QueuesDocument, problems=(409, 413, 415, 422, 503, 507),
    ),
    Route(
        "GET", "/v1/queues/{path}", queues.show_queue_spec, "Show a queue", QueueAnswer, READ, problems=(404,),
    ),
    Route(
        "PUT", "/v1/queues/{path}", queues.put_queue, "Make or change a queue", QueuesChanged,
        ("dry_run", *WRITE), QueueSpec, problems=(409, 413, 415, 422, 503, 507),
    ),
    Route(
        "DELETE", "/v1/queues/{path}", queues.delete_queue, "Remove a queue that nothing is in", QueuesChanged,
        WRITE, problems=(404, 409, 503, 507),
    ),
    Route("GET", "/v1/policy", queues.show_policy, "The rules in force", PolicyView, READ),
    Route(
        "PUT", "/v1/policy", queues.put_policy, "Decide by these rules from now on", PolicySet,
        ("dry_run", *WRITE), Policy, problems=(413, 415, 422, 503, 507),
    ),
    Route("GET", "/v1/state", reading.show_state, "The state in figures", StateView, READ),
    Route(
        "GET", "/v1/diff", diffing.show_diff, "What changed between two moments", diffing.DiffView,
        ("from", "to", "limit", "min_seq"),
    ),
    Route("GET", "/v1/events", streams.list_events, "The log", EventPage, STREAM),
    Route(
        "GET", "/v1/replay", replaying.replay, "The log as a story", "application/x-ndjson",
        (*WINDOW, "job", "user", "queue", "node", "kind", "all", "until_event"), problems=(404,),
    ),
    Route(
        "GET", "/v1/export", replaying.export, "The log as a file that proves itself", "application/x-ndjson", WINDOW,
    ),
    Route(
        "GET", "/v1/history", history.show_history, "Jobs of all times, and what they took", HistoryView,
        ("jobs", "user", "queue", "state", "name", "since", "until", "ended", "by", *PAGE, *READ), problems=(404,),
    ),
    Route(
        "GET", "/v1/audit", auditing.run_audit, "Fold and decide everything again", AuditView,
        ("from", "to", "expect", "source"), problems=(503,),
    ),
    Route(
        "POST", "/v1/whatif", whatif.what_if, "What would have been in a window of the log", WhatIfView,
        (), whatif.WhatIfBody, problems=(413, 415, 422, 503),
    ),
    Route(
        "POST", "/v1/whatif/submit", whatif.what_if_submitted, "What would become of a job", whatif.SubmitView,
        ("wait_for_capacity", *READ, *WRITE), JobSpec, problems=(413, 415, 422, 503),
    ),
    Route("GET", "/healthz", insight.healthz, "The process runs", HealthView),
    Route("GET", "/readyz", insight.readyz, "The log answers and the fold is with it", HealthView, problems=(503,)),
    Route("GET", "/openapi.json", documents.openapi_json, "This document", "application/json"),
    Route("GET", "/asyncapi.json", documents.asyncapi_json, "The events of the log", "application/json"),
)  # fmt: skip

QUERIES: Final = {route.handler: route.query for route in ROUTES}
"""Handler → the query parameters that it reads."""

TIMELESS: Final = {route.handler: route.timeless for route in ROUTES}
"""Handler → why there is no past of what it answers ("" = nobody would ask)."""

WRITERS: Final = frozenset(
    route.handler for route in ROUTES if WRITE[0] in route.parameters and "at" not in route.parameters
)
"""The handlers that write to the log; what can be asked of the past writes nothing."""
