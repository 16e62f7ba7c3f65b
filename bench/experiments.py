"""The experiments on traces, as the tables of docs/simulation.md (`make simulation`): ours beside what an independent
simulator measured on the same traces, and beside what was published.

    python -m bench.experiments [--only SECTION]

Each section writes its tables between their marks in the page. All of it takes some twenty minutes of one core.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import openb
from bench.measured import FILLED, FRAGMENTED, LISTS, TENANTS, TRACES, Known, Trace
from muster.projections.fillup import COLUMNS, FillRule
from muster.projections.simulation import POLICIES, Figures, Summary, simulate, summarize
from muster.projections.trace_nodes import uniform
from muster.projections.traces import TraceJob, read_trace

DATA: Final = Path(__file__).resolve().parents[2] / "shared" / "traces"
PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "simulation.md"
RULES: Final[tuple[FillRule, ...]] = ("random", "spread", "best-fit", "fragmentation", "tight")
FEW_SEEDS: Final = (42, 43, 44)
NONE: Final = "-"

Rows = Sequence[Sequence[str]]


def main() -> None:
    """Run the experiments, and put what they gave into the page."""
    parser = argparse.ArgumentParser(prog="bench.experiments", description="Run the experiments on traces.")
    parser.add_argument("--only", choices=SECTIONS, action="append", help="these sections only")
    arguments = parser.parse_args()
    if not DATA.exists():
        sys.exit(f"the traces are not at {DATA}: nothing was run")
    for section in arguments.only or SECTIONS:
        for mark, table in SECTIONS[section]().items():
            _write(mark, table)


def _write(mark: str, table: str) -> None:
    """Put a table between its marks."""
    text = PAGE.read_text(encoding="utf-8")
    before, begin, rest = text.partition(f"<!-- {mark} -->\n")
    _, end, after = rest.partition(f"<!-- end of {mark} -->\n")
    if not end:
        raise LookupError(f"{PAGE} has no place for the table {mark}")
    PAGE.write_text(f"{before}{begin}\n{table}\n\n{end}{after}", encoding="utf-8")


def _told(what: str) -> None:
    sys.stderr.write(f"{what}\n")
    sys.stderr.flush()


def markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table: the first column is names, the others numbers."""
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


# -- openb ------------------------------------------------------------------------------------------------------------


def _fillings() -> dict[str, str]:
    """The default list under every rule, ten orders."""
    filling, orders = openb.filling(), openb.orders()
    allocated, fragmented = [], []
    for rule in RULES:
        runs = [openb.filled(filling, orders, rule, seed) for seed in openb.SEEDS]
        _told(f"openb, {rule}: {statistics.mean(seconds for _, seconds in runs):.1f} s each")
        at_100, at_130 = ([once.columns[percent].allocation_pct for once, _ in runs] for percent in (100, 130))
        known = FILLED.get(rule)
        allocated.append(
            [
                rule,
                f"{statistics.mean(at_100):.2f}",
                f"**{statistics.mean(at_130):.2f}** ({statistics.stdev(at_130):.2f})",
                *(known or (NONE, NONE, NONE, NONE)),
                f"{(100 - statistics.mean(at_130)) * filling.milli / 100_000:.0f}",
                f"{statistics.mean(seconds for _, seconds in runs):.1f}",
            ]
        )
        cells = [statistics.mean(once.columns[percent].fragmented_pct for once, _ in runs) for percent in COLUMNS]
        fragmented += [[rule, *(f"{cell:.2f}" for cell in cells)]]
        fragmented += [[f"{name}, {rule}", *values] for name, values in FRAGMENTED.get(rule, {}).items()]
    titles = (
        "rule",
        "@100 %",
        "@130 % (sd)",
        "of the paper",
        "published @100 %",
        "published @130 %",
        "measured @130 %",
    )
    return {
        "allocation": markdown((*titles, "unallocated GPUs", "s"), allocated),
        "fragmented": markdown(("rule", *(f"@{percent} %" for percent in COLUMNS)), fragmented),
    }


