"""What is known of the experiments on traces from elsewhere: published results, and what an independent simulator
measured on the same traces by the same definitions. All times are seconds."""

from typing import Final, NamedTuple

from muster.projections.fillup import FillRule


class Known(NamedTuple):
    """Of a policy on a trace: mean completion time and mean wait as measured, and the published mean completion time of
    the nearest policy."""

    jct_s: float | None = None
    wait_s: float | None = None
    published: str = ""


class Trace(NamedTuple):
    """A trace on so many nodes of 8 GPUs; policies in `left_out` are not run on it: they take too long."""

    name: str
    path: str
    nodes: int
    known: dict[str, Known]
    window: tuple[str, str] = ("", "")
    left_out: tuple[str, ...] = ()


def _known(jct: dict[str, float], wait: dict[str, float], published: dict[str, str]) -> dict[str, Known]:
    names = {**jct, **wait, **published}
    return {name: Known(jct.get(name), wait.get(name), published.get(name, "")) for name in names}


def _muri(name: str, jct: dict[str, float], srtf: str, srsf: str, tiresias: str) -> Trace:
    published = {"srtf": f"{srtf} (SRTF)", "srsf": f"{srsf} (SRSF)", "las": f"{tiresias} (Tiresias-L)"}
    return Trace(f"muri/{name}", f"muri/{name}.csv.xz", 8, _known(jct, {}, published))


def _both(text: str) -> tuple[dict[str, float], dict[str, float]]:
    """Completion times and waits of the seven measured policies: "124,485 / 111,350 | ..", in their order."""
    pairs = [tuple(float(cell.replace(",", "")) for cell in pair.split("/")) for pair in text.split("|")]
    named = dict(zip(("fifo", "fjf", "easy", "sjf", "srtf", "srsf", "las"), pairs, strict=True))
    return {name: pair[0] for name, pair in named.items()}, {name: pair[1] for name, pair in named.items()}


def _itp(name: str, nodes: int, text: str, left_out: tuple[str, ...] = ()) -> Trace:
    return Trace(f"itp/{name}", f"itp/{name}.csv.xz", nodes, _known(*_both(text), {}), left_out=left_out)


_PHILLY: Final = (
    "124485 / 111350 | 24797 / 11661 | 33151 / 20015 | 16979 / 3843 | 13866 / 730 | 13504 / 368 | 20367 / 7231"
)
_NOVEMBER: Final[dict[str, float]] = {
    "fifo": 38_998,
    "fjf": 4_684,
    "easy": 8_282,
    "sjf": 2_377,
    "srtf": 437,
    "srsf": 243,
    "las": 3_902,
}

TRACES: Final = {
    trace.name: trace
    for trace in (
        _muri(
            "trace1",
            {
                "fifo": 11_001_202,
                "fjf": 5_548_762,
                "easy": 8_555_754,
                "sjf": 1_623_609,
                "srtf": 1_333_917,
                "srsf": 952_245,
                "las": 6_701_372,
            },
            "1,370,603",
            "980,141",
            "3,330,371",
        ),
        _muri("trace1_pr", {"srtf": 2_267_332, "srsf": 1_767_694}, "2,303,544", "1,801,860", "6,921,683"),
        _muri(
            "trace3",
            {
                "fifo": 991_215,
                "fjf": 480_913,
                "easy": 421_204,
                "sjf": 262_107,
                "srtf": 180_116,
                "srsf": 172_684,
                "las": 473_381,
            },
            "193,082",
            "185,022",
            "347,213",
        ),
        _muri("trace3_pr", {"srtf": 829_338, "srsf": 783_245}, "844,395", "798,058", "2,213,110"),
        _itp(
            "cluster04",
            72,
            "40528 / 20546 | 27618 / 7636 | 31512 / 11530 | 24075 / 4092 | 21188 / 1206 | 20823 / 841 | 30984 / 11002",
            ("conservative",),
        ),
        _itp(
            "cluster06",
            13,
            "258399 / 233965 | 87047 / 62613 | 123457 / 99023 | 48846 / 24412 | 36463 / 12029 | 36952 / 12518 "
            "| 108212 / 83779",
        ),
        _itp(
            "cluster02",
            12,
            "597925 / 574956 | 137500 / 114530 | 191930 / 168960 | 44179 / 21209 | 29092 / 6123 | 27915 / 4945 "
            "| 209828 / 186859",
            ("conservative",),
        ),
        Trace("philly", "philly/philly.csv.xz", 80, _known(*_both(_PHILLY), {}), left_out=("conservative",)),
        Trace(
            "philly-november",
            "philly/philly.csv.xz",
            55,
            _known({}, _NOVEMBER, {}),
            ("2017-11-01 00:00:00", "2017-11-30 23:59:59"),
            left_out=("conservative",),
        ),
    )
}

