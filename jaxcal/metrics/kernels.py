"""Kernels of the distance between forecasts, and their products with vectors without an n x n matrix."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxcal import checks
from jaxcal.metrics.groups import Groups
from jaxcal.solvers import argsort, total

KERNELS = ("laplace", "gaussian")

# Classes added up in one pass over a row of memory.
_UNROLLED = 16

# Entries of a block of the matrix, with up to 16 classes: 16 MB in float32 and 200 rows at n = 20,000. Reverse mode
# stores its differences of each class. More classes make smaller blocks.
_BLOCK = 1 << 22

# Rows whose pairs are all looked at for the median distance of vectors; the median of the pairs of so many rows has a
# standard error of 0.35 % (1.3 % where half of the rows are one).
_MEDIAN_ROWS = 2048

# Above every squared distance of forecasts, which is at most 2.
_LARGEST = 4.0


def check_kernel(kernel: str, bandwidth) -> jax.Array | None:
    """The bandwidth as an array `()`, or None; static checks of both."""
    if kernel not in KERNELS:
        raise ValueError(f"kernel must be one of {KERNELS}, got {kernel!r}")
    if bandwidth is None:
        return None
    bandwidth = checks.as_array(bandwidth, "bandwidth")
    if jnp.issubdtype(bandwidth.dtype, jnp.complexfloating):
        raise TypeError(f"bandwidth must be real, got dtype {bandwidth.dtype}")
    if bandwidth.ndim:
        raise ValueError(f"bandwidth must be one number, got shape {bandwidth.shape}; jax.vmap takes several")
    if not checks.is_traced(bandwidth) and not bandwidth > 0:
        raise ValueError(f"bandwidth must be > 0, got {bandwidth}")
    return bandwidth


def positive_or_nan(bandwidth: jax.Array, dtype) -> jax.Array:
    """A traced bandwidth in the dtype of the work: what the eager check would have refused is NaN."""
    bandwidth = bandwidth.astype(dtype)
    return jnp.where(bandwidth > 0, bandwidth, jnp.nan)


def evaluate(kernel: str, squares: jax.Array, bandwidth: jax.Array) -> jax.Array:
    """The kernel of squared distances; the derivative of Laplace's, which has none at distance 0, is 0 there."""
    if kernel == "gaussian":
        scale = 1 / bandwidth  # its square may overflow, to the limit of the kernel; that of the bandwidth may vanish
        return jnp.exp(-squares * scale * scale / 2)
    apart = squares > 0
    return jnp.exp(-jnp.where(apart, jnp.sqrt(jnp.where(apart, squares, 1)), 0) / bandwidth)


def scalar_product(kernel: str, z: jax.Array, vectors: jax.Array, bandwidth: jax.Array) -> jax.Array:
    """K v for the kernel matrix of increasing scores, `(..., n)` twice and bandwidth `(...)` to `(..., n)`.

    Laplace's kernel is a product along the sorted scores, so that two running sums are all there is to do: O(n). The
    Gaussian one is evaluated in blocks, O(n^2); vectors that share scores and bandwidth share its values.
    """
    if kernel == "laplace":
        return _running_product(z, vectors, bandwidth[..., None])
    n = z.shape[-1]
    if z.size == n and bandwidth.size == 1:
        columns = vectors.reshape(-1, n).T
        return _blocks(kernel, z.reshape(n, 1), None, columns, bandwidth.reshape(())).T.reshape(vectors.shape)
    shape = jnp.broadcast_shapes(z.shape, vectors.shape, (*bandwidth.shape, 1))
    lanes = (jnp.broadcast_to(a, shape).reshape(-1, n) for a in (z, vectors, bandwidth[..., None]))
    one = lambda lane: _blocks(kernel, lane[0][:, None], None, lane[1][:, None], lane[2][0])[:, 0]  # noqa: E731
    return lax.map(one, tuple(lanes)).reshape(shape)


def vector_product(kernel: str, points, residuals, vectors, bandwidth, block: int = _BLOCK) -> jax.Array:
    """H V for H_ij = k(p_i, p_j) <e_i, e_j>: points and residuals `(n, k)`, vectors `(n, m)`, bandwidth `()`."""
    return _blocks(kernel, points, residuals, vectors, bandwidth, block)


def _running_product(z, vectors, bandwidth):
    vectors = jnp.broadcast_to(vectors, jnp.broadcast_shapes(z.shape, vectors.shape, bandwidth.shape))

    def join(first, second):
        # carrying the score of the last row, not the decay: differences of scores are exact, products of decays drift
        (z1, sum1), (z2, sum2) = first, second
        return z2, sum2 + jnp.exp(-jnp.abs(z2 - z1) / bandwidth) * sum1

    # down and up in one scan: half the compilation
    z, both = (jnp.stack([a, jnp.flip(a, axis=-1)]) for a in (z, vectors))
    below, above = lax.associative_scan(join, (z, both), axis=z.ndim - 1)[1]
    return below + jnp.flip(above, axis=-1) - vectors


def _blocks(kernel, points, residuals, vectors, bandwidth, block=_BLOCK):
    n, k = points.shape
    columns = points.T

    @jax.checkpoint  # reverse mode computes a block again instead of storing n^2 entries
    def one(row):
        point, residual = row
        values = evaluate(kernel, _squares(point, columns), bandwidth)
        if residuals is not None:
            values = values * jnp.dot(residual, residuals.T, precision=lax.Precision.HIGHEST)
        return jnp.dot(values, vectors, precision=lax.Precision.HIGHEST)

    return lax.map(one, (points, residuals), batch_size=_batch(n, k, block))


