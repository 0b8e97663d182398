"""Alignments: what holds the new backbone to the old one while it learns new classes.

A new alignment is one file with a final subclass of `Alignment`, and one line in `ALIGNMENTS`.
The contract suite in tests/alignment runs over everything that is listed there.
"""

from kedge.alignment.contract import Alignment, Sight
from kedge.alignment.dfa import DirectFeatureAlignment
from kedge.alignment.ida import IndirectDiscriminantAlignment

__all__ = [
    "ALIGNMENTS",
    "Alignment",
    "DirectFeatureAlignment",
    "IndirectDiscriminantAlignment",
    "Sight",
]

ALIGNMENTS: dict[str, type[Alignment]] = {
    "DFA": DirectFeatureAlignment,
    "IDA": IndirectDiscriminantAlignment,
}
