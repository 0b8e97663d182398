"""The methods that are compared: where each starts, what it may see, and what holds it.

A method is written as its name and any options: `IDA`, `IDA lambda=5`, `PAR start=last`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

from kedge.errors import KedgeError
from kedge.methods.base import Alignment
from kedge.methods.dfa import DirectFeatureAlignment
from kedge.methods.eiml import ExemplarIncrementalMetaLearning
from kedge.methods.ewc import ElasticWeightConsolidation
from kedge.methods.ida import IndirectDiscriminantAlignment
from kedge.utils.spec import (
    Spec,
    check_options,
    fields_of,
    parse_spec,
)

ALIGNMENTS: dict[str, type[Alignment]] = {
    "DFA": DirectFeatureAlignment,
    "EWC": ElasticWeightConsolidation,
    "EIML": ExemplarIncrementalMetaLearning,
    "IDA": IndirectDiscriminantAlignment,
}


@dataclass(frozen=True)
class Method:
    label: str
    trains_on: Literal["nothing", "new", "everything"]
    alignment: Alignment | None = None
    weight: float = 1.0  # λ
    from_scratch: bool = (
        False  # each round starts with new weights, not with the last round's model
    )

    @property
    def remembers(self) -> bool:
        """Whether it keeps anything of a round besides the model and its anchors."""
        if self.alignment is None:
            return False
        return type(self.alignment).remember is not Alignment.remember


PLAIN: dict[str, Literal["nothing", "new", "everything"]] = {
    "NU": "nothing",  # no update: the base model again in every round
    "FT": "new",  # fine-tuning: nothing holds it
    "PAR": "everything",  # paragon: on all images so far, from scratch or from the last round on
}


def method_names() -> tuple[str, ...]:
    return ("NU", "FT", *ALIGNMENTS, "PAR")


def parse_method(text: str) -> Method:
    """'IDA lambda=5 anchors=all' → a method. The label is the text, tidied."""
    named = parse_spec(text, "Method")
    named = replace(named, name=named.name.upper())
    if named.name not in method_names():
        known = ", ".join(method_names())
        raise KedgeError(f"There is no method '{text}'; the known ones are {known}.")
    if named.name in PLAIN:
        return _plain(named)
    kind = ALIGNMENTS[named.name]
    takes = ["lambda", *fields_of(kind)]
    check_options(named, takes, "Method")
    # In that order: one method has one label, however it is written.
    options = {key: named.options[key] for key in takes if key in named.options}
    named = replace(named, options=dict(options))
    weight = options.pop("lambda", kind.default_weight)
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise KedgeError(f"Method '{text}': lambda must be a number that is not negative.")
    return Method(named.label, "new", kind(**options), float(weight))


STARTS = ("scratch", "last")  # of the paragon; where rounds are short, the first never gets far


def _plain(named: Spec) -> Method:
    paragon = named.name == "PAR"
    check_options(named, ["start"] if paragon else [], "Method")
    start = named.options.get("start", STARTS[0])
    if start not in STARTS:
        raise KedgeError(f"Method '{named.label}': start must be {' or '.join(STARTS)}.")
    return Method(named.label, PLAIN[named.name], from_scratch=paragon and start == STARTS[0])
