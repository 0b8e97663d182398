"""Divergences between two softmax distributions. The paper uses KL(old ‖ new) and allows others."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from kedge.errors import require
from kedge.models.heads import Head

LogP = Float[Tensor, "n k"]


def _kl(old: LogP, new: LogP) -> Float[Tensor, ""]:
    """KL(old ‖ new)."""
    return F.kl_div(new, old, reduction="batchmean", log_target=True)


def _reverse(old: LogP, new: LogP) -> Float[Tensor, ""]:
    """KL(new ‖ old)."""
    return F.kl_div(old, new, reduction="batchmean", log_target=True)


def _js(old: LogP, new: LogP) -> Float[Tensor, ""]:
    """Jensen–Shannon: the mean KL divergence of both from their mixture."""
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
    """Mean divergence over n images, from logits, which are first multiplied by the ratio."""
    return DIVERGENCES[name](
        F.log_softmax(temperature_ratio * old, -1), F.log_softmax(temperature_ratio * new, -1)
    )


def temperature_ratio(head: Head, temperature: float | None) -> float:
    """The factor that brings a head's logits to another temperature; None keeps the head's own."""
    return 1.0 if temperature is None else head.temperature / temperature


def check_divergence(method: str, divergence: str, temperature: float | None) -> None:
    """Validate the options of a method that compares softmax distributions."""
    names = ", ".join(DIVERGENCES)
    require(divergence in DIVERGENCES, f"{method}: divergence must be one of {names}.")
    valid = temperature is None or (isinstance(temperature, int | float) and 0 < temperature < 1e6)
    require(valid, f"{method}: temperature must be a number above 0.")
