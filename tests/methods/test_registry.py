"""Methods from their names and options."""

from dataclasses import replace

import pytest

from kedge.config import Schedule, TrainConfig
from kedge.errors import KedgeError
from kedge.methods.dfa import DirectFeatureAlignment
from kedge.methods.eiml import ExemplarIncrementalMetaLearning
from kedge.methods.ewc import ElasticWeightConsolidation
from kedge.methods.ida import IndirectDiscriminantAlignment
from kedge.methods.registry import ALIGNMENTS, PRESETS, method_names, parse_method


def test_what_methods_train_on_and_where_they_start() -> None:
    assert method_names() == ("NU", "FT", "DFA", "EWC", "EIML", "IDA", "IDA+", "PAR")
    methods = {name: parse_method(name) for name in method_names()}
    assert all(method.label == name for name, method in methods.items())
    assert (methods["NU"].trains_on, methods["PAR"].trains_on) == ("nothing", "everything")
    assert {methods[name].trains_on for name in ("FT", *ALIGNMENTS)} == {"new"}
    assert [name for name, method in methods.items() if method.from_scratch] == ["PAR"]
    assert not parse_method("par start=last").from_scratch
    assert [name for name, method in methods.items() if method.remembers] == ["EWC", "EIML"]
    assert {name: methods[name].weight for name in ALIGNMENTS} == {
        "DFA": 1, "EWC": 10, "EIML": 1, "IDA": 1,
    }  # fmt: skip


def test_options_reach_the_alignment_and_the_label() -> None:
    method = parse_method("  ida   anchors=all  lambda=2.5 ")
    assert method.alignment == IndirectDiscriminantAlignment(anchors="all")
    assert (method.weight, method.label) == (2.5, "IDA lambda=2.5 anchors=all")
    assert parse_method(method.label) == method
    expected = {
        "DFA reduction=mean": DirectFeatureAlignment("mean"),
        "EIML exemplars=60 choice=nearest": ExemplarIncrementalMetaLearning(60, "nearest"),
        "ewc episodes=50 decay=0.9": ElasticWeightConsolidation(50, 0.9),
    }
    for text, alignment in expected.items():
        assert parse_method(text).alignment == alignment


def test_a_preset_is_its_method_with_options_and_takes_others() -> None:
    preset, spelled = parse_method("ida+"), parse_method(PRESETS["IDA+"])
    assert (preset.label, replace(preset, label=spelled.label)) == ("IDA+", spelled)
    changed = parse_method("IDA+ dropout=on anchors=5 ema=0.9")
    assert changed.label == "IDA+ anchors=5 ema=0.9 dropout=on"
    assert changed.alignment == IndirectDiscriminantAlignment(anchors=5)
    assert (changed.weight, changed.merge) == ("sqrt", "auto")
    assert changed.schedule == {"ema": 0.9, "dropout": "on"}


@pytest.mark.parametrize("name", ["FT", *sorted(ALIGNMENTS), "PAR start=last"])
def test_every_method_that_trains_takes_options_of_the_round(name: str) -> None:
    method = parse_method(f"{name} merge=0.25 batch_norm=frozen ema=0.9")
    assert method.label == f"{name} ema=0.9 batch_norm=frozen merge=0.25"
    assert (method.schedule, method.merge) == ({"ema": 0.9, "batch_norm": "frozen"}, 0.25)
    config = method.apply_schedule(TrainConfig(seed=3))
    assert config == TrainConfig(schedule=Schedule(ema=0.9, batch_norm="frozen"), seed=3)
    assert parse_method(name).apply_schedule(config) == config
    assert parse_method(method.label) == method


@pytest.mark.parametrize("name", sorted(ALIGNMENTS))
@pytest.mark.parametrize(("rule", "weight"), [("auto", 4), ("sqrt", 2)])
def test_automatic_weight_is_resolved_by_the_classes_of_a_round(
    name: str, rule: str, weight: float
) -> None:
    method = parse_method(f"{name} lambda={rule}")
    assert (method.weight, method.label) == (rule, f"{name} lambda={rule}")
    assert parse_method(method.label) == method
    resolved = method.for_classes(48, 12)
    assert (resolved.weight, resolved.fixed_weight, resolved.label) == (
        *2 * (weight,),
        method.label,
    )
    assert parse_method(f"{name} lambda=sqrt").for_classes(3, 12).fixed_weight == 1
    given = parse_method(f"{name} lambda=2 merge=0.2")
    assert given.for_classes(60, 12) == given


@pytest.mark.parametrize(
    ("n_old", "merge"), [(0, 0), (6, 0), (12, 0), (24, 0.15), (36, 0.2), (180, 0.28)]
)
def test_automatic_merging_grows_with_the_share_of_old_classes(n_old: int, merge: float) -> None:
    method = parse_method("FT merge=auto")
    assert (method.merge, method.label) == ("auto", "FT merge=auto")
    assert method.for_classes(n_old, 12).fixed_merge == pytest.approx(merge)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no method"),
        ("XYZ", "XYZ"),
        ("FT lambda=1", "FT"),
        ("PAR start=first", "start"),
        ("IDA lambda", "name=value"),
        ("IDA lambda=0 lambda=5", "twice"),
        ("IDA lambda=-1", "lambda"),
        ("IDA lambda=inf", "lambda"),
        ("IDA lambda=car", "lambda"),
        ("IDA shots=3", "anchors"),
        ("IDA anchors=1", "anchors"),
        ("DFA dimensions=mean", "reduction"),  # the option's name in earlier versions
        ("EIML exemplars=1", "exemplars"),
        ("EWC decay=1.5", "decay"),
        ("NU ema=0.9", "NU"),
        ("FT ema=1", "ema"),
        ("FT ema=much", "ema"),
        ("FT batch_norm=cold", "batch_norm"),
        ("FT dropout=half", "dropout"),
        ("FT merge=2", "merge"),
        ("IDA merge=half", "merge"),
        ("PAR batch_norm=frozen", "start=last"),
        ("PAR merge=0.5", "start=last"),
    ],
)
def test_bad_text_is_an_error_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(KedgeError, match=reason):
        parse_method(text)
