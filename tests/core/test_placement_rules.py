"""The rules by which one node is chosen, on literal clusters; expected values are worked out by hand from the rules'
definitions."""

import random

import pytest
from cluster_script import inventory, spec

from muster.core.capacity import Capacity
from muster.core.fragmentation import DeviceLeft, Measure
from muster.core.node_room import Share
from muster.core.placement import place
from muster.core.resources import Demand, demand_of
from muster.core.scheme import Mix, Rule, Scheme, TaskClass, mix_of, scheme_of
from muster.events.spec import GpuSpec
from muster.events.types import Device

RULES: tuple[Rule, ...] = ("best-fit", "spread", "fragmentation", "tight")
WHOLE_DEVICES: Mix = ((TaskClass(1, 1, 1000, ()), 1),)


def cluster(*devices: int, rule: Rule = "best-fit", mix: Mix = WHOLE_DEVICES, cpus: int = 128) -> Capacity:
    """Nodes node-1, node-2 .. with so many devices each."""
    capacity = Capacity()
    capacity.scheme = Scheme(rule, mix=mix)
    for number, count in enumerate(devices, start=1):
        capacity.set_node(f"node-{number}", inventory(count, cpus=cpus))
        capacity.set_available(f"node-{number}", available=True)
    return capacity


def share(compute: float, memory: int = 1024) -> Demand:
    """A job without CPUs that takes so much of one device."""
    return demand_of(spec(1, cpus=0, gpu=GpuSpec(memory=memory, compute=compute)))


def use(capacity: Capacity, node: str, device: int, compute: float) -> None:
    """Something takes so much of a device."""
    capacity.take(Share(node, (device,), 0, 0), share(compute))


def where(capacity: Capacity, demand: Demand) -> tuple[str, tuple[int, ...]] | None:
    found = place(capacity, demand)
    return None if found is None else (found.shares[0].node, found.shares[0].devices)


def test_best_fit_weighs_sixteen_cpus_as_one_device() -> None:
    capacity = cluster(4, 4)
    capacity.take(Share("node-1", (0,), 0, 0), demand_of(spec(1, cpus=0)))
    capacity.take(Share("node-2", (), 15, 0), demand_of(spec(0, cpus=15)))

    assert where(capacity, demand_of(spec(1, cpus=0))) == ("node-1", (1,))

    capacity.take(Share("node-2", (), 2, 0), demand_of(spec(0, cpus=2)))

    assert where(capacity, demand_of(spec(1, cpus=0))) == ("node-2", (0,))


def test_best_fit_puts_a_share_on_the_fullest_device_that_holds_it() -> None:
    capacity = cluster(3)
    use(capacity, "node-1", 0, 0.3)
    use(capacity, "node-1", 2, 0.5)

    assert where(capacity, share(0.5)) == ("node-1", (2,))
    assert where(capacity, share(0.6)) == ("node-1", (0,))
    assert where(capacity, share(0.8)) == ("node-1", (1,))


def test_spread_takes_the_node_with_the_most_idle_devices_then_the_most_left_then_the_name() -> None:
    capacity = cluster(2, 4, 4, 4, rule="spread")
    capacity.take(Share("node-2", (), 1, 0), demand_of(spec(0, cpus=1)))

    assert where(capacity, demand_of(spec(1))) == ("node-3", (0,))
    assert where(capacity, demand_of(spec(0, cpus=4))) == ("node-3", ())

    capacity.take(Share("node-3", (0,), 1, 0), demand_of(spec(1)))

    assert where(capacity, demand_of(spec(1))) == ("node-4", (0,))


def test_spread_puts_a_share_on_the_emptiest_device() -> None:
    capacity = cluster(3, rule="spread")
    use(capacity, "node-1", 0, 0.5)

    assert where(capacity, share(0.4)) == ("node-1", (1,))

    for device in (1, 2):
        use(capacity, "node-1", device, 0.4)

    assert where(capacity, share(0.4)) == ("node-1", (1,))


