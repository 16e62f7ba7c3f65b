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

    async def tell(error: Exception) -> None:
        print(f"{url}: {error or 'no answer'}; trying again", file=sys.stderr)

    account = {"user": reader["user"], "password": reader["password"], "inbox_prefix": f"_INBOX.{reader['user']}"}
    connection = await nats.connect(url, **account, max_reconnect_attempts=-1, error_cb=tell)
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
    _, url, credentials, *after = sys.argv if len(sys.argv) > 2 else sys.exit(__doc__)  # noqa: PLR2004 - the two it needs
    asyncio.run(follow(url, json.loads(Path(credentials).read_bytes())["reader"], *map(int, after)))
