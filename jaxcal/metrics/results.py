"""What tests of calibration and intervals return."""

from dataclasses import dataclass
from typing import NamedTuple

import jax

from jaxcal.resampling import without_bootstrap

# The mark of every function that returns a `TestResult`.
test_without_bootstrap = without_bootstrap("a p-value has no interval; bootstrap an estimate of the error itself")


class Interval(NamedTuple):
    """Two ends; arrays of one shape."""

    lower: jax.Array
    upper: jax.Array


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TestResult:
    """Outcome of a test of the hypothesis that the forecasts are calibrated; arrays are `(...)`.

    Attributes:
        statistic: the number that is compared with its law under calibration, scaled as the test's docstring says.
        p_value: probability of a statistic at least as large if the forecasts are calibrated. NaN in invalid lanes and
            where the test does not exist.
        reliable: False where the law that was used is known to be a poor one for these data (few rows, extreme
            forecasts; the test's docstring gives the measured size), so that the p-value is not to be trusted.

    Examples:
        >>> import jax
        >>> import jaxcal
        >>> p = jax.random.uniform(jax.random.key(0), (1000,))
        >>> y = jax.random.bernoulli(jax.random.key(1), p)
        >>> bool(jaxcal.rank_ece_test(p, y).p_value < 0.01), bool(jaxcal.rank_ece_test(p**2, y).p_value < 0.01)
        (False, True)
    """

    __test__ = False  # not a test case

    statistic: jax.Array
    p_value: jax.Array
    reliable: jax.Array
