"""MindSpore's `msrun` with its options filled in: a copy stands before it in the PATH of a worker.

msrun takes options only, finds out by address whether it is the first node's, and numbers the processes as if every
node had equally many. Here the first node's is that of rank 0, and each process has the number that the gang gives it.
What is typed by hand wins. Runs in the job's own Python: standard library and mindspore only.
"""

import importlib
import os
import sys


def main() -> None:
    """Run msrun, with this worker's place in the gang."""
    try:
        launcher = importlib.import_module("mindspore.parallel.cluster.run")
    except ImportError as error:
        hint = "jobs get their agent's PATH: --env PATH passes yours on"
        sys.exit(f"msrun: {sys.executable} has no MindSpore that works: {error} ({hint})")
    rank, first = int(os.environ["MUSTER_RANK"]), int(os.environ["MUSTER_FIRST_PROCESS"])
    given = {
        "worker_num": int(os.environ["MUSTER_PROCESSES"]),
        "local_worker_num": int(os.environ["MUSTER_LOCAL_PROCESSES"]),
        "master_addr": os.environ["MASTER_ADDR"],
        "master_port": int(os.environ["MASTER_PORT"]),
        "node_rank": rank,
    }

    class Manager(launcher._ProcessManager):  # type: ignore[misc, name-defined]  # noqa: SLF001  there is no other way in
        """Starts the scheduler where rank 0 is, and numbers the processes from this worker's first on."""

        def __init__(self, args):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN204
            super().__init__(args)
            self.as_given = all(getattr(args, name) == value for name, value in given.items())
            if self.as_given:
                self.is_master = rank == 0

        def _get_node_id_and_log_path(self, index):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202
            if not self.as_given:
                return super()._get_node_id_and_log_path(index)
            name = f"{self.format_worker_log_name()}_{first + index}.log"
            return first + index, os.path.join(self.log_dir, name)  # noqa: PTH118  any Python's

    launcher._ProcessManager = Manager  # type: ignore[attr-defined]  # noqa: SLF001
    options = [f"--{name}={value}" for name, value in given.items()]
    options += [f"--log_dir={os.environ['MUSTER_MSRUN_LOGS']}", "--join=True"]
    sys.argv[1:1] = options
    launcher.main()


if __name__ == "__main__":
    main()
