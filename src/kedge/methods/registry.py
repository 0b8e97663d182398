"""The methods that can be compared: what each trains on, where it starts, and its alignment.

A method is written as its name and any options: `IDA`, `IDA lambda=5`, `PAR start=last`. With
`lambda=auto`, λ of a round is the number of old classes for each new one, n_old/n_new, and with
`lambda=sqrt` the square root of that, and at least 1. Every method that trains also takes

    ema=DECAY            an average of the weights replaces the last ones (`Schedule.ema`)
    batch_norm=MODE      batch, or frozen: statistics stay as they were after the first round
    dropout=MODE         on, or off: no dropout and no DropBlock
    merge=α              afterwards, weights = (1 − α) · new + α · old; with merge=auto, α is
                         0.3 · (1 − n_new/n_old), and 0 where the new classes are as many

in place of what the schedule says; the first round, which all methods share, is not changed by
them. To add a method, write a file with an `Alignment` and add it to `ALIGNMENTS`:
tests/methods/test_contract.py then runs over it. A combination of options with a name of its own is
a line in `PRESETS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from kedge.config import TrainConfig
from kedge.errors import KedgeError
from kedge.methods.base import Alignment
from kedge.methods.dfa import DirectFeatureAlignment
from kedge.methods.eiml import ExemplarIncrementalMetaLearning
from kedge.methods.ewc import ElasticWeightConsolidation
from kedge.methods.ida import IndirectDiscriminantAlignment
from kedge.utils.config_io import option_name
from kedge.utils.spec import Spec, check_options, field_names, parse_spec
from kedge.utils.text import display_name

ALIGNMENTS: dict[str, type[Alignment]] = {
    "DFA": DirectFeatureAlignment,
    "EWC": ElasticWeightConsolidation,
    "EIML": ExemplarIncrementalMetaLearning,
    "IDA": IndirectDiscriminantAlignment,
}
PRESETS: dict[str, str] = {
    "IDA+": "IDA lambda=sqrt anchors=all dropout=off merge=auto",  # for many updates; see LOG.md
}
TrainsOn = Literal["nothing", "new", "everything"]
WITHOUT_ALIGNMENT: dict[str, TrainsOn] = {
    "NU": "nothing",  # no update: every round repeats the base model
    "FT": "new",  # fine-tuning
    "PAR": "everything",  # paragon: on all images so far
}
PARAGON_STARTS = ("scratch", "last")  # "last": from the last round's model, if rounds are short
SCHEDULE_OPTIONS = ("ema", "batch_norm", "dropout")  # fields of Schedule that a method may set
OPTION_TYPES = (str, int, float)  # of the options of a method
Rules = dict[str, Callable[[float], float]]
WEIGHT_RULES: Rules = {  # λ from n_old/n_new
    "auto": lambda ratio: ratio,
    "sqrt": lambda ratio: math.sqrt(max(ratio, 1)),
}
MERGE_RULES: Rules = {"auto": lambda ratio: 0.3 * (1 - 1 / max(ratio, 1))}  # α from n_old/n_new


@dataclass(frozen=True)
class Method:
    label: str
    trains_on: TrainsOn
    alignment: Alignment | None = None
    weight: float | str = 1.0  # λ, or one of WEIGHT_RULES, see `for_classes`
    from_scratch: bool = False  # each round starts with new weights, not with the last model
    schedule: dict[str, Any] = field(default_factory=dict)  # fields of Schedule that it sets
    merge: float | str = 0.0  # share of the old weights in the new model, or one of MERGE_RULES

    @property
    def fixed_weight(self) -> float:
        """λ as a number."""
        assert not isinstance(self.weight, str), "the round resolves it"
        return self.weight

    @property
    def fixed_merge(self) -> float:
        """The share of the old weights as a number."""
        assert not isinstance(self.merge, str), "the round resolves it"
        return self.merge

    def for_classes(self, n_old: int, n_new: int) -> Method:
        """This method in a round with so many old and new classes: its rules become numbers."""
        ratio, weight, merge = n_old / n_new, self.weight, self.merge
        return replace(
            self,
            weight=WEIGHT_RULES[weight](ratio) if isinstance(weight, str) else weight,
            merge=MERGE_RULES[merge](ratio) if isinstance(merge, str) else merge,
        )

    @property
    def rules(self) -> dict[str, Any]:
        """What the label stands for besides fields of the schedule, which may change from version
        to version. Empty for plain training."""
        rules: dict[str, Any] = {"merge": self.merge} if self.merge else {}
        if self.alignment is not None:
            rules |= {"alignment": type(self.alignment).__name__, "lambda": self.weight}
            rules |= {k: v for k, v in vars(self.alignment).items() if isinstance(v, OPTION_TYPES)}
        return rules

    def apply_schedule(self, config: TrainConfig) -> TrainConfig:
        """The settings of a round, with those that the method sets."""
        return replace(config, schedule=replace(config.schedule, **self.schedule))

    @property
    def remembers(self) -> bool:
        """Whether the method stores anything besides the model and its anchors."""
        kind = type(self.alignment)
        return issubclass(kind, Alignment) and kind.remember is not Alignment.remember


def method_names() -> tuple[str, ...]:
    return ("NU", "FT", *ALIGNMENTS, *PRESETS, "PAR")


def parse_method(text: str) -> Method:
    """A method from a text such as 'IDA lambda=5 anchors=all'. Its label is the text with the
    options in a fixed order, so that one method always has the same label."""
    spec = parse_spec(text, "Method")
    spec = replace(spec, name=spec.name.upper())
    if spec.name not in method_names():
        known = ", ".join(method_names())
        raise KedgeError(f"There is no method '{display_name(text)}'; choose one of {known}.")
    preset = parse_spec(PRESETS.get(spec.name, spec.name), "Method")
    known_options = _known_options(preset.name)
    check_options(spec, known_options, "Method")
    given = {key: spec.options[key] for key in known_options if key in spec.options}
    method = _build(Spec(preset.name, preset.options | given), text)
    return replace(method, label=replace(spec, options=given).label)


def _known_options(name: str) -> list[str]:
    if name == "NU":
        return []
    kind = ALIGNMENTS.get(name)
    own = ["lambda", *field_names(kind)] if kind else ["start"] if name == "PAR" else []
    return [*own, *SCHEDULE_OPTIONS, "merge"]


def _build(spec: Spec, text: str) -> Method:
    """The method of a spec whose options are known; `text` begins error messages."""
    options = dict(spec.options)
    schedule = {key: options.pop(key) for key in SCHEDULE_OPTIONS if key in options}
    merge = options.pop("merge", 0.0)
    if merge not in MERGE_RULES:
        if not isinstance(merge, int | float) or not 0 <= merge <= 1:
            raise KedgeError(f"Method '{text}': merge must be auto or a number from 0 to 1.")
        merge = float(merge)
    method = Method(spec.label, "new", schedule=schedule, merge=merge)
    _check_schedule(method, text)
    kind = ALIGNMENTS.get(spec.name)
    if kind is None:
        start = options.get("start", PARAGON_STARTS[0])
        if start not in PARAGON_STARTS:
            raise KedgeError(f"Method '{text}': start must be {' or '.join(PARAGON_STARTS)}.")
        from_scratch = spec.name == "PAR" and start == PARAGON_STARTS[0]
        if from_scratch and (merge or "batch_norm" in schedule):
            raise KedgeError(
                f"Method '{text}': merge and batch_norm need an earlier model, and PAR starts from "
                "scratch; add start=last."
            )
        return replace(method, trains_on=WITHOUT_ALIGNMENT[spec.name], from_scratch=from_scratch)
    weight = options.pop("lambda", kind.default_weight)
    method = replace(method, alignment=kind(**options))
    if weight in WEIGHT_RULES:
        return replace(method, weight=weight)
    if not isinstance(weight, int | float) or not 0 <= weight < math.inf:
        rules = ", ".join(WEIGHT_RULES)
        raise KedgeError(
            f"Method '{text}': lambda must be {rules} or a number that is not negative."
        )
    return replace(method, weight=float(weight))


def _check_schedule(method: Method, text: str) -> None:
    """Raise if the method sets something that no schedule can have."""
    try:
        method.apply_schedule(TrainConfig())
    except (KedgeError, TypeError) as error:
        reason = str(error)
        for name in SCHEDULE_OPTIONS:
            reason = reason.replace(option_name(name), name)
        raise KedgeError(f"Method '{text}': {reason}") from None
