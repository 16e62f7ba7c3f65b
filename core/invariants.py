"""What must hold of the state after every entry: each comment of `core.state` as an assertion, and the indexes equal
to ones computed afresh. For tests and audits: of everything, or of one job or node as an entry touched it."""

from muster.core.cluster import Cluster
from muster.core.state import ENDED, PHASE_CODES, Job, Node
from muster.events.binding import WHOLE_COMPUTE, device_claim_mib


def check_invariants(cluster: Cluster) -> None:
    """All of them. Raises AssertionError with the sequence and what does not hold."""
    check_indexes(cluster)
    check_state(cluster)


def check_state(cluster: Cluster) -> None:
    """Those of every job and node. Raises as `check_invariants`."""
    for job in cluster.state.jobs.values():
        check_job(cluster, job)
    for node in cluster.state.nodes.values():
        check_node(cluster, node)
    _check_ports(cluster)


def check_node(cluster: Cluster, node: Node) -> None:
    """What must hold of one node: its devices, and what is promised of them. Raises as `check_invariants`."""
    _check_devices(cluster, node)
    _check_claims(cluster, node)


def check_job(cluster: Cluster, job: Job) -> None:
    """What must hold of one job, and of its place in the work lists. Raises as `check_invariants`."""
    attempt, phase = job.attempt, job.phase
    assert phase in PHASE_CODES, _of_job(cluster, job)
    assert 0 <= job.tries <= job.attempts, f"{_of_job(cluster, job)}: {job.tries} tries counted of {job.attempts}"
    assert job.tries <= job.spec.retry.max_attempts or job.cancelled_by, f"{_of_job(cluster, job)}: tried too often"
    if phase in ("STARTING", "RUNNING", "STOPPING"):
        assert attempt is not None, f"{_of_job(cluster, job)}: no attempt"
        workers, where = attempt.workers, _of_job
        assert attempt.number == job.attempts, f"{where(cluster, job)}: attempt {attempt.number} of {job.attempts}"
        assert [worker.rank for worker in workers] == list(range(len(workers))), f"{where(cluster, job)}: ranks"
        asked, given = job.spec.gpus, sum([len(worker.devices) for worker in workers])
        assert asked == given, f"{where(cluster, job)}: the gang asked for {asked} devices and was given {given}"
        assert attempt.over != attempt.has_workers(), f"{where(cluster, job)}: over or not"
        assert (phase == "STOPPING") or attempt.stop is None, f"{where(cluster, job)}: stops for {attempt.stop}"
        assert phase != "RUNNING" or not attempt.awaits_start(), f"{where(cluster, job)}: a worker has not started"
    else:
        assert attempt is None or not attempt.has_workers(), f"{_of_job(cluster, job)}: workers that are not gone"
        assert job.ended_ns or phase not in ENDED, f"{_of_job(cluster, job)}: no end"


def _of_job(cluster: Cluster, job: Job) -> str:
    """Which job, and when: only formed where something does not hold."""
    return f"after entry {cluster.state.sequence}, job {job.id} ({job.phase})"


def _check_devices(cluster: Cluster, node: Node) -> None:
    """What is known of devices is of devices that there are, or were."""
    devices = node.inventory.devices
    present = {device.uuid for device in devices}
    uuids = present.union(node.absent) if node.absent else present
    assert len(uuids) == len(devices) + len(node.absent), f"{_of_node(cluster, node)}: two devices of one uuid"
    if not (node.conditions or node.device_cordons or node.device_errors or node.device_vouched or node.foreign_mib):
        return
    where = _of_node(cluster, node)
    for kept in (node.conditions, node.device_cordons, node.device_errors, node.device_vouched):
        assert kept.keys() <= uuids, f"{where}: {kept.keys() - uuids} are no devices of it"
    for uuid, condition in node.conditions.items():
        by_time = condition.action in ("suspect", "probation")
        assert condition.until_at > 0 if by_time else condition.until_at == 0 or condition.action == "no_gangs", (
            f"{where}: device {uuid} is {condition.action} until {condition.until_at}"
        )
    for uuid, errors in node.device_errors.items():
        assert errors, f"{where}: no errors of device {uuid} are kept"
        jobs = [error.job for error in errors if error.job]
        assert len(set(jobs)) == len(jobs), f"{where}: device {uuid} counts a job twice"
    assert node.foreign_mib.keys() <= present, f"{where}: foreign processes hold devices that are not there"
    assert all(node.foreign_mib.values()), f"{where}: foreign processes hold nothing of a device"


def _of_node(cluster: Cluster, node: Node) -> str:
    return f"after entry {cluster.state.sequence}, node {node.name}"