TENANTS: Final[dict[str, dict[str, str]]] = {
    policy: dict(
        zip(
            (
                "ee9e8c",
                "7f04ca",
                "b436b2",
                "6214e9",
                "6c71a0",
                "2869ce",
                "0e4a51",
                "103959",
                "11cb48",
                "e13805",
                "ed69ec",
            ),
            cells.split(),
            strict=True,
        )
    )
    for policy, cells in {
        "share": ".26 .17 .13 .10 .08 .08 .08 .04 .03 .01 .01",
        "fifo": "86,153 108,825 101,082 124,291 102,614 92,543 99,283 91,624 91,497 90,544 164,875",
        "fjf": "24,039 21,844 12,321 13,585 6,257 93,675 9,544 6,449 5,824 30,564 19,054",
        "easy": "21,446 26,138 6,314 29,430 7,317 40,125 10,329 10,854 10,453 16,266 29,930",
        "sjf": "13,450 26,469 3,565 3,600 3,942 18,189 25,168 2,584 520 5,781 2,669",
    }.items()
}
"""Mean waits of Philly's virtual clusters, and the share of the GPUs' time that each has."""

FILLED: Final[dict[FillRule, tuple[str, str, str, str]]] = {
    "random": ("Random", "86.30", "87.47 (0.30)", "87.62 (0.31)"),
    "best-fit": ("BestFit", "92.86", "93.08 (0.13)", "93.19 (0.20)"),
    "fragmentation": ("FGD", "95.23", "95.39 (0.08)", "95.30 (0.13)"),
}
"""What a rule is called in the paper, and percent of openb's GPUs in use (standard deviation over ten orders)."""

FRAGMENTED: Final[dict[FillRule, dict[str, tuple[str, ...]]]] = {
    "random": {
        "published": ("15.10", "15.92", "13.49", "12.43"),
        "measured": ("15.09", "15.89", "13.38", "12.27"),
    },
    "best-fit": {"published": ("10.81", "8.29", "7.05", "6.85"), "measured": ("10.70", "8.16", "6.93", "6.72")},
    "fragmentation": {"published": ("8.93", "5.97", "4.73", "4.57"), "measured": ("8.96", "6.00", "4.82", "4.65")},
}
"""Fragmented GPUs in percent of all, once 50, 80, 100 and 130 % of the GPUs have been asked for."""

LISTS: Final[dict[str, dict[FillRule, tuple[str, str]]]] = {
    name: {"best-fit": (cells[0], cells[2]), "fragmentation": (cells[1], cells[3])}
    for name, cells in {
        "cpu050": ("93.56 / 93.79", "95.00 / 95.21", "93.87", "95.16"),
        "cpu100": ("93.26 / 93.44", "95.21 / 95.35", "93.63", "95.28"),
        "cpu200": ("92.15 / 92.40", "94.82 / 95.05", "92.46", "94.48"),
        "gpushare40": ("91.44 / 91.69", "93.96 / 94.15", "91.83", "94.07"),
        "gpushare60": ("89.06 / 89.36", "91.25 / 91.40", "89.67", "91.38"),
        "gpushare100": ("84.62 / 85.01", "86.64 / 86.90", "85.14", "86.88"),
        "gpuspec10": ("93.10 / 93.30", "94.66 / 94.95", "93.37", "94.61"),
        "gpuspec20": ("88.46 / 93.30", "94.66 / 94.84", "93.37", "94.57"),
        "gpuspec25": ("85.67 / 93.23", "93.91 / 94.74", "93.32", "94.53"),
        "multigpu20": ("93.73 / 93.93", "95.53 / 95.65", "93.99", "95.51"),
        "multigpu30": ("94.57 / 94.72", "96.36 / 96.46", "94.83", "96.46"),
        "multigpu40": ("95.10 / 95.23", "96.91 / 96.99", "95.34", "96.93"),
    }.items()
}
"""The other lists: published at 100 and 130 % (ten orders), and measured at 130 % (three orders), by rule."""
