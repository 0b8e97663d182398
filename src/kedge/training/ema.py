"""An exponential moving average of the weights, which is less noisy than the last ones.

Polyak and Juditsky: Acceleration of Stochastic Approximation by Averaging, 1992.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from kedge.models.model import Model


class WeightAverage:
    """After each step: average = decay · average + (1 − decay) · student, from the start weights.

    Averaged are weights that train, floating-point statistics and class embeddings; counters are
    copied. Everything happens on the device and can be captured in a CUDA graph.
    """

    def __init__(
        self, student: Model, class_embeddings: Float[Tensor, "classes r"] | None, decay: float
    ) -> None:
        self.model = replace(
            student,
            embedding=copy.deepcopy(student.embedding).eval().requires_grad_(False),
            head=copy.deepcopy(student.head).eval().requires_grad_(False),
        )
        self.class_embeddings = None
        self.share = 1 - decay  # of the student
        # By these names and not by the state, in which a weight that is used twice is listed twice.
        average, now = self.model.weights(), student.weights()
        names = [name for name, weight in now.items() if weight.requires_grad]
        self._weights = [average[name] for name in names], [now[name] for name in names]
        if class_embeddings is not None:
            self.class_embeddings = class_embeddings.detach().clone()
            self._weights[0].append(self.class_embeddings)
            self._weights[1].append(class_embeddings)
        buffers = [
            pair
            for part, of_student in (
                (self.model.embedding, student.embedding),
                (self.model.head, student.head),
            )
            for pair in zip(part.buffers(), of_student.buffers(), strict=True)
        ]
        self._statistics = [pair for pair in buffers if pair[0].is_floating_point()]
        self._counters = [pair for pair in buffers if not pair[0].is_floating_point()]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the student's current weights."""
        torch._foreach_lerp_(*self._weights, self.share)
        for average, now in self._statistics:
            # What has not changed keeps its bits; it may be infinite, and ∞ − ∞ is not a number.
            moved = average.lerp(now, self.share)
            average.copy_(torch.where(average == now, average, moved))
        for average, now in self._counters:
            average.copy_(now)