def _lists() -> dict[str, str]:
    """The other lists, three orders."""
    rows = []
    for name, known in LISTS.items():
        filling, orders = openb.filling(name), openb.orders(name)
        cells = [name]
        for rule, (published, measured) in known.items():
            runs = [openb.filled(filling, orders, rule, seed)[0] for seed in FEW_SEEDS]
            at_100, at_130 = (
                statistics.mean(once.columns[percent].allocation_pct for once in runs) for percent in (100, 130)
            )
            cells += [f"{at_100:.2f} / {at_130:.2f}", published, measured]
        _told(f"openb {name}: {' | '.join(cells)}")
        rows.append(cells)
    titles = [
        title
        for rule, name in (("best-fit", "BestFit"), ("fragmentation", "FGD"))
        for title in (rule, f"{name}, published", "measured @130 %")
    ]
    return {"lists": markdown(("list", *titles), rows)}


# -- queueing ---------------------------------------------------------------------------------------------------------


class _Result(NamedTuple):
    summary: Summary
    seconds: float


def _run(trace: Trace, jobs: Sequence[TraceJob], policy: str) -> _Result:
    begun = time.process_time()
    summary = summarize(simulate(uniform(trace.nodes, 8), jobs, policy))
    result = _Result(summary, time.process_time() - begun)
    wait_s, jct_s = summary.figures.wait.mean_s, summary.figures.jct.mean_s
    _told(f"{trace.name}, {policy}: JCT {jct_s:,.0f} s, wait {wait_s:,.0f} s, took {result.seconds:.1f} s")
    return result


def _results(trace: Trace) -> dict[str, _Result]:
    jobs = read_trace(DATA / trace.path).between(*trace.window).jobs
    return {policy: _run(trace, jobs, policy) for policy in POLICIES if policy not in trace.left_out}


def _queueing(trace: Trace, results: Mapping[str, _Result]) -> Rows:
    rows = []
    for policy in POLICIES:
        known = trace.known.get(policy, Known())
        done = results.get(policy)
        if done is None:
            rows.append([policy, NONE, _number(known.jct_s), NONE, _number(known.wait_s), *[NONE] * 6])
            continue
        summary = done.summary
        kept = f"{summary.reservations:,} / {summary.broken_reservations}" if summary.reservations else NONE
        rows.append(
            [
                policy,
                _number(summary.figures.jct.mean_s),
                _number(known.jct_s),
                _number(summary.figures.wait.mean_s),
                _number(known.wait_s),
                known.published or NONE,
                _number(summary.figures.jct.p99_s),
                _number(summary.makespan_s),
                f"{summary.preemptions:,}",
                kept,
                f"{done.seconds:.1f}",
            ]
        )
    return rows


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


TITLES: Final = (
    "policy",
    "mean JCT",
    "measured",
    "mean wait",
    "measured",
    "published JCT",
    "p99 JCT",
    "makespan",
    "preemptions",
    "reservations / broken",
    "s",
)


def _tables(traces: Iterable[Trace]) -> dict[str, str]:
    return {trace.name: markdown(TITLES, _queueing(trace, _results(trace))) for trace in traces}


def _philly() -> dict[str, str]:
    """The whole trace; and its tenants' waits."""
    trace = TRACES["philly"]
    results = _results(trace)
    rows = []
    for policy, result in results.items():
        users = result.summary.users
        rows.append([policy, *(_number(_user(users, vc).wait.mean_s) for vc in TENANTS["share"])])
        if policy in TENANTS:
            rows.append([f"{policy}, measured", *TENANTS[policy].values()])
    titles = ("policy", *(f"{vc} ({share})" for vc, share in TENANTS["share"].items()))
    return {trace.name: markdown(TITLES, _queueing(trace, results)), "tenants": markdown(titles, rows)}


def _user(users: Mapping[str, Figures], start: str) -> Figures:
    return next(figures for user, figures in users.items() if user.startswith(start))


SECTIONS: Final[dict[str, Callable[[], dict[str, str]]]] = {
    "openb": _fillings,
    "lists": _lists,
    "muri": lambda: _tables(trace for name, trace in TRACES.items() if name.startswith("muri")),
    "itp": lambda: _tables(trace for name, trace in TRACES.items() if name.startswith("itp")),
    "november": lambda: _tables([TRACES["philly-november"]]),
    "philly": _philly,
}

if __name__ == "__main__":
    main()
