"""What-if against what then really happens: short jobs under one policy, the prediction of another from their log, and
the same jobs submitted at the same times under that other policy."""

import asyncio
import json
import random
from http import HTTPStatus
from typing import Any, Final, NamedTuple

from bench.service import Client, up
from bench.table import Row
from muster.projections.moments import parse_time_ns

CLUSTER: Final = "1x4xA100-80GB"
JOBS: Final = 40
SECONDS: Final = (1.0, 6.0)
ARRIVALS_S: Final = 15.0
SEED: Final = 1
WAIT_S: Final = 300

STRICT: Final = {"order": "fifo", "backfill": {"mode": "none"}, "preemption": {"mode": "none"}}
SHORTEST: Final = {"order": "sjf", "backfill": {"mode": "easy"}, "preemption": {"mode": "none"}}


class _Job(NamedTuple):
    at_s: float
    seconds: float
    gpus: int


def _jobs() -> list[_Job]:
    chance = random.Random(SEED)  # noqa: S311 - a made-up load, the same each time
    times = sorted(chance.uniform(0, ARRIVALS_S) for _ in range(JOBS))
    return [_Job(at_s, round(chance.uniform(*SECONDS), 1), chance.choice((1, 1, 1, 2, 2, 4))) for at_s in times]


async def measure() -> list[Row]:
    """Run, predict, run the other."""
    jobs = _jobs()
    async with up(CLUSTER) as port:
        client = Client(port)
        await client.open()
        first = await _decide_by(client, STRICT)
        before_s = await _run(client, jobs)
        predicted = await _ask(client, "POST", "/v1/whatif", {"from": str(first), "policy": SHORTEST})
        client.close()
    async with up(CLUSTER) as port:
        client = Client(port)
        await client.open()
        await _decide_by(client, SHORTEST)
        real_s = await _run(client, jobs)
        client.close()
    predicted_s = predicted["jobs"]["whatif"]["mean_wait_s"]
    beside = (
        f"{JOBS} jobs of {SECONDS[0]:.0f} to {SECONDS[1]:.0f} s on {CLUSTER}; mean wait {before_s:.1f} s under fifo, of"
        f" sjf with easy predicted {predicted_s:.2f} s, then really {real_s:.2f} s"
    )
    off_pct = 100 * abs(predicted_s - real_s) / real_s
    return [Row("what-if, mean wait against the real one", f"{off_pct:.1f} % off", beside)]


async def _ask(client: Client, method: str, path: str, body: object) -> Any:
    status, answer = await client.ask(method, path, json.dumps(body).encode())
    if status not in (HTTPStatus.OK, HTTPStatus.CREATED):
        raise RuntimeError(f"{method} {path} was answered {status}: {answer.decode()}")
    return json.loads(answer)


async def _decide_by(client: Client, policy: object) -> int:
    """Put a policy in force; the sequence of its entry."""
    sequence: int = (await _ask(client, "PUT", "/v1/policy", policy))["sequence"]
    return sequence


async def _run(client: Client, jobs: list[_Job]) -> float:
    """Submit the jobs at their times, and wait until all have ended; the mean of their waits, from the times that the
    API gives of each (s)."""
    begun_s = asyncio.get_running_loop().time()
    ids = []
    for job in jobs:
        await asyncio.sleep(max(0.0, begun_s + job.at_s - asyncio.get_running_loop().time()))
        body = {
            "command": ["sleep", str(job.seconds)],
            "gpus": job.gpus,
            "name": "bench",
            "limits": {"estimate": round(job.seconds)},
        }
        ids.append((await _ask(client, "POST", "/v1/jobs", body))["id"])
    return sum([await _waited_s(client, job) for job in ids]) / len(ids)


async def _waited_s(client: Client, job: int) -> float:
    _, answer = await client.ask("GET", f"/v1/jobs/{job}/wait?timeout={WAIT_S}")
    view = json.loads(answer)
    times = [parse_time_ns(view[name] or "") for name in ("submitted", "started")]
    if view["state"] != "COMPLETED" or times[0] is None or times[1] is None:
        raise RuntimeError(f"job {job} is {view['state']}")
    return (times[1] - times[0]) / 1e9
