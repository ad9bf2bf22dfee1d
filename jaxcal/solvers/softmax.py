"""Log-probabilities without cancellation."""

import jax
import jax.numpy as jnp
from jax import lax


def shifted(logits: jax.Array) -> jax.Array:
    """Logits minus their row maximum, which carries no derivative (every use is invariant to it); NaN rows stay NaN."""
    return logits - lax.stop_gradient(jnp.max(logits, axis=-1, keepdims=True))


@jax.custom_jvp
def _log_normalizer(gaps: jax.Array) -> jax.Array:
    # log1p of the sum without the maximum: at a confident row the plain sum is 1 + tiny and loses the tiny part.
    peak = jnp.argmax(gaps, axis=-1)[..., None] == lax.broadcasted_iota(jnp.int32, gaps.shape, gaps.ndim - 1)
    return jnp.log1p(jnp.sum(jnp.where(peak & (gaps == 0), 0, jnp.exp(gaps)), axis=-1))


@_log_normalizer.defjvp
def _log_normalizer_jvp(primals, tangents):
    (gaps,), (tangent,) = primals, tangents
    value = _log_normalizer(gaps)
    p = jnp.exp(gaps - value[..., None])
    return value, jnp.sum(jnp.where(p == 0, 0, p * tangent), axis=-1)


def log_softmax(logits: jax.Array) -> jax.Array:
    """log p = z - logsumexp(z) over the last axis, exact to rounding for confident rows and for any offset a row.

    `-inf` entries stay `-inf` and have derivative 0 in every probability; a row that is all `-inf`, or holds NaN or
    `+inf`, is NaN.
    """
    gaps = shifted(logits)
    return gaps - _log_normalizer(gaps)[..., None]


def scaled(logits: jax.Array, factor: jax.Array) -> jax.Array:
    """factor * logits with `-inf` kept `-inf` at factor 0; `factor` broadcasts against `logits[..., 0]` rows.

    Rows are shifted first, so that a large offset neither rounds nor overflows.
    """
    gaps = shifted(logits)
    masked = gaps == -jnp.inf
    return jnp.where(masked, -jnp.inf, factor[..., None] * jnp.where(masked, 0, gaps))
