"""Placement on the openb trace (`python -m bench.openb`): tasks that never leave fill a cluster of 1,213 nodes with
6,212 GPUs, and what fits nowhere is dropped (`muster.projections.fillup`). The yardstick is the share of the GPUs in
use once the arrivals have asked for 100 % and for 130 % of them."""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Final

from bench.table import Row
from muster.projections.fill_lists import Filling, arrivals, read_filling, read_orders
from muster.projections.fillup import RULES, Filled, FillRule, run

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "traces" / "openb"
SEEDS: Final = range(42, 52)
PUBLISHED: Final[dict[FillRule, str]] = {
    "best-fit": "92.86, 93.08 (BestFit)",
    "fragmentation": "95.23, 95.39 (FGD)",
    "random": "86.30, 87.47 (Random)",
}


def filling(tasks: str = "default") -> Filling:
    """The cluster and a list of tasks."""
    path = DATA / f"openb_pod_list_{tasks}.csv"
    return read_filling(path if path.exists() else path.with_suffix(".csv.xz"), DATA / "openb_node_list_gpu_node.csv")


def orders(tasks: str = "default") -> dict[int, list[int]]:
    """The arrivals of a list by seed. The `gpuspec` lists arrive as the default one does."""
    return read_orders(DATA / "arrivals" / f"{'default' if tasks.startswith('gpuspec') else tasks}.json.xz")


def filled(of: Filling, by_seed: dict[int, list[int]], rule: FillRule, seed: int) -> tuple[Filled, float]:
    """One filling, and the seconds of one core that it took."""
    tasks = arrivals(of, by_seed, seed)
    begun = time.process_time()
    once = run(of, rule, tasks, seed)
    return once, time.process_time() - begun


def measure() -> list[Row]:
    """Every rule on the first order; nothing where the trace is not there."""
    if not DATA.exists():
        return []
    of, by_seed = filling(), orders()
    rows = []
    for rule in RULES:
        once, seconds = filled(of, by_seed, rule, SEEDS[0])
        at_100, at_130 = (once.columns[percent].allocation_pct for percent in (100, 130))
        value = f"{at_100:.2f}, {at_130:.2f} % of the GPUs in use, {seconds:.1f} s of one core"
        rows.append(Row(f"openb filled by {rule}", value, f"published, mean of ten: {PUBLISHED.get(rule, '-')}"))
    return rows


def main() -> None:
    """Print one row a rule: the mean over the seeds, and each seed's column 130."""
    parser = argparse.ArgumentParser(prog="bench.openb", description=__doc__.partition(":")[0] if __doc__ else "")
    parser.add_argument("--list", default="default", help="the list of tasks: default, cpu050, multigpu20 ..")
    parser.add_argument("--rule", choices=RULES, action="append", help="these rules only")
    parser.add_argument("--seed", type=int, choices=SEEDS, action="append", help="these orders only")
    arguments = parser.parse_args()
    if not DATA.exists():
        sys.stdout.write(f"the openb trace is not at {DATA}: nothing measured\n")
        return
    of, by_seed = filling(arguments.list), orders(arguments.list)
    sys.stdout.write("| rule | at 100 % | at 130 % | sd | s a seed | each seed at 130 % |\n|" + " --- |" * 6 + "\n")
    for rule in arguments.rule or RULES:
        runs = [filled(of, by_seed, rule, seed) for seed in arguments.seed or SEEDS]
        at_100, at_130 = ([once.columns[percent].allocation_pct for once, _ in runs] for percent in (100, 130))
        numbers = [statistics.mean(at_100), statistics.mean(at_130), statistics.pstdev(at_130)]
        cells = [rule, *(f"{number:.2f}" for number in numbers), f"{statistics.mean(took for _, took in runs):.1f}"]
        sys.stdout.write(f"| {' | '.join(cells)} | {' '.join(f'{share:.2f}' for share in at_130)} |\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
