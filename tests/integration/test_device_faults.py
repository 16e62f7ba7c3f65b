"""Devices that fail under real jobs: broker, scheduler, API and agents as processes, the agents on NVIDIA's own
bindings over a stand-in for its library, with a file as the kernel's log and a script as `nvidia-smi`.

node-1 has 8 A100-80GB, node-2 two T4. Each case leaves its devices as they were, but the last ones, which are for good.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from integration.processes import Part, lives, until, until_answer
from integration.site import Site, port_range
from nvml_machine import Gpu, Machine, a100x8

from muster.events.credentials import API, SCHEDULER, agent_role, write_credentials

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root resets devices"),
]

Json = dict[str, Any]
PROBATION_S: Final = 2
WAITS: Final = ["sleep", "1000"]


class GpuSite(Site):
    """A site whose agents see described machines."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        t4 = [
            Gpu(f"00000000:{bus}:00.0", f"GPU-t4-{bus}", "Tesla T4", n, (15_360, 424, 0), "7.5", mig=None, remap=None)
            for n, bus in enumerate(("3B", "AF"))
        ]
        self.machines = {"node-1": a100x8(folder / "machine-1"), "node-2": Machine(folder / "machine-2", t4)}
        self.keys = 0

    def _make_parts(self) -> None:
        (self.folder / "cluster.toml").write_text(f'[policy]\nhealth = {{ probation = "{PROBATION_S}s" }}\n')
        self._add("server", API, "server", "--port", "0", "--config", str(self.folder / "cluster.toml"))
        self._add("scheduler-1", SCHEDULER, "scheduler")
        for number, (node, machine) in enumerate(self.machines.items()):
            machine.write()
            self._add_agent(node, machine, port_range(40) + 20 * number)

    def _add_agent(self, node: str, machine: Machine, port: int) -> None:
        program = machine.folder / "nvidia-smi"
        program.write_text(
            f'#!/bin/sh\ncd {machine.folder} && cp healed.txt next && mv next machine.txt && echo "$@" >> calls\n'
        )
        program.chmod(0o700)
        self.log(node).touch()
        folder = self.folder / node
        folder.mkdir(parents=True)
        credentials = folder / "credentials.json"
        write_credentials(credentials, {agent_role(node): self._cluster.credentials[agent_role(node)]})
        words = ["agent", "--node", node, "--ports", f"{port}-{port + 19}", "--sample", "0.2"]
        words += ["--kernel-log", str(self.log(node)), "--nvidia-smi", str(program), "--verbose"]
        words += ["--connect", ",".join(self._cluster.urls), "--credentials", str(credentials)]
        self.parts[node] = Part(node, [*words, "--data", str(folder / "data")], folder, machine.env)

    def log(self, node: str) -> Path:
        return self.machines[node].folder / "kernel.log"

    # -- what happens to devices ------------------------------------------------------------------------------------

    def gpu(self, node: str, index: int) -> Gpu:
        return self.machines[node].gpus[index]

    def xid(self, node: str, index: int, xid: int, pid: int | str = "'<unknown>'") -> None:
        """The driver tells of an error in the kernel's log."""
        bus = self.gpu(node, index).bus.removeprefix("0000").removesuffix(".0").lower()
        with self.log(node).open("a") as file:
            file.write(f"NVRM: Xid (PCI:{bus}): {xid}, pid={pid}, name=python, it went wrong\n")

    def heals_by_reset(self, node: str, index: int) -> None:
        """From now on the driver wants a reset, which will help."""
        machine = self.machines[node]
        machine.write()
        (machine.folder / "healed.txt").write_text((machine.folder / "machine.txt").read_text())
        self.gpu(node, index).recovery = 1
        machine.write()
        self.gpu(node, index).recovery = 0

    # -- what is to be seen -----------------------------------------------------------------------------------------

    async def start(self, node: str, **spec: Any) -> int:
        """A job there that does not end by itself."""
        self.keys += 1
        where = {"where": {"nodes": [node]}, "command": WAITS, **spec}
        return await self.submit(where.pop("command"), f"key-{self.keys}", **{"gpus": 1, **where})

    async def running(self, node: str, **spec: Any) -> tuple[int, int, int]:
        """Such a job, once it runs; its first device, and its process."""
        job = await self.start(node, **spec)
        shown = await self.job_in(job, "RUNNING")
        return job, shown["workers"][0]["devices"][0], shown["workers"][0]["pid"]

    async def cancel(self, *jobs: int) -> None:
        for job in jobs:
            await self.post(f"/v1/jobs/{job}/cancel")
        for job in jobs:
            await self.job_in(job, "CANCELLED")

    async def condition(self, node: str, index: int) -> str:
        """The device's condition: its action, "" where there is none."""
        found = (await self.get(f"/v1/nodes/{node}"))["devices"][index]["condition"]
        return str(found["action"]) if found else ""

    async def comes_to(self, node: str, index: int, action: str) -> None:
        async def look() -> bool:
            return await self.condition(node, index) == action

        await until_answer(look, f"device {index} of {node} comes to {action!r}")

    async def degraded(self, node: str, words: str) -> None:
        """Wait until the node says so of itself."""

        async def look() -> bool:
            told = str((await self.get(f"/v1/nodes/{node}"))["degraded"])
            return told.startswith(words) if words else not told

        await until_answer(look, f"{node} is degraded: {words!r}")

    async def next_registration(self, node: str) -> list[Json]:
        """The faults that the agent, which was just restarted, registers with."""
        life = (await self.get(f"/v1/nodes/{node}"))["incarnation"]

        async def look() -> Json | None:
            [*_, last] = await self.events("NodeRegistered", node=node)
            return last if last["data"]["incarnation"] != life else None

        registration = await until_answer(look, f"{node} registers again")
        assert registration is not None
        faults: list[Json] = registration["data"].get("faults", [])
        return faults

    async def events(self, *kinds: str, node: str = "", job: int = 0) -> list[Json]:
        """What the log has of these kinds (of a node, of a job), in order."""
        found: list[Json] = []
        page = await self.get("/v1/events", {"limit": 1000})
        while page["events"]:
            found += page["events"]
            page = await self.get("/v1/events", {"limit": 1000, "after": page["events"][-1]["sequence"]})
        named = [event | {"kind": event["type"].removeprefix("muster.").split(".")[0]} for event in found]
        return [
            event
            for event in named
            if event["kind"] in kinds
            and (not node or event["data"].get("node") == node)
            and (not job or event["data"].get("job") == job)
        ]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[GpuSite]:
    async with GpuSite(tmp_path_factory.mktemp("site")) as site:
        yield site