def test_the_fragmentation_of_a_node_is_what_the_expected_work_could_not_use() -> None:
    mix: Mix = (
        (TaskClass(4, 1, 500, ()), 5),  # fits: the 400 are too little for it
        (TaskClass(2, 0, 1000, ()), 2),  # uses no device: 1,400
        (TaskClass(20, 1, 500, ()), 1),  # too many CPUs: 1,400
        (TaskClass(2, 2, 1000, ()), 1),  # too few whole devices: 1,400
        (TaskClass(1, 1, 300, ()), 1),  # can use both: 0
        (TaskClass(1, 1, 1000, ("H800",)), 1),  # another model: 1,400
    )
    measure = Measure(mix)
    kind = measure.kind(Device(0, "", "A100-80GB", 81_000, 81_920))

    amount = measure.amount(10, (DeviceLeft(kind, 400, 81_000), DeviceLeft(kind, 1000, 81_000)))

    assert amount == 5 * 400 + 2 * 1400 + 1400 + 1400 + 0 + 1400


def test_devices_of_two_models_are_judged_apart() -> None:
    measure = Measure(((TaskClass(1, 2, 1000, ()), 1),))
    a100 = measure.kind(Device(0, "", "A100-80GB", 81_000, 81_920))
    h800 = measure.kind(Device(0, "", "H800", 81_000, 81_920))

    amount = measure.amount(
        8, (DeviceLeft(a100, 1000, 81_000), DeviceLeft(a100, 1000, 81_000), DeviceLeft(h800, 1000, 81_000))
    )

    assert amount == 1000


@pytest.mark.parametrize(
    ("change", "score"),
    [
        (0, 50),
        (-1, 49),
        (40, 50),  # the sigmoid is 0.51 at ln(51 / 49) = 0.0400053
        (41, 51),
        (-40, 49),
        (-41, 48),
        (300, 57),  # 1 / (1 + exp(-0.3)) = 0.5744
        (4595, 98),  # 0.99 at ln 99 = 4.59512
        (4596, 99),
        (-4596, 0),
        (10**9, 99),
    ],
)
def test_the_score_is_the_sigmoid_of_the_change_cut_to_hundredths(change: int, score: int) -> None:
    assert Measure(WHOLE_DEVICES).score(change) == score
    assert Measure(((TaskClass(1, 1, 1000, ()), 7),)).score(7 * change) == score


@pytest.mark.parametrize("rule", ["fragmentation", "tight"])
def test_a_share_goes_where_it_spoils_nothing(rule: Rule) -> None:
    """On node-1 it would leave 400, too little for the expected 0.7; on an idle device 700 remain."""
    capacity = cluster(1, 1, rule=rule, mix=((TaskClass(0, 1, 700, ()), 1),))
    use(capacity, "node-1", 0, 0.3)

    assert where(capacity, share(0.3)) == ("node-2", (0,))


def test_the_device_is_chosen_with_the_node() -> None:
    capacity = cluster(2, rule="fragmentation", mix=((TaskClass(0, 1, 700, ()), 1),))
    use(capacity, "node-1", 0, 0.3)

    assert where(capacity, share(0.3)) == ("node-1", (1,))
    assert where(capacity, share(0.7)) == ("node-1", (0,))


def test_cpus_that_the_expected_work_needs_are_left_beside_its_devices() -> None:
    """Of node-1's 8 CPUs the 4 would leave too few for the expected 6; node-2 has none that could use its devices."""
    capacity = cluster(1, rule="fragmentation", mix=((TaskClass(6, 1, 1000, ()), 1),), cpus=8)
    capacity.set_node("node-2", inventory(1, cpus=5))
    capacity.set_available("node-2", available=True)

    assert where(capacity, demand_of(spec(0, cpus=4))) == ("node-2", ())


