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
    where = f"after entry {cluster.state.sequence}, job {job.id} ({job.phase})"
    attempt = job.attempt
    assert job.phase in PHASE_CODES, where
    assert 0 <= job.tries <= job.attempts, f"{where}: {job.tries} tries counted of {job.attempts}"
    assert job.tries <= job.spec.retry.max_attempts or job.cancelled_by, f"{where}: tried too often"
    if job.phase in ("STARTING", "RUNNING", "STOPPING"):
        assert attempt is not None, f"{where}: no attempt"
        assert attempt.number == job.attempts, f"{where}: attempt {attempt.number} of {job.attempts}"
        assert [worker.rank for worker in attempt.workers] == list(range(len(attempt.workers))), f"{where}: ranks"
        asked, given = job.spec.gpus, sum(len(worker.devices) for worker in attempt.workers)
        assert asked == given, f"{where}: the gang asked for {asked} devices and was given {given}"
        assert attempt.over == all(worker.phase == "gone" for worker in attempt.workers), f"{where}: over or not"
        assert (job.phase == "STOPPING") or attempt.stop is None, f"{where}: stops for {attempt.stop}"
    if job.phase == "RUNNING":
        assert attempt is not None
        assert all(worker.phase != "placed" for worker in attempt.workers), f"{where}: a worker has not started"
    if job.phase == "PENDING" or job.phase in ENDED:
        live = [worker.rank for worker in attempt.workers if worker.phase != "gone"] if attempt is not None else []
        assert not live, f"{where}: workers {live} are not gone"
    if job.phase in ENDED:
        assert job.ended_ns, f"{where}: no end"


def _check_devices(cluster: Cluster, node: Node) -> None:
    """What is known of devices is of devices that there are, or were."""
    where = f"after entry {cluster.state.sequence}, node {node.name}"
    devices = node.inventory.devices
    uuids = {device.uuid for device in devices}.union(node.absent)
    assert len(uuids) == len(devices) + len(node.absent), f"{where}: two devices of one uuid"
    if not (node.conditions or node.device_cordons or node.device_errors or node.device_vouched or node.foreign_mib):
        return
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
    present = {device.uuid for device in node.inventory.devices}
    assert node.foreign_mib.keys() <= present, f"{where}: foreign processes hold devices that are not there"
    assert all(node.foreign_mib.values()), f"{where}: foreign processes hold nothing of a device"


def _check_claims(cluster: Cluster, node: Node) -> None:
    """No device is promised beyond what it has, in any dimension."""
    name, sequence, jobs = node.name, cluster.state.sequence, cluster.state.jobs
    devices = node.inventory.devices
    memory_mib = [0] * len(devices)
    compute = [0] * len(devices)
    for (job_id, rank), worker in cluster.workers_on[name].items():
        job = jobs.get(job_id)
        assert job is not None, (
            f"after entry {sequence}: job {job_id} holds devices of {name}, and there is no such job"
        )
        assert worker.phase != "gone", f"after entry {sequence}: rank {rank} of job {job_id} is gone, and holds devices"
        demand = cluster.demand(job)
        for index in worker.devices:
            if index >= len(devices):
                continue  # the node came back without it
            device = devices[index]
            compute[index] += demand.compute
            assert compute[index] <= WHOLE_COMPUTE, (
                f"after entry {sequence}, device {index} of {name}: {compute[index]} thousandths promised"
            )
            if demand.device_memory_mib > device.nominal_mib:
                continue  # its memory was known when this was promised, and is not any more
            memory_mib[index] += device_claim_mib(device, demand.device_memory_mib)
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
