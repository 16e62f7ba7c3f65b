"""Gangs over several nodes stay together: NVLink domain, rack, fabric, in that order."""

from cluster_script import inventory, spec

from muster.core.capacity import Capacity
from muster.core.node_room import Share
from muster.core.placement import place
from muster.core.resources import demand_of
from muster.core.scheme import Scheme
from muster.events.spec import GpuSpec, JobSpec


def cluster(*nodes: tuple[int, str, str], fabric: str = "ib") -> Capacity:
    """Nodes node-1, node-2 ..: devices, NVLink domain and rack ("" = no such label)."""
    capacity = Capacity()
    for number, (devices, domain, rack) in enumerate(nodes, start=1):
        labels = {label: value for label, value in (("nvlink", domain), ("rack", rack)) if value}
        capacity.set_node(f"node-{number}", inventory(devices, fabric=fabric, labels=labels))
        capacity.set_available(f"node-{number}", available=True)
    return capacity


def placed(capacity: Capacity, job: JobSpec) -> tuple[list[str], str]:
    found = place(capacity, demand_of(job))
    assert found is not None
    return [share.node for share in found.shares], found.why


def fill(capacity: Capacity, node: str, *devices: int) -> None:
    capacity.take(Share(node, devices, 0, 0), demand_of(spec(len(devices), cpus=0)))


def test_a_gang_stays_in_one_nvlink_domain_although_others_are_fuller() -> None:
    capacity = cluster((4, "d1", "r1"), (4, "d2", "r1"), (8, "d3", "r2"), (8, "d3", "r2"))

    nodes, why = placed(capacity, spec(8, nodes=2))

    assert nodes == ["node-3", "node-4"]
    assert why == "best-fit: an even split over 2 nodes of nvlink=d3"


def test_then_in_one_rack_then_on_one_fabric() -> None:
    capacity = cluster((4, "d1", "r1"), (4, "d2", "r2"), (4, "d3", "r2"))

    assert placed(capacity, spec(8)) == (
        ["node-2", "node-3"],
        "best-fit: an even split over 2 nodes of rack=r2",
    )

    fill(capacity, "node-3", 0)

    assert placed(capacity, spec(8)) == (
        ["node-1", "node-2"],
        "best-fit: an even split over 2 nodes on fabric ib",
    )


def test_a_gang_that_one_node_holds_goes_to_one() -> None:
    capacity = cluster((4, "d1", ""), (4, "d1", ""), (8, "", ""))

    assert placed(capacity, spec(8, nodes="any"))[0] == ["node-3"]


def test_within_a_level_the_fewest_nodes_come_first() -> None:
    capacity = cluster((2, "d1", ""), (2, "d1", ""), (2, "d1", ""), (4, "d2", ""), (4, "d2", ""))

    assert placed(capacity, spec(6, nodes="any"))[0] == ["node-4", "node-5"]


def test_then_the_domain_with_the_fewest_idle_devices_then_the_name() -> None:
    capacity = cluster(*[(4, domain, "") for domain in ("d1", "d1", "d2", "d2", "d3", "d3")])
    fill(capacity, "node-3", 0)

    assert placed(capacity, spec(6, nodes=2))[0] == ["node-3", "node-4"]
    assert placed(capacity, spec(8, nodes=2))[0] == ["node-1", "node-2"]


def test_a_domain_is_no_link() -> None:
    capacity = cluster((4, "d1", ""), (4, "d1", ""), fabric="")

    assert place(capacity, demand_of(spec(8))) is None
    assert placed(capacity, spec(8, gpu=GpuSpec(interconnect="none"))) == (
        ["node-1", "node-2"],
        "best-fit: an even split over 2 nodes of nvlink=d1",
    )


def test_a_gang_of_shares_stays_together_too() -> None:
    capacity = cluster((1, "d1", ""), (1, "d2", ""), (1, "d2", ""))
    half = GpuSpec(memory=1024, compute=0.5)

    assert placed(capacity, spec(2, nodes=2, gpu=half))[0] == ["node-2", "node-3"]


def test_other_labels_may_be_named_at_any_time() -> None:
    capacity = cluster((4, "d1", "r1"), (4, "d2", "r2"), (4, "d1", "r2"))
    fill(capacity, "node-3", 0)

    assert placed(capacity, spec(6, nodes=2))[0] == ["node-1", "node-3"]

    capacity.scheme = Scheme(topology=("rack",))

    assert placed(capacity, spec(6, nodes=2))[0] == ["node-2", "node-3"]

    capacity.scheme = Scheme(topology=())

    assert placed(capacity, spec(6, nodes=2))[1] == "best-fit: an even split over 2 nodes on fabric ib"


def test_the_largest_node_in_use_still_says_what_a_whole_node_is() -> None:
    capacity = cluster((8, "", ""), (8, "", ""))
    fill(capacity, "node-1", 0, 1, 2, 3)
    fill(capacity, "node-2", 0, 1, 2, 3)

    assert place(capacity, demand_of(spec(8, nodes="fewest"))) is None
