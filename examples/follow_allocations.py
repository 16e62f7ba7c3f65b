# ruff: noqa: INP001, T201  an example, to be read and run by itself
"""Follow allocations with plain nats-py: python follow_allocations.py nats://HOST:PORT CREDENTIALS [SEQUENCE]"""

import asyncio
import json
import sys
from pathlib import Path

import nats
from nats.js.api import ConsumerConfig, DeliverPolicy


async def follow(url: str, reader: dict[str, str], after: int = 0) -> None:
    """Print each allocation whose sequence is greater than `after`, for ever."""
    inbox = f"_INBOX.{reader['user']}"
    user, password = reader["user"], reader["password"]
    connection = await nats.connect(url, user=user, password=password, inbox_prefix=inbox, max_reconnect_attempts=-1)
    start = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1)
    messages = await connection.jetstream(prefix=reader["api"]).subscribe(
        "muster.decision.*.job-allocated", stream="MUSTER_LOG", config=start, ordered_consumer=True, idle_heartbeat=0.5
    )
    async for message in messages.messages:
        sequence, event = message.metadata.sequence.stream, json.loads(message.data)
        if sequence > after:
            after = sequence
            nodes = ", ".join(f"{each['node']}: {each['devices']}" for each in event["placements"])
            print(f"{sequence} job {event['job']}.{event['attempt']} on {nodes}", flush=True)


if __name__ == "__main__":
    reader = json.loads(Path(sys.argv[2]).read_bytes())["reader"]
    asyncio.run(follow(sys.argv[1], reader, *map(int, sys.argv[3:])))
