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
        self.student_share = 1 - decay
        # By these names and not by the state, in which a weight that is used twice is listed twice.
        average, now = self.model.weights(), student.weights()
        pairs = [(average[name], w) for name, w in now.items() if w.requires_grad]
        if class_embeddings is not None:
            self.class_embeddings = class_embeddings.detach().clone()
            pairs.append((self.class_embeddings, class_embeddings))
        buffers = [
            pair
            for part, of_student in (
                (self.model.embedding, student.embedding),
                (self.model.head, student.head),
            )
            for pair in zip(part.buffers(), of_student.buffers(), strict=True)
        ]
        statistics = [pair for pair in buffers if pair[0].is_floating_point()]
        finite = [bool(pair[0].isfinite().all()) for pair in statistics]
        pairs += [pair for pair, is_finite in zip(statistics, finite, strict=True) if is_finite]
        self._partly_infinite = [
            pair for pair, is_finite in zip(statistics, finite, strict=True) if not is_finite
        ]
        counters = [pair for pair in buffers if not pair[0].is_floating_point()]
        # As lists, for which a GPU needs one kernel instead of one for every small tensor.
        self._averaged = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        self._copied = [pair[0] for pair in counters], [pair[1] for pair in counters]

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the student's current weights."""
        torch._foreach_lerp_(*self._averaged, self.student_share)
        if self._copied[0]:
            torch._foreach_copy_(*self._copied)
        for average, now in self._partly_infinite:  # ∞ − ∞ is not a number
            moved = average.lerp(now, self.student_share)
            average.copy_(torch.where(average == now, average, moved))
