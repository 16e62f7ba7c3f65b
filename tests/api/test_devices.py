"""Devices over HTTP: what is wrong with them, what they are doing, and what people decide about them."""

from typing import Any

import aiohttp
from api_harness import Harness

from muster.events import types as t
from muster.events.telemetry import DeviceSample

Http = aiohttp.ClientSession


async def _get(http: Http, path: str, **parameters: Any) -> dict[str, Any]:
    async with http.get(path, params=parameters) as answer:
        assert answer.status == 200, await answer.text()
        body: dict[str, Any] = await answer.json()
        return body


async def _post(http: Http, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    async with http.post(path, json=body or {}, headers={"Muster-User": "ada"}) as answer:
        return answer.status, await answer.json()


async def _device(http: Http, index: int, node: str = "node-1", **parameters: Any) -> dict[str, Any]:
    devices = (await _get(http, f"/v1/nodes/{node}", **parameters))["devices"]
    found: dict[str, Any] = devices[index]
    return found


async def _fault(harness: Harness, index: int, action: t.FaultAction, xid: int = 0, detail: str = "") -> int:
    fault = t.DeviceFault(index, f"GPU-node-1-{index}", "xid", action, xid=xid, detail=detail)
    return await harness.append(t.DeviceFaulted("node-1", "node-1-life", fault))


async def test_a_node_shows_what_its_devices_are(harness: Harness, http: Http) -> None:
    devices = [
        t.Device(
            0, "GPU-a", "A100-80GB", 81_154, 81_920, pci_bus_id="00000000:07:00.0", minor=3, capability="8.0", numa=1,
            domain="cluster.1",
        ),
        t.Device(1, "GPU-b", "GB10", 0, 0, mig=True),
    ]  # fmt: skip
    inventory = t.Inventory(
        devices, 64, 1 << 20, "10.0.0.1", driver="550.54", addresses={"eth0": "10.0.0.1"},
        topology=[["X", "NV12"], ["NV12", "X"]],
    )  # fmt: skip
    await harness.append(t.NodeRegistered("node-1", "life", inventory, [], 120_000))
    node = await _get(http, "/v1/nodes/node-1")
    first, second = node["devices"]
    told = ("minor", "pci_bus_id", "capability", "numa", "mig", "domain", "nominal_mib", "usable")
    assert [first[name] for name in told] == [3, "00000000:07:00.0", "8.0", 1, False, "cluster.1", 81_920, True]
    assert [second[name] for name in told] == [None, None, None, None, True, None, 0, True]
    assert (node["topology"], node["addresses"]) == ([["X", "NV12"], ["NV12", "X"]], {"eth0": "10.0.0.1"})
    assert (node["driver"], node["degraded"], node["available"], node["absent"]) == ("550.54", "", True, [])
    assert "topology" not in (await _get(http, "/v1/nodes"))["nodes"][0]


async def test_a_sample_is_shown_with_its_age_and_what_is_unknown_is_null(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=3)
    assert (await _device(http, 0))["sample"] is None
    full = DeviceSample(
        0, "GPU-node-1-0", memory_total_mib=81_920, memory_used_mib=40_960, sm_percent=45, temperature_c=61,
        power_w=291.5, sm_clock_mhz=1410, memory_clock_mhz=1593, ecc_corrected=2, ecc_uncorrected=0,
    )  # fmt: skip
    await harness.sample("node-1", full, DeviceSample(1, "GPU-node-1-1", memory_used_mib=0), age_s=3)
    sample = (await _device(http, 0))["sample"]
    assert 3_000 <= sample.pop("age_ms") < 20_000
    assert sample == {
        "stale": False, "memory_total_mib": 81_920, "memory_used_mib": 40_960, "sm_percent": 45, "temperature_c": 61,
        "power_w": 291.5, "sm_clock_mhz": 1410, "memory_clock_mhz": 1593, "ecc_corrected": 2, "ecc_uncorrected": 0,
    }  # fmt: skip
    sample = (await _device(http, 1))["sample"]
    assert (sample["memory_used_mib"], sample["memory_total_mib"], sample["sm_percent"]) == (0, None, None)
    assert (await _device(http, 2))["sample"] is None
    assert (await _device(http, 0, at=1))["sample"] is None


async def test_a_sample_that_is_old_or_of_another_life_says_nothing_of_now(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=1)
    sample = DeviceSample(0, "GPU-node-1-0", memory_used_mib=5, sm_percent=1)
    for age_s, incarnation in ((61, ""), (1, "an earlier life")):
        await harness.sample("node-1", sample, age_s=age_s, incarnation=incarnation)
        shown = (await _device(http, 0))["sample"]
        assert shown.pop("age_ms") >= age_s * 1000
        assert shown.pop("stale") is True
        assert set(shown.values()) == {None}
    await harness.sample("node-1", sample, age_s=59 - 20)
    assert (await _device(http, 0))["sample"]["memory_used_mib"] == 5


async def test_a_device_is_known_by_its_uuid_whatever_its_number(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=2)
    swapped = [DeviceSample(1, "GPU-node-1-0", sm_percent=10), DeviceSample(0, "GPU-node-1-1", sm_percent=20)]
    await harness.sample("node-1", *swapped)
    assert [(await _device(http, index))["sample"]["sm_percent"] for index in (0, 1)] == [10, 20]


async def test_what_is_wrong_is_said_with_its_cause_and_until_when(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1")
    await _fault(harness, 3, "quarantine", 64, "no spare row")
    node = await _get(http, "/v1/nodes/node-1")
    assert (node["devices_usable"], node["devices"][3]["usable"], node["devices"][2]["usable"]) == (7, False, True)
    condition = node["devices"][3]["condition"]
    assert condition.pop("since").startswith("20")
    assert condition == {
        "action": "quarantine", "cause": "xid", "xid": 64, "detail": "no spare row", "text": "Xid 64: no spare row",
        "until": None,
    }  # fmt: skip
    await harness.append(t.DeviceRecovered("node-1", "node-1-life", 3, "GPU-node-1-3", "it was replaced"))
    condition = (await _device(http, 3))["condition"]
    assert condition["action"] == "probation"
    assert condition["until"][:10] > "2020"
    assert condition["until"] > condition["since"]
    assert (await _device(http, 3, at=2))["condition"]["action"] == "quarantine"


async def test_a_device_without_gangs_is_usable(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1")
    await _fault(harness, 0, "no_gangs", 74)
    assert ((await _device(http, 0))["usable"], (await _device(http, 0))["condition"]["action"]) == (True, "no_gangs")


async def test_what_is_held_is_what_work_claims_whatever_is_wrong(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=2)
    async with http.post("/v1/jobs", json={"command": "x", "gpus": 1, "gpu": {"memory": "40GiB", "compute": 0.5}}):
        await harness.decide()
    await _fault(harness, 0, "drain", 63)
    await _fault(harness, 1, "quarantine", 64)
    foreign = [t.ForeignUse(0, "GPU-node-1-0", 6144)]
    await harness.append(t.ForeignUsageChanged("node-1", "node-1-life", foreign))
    first, second = (await _get(http, "/v1/nodes/node-1"))["devices"]
    held = ("jobs", "memory_held_mib", "compute_held_milli", "foreign_mib")
    assert [first[name] for name in held] == [[2], 40_500, 500, 6144]
    assert [second[name] for name in held] == [[], 0, 0, 0]


async def test_a_degraded_node_says_why(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1")
    await harness.append(t.NodeDegraded("node-1", "node-1-life", "nvml_hung", "no answer for 8 s"))
    node = await _get(http, "/v1/nodes/node-1")
    assert (node["available"], node["status"]) == (False, "ready")
    assert "no answer for 8 s" in node["degraded"]


async def test_an_event_of_a_device_belongs_to_the_job_that_it_names(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1")
    async with http.post("/v1/jobs", json={"command": "x", "gpus": 1}) as answer:
        job = (await answer.json())["id"]
    await harness.decide()
    fault = t.DeviceFault(0, "GPU-node-1-0", "xid", "fail_job", xid=13, failure="failed", job=job, attempt=1)
    await harness.append(t.DeviceFaulted("node-1", "node-1-life", fault))
    events = (await _get(http, f"/v1/jobs/{job}/events"))["events"]
    assert events[-1]["type"] == "muster.DeviceFaulted.1"


async def test_a_device_is_cordoned_and_uncordoned(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=2)
    status, body = await _post(http, "/v1/nodes/node-1/devices/1/cordon", {"reason": "its fan is loud"})
    assert (status, body["sequence"]) == (200, 2)
    device = await _device(http, 1, min_seq=2)
    assert (device["cordoned"], device["usable"]) == ("by ada: its fan is loud", False)
    async with http.post("/v1/jobs", json={"command": "x", "gpus": 1}):
        await harness.decide()
    assert [each["jobs"] for each in (await _get(http, "/v1/nodes/node-1"))["devices"]] == [[3], []]
    status, body = await _post(http, "/v1/nodes/node-1/devices/1/uncordon")
    assert status == 200
    assert (await _device(http, 1, min_seq=body["sequence"]))["usable"] is True


async def test_an_uncordon_lifts_whatever_is_wrong_and_nothing_twice(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=2)
    await _fault(harness, 1, "quarantine", 64)
    status, body = await _post(http, "/v1/nodes/node-1/devices/1/uncordon")
    assert status == 200
    assert (await _device(http, 1, min_seq=body["sequence"]))["condition"] is None
    status, body = await _post(http, "/v1/nodes/node-1/devices/1/uncordon")
    assert (status, body["code"]) == (409, "nothing_to_lift")
    assert len(harness.log.entries) == 3


async def test_a_device_that_is_not_there_is_told(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=2)
    for path in ("node-1/devices/2", "node-9/devices/0", "node-1/devices/-1", "node-1/devices/one"):
        for verb in ("cordon", "uncordon"):
            assert (await _post(http, f"/v1/nodes/{path}/{verb}"))[0] == 404, path
    async with http.get("/v1/nodes/node-1/devices/0/cordon") as answer:
        assert answer.status == 405
    status, body = await _post(http, "/v1/nodes/node-1/devices/0/cordon", {"raeson": "x"})
    assert (status, body["errors"][0]["pointer"]) == (422, "/raeson")
    assert len(harness.log.entries) == 1


async def test_the_policy_shows_and_sets_when_devices_are_trusted(harness: Harness, http: Http) -> None:
    policy = (await _get(http, "/v1/policy"))["policy"]
    assert policy["health"] == {"errors": 3, "window": 86_400, "probation": 3_600}
    async with http.put("/v1/policy", json={"health": {"probation": "10m"}}) as answer:
        assert (await answer.json())["changes"] == [{"field": "health.probation", "before": 3_600, "after": 600}]


async def test_a_device_that_is_gone_is_told_and_can_be_vouched_for(harness: Harness, http: Http) -> None:
    await harness.add_node("node-1", devices=2)
    await _fault(harness, 1, "quarantine", 79)
    await harness.add_node("node-1", devices=1)
    node = await _get(http, "/v1/nodes/node-1")
    assert ([each["uuid"] for each in node["devices"]], node["absent"]) == (["GPU-node-1-0"], ["GPU-node-1-1"])
    assert (await _post(http, "/v1/nodes/node-1/devices/1/cordon"))[0] == 404
    status, body = await _post(http, "/v1/nodes/node-1/devices/1/uncordon")
    assert status == 200
    await harness.follower.wait_for(body["sequence"], 20)
    assert (await _post(http, "/v1/nodes/node-1/devices/1/uncordon"))[0] == 409
