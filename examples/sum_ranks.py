"""A gang in miniature: every worker connects to rank 0, and together they sum their ranks.

It needs nothing but Python: the rendezvous is the one that Muster puts into each worker's environment (MASTER_ADDR,
MASTER_PORT, RANK, WORLD_SIZE), the same that PyTorch reads.
"""

# ruff: noqa: INP001, T201 - a program for people to run and read, no part of the package

import os
import socket
import time

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])
MASTER = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
TIMEOUT_S = 30


def connect() -> socket.socket:
    """Rank 0 may start last: ask until it listens."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return socket.create_connection(MASTER, timeout=TIMEOUT_S)
        except OSError:
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.05)


def gather() -> int:
    """Rank 0: take a number from everyone else, tell everyone the sum."""
    with socket.create_server(MASTER) as server:
        server.settimeout(TIMEOUT_S)
        peers = [server.accept()[0] for _ in range(WORLD_SIZE - 1)]
        total = RANK + sum(int(peer.makefile().readline()) for peer in peers)
        for peer in peers:
            peer.sendall(f"{total}\n".encode())
            peer.close()
    return total


def contribute() -> int:
    """Any other rank: give a number, learn the sum."""
    with connect() as peer:
        peer.sendall(f"{RANK}\n".encode())
        return int(peer.makefile().readline())


def main() -> None:
    """Sum the ranks, and say so."""
    devices = os.environ["CUDA_VISIBLE_DEVICES"]
    print(f"rank {RANK} of {WORLD_SIZE} on {os.environ['MUSTER_NODE']}, devices {devices}", flush=True)
    total = gather() if RANK == 0 else contribute()
    print(f"the ranks add up to {total}", flush=True)
    if total != WORLD_SIZE * (WORLD_SIZE - 1) // 2:
        raise SystemExit(1)


main()
