"""Alignments: what holds the new backbone to the old one while it learns new classes.

A new alignment is one file with a final subclass of `Alignment`, and one line in `ALIGNMENTS`.
The contract suite in tests/alignment runs over everything that is listed there.
"""

from kedge.alignment.contract import Alignment, Memory, Rehearsal, Sight
from kedge.alignment.dfa import DirectFeatureAlignment
from kedge.alignment.eiml import ExemplarIncrementalMetaLearning
from kedge.alignment.ewc import ElasticWeightConsolidation
from kedge.alignment.ida import IndirectDiscriminantAlignment

__all__ = [
    "ALIGNMENTS",
    "Alignment",
    "DirectFeatureAlignment",
    "ElasticWeightConsolidation",
    "ExemplarIncrementalMetaLearning",
    "IndirectDiscriminantAlignment",
    "Memory",
    "Rehearsal",
    "Sight",
]

ALIGNMENTS: dict[str, type[Alignment]] = {
    "DFA": DirectFeatureAlignment,
    "EWC": ElasticWeightConsolidation,
    "EIML": ExemplarIncrementalMetaLearning,
    "IDA": IndirectDiscriminantAlignment,
}