def _check_claims(cluster: Cluster, node: Node) -> None:
    """No device is promised beyond what it has, in any dimension."""
    name, sequence, jobs = node.name, cluster.state.sequence, cluster.state.jobs
    devices = node.inventory.devices
    count = len(devices)
    memory_mib = [0] * count
    compute = [0] * count
    for (job_id, rank), worker in cluster.workers_on[name].items():
        job = jobs.get(job_id)
        assert job is not None, (
            f"after entry {sequence}: job {job_id} holds devices of {name}, and there is no such job"
        )
        assert worker.phase != "gone", f"after entry {sequence}: rank {rank} of job {job_id} is gone, and holds devices"
        demand = cluster.demand(job)
        asked, asked_mib = demand.compute, demand.device_memory_mib
        for index in worker.devices:
            if index >= count:
                continue  # the node came back without it
            device = devices[index]
            compute[index] += asked
            assert compute[index] <= WHOLE_COMPUTE, (
                f"after entry {sequence}, device {index} of {name}: {compute[index]} thousandths promised"
            )
            if asked_mib > device.nominal_mib:
                continue  # its memory was known when this was promised, and is not any more
            memory_mib[index] += device_claim_mib(device, asked_mib) if asked_mib else device.memory_mib
            assert memory_mib[index] <= device.memory_mib, (
                f"after entry {sequence}, device {index} of {name}: {memory_mib[index]} MiB promised"
            )


def _check_ports(cluster: Cluster) -> None:
    """No port is held twice at one address."""
    ports: dict[tuple[str, int], int] = {}
    for job in cluster.state.jobs.values():
        attempt = job.attempt
        if attempt is None or not cluster.is_live(job) or attempt.over:
            continue
        for endpoint in attempt.ports():
            port = (endpoint.address, endpoint.port)
            assert port not in ports, f"port {port} is held by jobs {ports.get(port)} and {job.id}"
            ports[port] = job.id


def check_indexes(cluster: Cluster) -> None:
    """The indexes kept in step equal those of a cluster built from the state. Raises as `check_invariants`."""
    fresh = Cluster(cluster.state)
    where = f"after entry {cluster.state.sequence}"
    work_lists = ("to_stop", "leaving", "to_judge", "starting", "silent", "with_strays", "on_probation", "excluding")
    for name in (*work_lists, "reserved_on", "keys"):
        kept, built = getattr(cluster, name), getattr(fresh, name)
        assert kept == built, f"{where}: {name} is {kept}, a fresh one is {built}"
    kept_lines = {path: (line.order, line.keys, line.users) for path, line in cluster.lines.by_queue.items()}
    built_lines = {path: (line.order, line.keys, line.users) for path, line in fresh.lines.by_queue.items()}
    assert kept_lines == built_lines, f"{where}: who waits is {kept_lines}, a fresh one is {built_lines}"
    assert cluster.lines.count == fresh.lines.count, f"{where}: how many wait"
    for name in ("by_queue", "limits", "priorities"):
        kept, built = getattr(cluster.schedule, name), getattr(fresh.schedule, name)
        assert kept == built, f"{where}: the schedule's {name} is {kept}, a fresh one is {built}"
    for name in vars(fresh.ledger()):
        if name not in ("tree", "_claimants"):
            kept, built = getattr(cluster.ledger(), name), getattr(fresh.ledger(), name)
            assert _clean(kept) == _clean(built), f"{where}: the ledger's {name} is {kept}, a fresh one is {built}"
    kept_workers = {name: set(workers) for name, workers in cluster.workers_on.items() if workers}
    built_workers = {name: set(workers) for name, workers in fresh.workers_on.items() if workers}
    assert kept_workers == built_workers, f"{where}: workers by node"
    kept_room, built_room = cluster.room(), fresh.room()
    for name in ("by_cpus", "by_left", "largest"):
        assert getattr(kept_room, name) == getattr(built_room, name), f"{where}: {name} of the room"
    for kept_rooms, built_rooms in ((kept_room, built_room), (cluster.healthy, fresh.healthy)):
        for name, room in kept_rooms.rooms.items():
            built_node = built_rooms.rooms[name]
            same = (room.ailments, room.available) == (built_node.ailments, built_node.available)
            assert same, f"{where}: what is wrong with {name}"
    kept_ports = {address: ports for address, ports in kept_room.ports.items() if ports}
    assert kept_ports == {address: ports for address, ports in built_room.ports.items() if ports}, f"{where}: ports"
    for key, pool in kept_room.pools.items():
        built_pool = built_room.pools.get(key)
        assert pool.shelves == (built_pool.shelves if built_pool else {}), f"{where}: {key}"


def _clean(sums: object) -> object:
    """Sums without those that are nothing."""
    return {key: value for key, value in sums.items() if any(value)} if isinstance(sums, dict) else sums
