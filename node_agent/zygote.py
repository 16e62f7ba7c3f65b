"""The keepers' nursery: a small process with the keeper's code loaded that forks a keeper on request.

The agent is at the other end of one socket (SOCK_SEQPACKET, inherited as a descriptor). A request is a worker's folder;
each answer is ``started PID KEEPER_PID`` or ``ended`` and, on a second line, the folder. It ends with its agent; the
keepers do not.
"""

import contextlib
import gc
import os
import signal
import socket
import sys

from muster.node_agent import keeper, tree

REQUEST_LIMIT_BYTES = 8192


def _answer(agent: socket.socket, folder: str, words: str) -> None:
    with contextlib.suppress(OSError):  # without an agent there is nobody to tell; the folder says it all
        agent.send(f"{words}\n{folder}".encode())


def _become_keeper(agent: socket.socket, folder: str) -> None:
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def reply(words: str) -> None:
        if agent.fileno() >= 0:  # the first answer is the only one
            _answer(agent, folder, words)
            agent.close()

    keeper.serve_one(folder, reply)


def main(descriptor: int) -> None:
    """Serve until the agent's end of the socket closes."""
    agent = socket.socket(fileno=descriptor)
    agent.set_inheritable(False)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers that end are nobody's to wait for
    tree.boot_id()
    gc.disable()  # a keeper makes no garbage to speak of, and looking for it would copy the pages it shares
    gc.freeze()
    while request := _next_request(agent):
        folder = request.decode()
        try:
            if os.fork() == 0:
                _become_keeper(agent, folder)
        except OSError:
            _answer(agent, folder, "ended")


def _next_request(agent: socket.socket) -> bytes:
    try:
        return agent.recv(REQUEST_LIMIT_BYTES)
    except ConnectionResetError:  # the agent was killed with answers unread
        return b""


if __name__ == "__main__":
    main(int(sys.argv[1]))
