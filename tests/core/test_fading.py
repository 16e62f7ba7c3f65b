"""What users took is forgotten at the very minute at which it has faded to less than a minute of one device."""

import random

from muster.core.fading import LEAST_USE_MS, Fading, fades_at
from muster.core.order import faded
from muster.core.schedule import SECOND_NS
from muster.core.state import PastUse

MINUTE_NS = 60 * SECOND_NS


def test_the_moment_is_the_first_at_which_less_than_the_least_is_left() -> None:
    chance = random.Random(3)
    for _ in range(3000):
        half_life_s = chance.choice([0, 1, 7, 3600, 86_400, 1_000_000])
        use = PastUse(chance.choice([0, 59_999, 60_000, 60_001, chance.randrange(10 ** chance.randint(1, 12))]), 12_345)
        at = fades_at(use, half_life_s)
        assert faded(use, half_life_s, at) < LEAST_USE_MS
        assert at == use.settled_at or faded(use, half_life_s, at - 1) >= LEAST_USE_MS


def test_whatever_is_held_and_given_back_goes_when_a_look_at_all_would_find_it() -> None:
    """Held against looking at each use, each minute; a fading made anew in between gives the same."""
    chance = random.Random(4)
    half_life_s = 600
    past_use: dict[str, PastUse] = {}
    fading = Fading(past_use, half_life_s)
    forgotten = 0
    for minute in range(1, 4000):
        time_at = minute * MINUTE_NS
        for _ in range(chance.randrange(3)):
            name = f"queue\nuser-{chance.randrange(40)}"
            use = past_use.setdefault(name, PastUse(settled_at=time_at))
            use.device_ms, use.settled_at = faded(use, half_life_s, time_at), time_at
            use.held = chance.choice([0, 0, 0, 0, 250, 1000])
            fading.note(name, use)
        expected = {
            name for name, use in past_use.items() if not use.held and faded(use, half_life_s, time_at) < LEAST_USE_MS
        }
        if chance.random() < 0.05:
            fading = Fading(past_use, half_life_s)
        assert set(fading.take_faded(past_use, time_at)) == expected
        for name in expected:
            del past_use[name]
        forgotten += len(expected)
    assert forgotten > 300
