"""Which devices of a node a worker gets, by how they are linked; sets and sums are worked out by hand."""

from collections.abc import Iterable
from itertools import combinations

import msgspec
import pytest
from cluster_script import inventory, spec

from muster.core.capacity import Capacity
from muster.core.links import Links, links_of, pair_score
from muster.core.node_room import Share
from muster.core.placement import place
from muster.core.resources import demand_of
from muster.core.scheme import Rule, Scheme, TaskClass
from muster.events.spec import GpuSpec

RULES: tuple[Rule, ...] = ("best-fit", "spread", "fragmentation", "tight")

# Two sockets of four, pairs behind one switch each.
PCIE = """
X   PIX NODE NODE SYS SYS SYS SYS
PIX X   NODE NODE SYS SYS SYS SYS
NODE NODE X  PIX  SYS SYS SYS SYS
NODE NODE PIX X   SYS SYS SYS SYS
SYS SYS SYS SYS X   PIX NODE NODE
SYS SYS SYS SYS PIX X   NODE NODE
SYS SYS SYS SYS NODE NODE X  PIX
SYS SYS SYS SYS NODE NODE PIX X
"""

# The hybrid cube mesh of a DGX-1 with V100, as its vendor prints it: six links on each device.
CUBE_MESH = """
X   NV1 NV1 NV2 NV2 SYS SYS SYS
NV1 X   NV2 NV1 SYS NV2 SYS SYS
NV1 NV2 X   NV2 SYS SYS NV1 SYS
NV2 NV1 NV2 X   SYS SYS SYS NV1
NV2 SYS SYS SYS X   NV1 NV1 NV2
SYS NV2 SYS SYS NV1 X   NV2 NV1
SYS SYS NV1 SYS NV1 NV2 X   NV2
SYS SYS SYS NV1 NV2 NV1 NV2 X
"""


def matrix(text: str) -> list[list[str]]:
    return [line.split() for line in text.strip().splitlines()]


def mesh(link: str, devices: int = 8) -> list[list[str]]:
    return [["X" if one == other else link for other in range(devices)] for one in range(devices)]


def described(text: str) -> Links:
    links = links_of(matrix(text), 8)
    assert links is not None
    return links


def cluster(*topologies: list[list[str]], rule: Rule = "best-fit") -> Capacity:
    """Nodes node-1, node-2 .. on one fabric, of eight devices linked so."""
    capacity = Capacity()
    capacity.scheme = Scheme(rule, mix=((TaskClass(1, 1, 1000, ()), 1),))
    for number, topology in enumerate(topologies, start=1):
        plain = inventory(len(topology) or 8, fabric="ib-1")
        capacity.set_node(f"node-{number}", msgspec.structs.replace(plain, topology=topology))
        capacity.set_available(f"node-{number}", available=True)
    return capacity


def use(capacity: Capacity, *devices: int, node: str = "node-1", compute: float | None = None) -> None:
    gpu = GpuSpec() if compute is None else GpuSpec(memory=1024, compute=compute)
    for device in devices:
        capacity.take(Share(node, (device,), 0, 0), demand_of(spec(1, cpus=0, gpu=gpu)))


def devices(capacity: Capacity, gpus: int, **fields: object) -> tuple[int, ...]:
    found = place(capacity, demand_of(spec(gpus, **fields)))
    assert found is not None
    return found.shares[0].devices


def test_a_link_scores_by_its_path_and_each_nvlink_more_than_any_path() -> None:
    in_order = ["", "SYS", "NODE", "PHB", "PXB", "PIX", "NV1", "NV2", "NV4", "NV12", "NV18"]

    scores = [pair_score(link) for link in in_order]

    assert scores == sorted(set(scores))
    assert scores[0] == 0
    assert pair_score("NV2") - pair_score("NV1") > pair_score("PIX")


@pytest.mark.parametrize(
    ("busy", "gpus", "expected"),
    [
        ([], 1, (0,)),
        ([], 2, (0, 1)),
        ([], 3, (0, 1, 2)),
        ([], 4, (0, 1, 2, 3)),
        ([0], 4, (4, 5, 6, 7)),  # the whole socket, not three of one and one of the other
        ([0], 2, (2, 3)),  # a pair; those of the broken socket leave the other whole
        ([0, 2, 4], 2, (6, 7)),
        ([0], 1, (1,)),  # the odd one out first
        ([0, 1, 2], 1, (3,)),  # alone on its socket
        ([0, 2, 4, 5], 2, (6, 7)),
        ([0, 2, 4, 6], 2, (1, 3)),  # no pair is left: one socket at least
        ([1, 2, 3, 5], 4, (0, 4, 6, 7)),
        ([0, 4], 6, (1, 2, 3, 5, 6, 7)),
    ],
)
@pytest.mark.parametrize("rule", RULES)
def test_pairs_and_sockets_are_kept_whole(rule: Rule, busy: list[int], gpus: int, expected: tuple[int, ...]) -> None:
    capacity = cluster(matrix(PCIE), rule=rule)
    use(capacity, *busy)

    assert devices(capacity, gpus) == expected


