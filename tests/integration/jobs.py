"""The jobs that tests run, and what they themselves say happened: a trace that no part of Muster writes.

Every worker appends a line to the site's trace when it begins and when it ends, and looks itself whether somebody who
must be gone still lives: an earlier attempt of its job, or another holder of its devices. Appends are atomic, so the
trace is in the order in which things were.
"""

from pathlib import Path
from typing import Final, NamedTuple

SCRIPT: Final = r"""
code=$1 nap=$2 devices=$(echo "$CUDA_VISIBLE_DEVICES" | tr , ' ')
held=$TRACE/held
say() { echo "$1 $MUSTER_ALLOCATION.$MUSTER_RANK $MUSTER_NODE $$ ${CUDA_VISIBLE_DEVICES:--} $2" >> "$TRACE/trace"; }
lives() { kill -0 "$1" 2>/dev/null && tr '\0' '\n' < "/proc/$1/environ" 2>/dev/null | grep -qxF "TRACE=$TRACE"; }
say begin
for file in "$held/job.$MUSTER_JOB_ID."*; do
  read -r pid attempt 2>/dev/null < "$file" || continue
  if [ "$attempt" != "$MUSTER_ATTEMPT" ] && lives "$pid"; then say twice "$pid"; fi
done
echo "$$ $MUSTER_ATTEMPT" > "$held/job.$MUSTER_JOB_ID.$MUSTER_RANK"
for device in $devices; do
  file=$held/device.$MUSTER_NODE.$device
  if read -r pid 2>/dev/null < "$file" && lives "$pid"; then say clash "$pid"; fi
  echo $$ > "$file"
done
if [ "$nap" = wait ]; then
  while [ ! -e "$TRACE/${GO:-go}" ]; do sleep 0.1; done
else
  sleep "$nap"
fi
say end "$code"
exit "$code"
"""


class Line(NamedTuple):
    """One line of the trace. `extra` is the exit code of an end, the other's pid of a clash."""

    what: str
    allocation: str
    node: str
    pid: int
    devices: tuple[int, ...]
    extra: str

    @property
    def job(self) -> int:
        """The job's id."""
        return int(self.allocation.split(".")[0])

    @property
    def attempt(self) -> int:
        """The attempt's number."""
        return int(self.allocation.split(".")[1])


def prepare(folder: Path) -> None:
    """Make room for the trace."""
    (folder / "held").mkdir(parents=True)
    (folder / "job.sh").write_text(SCRIPT)


def work(folder: Path, code: int = 0, nap: float | str = 0.03) -> list[str]:
    """The command of a job that ends with `code` after `nap` seconds, or, for "wait", after `go`. (A variable GO names
    another signal.)"""
    return ["/bin/sh", str(folder / "job.sh"), str(code), str(nap)]


def go(folder: Path, name: str = "go") -> None:
    """Let those end that wait."""
    (folder / name).touch()


def trace(folder: Path) -> list[Line]:
    """What the workers have written so far."""
    path = folder / "trace"
    lines = []
    for text in path.read_text().splitlines() if path.exists() else ():
        what, allocation, node, pid, devices, *extra = text.split()
        numbers = tuple(int(number) for number in devices.split(",")) if devices != "-" else ()
        lines.append(Line(what, allocation, node, int(pid), numbers, extra[0] if extra else ""))
    return lines


def of_job(folder: Path, job: int, what: str = "begin") -> list[Line]:
    """One job's lines of a kind."""
    return [line for line in trace(folder) if line.job == job and line.what == what]
