"""Kill -9 of every part at seeded moments under load: nothing acknowledged is lost, nothing is booked or run twice."""

from pathlib import Path

import pytest
from integration.chaos import play


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_round(tmp_path: Path, seed: int) -> None:
    await play(tmp_path, seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 121))
async def test_many_rounds(tmp_path: Path, seed: int) -> None:
    await play(tmp_path, seed, brokers=3 if seed % 4 == 0 else 1, schedulers=1 + seed % 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(201, 206))
async def test_rounds_with_outages_longer_than_the_lease(tmp_path: Path, seed: int) -> None:
    await play(tmp_path, seed, outages=True)
