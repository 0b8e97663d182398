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


def _kl(p: LogP, q: LogP) -> Float[Tensor, ""]:
    """KL(p ‖ q)."""
    return F.kl_div(q, p, reduction="batchmean", log_target=True)


def _jensen_shannon(p: LogP, q: LogP) -> Float[Tensor, ""]:
    """The mean KL divergence of both from their mixture."""
    mixture = p.logaddexp(q) - math.log(2)
    return (_kl(p, mixture) + _kl(q, mixture)) / 2


DIVERGENCES: dict[str, Callable[[LogP, LogP], Float[Tensor, ""]]] = {
    "kl": _kl,
    "reverse": lambda old, new: _kl(new, old),
    "js": _jensen_shannon,
    "squared": lambda old, new: (new - old).square().sum(-1).mean(),  # of the log-probabilities
}


def divergence(
    name: str,
    old: Float[Tensor, "n k"],
    new: Float[Tensor, "n k"],
    head: Head,
    temperature: float | None,
) -> Float[Tensor, ""]:
    """Mean divergence over n images, from the head's logits brought to another temperature."""
    ratio = 1.0 if temperature is None else head.temperature / temperature
    log_p, log_q = (F.log_softmax(ratio * logits, -1) for logits in (old, new))
    return DIVERGENCES[name](log_p, log_q)


def check_divergence(method: str, divergence: str, temperature: float | None) -> None:
    """Validate the options of a method that compares softmax distributions."""
    names = ", ".join(DIVERGENCES)
    require(divergence in DIVERGENCES, f"{method}: divergence must be one of {names}.")
    valid = temperature is None or (isinstance(temperature, int | float) and 0 < temperature < 1e6)
    require(valid, f"{method}: temperature must be a number above 0.")
