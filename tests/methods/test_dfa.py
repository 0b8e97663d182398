"""Direct feature alignment against a loop."""

import pytest
import torch

from kedge.errors import KedgeError
from kedge.methods.base import AlignmentInputs
from kedge.methods.dfa import DirectFeatureAlignment
from kedge.models.heads import PrototypeHead

N, D = 4, 6


@pytest.mark.parametrize(("reduction", "divisor"), [("sum", 1), ("mean", D)])
def test_penalty_and_gradient(reduction: str, divisor: int) -> None:
    generator = torch.Generator().manual_seed(0)
    new, old = torch.randn(2, N, D, generator=generator, dtype=torch.float64)
    new.requires_grad_()
    inputs = AlignmentInputs(new, old, PrototypeHead(D, 2.0))
    penalty = DirectFeatureAlignment(reduction=reduction).penalty(inputs)
    pairs = zip(new.flatten().tolist(), old.flatten().tolist(), strict=True)
    assert penalty.item() == pytest.approx(sum((a - b) ** 2 for a, b in pairs) / N / divisor)
    (gradient,) = torch.autograd.grad(penalty, new)
    torch.testing.assert_close(gradient, 2 * (new.detach() - old) / N / divisor)


@pytest.mark.usefixtures("unchecked")
def test_default_and_bad_option() -> None:
    assert DirectFeatureAlignment().reduction == "mean"
    with pytest.raises(KedgeError, match="reduction"):
        DirectFeatureAlignment(reduction="max")