async def test_both_machines_are_as_described(site: GpuSite) -> None:
    for node, models in (("node-1", ["A100-80GB"] * 8), ("node-2", ["T4"] * 2)):
        devices = (await site.get(f"/v1/nodes/{node}"))["devices"]
        assert [device["model"] for device in devices] == models
        assert [device["condition"] for device in devices] == [None] * len(models)


async def test_a_program_s_error_fails_its_job_and_the_device_goes_on(site: GpuSite) -> None:
    job, device, pid = await site.running("node-1")
    site.xid("node-1", device, 13, pid)
    shown = await site.job_in(job, "FAILED")
    assert f"device {device}" in shown["why"]
    assert "Xid 13" in shown["why"]
    [fault] = [event["data"]["fault"] for event in await site.events("DeviceFaulted", node="node-1")]
    assert (fault["action"], fault["failure"], fault["job"], fault["index"]) == ("fail_job", "failed", job, device)
    assert await site.condition("node-1", device) == ""
    again, same, _ = await site.running("node-1")
    assert same == device
    await site.cancel(again)


async def test_the_third_error_of_different_jobs_makes_a_device_suspect_for_a_while(site: GpuSite) -> None:
    holder, kept, _ = await site.running("node-2")
    for _ in range(3):
        job, device, pid = await site.running("node-2")
        site.xid("node-2", device, 13, pid)
        await site.job_in(job, "FAILED")
    waits = await site.start("node-2")
    shown = await site.job_in(waits, "RUNNING")
    assert shown["workers"][0]["devices"] == [device] != [kept]
    happened = await site.events("DeviceFaulted", "DeviceReadmitted", "JobAllocated")
    readmitted = next(n for n, event in enumerate(happened) if event["kind"] == "DeviceReadmitted")
    assert happened[readmitted]["data"]["uuid"] == site.gpu("node-2", device).uuid
    third = max(n for n, event in enumerate(happened) if event["kind"] == "DeviceFaulted")
    assert [event["kind"] for event in happened[third:]] == ["DeviceFaulted", "DeviceReadmitted", "JobAllocated"]
    await site.cancel(holder, waits)


async def test_a_contained_memory_error_requeues_its_owner_alone(site: GpuSite) -> None:
    half = {"gpu": {"memory": "40GiB", "compute": 0.5}}
    owner, device, pid = await site.running("node-1", **half)
    other, shared, _ = await site.running("node-1", **half)
    assert shared == device
    site.xid("node-1", device, 94, pid)

    async def requeued() -> bool:
        return bool(await site.events("JobRequeued", job=owner))

    await until_answer(requeued, "the owner is requeued")
    [requeue] = await site.events("JobRequeued", job=owner)
    assert requeue["data"]["cause"] == "device_fault"
    await site.job_in(owner, "RUNNING")
    assert await site.events("JobRequeued", "StopOrdered", job=other) == []
    await site.cancel(owner, other)