def test_nearly_equal_harm_is_a_tie_for_fragmentation_and_none_for_tight() -> None:
    """The change is 293 on node-1, whose 400 left are too little for one job in a hundred, and 297 on node-2: both
    score 57."""
    mix: Mix = ((TaskClass(0, 0, 1000, ()), 99), (TaskClass(0, 1, 500, ()), 1))
    for rule, node in (("fragmentation", "node-1"), ("tight", "node-2")):
        capacity = cluster(1, 1, rule=rule, mix=mix)  # type: ignore[arg-type]
        use(capacity, "node-1", 0, 0.3)

        assert where(capacity, share(0.3)) == (node, (0,))


def test_equal_harm_goes_to_the_first_name_or_to_the_node_with_less_left() -> None:
    for rule, node in (("fragmentation", "node-1"), ("tight", "node-2")):
        capacity = cluster(1, 1, rule=rule, mix=((TaskClass(0, 1, 300, ()), 1),))  # type: ignore[arg-type]
        use(capacity, "node-2", 0, 0.3)

        assert where(capacity, share(0.3)) == (node, (0,))


def test_memory_of_the_host_and_constraints_hold_under_fragmentation() -> None:
    capacity = cluster(1, 1, 1, rule="fragmentation")
    capacity.take(Share("node-1", (), 0, 1 << 20), demand_of(spec(0, cpus=0, memory=1 << 20)))

    found = place(capacity, demand_of(spec(1, memory=1024)), frozenset({"node-2"}))

    assert found is not None
    assert found.shares[0].node == "node-3"
    assert place(capacity, demand_of(spec(1, memory=1024)), frozenset({"node-2", "node-3"})) is None


def test_without_expected_work_fragmentation_is_best_fit() -> None:
    capacity = cluster(8, 2, rule="fragmentation", mix=())

    found = place(capacity, demand_of(spec(1)))

    assert found is not None
    assert found.why == "best-fit: 2 idle on node-2"


def test_the_mix_is_the_most_frequent_kinds_up_to_the_share_asked_for() -> None:
    small, large, rare = TaskClass(4, 1, 500, ()), TaskClass(8, 8, 1000, ()), TaskClass(1, 0, 1000, ())

    assert mix_of({rare: 5, large: 35, small: 60}, 95) == ((small, 60), (large, 35))
    assert mix_of({rare: 6, large: 35, small: 59}, 95) == ((small, 59), (large, 35), (rare, 6))
    assert mix_of({large: 1, small: 1}, 100) == ((small, 1), (large, 1))


def test_the_scheme_of_a_policy_reads_the_kinds_that_were_submitted() -> None:
    kinds = {"4/1/500/": 100, "16/2/1000/A100-80GB,H800": 31}

    scheme = scheme_of("tight", ["nvlink"], kinds)

    assert scheme.topology == ("nvlink",)
    assert scheme.mix == ((TaskClass(4, 1, 500, ()), 100), (TaskClass(16, 2, 1000, ("A100-80GB", "H800")), 31))
    assert scheme_of("tight", ["nvlink"], kinds | {"4/1/500/": 103}) == scheme
    assert scheme_of("tight", ["nvlink"], kinds | {"4/1/500/": 104}) != scheme
    assert scheme_of("spread", ["nvlink"], kinds).mix == ()


# -- random clusters ------------------------------------------------------------------------------------------------

MIX: Mix = (
    (TaskClass(4, 1, 500, ()), 5),
    (TaskClass(8, 1, 1000, ()), 4),
    (TaskClass(16, 2, 1000, ("H800",)), 2),
    (TaskClass(6, 0, 1000, ()), 2),
    (TaskClass(2, 1, 250, ()), 1),
)


def random_cluster(chance: random.Random) -> Capacity:
    capacity = Capacity()
    for number in range(chance.randint(1, 6)):
        name = f"node-{number}"
        labels = {"rack": chance.choice("ab")} if chance.random() < 0.7 else {}
        model = chance.choice(("A100-80GB", "H800"))
        nodes = inventory(
            chance.randint(0, 4),
            model=model,
            cpus=chance.choice((8, 24)),
            fabric=chance.choice(("", "f", "f")),
            labels=labels,
        )
        capacity.set_node(name, nodes)
        capacity.set_available(name, available=chance.random() < 0.9)
    return capacity


