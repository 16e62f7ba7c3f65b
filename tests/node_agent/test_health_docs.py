"""docs/health.md says of every Xid what follows."""

import re
from pathlib import Path

from muster.node_agent.xids import XIDS

DOCS = Path(__file__).parents[2] / "docs" / "health.md"
FIRST_WORDS = {
    "app": "its job has failed",
    "contained": "its job ends as `device_fault`",
    "count": "counted",
    "follows": "noted",
    "note": "noted",
    "nvlink": "`no_gangs`",
    "remap": "`drain`",
    "reset": "`reset`",
    "quarantine": "`quarantine`: the device is to be replaced",
    "reboot": "`quarantine`, and the node",
}


def test_every_xid_stands_in_its_row() -> None:
    table = DOCS.read_text().split("## Xids")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (\d.*?) \|$", table, re.MULTILINE)
    told = {int(number): words for words, numbers in rows for number in re.findall(r"\d+", numbers)}
    assert {number for number, known in XIDS.items() if not told[number].startswith(FIRST_WORDS[known.kind])} == set()
    assert told.keys() == XIDS.keys()
