"""The whole of Muster in a minute: a gang over two nodes, from its submission to a clean audit of the log.

It starts `muster up` on a temporary folder and free ports, and then does what a person would do at a terminal. The exit
code is 0 only if every step shows what it must.
"""
# ruff: noqa: INP001, T201, S603 - a program for people to run and read; it starts Muster from argument lists

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

MUSTER = str(Path(sys.executable).with_name("muster"))
GANG = Path(__file__).with_name("sum_ranks.py")
START_S = 60
STEP_S = 45


class StepError(Exception):
    """A step did not show what it must."""


def expect(truth: object, what: str) -> None:
    """Fail unless it is so."""
    if not truth:
        raise StepError(what)


def start(folder: Path) -> tuple[subprocess.Popen[bytes], str]:
    """`muster up` on the folder, once it works; gives its address."""
    ports = "22000-22999"
    words = [MUSTER, "up", "--data", str(folder), "--port", "0", "--ports", ports]
    up = subprocess.Popen(words, stdout=subprocess.DEVNULL)  # what it says is for a person who goes on from there
    deadline_s = time.monotonic() + START_S
    while not (folder / "up.json").exists():
        expect(up.poll() is None, "`muster up` ended")
        expect(time.monotonic() < deadline_s, "`muster up` is not ready in time")
        time.sleep(0.05)
    told = json.loads((folder / "up.json").read_text())
    print(f"`muster up` runs: API {told['url']}, broker {told['broker']}, nodes {', '.join(told['nodes'])}", flush=True)
    return up, str(told["url"])


def muster(*words: str) -> str:
    """One command as a person would type it: shown with what it prints."""
    print(f"\n$ muster {' '.join(words)}", flush=True)
    done = subprocess.run([MUSTER, *words], stdout=subprocess.PIPE, text=True, timeout=STEP_S, check=False)
    print(done.stdout, end="", flush=True)
    expect(done.returncode == 0, f"muster {words[0]} ended with {done.returncode}")
    return done.stdout


def ask(*words: str) -> Any:
    """The same, for the program: JSON, not shown."""
    done = subprocess.run([MUSTER, *words, "--json"], stdout=subprocess.PIPE, text=True, timeout=STEP_S, check=True)
    return json.loads(done.stdout)


def show() -> None:
    """The steps."""
    expect(muster("nodes").count("ready") == 2, "two nodes are ready")  # noqa: PLR2004 - as `muster up` simulates them
    output = muster("run", "--name", "sum-ranks", "--gpus", "16", "--", sys.executable, str(GANG))
    expect("the ranks add up to 1" in output, "the gang of two finds itself and sums 0 and 1")
    [job] = ask("jobs")["jobs"]
    expect(job["state"] == "COMPLETED" and len(set(job["nodes"])) == len(job["nodes"]) > 1, "it ran on two nodes")

    muster("events", "--job", str(job["id"]))
    events = ask("events", "--job", str(job["id"]))["events"]
    allocated = next(int(event["sequence"]) for event in events if event["type"] == "muster.JobAllocated.1")
    exits = [event["data"] for event in events if event["type"] == "muster.WorkerExited.1"]
    expect([found["exit"]["exit_code"] for found in exits] == [0, 0], "both workers exited with 0")

    before = muster("at", str(allocated - 1), "queue")
    expect("PENDING(PD)" in before, "just before its allocation the job waited")
    muster("at", str(allocated), "explain", str(job["id"]))
    muster("queue")
    muster("audit")


def main() -> int:
    """Run the demonstration; 0 if all of it is so."""
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="muster-demo-") as folder:
        data = Path(folder) / "data"
        up, url = start(data)
        os.environ["MUSTER_SERVER"] = url
        try:
            show()
        except (StepError, subprocess.SubprocessError) as error:
            print(f"\nthe demonstration failed: {error}", flush=True)
            return 1
        finally:
            up.send_signal(signal.SIGINT)
            up.wait(START_S)
    print(f"\nall of it is so, in {time.monotonic() - began_s:.1f} s", flush=True)
    return 0


raise SystemExit(main())
