"""A thing and its options, written as one text."""

import math
from dataclasses import dataclass

import pytest

from kedge.errors import KedgeError
from kedge.utils.spec import (
    Spec,
    check_options,
    fields_of,
    keywords_of,
    parse_spec,
)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("IDA", "IDA", {}),
        ("  ecm   training=inner ", "ecm", {"training": "inner"}),
        ("x a=1 b=1.0 c=one", "x", {"a": 1, "b": 1.0, "c": "one"}),
        ("x a=-3 b=1e-2 c=1e3", "x", {"a": -3, "b": 0.01, "c": 1000.0}),
        ("x a=b=c", "x", {"a": "b=c"}),
        ("", "", {}),
        ("   ", "", {}),
    ],
)
def test_a_text_is_a_name_and_options(text: str, name: str, options: dict) -> None:
    assert parse_spec(text, "Thing") == Spec(name, options)


def test_numbers_are_whole_if_they_are_written_so() -> None:
    options = parse_spec("x a=5 b=5.0 c=inf d=nan e=five", "Thing").options
    assert [type(value) for value in options.values()] == [int, float, float, float, str]
    assert isinstance(options["d"], float)
    assert math.isnan(options["d"])


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("IDA", "IDA"),
        (" IDA   lambda=5   anchors=all ", "IDA lambda=5 anchors=all"),
        ("IDA lambda=5.0", "IDA lambda=5"),
        ("IDA lambda=1e-2", "IDA lambda=0.01"),
        ("IDA anchors=all lambda=5", "IDA anchors=all lambda=5"),  # in the order given
    ],
)
def test_the_label_is_the_text_tidied(text: str, label: str) -> None:
    assert parse_spec(text, "Method").label == label
    assert parse_spec(label, "Method").label == label


@pytest.mark.parametrize("option", ["lambda", "lambda=", "=5", "="])
def test_an_option_is_a_name_and_a_value(option: str) -> None:
    with pytest.raises(KedgeError, match=f"^Head 'x {option}': write options as name=value\\.$"):
        parse_spec(f"x {option}", "Head")


@pytest.mark.parametrize("text", ["x a=1 a=2", "x a=1 b=2 a=1"])
def test_an_option_given_twice_is_refused(text: str) -> None:
    with pytest.raises(KedgeError, match=f"^Method '{text}': an option is given twice\\.$"):
        parse_spec(text, "Method")


def test_an_option_that_is_not_known_is_refused_with_those_that_are() -> None:
    named = Spec("x", {"a": 1, "b": 2})
    check_options(named, ["b", "a", "c"], "Head")
    with pytest.raises(KedgeError, match=r"^Head 'x a=1 b=2': x knows the options a, c\.$"):
        check_options(named, ["a", "c"], "Head")
    with pytest.raises(KedgeError, match=r"^Head 'x a=1 b=2': x has no options\.$"):
        check_options(named, [], "Head")


def test_options_are_the_fields_of_a_dataclass() -> None:
    @dataclass
    class Thing:
        first: int = 1
        second: str = "two"

    assert fields_of(Thing) == ["first", "second"]


def test_options_are_the_arguments_that_must_be_named() -> None:
    class Thing:
        def __init__(self, size: int, kind: str = "a", *, first: int = 1, second: int = 2) -> None:
            pass

    def plain(size: int) -> None:
        pass

    assert keywords_of(Thing) == {"first": 1, "second": 2}
    assert keywords_of(plain) == {}
