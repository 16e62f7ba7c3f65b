"""What workers hold of the devices here. The scheduler books no device twice; should it ever, it ends here."""

from collections.abc import Sequence

from muster.events.binding import WHOLE_COMPUTE, device_claim_mib
from muster.events.types import Inventory, StartWorker
from muster.node_agent.worker_folder import Ticket


class RefusalError(Exception):
    """A worker cannot be started, and why."""


def used_mib(held: Sequence[Ticket]) -> dict[int, int]:
    """Device → memory held."""
    used: dict[int, int] = {}
    for ticket in held:
        for index, claim_mib in ticket.claims_mib.items():
            used[index] = used.get(index, 0) + claim_mib
    return used


def claims_mib(command: StartWorker, inventory: Inventory, held: Sequence[Ticket]) -> dict[int, int]:
    """Device → memory that the worker will hold of it. Raises RefusalError where what is `held` leaves no room."""
    memory_mib = used_mib(held)
    compute: dict[int, int] = {}
    for ticket in held:
        for index in ticket.claims_mib:
            compute[index] = compute.get(index, 0) + ticket.compute
    devices = {device.index: device for device in inventory.devices}
    claims: dict[int, int] = {}
    for binding in command.devices:
        device = devices.get(binding.index)
        if device is None or device.uuid != binding.uuid:
            raise RefusalError(f"device {binding.index} is not {binding.uuid} here")
        claim_mib = device_claim_mib(device, command.device_memory_mib)
        free_mib = device.memory_mib - memory_mib.get(binding.index, 0)
        free_compute = WHOLE_COMPUTE - compute.get(binding.index, 0)
        if claim_mib > free_mib or command.compute > free_compute:
            raise RefusalError(f"device {binding.index} is held by a worker that still lives")
        claims[binding.index] = claim_mib
    return claims
