"""How far two softmax verdicts are apart. The paper uses the first and says that any will do."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kedge.config import require
from kedge.models.heads import Head

LogP = Float[Tensor, "n k"]


def _kl(old: LogP, new: LogP) -> Float[Tensor, ""]:
    """KL(old ‖ new)."""
    return F.kl_div(new, old, reduction="batchmean", log_target=True)


def _reverse(old: LogP, new: LogP) -> Float[Tensor, ""]:
    """KL(new ‖ old)."""
    return F.kl_div(old, new, reduction="batchmean", log_target=True)


def _js(old: LogP, new: LogP) -> Float[Tensor, ""]:
    """Jensen–Shannon: the mean of both distances to the mixture of the two."""
    mixture = old.logaddexp(new) - math.log(2)
    return (_kl(old, mixture) + _kl(new, mixture)) / 2


def _squared(old: LogP, new: LogP) -> Float[Tensor, ""]:
    """Squared distance of the log-probabilities."""
    return (new - old).square().sum(-1).mean()


DIVERGENCES: dict[str, Callable[[LogP, LogP], Float[Tensor, ""]]] = {
    "kl": _kl,
    "reverse": _reverse,
    "js": _js,
    "squared": _squared,
}


def divergence(
    name: str, old: Float[Tensor, "n k"], new: Float[Tensor, "n k"], temperature_ratio: float = 1.0
) -> Float[Tensor, ""]:
    """Mean over n images, from logits; `sharper` multiplies both."""
    return DIVERGENCES[name](
        F.log_softmax(temperature_ratio * old, -1), F.log_softmax(temperature_ratio * new, -1)
    )


def temperature_ratio(head: Head, temperature: float | None) -> float:
    """What a head's logits have to be multiplied by to have this temperature."""
    return 1.0 if temperature is None else head.temperature / temperature


def check_divergence(method: str, divergence: str, temperature: float | None) -> None:
    """The options that every method has which compares verdicts."""
    known = ", ".join(DIVERGENCES)
    require(divergence in DIVERGENCES, f"{method}: divergence must be one of {known}.")
    fits = temperature is None or (isinstance(temperature, int | float) and 0 < temperature < 1e6)
    require(fits, f"{method}: temperature must be a number above 0.")
