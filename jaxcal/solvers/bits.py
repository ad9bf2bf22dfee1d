"""Random bits by the thousand million."""

import jax
import jax.numpy as jnp

_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_ROUNDS = 20
_PARITY = 0x1BD11BDA  # constants of Threefry-2x32 as published


def threefry(key: tuple[jax.Array, jax.Array], counter: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """Threefry-2x32 with 20 rounds, the generator behind `jax.random`: two uint32 words for each pair of uint32.

    Written out so that it fuses with what uses the bits: on CPU `jax.random.bits` runs its rounds as a loop over arrays
    in memory, which is 6 to 18 times slower. Key and counter broadcast.

    Examples:
        >>> import jax.numpy as jnp
        >>> zero = jnp.uint32(0)
        >>> [hex(word) for word in threefry((zero, zero), (zero, zero))]
        ['0x6b200159', '0x99ba4efe']

    References:
        Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    keys = (*key, key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    x, y = counter[0] + keys[0], counter[1] + keys[1]
    for i in range(_ROUNDS):
        rotation = _ROTATIONS[i % 8]
        x = x + y
        y = x ^ ((y << rotation) | (y >> (32 - rotation)))
        if i % 4 == 3:
            block = i // 4 + 1
            x, y = x + keys[block % 3], y + keys[(block + 1) % 3] + jnp.uint32(block)
    return x, y


def scaled_to(words: jax.Array, size: jax.Array) -> jax.Array:
    """floor(words * size / 2^32): uniform integers in [0, size) from uniform uint32, without 64-bit products.

    Examples:
        >>> import jax.numpy as jnp
        >>> int(scaled_to(jnp.uint32(2**31), jnp.uint32(10)))
        5
    """
    a, b, c, d = words >> 16, words & 0xFFFF, size >> 16, size & 0xFFFF
    inner = a * d + (b * d >> 16)
    return a * c + (inner >> 16) + ((b * c + (inner & 0xFFFF)) >> 16)
