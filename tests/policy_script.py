"""Clusters on paper for scenarios of policies: who runs, who waits, who is stopped for whom."""

from cluster_script import Script, spec

from muster.events import types as t
from muster.events.policy import Policy, Preemption, QueueSpec
from muster.events.spec import JobSpec, LimitsSpec

HOUR = 3600
NO_PREEMPTION = Preemption(mode="none")
AT_ONCE = Policy(preemption=Preemption(min_runtime=0))


def cluster(devices: int, nodes: int, policy: Policy | None = None, *queues: QueueSpec) -> Script:
    """So many nodes of so many devices on one fabric."""
    script = Script()
    for number in range(1, nodes + 1):
        script.node(f"node-{number}", devices, fabric="f")
    script.append(t.PolicyChanged(policy or Policy(), "root"))
    for queue in queues:
        script.append(t.QueueConfigured(queue, "root"))
    assert not script.cluster.state.refusals
    return script


def run(script: Script, *jobs: int) -> None:
    """Passes to rest; these jobs' workers run."""
    script.settle()
    for job in jobs:
        script.start(job)


def phases(script: Script, *jobs: int) -> list[str]:
    return [script.job(job).phase for job in jobs]


def waits(script: Script, *jobs: int) -> list[int]:
    return [job for job in jobs if script.job(job).phase == "PENDING"]


def pass_time(script: Script, seconds: int) -> None:
    """Time passes in steps that the log takes whole."""
    while seconds > 0:
        script.advance(min(60, seconds))
        seconds -= 60


def lasting(gpus: int, seconds: int, **more: object) -> JobSpec:
    return spec(gpus, limits=LimitsSpec(estimate=seconds), **more)


def running(script: Script, *specs: JobSpec, user: str = "ada") -> list[int]:
    """Jobs that were submitted, placed and started, all of them."""
    jobs = [script.submit(each, user) for each in specs]
    script.settle()
    for job in jobs:
        script.start(job)
        assert script.job(job).phase == "RUNNING", f"job {job} does not run"
    return jobs


def victims(events: list[t.Event]) -> list[int]:
    return [event.job for event in events if isinstance(event, t.JobPreempted)]


def beneficiaries(events: list[t.Event]) -> list[int]:
    return [event.job for event in events if isinstance(event, t.RoomReserved)]


def starts(events: list[t.Event]) -> list[int]:
    return [event.job for event in events if isinstance(event, t.JobAllocated)]


def stop(script: Script, *jobs: int) -> None:
    """The agents report these as stopped."""
    for job in jobs:
        script.exit(job, None, reason="stopped")


def devices_of(script: Script, queue: str) -> int:
    """Devices that a queue's jobs hold and keep."""
    jobs = [job for job in script.cluster.state.jobs.values() if job.spec.queue == queue]
    live = [job for job in jobs if job.phase in ("STARTING", "RUNNING")]
    return sum(job.spec.gpus for job in live)