@pytest.mark.parametrize("told_by", ["the kernel's log", "NVML"])
async def test_a_device_that_needs_a_reset_is_reset_and_comes_back(site: GpuSite, told_by: str) -> None:
    job, device, pid = await site.running("node-1")
    site.heals_by_reset("node-1", device)
    if told_by == "NVML":
        site.machines["node-1"].xid(site.gpu("node-1", device), 119)
    else:
        site.xid("node-1", device, 48)

    async def elsewhere() -> Json | None:
        shown = await site.job(job)
        return shown if shown["state"] == "RUNNING" and shown["workers"][0]["devices"] != [device] else None

    await until_answer(elsewhere, "it runs on another device")
    [requeue] = await site.events("JobRequeued", job=job)
    assert requeue["data"]["cause"] == "device_fault"
    assert not lives(pid)
    calls = site.machines["node-1"].folder / "calls"
    await until(calls.exists, "the device is reset")
    await site.comes_to("node-1", device, "")
    assert calls.read_text() == f"--gpu-reset -i {site.gpu('node-1', device).bus}\n"
    calls.unlink()
    again, same, _ = await site.running("node-1")
    assert same == device
    ended = await site.events("DeviceRecovered", "DeviceReadmitted", node="node-1")
    assert [event["kind"] for event in ended[-2:]] == ["DeviceRecovered", "DeviceReadmitted"]
    await site.cancel(job, again)


async def test_a_row_that_awaits_its_replacement_lets_the_work_end_before_the_reset(site: GpuSite) -> None:
    machine = site.machines["node-1"]
    job, device, pid = await site.running("node-1")
    machine.write()
    (machine.folder / "healed.txt").write_text((machine.folder / "machine.txt").read_text())
    site.xid("node-1", device, 63)
    await site.comes_to("node-1", device, "drain")
    other, elsewhere, _ = await site.running("node-1")
    assert elsewhere != device
    assert lives(pid)
    calls = machine.folder / "calls"
    assert not calls.exists()
    await site.cancel(job)
    await until(calls.exists, "the device is reset")
    await site.comes_to("node-1", device, "")
    assert calls.read_text() == f"--gpu-reset -i {site.gpu('node-1', device).bus}\n"
    calls.unlink()
    await site.cancel(other)


async def test_errors_that_follow_from_others_are_noted_and_harm_nobody(site: GpuSite) -> None:
    job, device, pid = await site.running("node-1")
    for xid in (43, 45, 92):
        site.xid("node-1", device, xid, pid)

    async def noted() -> list[tuple[int, str]]:
        faults = [event["data"]["fault"] for event in await site.events("DeviceFaulted", node="node-1")]
        found = [(fault["xid"], fault["action"]) for fault in faults if fault.get("xid") in (43, 45, 92)]
        return found if len(found) == 3 else []

    assert await until_answer(noted, "they are told") == [(43, "note"), (45, "note"), (92, "note")]
    assert await site.condition("node-1", device) == ""
    assert (await site.job(job))["state"] == "RUNNING"
    assert lives(pid)
    await site.cancel(job)


async def test_an_xid_that_nobody_knows_makes_a_device_suspect_for_a_while(site: GpuSite) -> None:
    idle = 7
    site.xid("node-1", idle, 999)
    await site.comes_to("node-1", idle, "suspect")
    await site.comes_to("node-1", idle, "")
    [*_, readmitted] = await site.events("DeviceReadmitted", node="node-1")
    assert readmitted["data"]["uuid"] == site.gpu("node-1", idle).uuid


async def test_a_device_that_is_lost_and_comes_back(site: GpuSite) -> None:
    job, device, _ = await site.running("node-1")
    site.gpu("node-1", device).lose()
    site.machines["node-1"].write()
    await site.comes_to("node-1", device, "quarantine")

    async def elsewhere() -> bool:
        shown = await site.job(job)
        return bool(shown["state"] == "RUNNING" and shown["workers"][0]["devices"] != [device])

    await until_answer(elsewhere, "its job runs elsewhere")
    site.gpu("node-1", device).failures = []
    site.machines["node-1"].write()
    await site.comes_to("node-1", device, "")
    faults = [event["data"]["fault"] for event in await site.events("DeviceFaulted", node="node-1")]
    assert (faults[-1]["cause"], faults[-1]["action"], faults[-1]["index"]) == ("lost", "quarantine", device)
    await site.cancel(job)