def random_demand(chance: random.Random) -> Demand:
    if chance.random() < 0.15:
        return demand_of(spec(0, cpus=chance.randint(0, 10), nodes=chance.choice((None, 2))))
    gpu = GpuSpec(
        memory=chance.choice((None, 10_000, 40 * 1024)),
        compute=chance.choice((None, 0.05, 0.25, 0.3, 0.5, 0.75)),
        model=chance.choice((None, ["H800"], ["A100-80GB", "H800"])),
        interconnect=chance.choice(("any", "none")),
    )
    nodes = chance.choice((None, None, "any", "fewest", 1, 2))
    return demand_of(spec(chance.randint(2 if nodes == 2 else 1, 6), cpus=chance.randint(0, 4), nodes=nodes, gpu=gpu))


def test_what_one_rule_can_place_all_can_and_what_fits_a_node_is_placed() -> None:
    chance = random.Random(1)
    placed = refused = 0
    for _ in range(120):
        capacity = random_cluster(chance)
        for _ in range(20):
            demand = random_demand(chance)
            found = []
            for rule in RULES:
                capacity.scheme = Scheme(rule, mix=MIX)
                found.append(place(capacity, demand))
            assert len({one is None for one in found}) == 1, (demand, found)
            if demand.nodes == 1:
                assert (found[0] is not None) == any(fits_on(capacity, name, demand) for name in capacity.rooms)
            allotment = chance.choice(found)
            if allotment is None:
                refused += 1
                continue
            placed += 1
            for part in allotment.shares:
                assert fits_exactly(capacity, part, demand)
                capacity.take(part, demand)
    assert min(placed, refused) > 200


def fits_on(capacity: Capacity, name: str, demand: Demand) -> bool:
    """Whether a node has room for the whole demand, by looking at every device of each model."""
    room = capacity.rooms[name]
    of_model: dict[str, int] = {}
    for device in room.inventory.devices:
        if room.fits_device(device.index, demand) and (not demand.models or device.model in demand.models):
            of_model[device.model] = of_model.get(device.model, 0) + 1
    enough = max(of_model.values(), default=0) >= demand.gpus
    return room.available and enough and room.fits_host(*demand.host_share(demand.gpus, 1))


def fits_exactly(capacity: Capacity, part: Share, demand: Demand) -> bool:
    room = capacity.rooms[part.node]
    devices = [room.inventory.devices[index] for index in part.devices]
    return (
        room.available
        and room.fits_host(part.cpus, part.memory_mib)
        and len({device.model for device in devices}) <= 1
        and len(set(part.devices)) == len(part.devices)
        and all(room.fits_device(device.index, demand) for device in devices)
    )


@pytest.mark.parametrize("rule", RULES)
def test_room_that_was_claimed_given_back_and_replaced_places_as_room_made_anew(rule: Rule) -> None:
    chance = random.Random(2)
    for _ in range(40):
        kept = random_cluster(chance)
        kept.scheme = Scheme(rule, mix=MIX)
        claims: list[tuple[Share, Demand]] = []
        for _ in range(25):
            demand = random_demand(chance)
            found = place(kept, demand)
            assert found == place(made_anew(kept, claims), demand)
            for part in found.shares if found is not None else ():
                kept.take(part, demand)
                claims.append((part, demand))
            if claims and chance.random() < 0.4:
                kept.give(*claims.pop(chance.randrange(len(claims))))
            name = chance.choice(sorted(kept.rooms))
            change = chance.random()
            if change < 0.2:
                kept.refill(name, [claim for claim in claims if claim[0].node == name])
            elif change < 0.3:
                kept.set_available(name, available=not kept.rooms[name].available)


def made_anew(kept: Capacity, claims: list[tuple[Share, Demand]]) -> Capacity:
    fresh = Capacity()
    for name, room in kept.rooms.items():
        fresh.set_node(name, room.inventory)
        fresh.refill(name, [claim for claim in claims if claim[0].node == name])
        fresh.set_available(name, available=room.available)
    fresh.scheme = kept.scheme
    return fresh
