"""What every fitted calibrator can do: report its status, be saved, and refuse unusable output."""

import jax.numpy as jnp

from jaxcal import checks
from jaxcal.status import check_status


class Fit:
    """Base of the fitted calibrators: frozen registered dataclasses whose leaves carry the batch shape.

    A fit is a pytree: it stacks, maps, goes through `jax.device_get`, and may be a field of a training state.
    """

    def check(self) -> None:
        """Raise `ValueError` with a written message if a lane failed (status 4 to 6). For concrete fits."""
        check_status(self.status)

    def save(self, path) -> None:
        """Write the fit to `path` (npz arrays and a JSON header, no pickle); read it back with `jaxcal.load`."""
        from jaxcal.calibrators.saving import save

        save(self, path)

    def check_output(self, log_probabilities, logits) -> None:
        """Raise if no lane of concrete log-probabilities is usable, saying whether fit or logits are at fault."""
        bad = jnp.isnan(log_probabilities).any(-1)
        bad = bad.any(-1) if bad.ndim else bad

        def explain():
            self.check()
            labels = jnp.argmax(logits, axis=-1)
            return checks.explain_multiclass(logits, labels, call=type(self).__name__)

        checks.raise_if_unusable(bad, explain)
