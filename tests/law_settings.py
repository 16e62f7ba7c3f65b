"""How many random cases the laws are held against: the same ones each time, with nothing kept between runs."""

from hypothesis import HealthCheck, Phase, settings

QUICK = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=150,
    phases=[Phase.explicit, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
LONG = settings(QUICK, max_examples=2000)
