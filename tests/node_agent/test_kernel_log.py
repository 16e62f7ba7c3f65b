"""The kernel's log: lines as drivers write them, and a file that grows, is cut and is replaced."""

import asyncio
import logging
import tracemalloc
from pathlib import Path

import pytest

from muster.node_agent.kernel_log import BusAddress, KernelLog, bus_address, read_line, record_text
from muster.node_agent.readings import XidEvent


@pytest.mark.parametrize(
    ("line", "event"),
    [
        (
            "NVRM: Xid (PCI:0000:44:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
            XidEvent("0000:44:00", 79, 0, "name=<unknown>, GPU has fallen off the bus."),
        ),
        (
            "NVRM: Xid (PCI:0000:3b:00): 31, pid=2743, name=python3, Ch 00000008, intr 00000000. MMU Fault",
            XidEvent("0000:3b:00", 31, 2743, "name=python3, Ch 00000008, intr 00000000. MMU Fault"),
        ),
        (
            "[ 812.4] NVRM: Xid (PCI:0000:65:00): 13, pid=88, Graphics SM Warp Exception on (GPC 0, TPC 1)",
            XidEvent("0000:65:00", 13, 88, "Graphics SM Warp Exception on (GPC 0, TPC 1)"),
        ),
        ("NVRM: Xid (0000:03:00): 48, DBE at partition 2", XidEvent("0000:03:00", 48, 0, "DBE at partition 2")),
        ("NVRM: Xid (PCI:00000001:C1:00): 94, Contained", XidEvent("00000001:C1:00", 94, 0, "Contained")),
        ("NVRM: Xid (PCI:0000:44:00): 45", XidEvent("0000:44:00", 45)),
        ("NVRM: GPU 0000:c4:00.0: GPU has fallen off the bus.", XidEvent("0000:c4:00.0", 79)),
        ("Nov 29 12:34:56 host kernel: NVRM: GPU has fallen off the bus.", None),
        ("NVRM: loading NVIDIA UNIX x86_64 Kernel Module  570.86.10", None),
        ("usb 1-1: has fallen off the bus", None),
        ("", None),
    ],
)
def test_lines(line: str, event: XidEvent | None) -> None:
    assert read_line(line) == event


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("PCI:0000:44:00", BusAddress(0, 0x44, 0)),
        ("00000000:44:00.0", BusAddress(0, 0x44, 0)),
        ("0000:44:00.0", BusAddress(0, 0x44, 0)),
        ("44:00", BusAddress(0, 0x44, 0)),
        ("0001:c1:1f", BusAddress(1, 0xC1, 0x1F)),
        ("00000001:C1:1F.0", BusAddress(1, 0xC1, 0x1F)),
        ("GPU-44", None),
        ("", None),
    ],
)
def test_bus_addresses_in_any_notation(text: str, address: BusAddress | None) -> None:
    assert bus_address(text) == address


def line(xid: int) -> str:
    return f"NVRM: Xid (PCI:0000:44:00): {xid}, pid=7, x\n"


def xids(log: KernelLog) -> list[int]:
    return [event.xid for events in log.read() for event in events]


async def test_only_what_is_newer_than_the_opening_counts(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    path.write_text(line(79))
    log = KernelLog(path)
    assert log.readable
    assert xids(log) == []
    with path.open("a") as file:
        file.write(line(13) + "something else\n" + line(31)[:20])
    assert xids(log) == [13]
    with path.open("a") as file:
        file.write(line(31)[20:])
    assert xids(log) == [31]
    await log.wait()
    log.close()
    assert not log.readable


async def test_a_log_that_is_cut_or_replaced_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    path.write_text("begin\n" * 100)
    log = KernelLog(path)
    path.write_text(line(13))
    assert xids(log) == [13]
    with path.open("a") as file:
        file.write(line(31))
    (tmp_path / "next.log").write_text(line(48))
    (tmp_path / "next.log").rename(path)
    assert xids(log) == [31, 48]
    path.unlink()
    assert xids(log) == []
    log.close()


async def test_much_at_once_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    path.touch()
    log = KernelLog(path)
    with path.open("a") as file:
        for _ in range(24):
            file.write("usb 1-1: new device\n" * 50_000 + line(13))
    pieces = [[event.xid for event in events] for events in log.read()]
    assert len(pieces) > 300
    assert [xid for piece in pieces for xid in piece] == [13] * 24
    log.close()


async def test_of_a_line_without_end_only_the_end_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "kernel.log"
    path.touch()
    log = KernelLog(path)
    with path.open("a") as file:
        file.write("\0" * (1 << 21) + line(31) + line(13)[:-1] + "NVRM: " * 50_000 + "\n" + line(48))
    tracemalloc.start()
    assert xids(log) == [31, 48]
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    log.close()


async def test_a_log_that_cannot_be_read_is_noted_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        log = KernelLog(tmp_path / "none")
        assert not log.readable
        assert xids(log) == xids(log) == []
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await log.wait()
    assert [record.message for record in caplog.records] == [
        f"the kernel's log cannot be read, so Xids have no text here: {tmp_path}/none: No such file or directory"
    ]
    log.close()


def test_a_record_of_the_kernel_s_own_device() -> None:
    record = (
        b"3,1021,81231123,-;NVRM: Xid (PCI:0000:44:00): 13, pid=7, a; b\n SUBSYSTEM=pci\n DEVICE=+pci:0000:44:00.0\n"
    )
    assert record_text(record) == "NVRM: Xid (PCI:0000:44:00): 13, pid=7, a; b"


async def test_the_kernel_s_own_device_gives_nothing_old() -> None:
    log = KernelLog()
    if not log.readable:
        pytest.skip("/dev/kmsg may not be read here")
    assert xids(log) == []
    log.close()
