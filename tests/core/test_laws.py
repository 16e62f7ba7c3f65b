"""The laws of scheduling as properties of random clusters, each worked out from the raw state after every step."""

import pytest
from hypothesis import given
from law_cluster import Do, LivingCluster, Setup, Step
from law_settings import LONG, QUICK
from law_stories import contests, stories


def live(story: tuple[Setup, list[Step]]) -> None:
    setup, steps = story
    world = LivingCluster(setup)
    script = [repr(setup)]
    try:
        for step in [*steps, Do("settle"), Do("quiet")]:
            script.append(f"  entry {world.state.sequence + 1}: {step}")
            world.do(step)
    except Exception as error:
        error.add_note("\n".join(script))
        raise


@QUICK
@given(stories(5))
def test_the_laws_hold_in_every_story(story: tuple[Setup, list[Step]]) -> None:
    live(story)


@QUICK
@given(contests())
def test_the_laws_hold_in_every_contest(contest: tuple[Setup, list[Step]]) -> None:
    live(contest)


@pytest.mark.slow
@LONG
@given(contests())
def test_the_laws_hold_in_many_contests(contest: tuple[Setup, list[Step]]) -> None:
    live(contest)


@pytest.mark.slow
@LONG
@given(stories(12))
def test_the_laws_hold_in_long_stories(story: tuple[Setup, list[Step]]) -> None:
    live(story)
