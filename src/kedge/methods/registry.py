"""The methods that can be compared: what each trains on, where it starts, and its alignment.

A method is written as its name and any options: `IDA`, `IDA lambda=5`, `PAR start=last`. With
`lambda=auto`, λ of a round is the number of old classes for each new one, n_old/n_new. To add a
method, write a file with an `Alignment` and add it to `ALIGNMENTS`: tests/methods/test_contract.py
then runs over it.
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
from kedge.utils.spec import check_options, field_names, parse_spec

ALIGNMENTS: dict[str, type[Alignment]] = {
    "DFA": DirectFeatureAlignment,
    "EWC": ElasticWeightConsolidation,
    "EIML": ExemplarIncrementalMetaLearning,
    "IDA": IndirectDiscriminantAlignment,
}
TrainsOn = Literal["nothing", "new", "everything"]
WITHOUT_ALIGNMENT: dict[str, TrainsOn] = {
    "NU": "nothing",  # no update: every round repeats the base model
    "FT": "new",  # fine-tuning
    "PAR": "everything",  # paragon: on all images so far
}
PARAGON_STARTS = ("scratch", "last")  # "last": from the last round's model, if rounds are short


@dataclass(frozen=True)
class Method:
    label: str
    trains_on: TrainsOn
    alignment: Alignment | None = None
    weight: float | Literal["auto"] = 1.0  # λ; "auto": n_old/n_new, see `with_weight_for`
    from_scratch: bool = False  # each round starts with new weights, not with the last model

    @property
    def fixed_weight(self) -> float:
        """λ as a number."""
        assert self.weight != "auto", "the round resolves it"
        return self.weight

    def with_weight_for(self, n_old: int, n_new: int) -> Method:
        """This method in a round with so many old and new classes: "auto" becomes n_old/n_new."""
        return replace(self, weight=n_old / n_new) if self.weight == "auto" else self

    @property
    def remembers(self) -> bool:
        """Whether the method stores anything besides the model and its anchors."""
        kind = type(self.alignment)
        return issubclass(kind, Alignment) and kind.remember is not Alignment.remember


def method_names() -> tuple[str, ...]:
    return ("NU", "FT", *ALIGNMENTS, "PAR")


def parse_method(text: str) -> Method:
    """A method from a text such as 'IDA lambda=5 anchors=all'. Its label is the text with the
    options in a fixed order, so that one method always has the same label."""
    spec = parse_spec(text, "Method")
    spec = replace(spec, name=spec.name.upper())
    if spec.name not in method_names():
        known = ", ".join(method_names())
        raise KedgeError(f"There is no method '{text}'; choose one of {known}.")
    kind = ALIGNMENTS.get(spec.name)
    paragon = ["start"] if spec.name == "PAR" else []
    known_options = paragon if kind is None else ["lambda", *field_names(kind)]
    check_options(spec, known_options, "Method")
    options = {key: spec.options[key] for key in known_options if key in spec.options}
    label = replace(spec, options=dict(options)).label
    if kind is None:
        start = options.get("start", PARAGON_STARTS[0])
        if start not in PARAGON_STARTS:
            raise KedgeError(f"Method '{text}': start must be {' or '.join(PARAGON_STARTS)}.")
        from_scratch = bool(paragon) and start == PARAGON_STARTS[0]
        return Method(label, WITHOUT_ALIGNMENT[spec.name], from_scratch=from_scratch)
    weight = options.pop("lambda", kind.default_weight)
    if weight == "auto":
        return Method(label, "new", kind(**options), "auto")
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        raise KedgeError(f"Method '{text}': lambda must be auto or a number that is not negative.")
    return Method(label, "new", kind(**options), float(weight))
