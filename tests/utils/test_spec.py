"""Names with options, written as one text."""

import math
from dataclasses import dataclass

import pytest

from kedge.errors import KedgeError
from kedge.utils.spec import Spec, check_options, field_names, keyword_defaults, parse_spec


@pytest.mark.parametrize(
    ("text", "spec", "label"),
    [
        ("IDA", Spec("IDA", {}), "IDA"),
        ("", Spec("", {}), ""),
        ("  ecm   training=inner ", Spec("ecm", {"training": "inner"}), "ecm training=inner"),
        ("x b=1.0 a=1 c=one", Spec("x", {"b": 1.0, "a": 1, "c": "one"}), "x b=1 a=1 c=one"),
        ("x a=-3 b=1e-2 c=b=c", Spec("x", {"a": -3, "b": 0.01, "c": "b=c"}), "x a=-3 b=0.01 c=b=c"),
    ],
)
def test_text_is_parsed_and_tidied(text: str, spec: Spec, label: str) -> None:
    assert parse_spec(text, "Method") == spec
    assert spec.label == label
    assert parse_spec(label, "Method").label == label


def test_numbers_keep_their_type() -> None:
    options = parse_spec("x a=5 b=5.0 c=inf d=nan e=five", "Method").options
    assert [type(value) for value in options.values()] == [int, float, float, float, str]
    assert math.isnan(float(options["d"]))


@pytest.mark.parametrize("text", ["x lambda", "x lambda=", "x =5", "x a=1 b=2 a=1"])
def test_malformed_options_are_refused(text: str) -> None:
    with pytest.raises(KedgeError, match="Head 'x"):
        parse_spec(text, "Head")


def test_unknown_options_and_texts_for_numbers_are_refused() -> None:
    spec = Spec("x", {"a": 1, "b": "two"})
    check_options(spec, ["b", "a", "c"], "Head")
    for known, expected in ((["a", "c"], "a, c"), ([], "no options"), ({"a": 1, "b": 2}, "number")):
        with pytest.raises(KedgeError, match=f"Head 'x a=1 b=two'.*{expected}"):
            check_options(spec, known, "Head")


def test_options_of_dataclasses_and_functions() -> None:
    @dataclass
    class Fields:
        first: int = 1
        second: str = "two"

    def function(size: int, kind: str = "a", *, first: int = 1, second: int = 2) -> None:
        pass

    assert field_names(Fields) == ["first", "second"]
    assert keyword_defaults(function) == {"first": 1, "second": 2}
