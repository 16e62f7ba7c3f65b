"""What workers hold of the devices here, by uuid: numbers change. The scheduler books no device twice; should it ever,
it ends here."""

from collections.abc import Sequence

from muster.events.binding import WHOLE_COMPUTE, device_claim_mib
from muster.events.types import Inventory, StartWorker
from muster.node_agent.refusal import RefusalError
from muster.node_agent.worker_folder import Ticket


def claims_mib(command: StartWorker, inventory: Inventory, held: Sequence[Ticket]) -> dict[str, int]:
    """Device → memory that the worker will hold of it. Raises RefusalError where what is `held` leaves no room."""
    memory_mib: dict[str, int] = {}
    compute: dict[str, int] = {}
    for ticket in held:
        for uuid, claim_mib in ticket.claims_mib.items():
            memory_mib[uuid] = memory_mib.get(uuid, 0) + claim_mib
            compute[uuid] = compute.get(uuid, 0) + ticket.compute
    devices = {device.index: device for device in inventory.devices}
    claims: dict[str, int] = {}
    for binding in command.devices:
        device = devices.get(binding.index)
        if device is None or device.uuid != binding.uuid:
            raise RefusalError(f"device {binding.index} is not {binding.uuid} here")
        claim_mib = device_claim_mib(device, command.device_memory_mib)
        free_mib = device.memory_mib - memory_mib.get(binding.uuid, 0)
        free_compute = WHOLE_COMPUTE - compute.get(binding.uuid, 0)
        if claim_mib > free_mib or command.compute > free_compute:
            raise RefusalError(f"device {binding.index} is held by a worker that still lives")
        claims[binding.uuid] = claim_mib
    return claims