def _batch(n, k, block):
    return max(1, min(n, block // (n * -(-k // _UNROLLED))))


def _squares(point, columns):
    """Squared distances of a forecast `(k,)` from n of them, `(k, n)`, to `(n,)`.

    Of differences, not as |p|^2 + |q|^2 - 2 <p, q>, which in float32 makes close forecasts 5e-4 apart. Written as
    additions of whole rows: the compiler's reduction over the classes is up to 50 times slower.
    """
    k = len(point)
    if k <= _UNROLLED:
        return sum((point[c] - columns[c]) ** 2 for c in range(k))
    padding = -k % _UNROLLED
    point = jnp.pad(point, (0, padding)).reshape(-1, _UNROLLED)
    columns = jnp.pad(columns, ((0, padding), (0, 0))).reshape(-1, _UNROLLED, columns.shape[-1])
    add = lambda squares, part: (squares + _squares(*part), None)  # noqa: E731
    return lax.scan(add, jnp.zeros_like(columns[0, 0]), (point, columns))[0]


def median_gap(groups: Groups) -> jax.Array:
    """Median of |z_i - z_j| over all pairs i < j of rows, `(...)`; 1 if it is 0 or there is no pair. A constant for
    derivatives.

    Found by bisection of the bits of a float: each step counts, for every score, the rows above it within the distance.
    Pairs of one group have distance 0. Distances are differences of floats, exact but for those of more than a factor
    of 2. Ranks of more than 2^24 pairs are rounded in float32.
    """
    shape = jnp.broadcast_shapes(groups.score.shape, groups.weight.shape)
    n = shape[-1]

    def one(z, m):
        rows = jnp.cumsum(m)
        own = m * (m - 1) / 2

        def count(distance):
            # rounding leaves z + distance on the right side of every score, but for one that equals the result
            last = jnp.minimum(jnp.searchsorted(z, z + distance), n - 1)
            last = last - (z[last] - z > distance)
            return total(own + m * (rows[last] - rows))

        low, high = _middle(count, count(jnp.ones((), z.dtype)))
        return _or_one((low + high) / 2)

    lanes = (lax.stop_gradient(jnp.broadcast_to(a, shape).reshape(-1, n)) for a in (groups.score, groups.weight))
    return jax.vmap(one)(*lanes).reshape(shape[:-1])


def median_distance(points: jax.Array, weights: jax.Array) -> jax.Array:
    """Median Euclidean distance of the pairs of rows, `(n, k)` and `(n,)` to `()`; 1 if it is 0 or there is no pair.

    Over all pairs of at most 2048 rows. Beyond that over the pairs of 2048 rows that divide the weight evenly in the
    order of a fixed projection, so that neither the order nor the repetition of rows matters. A constant for
    derivatives.
    """
    points, weights = lax.stop_gradient(points), lax.stop_gradient(weights)
    n, k = points.shape
    if n > _MEDIAN_ROWS:
        # cosines of whole numbers have no rational relation that would give different forecasts one key
        order = argsort(jnp.dot(points, jnp.cos(jnp.arange(k, dtype=points.dtype)), precision=lax.Precision.HIGHEST))
        rows = jnp.cumsum(weights[order])
        middles = (jnp.arange(_MEDIAN_ROWS, dtype=points.dtype) + 0.5) / _MEDIAN_ROWS * rows[-1]
        points = points[order[jnp.minimum(jnp.searchsorted(rows, middles), n - 1)]]
        weights = jnp.ones_like(middles)
    columns = points.T
    squares = lax.map(
        lambda point: _squares(point, columns), points, batch_size=max(1, min(len(points), _BLOCK // points.size))
    )

    def count(square):
        near = jnp.dot((squares <= square).astype(weights.dtype), weights, precision=lax.Precision.HIGHEST)
        return total(weights * (near - 1)) / 2

    low, high = _middle(count, count(jnp.full((), _LARGEST, points.dtype)))
    return _or_one((jnp.sqrt(low) + jnp.sqrt(high)) / 2)


def _or_one(median):
    return jnp.where(median > 0, median, 1)


def _middle(count, number):
    """The two middle ones of `number` values in [0, 4], of which `count(x)` are <= x; twice the same if it is odd.

    Bisection of the bits: floats >= 0 are ordered as these. Without any value both are 0.
    """
    bits = jnp.int32 if number.dtype.itemsize == 4 else jnp.int64
    top = int(np.asarray(_LARGEST, number.dtype).view(bits))
    as_float = lambda ends: lax.bitcast_convert_type(ends, number.dtype)  # noqa: E731

    def smallest(enough, low, high):
        """The smallest float between two for which it is enough; `high` unless a smaller one is."""

        def halve(state):
            step, low, high = state
            middle = low + (high - low) // 2
            found = enough(count(as_float(middle)))
            return step + 1, jnp.where(found, low, middle + 1), jnp.where(found, middle, high)

        # a step a bit of the range; none where the ends meet already
        unfinished = lambda state: (state[0] < top.bit_length()) & jnp.any(state[1] < state[2])  # noqa: E731
        return lax.while_loop(unfinished, halve, (jnp.int32(0), low, high))[2]

    low = smallest(lambda c: 2 * c >= number, jnp.zeros((), bits), jnp.full((), top, bits))
    alone = (2 * count(as_float(low)) > number) | ~(number > 0)
    return as_float(low), as_float(smallest(lambda c: 2 * c > number, low, jnp.where(alone, low, top)))
