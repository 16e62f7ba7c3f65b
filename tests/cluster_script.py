"""A cluster on paper: append events, run passes, look. Invariants are checked after every entry."""

from collections.abc import Sequence

from muster.core.cluster import Cluster
from muster.core.decide import decide
from muster.core.invariants import check_invariants
from muster.core.state import TRANSITIONS, Job
from muster.events import codec
from muster.events import types as t
from muster.events.log import Entry
from muster.events.spec import GpuSpec, JobSpec, RetrySpec, WhereSpec
from muster.events.subjects import subject_of
from muster.projections.fold import Fold

SECOND = 1_000_000_000


def inventory(
    devices: int = 8,
    *,
    model: str = "A100-80GB",
    fabric: str = "",
    cpus: int = 128,
    memory_mib: int = 1 << 20,
    labels: dict[str, str] | None = None,
    address: str = "10.0.0.1",
    containers: bool = False,
    devices_in_containers: bool = False,
) -> t.Inventory:
    """A node's inventory: devices of 80 GiB of which 81,000 MiB are usable."""
    return t.Inventory(
        devices=[t.Device(i, f"GPU-{address}-{i}", model, 81_000, 81_920) for i in range(devices)],
        cpus=cpus,
        memory_mib=memory_mib,
        address=address,
        fabric=fabric,
        labels=labels or {},
        containers=containers,
        devices_in_containers=devices_in_containers,
    )


def spec(gpus: int = 1, **fields: object) -> JobSpec:
    """A job of so many devices."""
    return JobSpec(command=["true"], gpus=gpus, **fields)  # type: ignore[arg-type]


class Script:
    """The log of one small cluster, folded as it grows."""

    def __init__(self, *, check: bool = True) -> None:
        self.fold = Fold.empty()
        self.entries: list[Entry] = []
        self.now_ns = 1_000 * SECOND
        self.check = check
        self.lives: dict[str, int] = {}

    @property
    def cluster(self) -> Cluster:
        return self.fold.cluster

    def job(self, job_id: int) -> Job:
        return self.cluster.state.jobs[job_id]

    def append(self, event: t.Event, queue: str = "default") -> int:
        return self.append_raw(subject_of(event, queue), codec.encode(event))

    def append_raw(self, subject: str, payload: bytes) -> int:
        self.now_ns += 1_000_000
        entry = Entry(len(self.entries) + 1, self.now_ns, subject, payload)
        self.entries.append(entry)
        before = {job.id: job.phase for job in self.cluster.state.jobs.values()} if self.check else {}
        self.fold.apply(entry)
        if self.check:
            check_invariants(self.cluster)
            for job in self.cluster.state.jobs.values():
                was = before.get(job.id, job.phase)
                assert job.phase == was or job.phase in TRANSITIONS[was], f"job {job.id}: {was} to {job.phase}"
        return entry.sequence

    def run_pass(self) -> list[t.Event]:
        """One pass, decided and appended."""
        events = decide(self.cluster)
        for event in events:
            self.append(event)
        return events

    def settle(self) -> list[t.Event]:
        """Passes until nothing follows."""
        everything: list[t.Event] = []
        for _ in range(1000):
            events = self.run_pass()
            if not events:
                return everything
            everything += events
        raise AssertionError("passes do not come to rest")

    # -- what people and agents do --------------------------------------------------------------------------------

    def node(
        self,
        name: str,
        devices: int = 8,
        *,
        workers: Sequence[t.WorkerReport] = (),
        lease_ms: int = 120_000,
        **more: object,
    ) -> str:
        """A node registers (again); gives its incarnation."""
        self.lives[name] = self.lives.get(name, 0) + 1
        life = f"{name}-life-{self.lives[name]}"
        more.setdefault("address", f"10.0.0.{int(name.rpartition('-')[2])}")
        self.append(t.NodeRegistered(name, life, inventory(devices, **more), list(workers), lease_ms))  # type: ignore[arg-type]
        return life

    def submit(self, job_spec: JobSpec, user: str = "ada", key: str = "") -> int:
        return self.append(t.JobSubmitted(user, job_spec, key))

    def start(self, job_id: int, *ranks: int) -> None:
        """The agents report the workers of a job's live attempt as running."""
        attempt = self.job(job_id).attempt
        assert attempt is not None
        for worker in attempt.workers:
            if worker.phase == "placed" and (not ranks or worker.rank in ranks):
                self.append(
                    t.WorkerStarted(
                        worker.node, worker.incarnation, job_id, attempt.number, worker.rank, 4000 + worker.rank
                    )
                )

    def exit(self, job_id: int, code: int | None = 0, *ranks: int, reason: t.ExitReason = "exited") -> None:
        """The agents report the workers of a job's live attempt as gone."""
        attempt = self.job(job_id).attempt
        assert attempt is not None
        for worker in list(attempt.workers):
            if worker.phase != "gone" and (not ranks or worker.rank in ranks):
                status = t.ExitStatus(reason, code)
                self.append(
                    t.WorkerExited(worker.node, worker.incarnation, job_id, attempt.number, worker.rank, status)
                )

    def advance(self, seconds: float) -> None:
        """Time goes by, told to the log as the leader would."""
        self.now_ns += int(seconds * SECOND)
        self.append(t.ClockAdvanced())

    def placed(self, job_id: int) -> dict[str, list[int]]:
        """Node → devices that a job's live attempt holds."""
        attempt = self.job(job_id).attempt
        assert attempt is not None
        return {worker.node: worker.devices for worker in attempt.workers if worker.phase != "gone"}


def worked_case(*, fabric: str, until: str = "Q") -> tuple[Script, dict[str, int]]:
    """Two nodes of 8: X holds node 1's 0-3, Y node 2's 0-1; P (8, whole) and Q (4 of 40 GB) are submitted, or P
    only."""
    script = Script()
    script.node("node-1", fabric=fabric)
    script.node("node-2", fabric=fabric)
    where = {name: WhereSpec(nodes=[name]) for name in ("node-1", "node-2")}
    jobs = {"X": script.submit(spec(4, name="x", where=where["node-1"]))}
    jobs["Y"] = script.submit(spec(2, name="y", where=where["node-2"]))
    script.settle()
    script.start(jobs["X"])
    script.start(jobs["Y"])
    jobs["P"] = script.submit(spec(8, name="p", nodes="any"))
    if until == "Q":
        jobs["Q"] = script.submit(spec(4, name="q", gpu=GpuSpec(memory=40 * 1024)))
    script.settle()
    return script, jobs


NO_RETRY = RetrySpec(max_attempts=1, on=[])
