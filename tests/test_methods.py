"""A method is written as its name and any options."""

import jaxtyping
import pytest

from kedge.alignment import DirectFeatureAlignment, IndirectDiscriminantAlignment
from kedge.errors import KedgeError
from kedge.methods import NAMES, parse_method


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """As users run it: the type checks of the tests would speak before the option's own."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize(
    ("name", "trains_on"), [("NU", "nothing"), ("FT", "new"), ("PAR", "everything")]
)
def test_plain_methods_train_on_their_due_and_are_held_by_nothing(
    name: str, trains_on: str
) -> None:
    method = parse_method(name)
    assert (method.label, method.trains_on, method.alignment) == (name, trains_on, None)


@pytest.mark.parametrize(
    ("name", "alignment"),
    [("IDA", IndirectDiscriminantAlignment()), ("DFA", DirectFeatureAlignment())],
)
def test_aligned_methods_train_on_new_images_only_with_a_weight_of_1(
    name: str, alignment: object
) -> None:
    method = parse_method(name)
    assert (method.label, method.trains_on) == (name, "new")
    assert method.alignment == alignment
    assert method.weight == 1.0


def test_only_the_paragon_trains_on_everything() -> None:
    assert [n for n in NAMES if parse_method(n).trains_on == "everything"] == ["PAR"]


def test_options_reach_the_alignment_and_the_label() -> None:
    method = parse_method("  ida   lambda=2.5  anchors=all ")
    assert method.alignment == IndirectDiscriminantAlignment(anchors="all")
    assert method.weight == 2.5
    assert method.label == "IDA lambda=2.5 anchors=all"
    assert parse_method("IDA anchors=7").alignment == IndirectDiscriminantAlignment(anchors=7)
    assert parse_method("DFA dimensions=mean").alignment == DirectFeatureAlignment("mean")


def test_a_label_reads_as_the_same_method() -> None:
    for text in ("nu", "IDA lambda=0", "ida anchors=3 lambda=1e-2", "dfa dimensions=mean"):
        method = parse_method(text)
        assert parse_method(method.label) == method


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no method"),
        ("XYZ", "no method 'XYZ'.*NU, FT, DFA, IDA, PAR"),
        ("FT lambda=1", "FT has no options"),
        ("IDA lambda", "name=value"),
        ("IDA lambda=", "name=value"),
        ("IDA =3", "name=value"),
        ("IDA lambda=-1", "lambda must be"),
        ("IDA lambda=nan", "lambda must be"),
        ("IDA lambda=inf", "lambda must be"),
        ("IDA lambda=much", "lambda must be"),
        ("IDA shots=3", "IDA knows the options lambda, anchors"),
        ("IDA anchors=1", "anchors must be"),
        ("IDA anchors=2.5", "anchors must be"),
        ("DFA anchors=3", "DFA knows the options lambda, dimensions"),
        ("DFA dimensions=3", "dimensions must be"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(KedgeError, match=reason):
        parse_method(text)


def test_an_option_given_twice_is_refused() -> None:
    with pytest.raises(KedgeError, match="lambda"):
        parse_method("IDA lambda=0 lambda=5")
