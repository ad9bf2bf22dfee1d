"""What every fitted calibrator can do: report its status, be saved, and refuse unusable output."""

import jax.numpy as jnp

from jaxcal import checks
from jaxcal.calibrators import saving
from jaxcal.status import check_status

_CLASSES: dict[str, type] = {}  # what a file may hold: the package's own calibrators


class Fit:
    """Base of the fitted calibrators: frozen registered dataclasses whose leaves carry the batch shape.

    A fit is a pytree: it stacks, maps, goes through `jax.device_get`, and may be a field of a training state.
    """

    def __init_subclass__(cls):
        super().__init_subclass__()
        if cls.__module__.startswith(f"{__package__}."):
            _CLASSES[cls.__name__] = cls

    def check(self) -> None:
        """Raise `ValueError` with a written message if a lane failed (status 4 to 6). For concrete fits."""
        check_status(self.status)

    def save(self, path) -> None:
        """Write the fit to `path` (npz arrays and a JSON header, no pickle); read it back with `jaxcal.load`."""
        saving.save(self, path, _CLASSES)

    def check_output(self, log_probabilities, logits) -> None:
        """Raise if no lane of concrete log-probabilities is usable, saying whether fit or logits are at fault."""
        bad = jnp.isnan(log_probabilities).any(-1)
        bad = bad.any(-1) if bad.ndim else bad

        def explain():
            self.check()
            labels = jnp.argmax(logits, axis=-1)
            return checks.explain_multiclass(logits, labels, call=type(self).__name__)

        checks.raise_if_unusable(bad, explain)


def load(path):
    """Read a calibrator written by `fit.save(path)`.

    Args:
        path: the file.

    Returns:
        The fit, with arrays as they were saved (float64 arrays become float32 if the caller's x64 is off).

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file is not a calibrator, of a newer version, truncated, or its arrays do not fit its header.

    Examples:
        >>> import os, tempfile, jax.numpy as jnp
        >>> import jaxcal
        >>> fit = jaxcal.fit_temperature(jnp.array([[2.0, 0.0], [1.0, 0.0], [0.5, 0.0]]), jnp.array([0, 0, 1]))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fit.save(os.path.join(folder, "temperature.npz"))
        ...     again = jaxcal.load(os.path.join(folder, "temperature.npz"))
        >>> bool(again.temperature == fit.temperature)
        True
    """
    return saving.load(path, _CLASSES)
