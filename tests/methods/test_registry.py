"""A method is written as its name and any options."""

import pytest

from kedge.errors import KedgeError
from kedge.methods import (
    DirectFeatureAlignment,
    ElasticWeightConsolidation,
    ExemplarIncrementalMetaLearning,
    IndirectDiscriminantAlignment,
)
from kedge.methods.base import Alignment
from kedge.methods.registry import (
    ALIGNMENTS,
    method_names,
    parse_method,
)


@pytest.mark.parametrize(
    ("name", "trains_on"), [("NU", "nothing"), ("FT", "new"), ("PAR", "everything")]
)
def test_plain_methods_train_on_their_due_and_are_held_by_nothing(
    name: str, trains_on: str
) -> None:
    method = parse_method(name)
    assert (method.label, method.trains_on, method.alignment) == (name, trains_on, None)


def test_methods_are_listed_from_none_to_all() -> None:
    assert method_names() == ("NU", "FT", "DFA", "EWC", "EIML", "IDA", "PAR")


@pytest.mark.parametrize(
    ("name", "alignment"),
    [
        ("DFA", DirectFeatureAlignment()),
        ("EWC", ElasticWeightConsolidation()),
        ("EIML", ExemplarIncrementalMetaLearning()),
        ("IDA", IndirectDiscriminantAlignment()),
    ],
)
def test_aligned_methods_train_on_new_images_only_with_a_weight_of_their_own(
    name: str, alignment: Alignment
) -> None:
    method = parse_method(name)
    assert (method.label, method.trains_on) == (name, "new")
    assert method.alignment == alignment
    assert method.weight == ALIGNMENTS[name].default_weight
    assert parse_method(f"{name} lambda=0.25").weight == 0.25


def test_the_papers_methods_have_a_weight_of_1() -> None:
    assert [parse_method(name).weight for name in ("DFA", "EIML", "IDA")] == [1, 1, 1]


def test_only_the_paragon_trains_on_everything() -> None:
    assert [n for n in method_names() if parse_method(n).trains_on == "everything"] == ["PAR"]


def test_only_the_paragon_can_start_afresh_and_need_not() -> None:
    assert [n for n in method_names() if parse_method(n).from_scratch] == ["PAR"]
    assert parse_method("PAR start=scratch").from_scratch
    on = parse_method("par start=last")
    assert (on.label, on.trains_on, on.from_scratch) == ("PAR start=last", "everything", False)
    with pytest.raises(KedgeError, match=r"start must be scratch or last"):
        parse_method("PAR start=first")
    with pytest.raises(KedgeError, match=r"FT has no options"):
        parse_method("FT start=last")


def test_options_reach_the_alignment_and_the_label() -> None:
    method = parse_method("  ida   lambda=2.5  anchors=all ")
    assert method.alignment == IndirectDiscriminantAlignment(anchors="all")
    assert method.weight == 2.5
    assert method.label == "IDA lambda=2.5 anchors=all"
    assert parse_method("IDA anchors=7").alignment == IndirectDiscriminantAlignment(anchors=7)
    assert parse_method("DFA dimensions=mean").alignment == DirectFeatureAlignment("mean")
    reverse = IndirectDiscriminantAlignment(divergence="reverse", temperature=0.5)
    assert parse_method("IDA divergence=reverse temperature=0.5").alignment == reverse
    nearest = ExemplarIncrementalMetaLearning(exemplars=60, choice="nearest", divergence="js")
    assert parse_method("EIML exemplars=60 choice=nearest divergence=js").alignment == nearest
    online = ElasticWeightConsolidation(episodes=50, decay=0.9)
    assert parse_method("ewc episodes=50 decay=0.9").alignment == online


@pytest.mark.parametrize(
    "text",
    [
        "nu",
        "IDA lambda=0",
        "ida anchors=3 lambda=1e-2",
        "ida divergence=js",
        "dfa dimensions=mean",
        "ewc decay=0.5 lambda=1e4",
        "EIML exemplars=30 choice=nearest",
    ],
)
def test_a_label_reads_as_the_same_method(text: str) -> None:
    method = parse_method(text)
    assert parse_method(method.label) == method


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no method"),
        ("XYZ", "no method 'XYZ'.*NU, FT, DFA, EWC, EIML, IDA, PAR"),
        ("FT lambda=1", "FT has no options"),
        ("IDA lambda", "name=value"),
        ("IDA lambda=0 lambda=5", "given twice"),
        ("IDA lambda=-1", "lambda must be"),
        ("IDA lambda=nan", "lambda must be"),
        ("IDA lambda=inf", "lambda must be"),
        ("IDA lambda=much", "lambda must be"),
        ("IDA shots=3", "IDA knows the options lambda, anchors"),
        ("IDA anchors=1", "anchors must be"),
        ("IDA anchors=2.5", "anchors must be"),
        ("DFA anchors=3", "DFA knows the options lambda, dimensions"),
        ("DFA dimensions=3", "dimensions must be"),
        ("IDA divergence=cosine", "IDA: divergence must be one of kl, reverse, js, squared"),
        ("IDA temperature=0", "IDA: temperature must be"),
        ("IDA temperature=cold", "IDA: temperature must be"),
        ("EIML exemplars=1", "EIML: exemplars must be a number from 2 to 10000"),
        ("EIML choice=best", "EIML: choice must be"),
        ("EIML anchors=5", "EIML knows the options lambda, exemplars, choice, divergence"),
        ("EWC episodes=0", "EWC: episodes must be"),
        ("EWC decay=1.5", "EWC: decay must be a number from 0 to 1"),
        ("EWC exemplars=15", "EWC knows the options lambda, episodes, decay"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(KedgeError, match=reason):
        parse_method(text)