@pytest.mark.parametrize(
    ("busy", "gpus", "expected"),
    [
        ([], 2, (0, 3)),  # two links, as are seven other pairs
        ([], 4, (0, 1, 2, 3)),  # nine links, as has the other quad
        ([3], 2, (1, 2)),  # of the pairs with two links one that leaves the other quad whole
        ([0, 1], 4, (4, 5, 6, 7)),
        ([0, 4], 2, (2, 3)),  # five links to others that are idle, as 6 and 7 have; other such pairs have six
    ],
)
def test_nvlinks_count_most(busy: list[int], gpus: int, expected: tuple[int, ...]) -> None:
    capacity = cluster(matrix(CUBE_MESH))
    use(capacity, *busy)

    assert devices(capacity, gpus) == expected


@pytest.mark.parametrize("topology", [[], mesh("NV12"), mesh("PIX"), mesh(""), mesh("NV12")[:7]])
def test_where_all_are_linked_alike_or_nothing_is_known_the_lowest_numbers_are_taken(topology: list[list[str]]) -> None:
    assert links_of(topology, 8) is None


def test_an_nvswitch_machine_with_busy_devices_gives_the_lowest_that_are_idle() -> None:
    capacity = cluster(mesh("NV12"))
    use(capacity, 0, 2, 3)

    assert devices(capacity, 4) == (1, 4, 5, 6)


def test_a_gang_gets_connected_devices_on_each_node() -> None:
    capacity = cluster(matrix(PCIE), matrix(PCIE))
    use(capacity, 0, node="node-1")
    use(capacity, 4, 6, node="node-2")

    found = place(capacity, demand_of(spec(8, nodes=2)))

    assert found is not None
    assert [(share.node, share.devices) for share in found.shares] == [
        ("node-1", (4, 5, 6, 7)),
        ("node-2", (0, 1, 2, 3)),
    ]


def test_shares_go_to_devices_in_use_first_and_then_to_those_connected_with_them() -> None:
    capacity = cluster(matrix(PCIE))
    use(capacity, 5, compute=0.5)
    gpu = GpuSpec(memory=1024, compute=0.4)

    assert devices(capacity, 1, gpu=gpu) == (5,)
    assert devices(capacity, 2, gpu=gpu) == (4, 5)
    assert devices(capacity, 4, gpu=gpu) == (4, 5, 6, 7)


def test_shares_that_are_spread_go_to_idle_devices_that_are_connected() -> None:
    capacity = cluster(matrix(PCIE), rule="spread")
    use(capacity, 0, compute=0.5)

    assert devices(capacity, 2, gpu=GpuSpec(memory=1024, compute=0.4)) == (2, 3)


@pytest.mark.parametrize(
    ("rule", "gpus", "why"),
    [
        ("best-fit", 2, "best-fit: 8 idle on node-1, devices linked by PIX"),
        ("spread", 4, "spread: 8 idle on node-1, devices linked by PIX/NODE"),
        ("tight", 1, "tight: least harm on node-1"),
    ],
)
def test_the_reason_names_the_links_where_they_were_a_choice(rule: Rule, gpus: int, why: str) -> None:
    found = place(cluster(matrix(PCIE), rule=rule), demand_of(spec(gpus)))

    assert found is not None
    assert found.why == why


def test_beyond_the_bound_sets_grow_from_their_best_members() -> None:
    """Sixteen devices in two halves of eight: 12,870 sets of eight, too many to compare."""
    halves = [[("NV4" if one // 8 == other // 8 else "SYS") for other in range(16)] for one in range(16)]
    links = links_of(halves, 16)
    assert links is not None

    assert links.choose(range(16), 8) == list(range(8))
    assert links.choose([0, *range(2, 16)], 8) == list(range(8, 16))


def test_no_other_set_is_better_connected() -> None:
    """Ten for PIX and twenty for each link, as docs/placement.md has it."""
    topology = matrix(CUBE_MESH)

    def total(chosen: Iterable[int]) -> int:
        pairs = (topology[one][other] for one, other in combinations(chosen, 2))
        return sum(2 if link == "SYS" else 10 + 20 * int(link[2:]) for link in pairs)

    for candidates in combinations(range(8), 6):
        chosen = described(CUBE_MESH).choose(candidates, 3)
        assert total(chosen) == max(map(total, combinations(candidates, 3)))


def test_of_sets_as_well_connected_with_what_a_worker_has_the_rest_is_left_best_connected() -> None:
    """Beside device 0: {4,5,6} and {1,3,4} have 164 each with it; the first leaves 1-3 (30), the other 5-6 (50)."""
    assert described(CUBE_MESH).choose([1, 3, 4, 5, 6], 3, [0]) == [1, 3, 4]