async def test_a_device_to_be_replaced_waits_for_somebody_s_word(site: GpuSite) -> None:
    job, device, _ = await site.running("node-1")
    site.xid("node-1", device, 64)
    await site.comes_to("node-1", device, "quarantine")

    async def elsewhere() -> Json | None:
        shown = await site.job(job)
        return shown if shown["state"] == "RUNNING" and shown["attempts"] == 2 else None

    shown = await until_answer(elsewhere, "it runs again")
    assert shown is not None
    assert shown["workers"][0]["devices"] != [device]
    await site.post(f"/v1/nodes/node-1/devices/{device}/uncordon")
    await site.comes_to("node-1", device, "")
    again, same, _ = await site.running("node-1")
    assert same == device
    site.restart("node-1")
    assert [fault["xid"] for fault in await site.next_registration("node-1")] == [64]
    assert await site.condition("node-1", device) == ""
    await site.cancel(job, again)


async def test_work_of_several_devices_keeps_off_a_device_with_bad_links(site: GpuSite) -> None:
    site.xid("node-2", 0, 74)
    await site.comes_to("node-2", 0, "no_gangs")
    gang = await site.start("node-2", gpus=2)
    alone = [await site.running("node-2") for _ in range(2)]
    assert sorted(device for _, device, _ in alone) == [0, 1]
    await site.cancel(*(job for job, _, _ in alone))
    assert (await site.job(gang))["state"] == "PENDING"
    await site.post("/v1/nodes/node-2/devices/0/uncordon")
    await site.job_in(gang, "RUNNING")
    await site.cancel(gang)


async def test_foreign_memory_is_left_alone(site: GpuSite) -> None:
    gpu = site.gpu("node-2", 0)
    gpu.memory_mib, gpu.processes = (15_360, 424, 6_000), [(os.getpid(), 6_000)]
    site.machines["node-2"].write()

    async def seen() -> bool:
        return bool((await site.get("/v1/nodes/node-2"))["devices"][0]["foreign_mib"] == 6_144)

    await until_answer(seen, "what this process holds is seen")
    whole, device, _ = await site.running("node-2")
    assert device == 1
    gpu.memory_mib, gpu.processes = (15_360, 424, 0), []
    site.machines["node-2"].write()
    second, device, _ = await site.running("node-2")
    assert device == 0
    await site.cancel(whole, second)


async def test_devices_that_changed_places_keep_their_work(site: GpuSite) -> None:
    machine = site.machines["node-2"]
    job, device, pid = await site.running("node-2")
    one, two = machine.gpus
    one.bus, two.bus = two.bus, one.bus
    machine.gpus.reverse()
    machine.write()

    async def moved() -> bool:
        [worker] = (await site.job(job))["workers"]
        return bool(worker["devices"] == [1 - device])

    await until_answer(moved, "its device has another number")
    assert lives(pid)
    other, free, _ = await site.running("node-2")
    assert free == device
    assert (await site.job(job))["attempts"] == 1
    await site.cancel(job, other)


async def test_a_driver_that_was_changed_under_a_running_job(site: GpuSite) -> None:
    machine = site.machines["node-2"]
    job, _, pid = await site.running("node-2")
    machine.init = 18
    machine.write()
    site.restart("node-2")
    await site.degraded("node-2", "driver_mismatch")
    waits = await site.start("node-2")
    assert lives(pid)
    assert (await site.job(job))["attempts"] == 1
    machine.init = 0
    machine.write()
    await site.degraded("node-2", "")
    await site.job_in(waits, "RUNNING")
    assert (await site.job(job))["state"] == "RUNNING"
    assert [event["kind"] for event in await site.events("NodeRestored", node="node-2")] == ["NodeRestored"]
    await site.cancel(job, waits)


async def test_a_device_off_the_bus_takes_the_node_out_until_it_is_restarted(site: GpuSite) -> None:
    job, device, _ = await site.running("node-2")
    other, sound, pid = await site.running("node-2")
    site.xid("node-2", device, 79)
    await site.comes_to("node-2", device, "quarantine")
    await site.degraded("node-2", "reboot")
    assert await site.condition("node-2", sound) == ""
    await site.job_in(job, "PENDING")
    assert lives(pid)
    assert (await site.job(other))["state"] == "RUNNING"
    site.restart("node-2")
    faults = await site.next_registration("node-2")
    assert [fault["xid"] for fault in faults if fault["index"] == device] == [79]
    assert await site.condition("node-2", device) == "quarantine"
    assert (await site.job(job))["state"] == "PENDING"
    await site.cancel(job, other)


async def test_the_log_of_it_all_is_clean(site: GpuSite) -> None:
    await asyncio.sleep(0)
    assert "clean" in await site.muster("audit")
