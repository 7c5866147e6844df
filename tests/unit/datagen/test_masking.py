"""Masks: another value of the same type and length, the same for the same value, never the same for two."""

from __future__ import annotations

import datetime as dt
import json
import re
import unicodedata
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxrl_sql.datagen.snapshot.masking import Masker

MASKER = Masker(b"a key of this test")


def shape(text: str) -> list[object]:
    """Return what a mask of text keeps: the class of each letter and digit, and other signs themselves."""
    return [
        unicodedata.category(one) if unicodedata.category(one)[0] == "L" or one.isdecimal() else one for one in text
    ]


@given(st.text())
def test_a_text_keeps_its_length_and_its_signs(text: str) -> None:
    assert shape(MASKER.text(text)) == shape(text)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("text", [chr(a) + chr(b) for a in range(97, 123) for b in range(97, 123)]),
        ("text", [chr(a) for a in range(0x400, 0x500)]),
        ("text", [f"{a}-{b}x" for a in range(10) for b in range(10)]),
        ("number", [str(n) for n in range(-1200, 1200)]),
        ("number", [str(Decimal(n) / 100) for n in range(-1200, 1200)]),
        ("number", [str(n) for n in range(2**63 - 300, 2**63 + 300)]),
        ("number", [str(n) for n in range(-(2**63) - 300, -(2**63) + 300)]),
        ("moment", [dt.date.fromordinal(n).isoformat() for n in range(693_000, 694_500)]),
        ("moment", [f"{h:02}:{m:02}:00" for h in range(24) for m in range(60)] + ["24:00:00", "23:59:60"]),
        ("moment", [f"2024-02-29 10:00:00.{n:03}".rstrip("0").rstrip(".") for n in range(1000)]),
        ("uuid", [f"00000000-0000-0000-0000-{n:012x}" for n in range(1000)]),
        ("bytes", [f"{n:02x}" for n in range(256)]),
        ("bytes", [f"{n:04x}" for n in range(2000)]),
    ],
)
def test_two_values_never_become_one(kind: str, values: list[str]) -> None:
    masks = [MASKER.kinds[kind](value) for value in values]
    assert len(set(masks)) == len(set(values))
    assert sum(mask == value for mask, value in zip(masks, values, strict=True)) < len(values) / 4


@given(st.integers(-(2**63), 2**63 - 1))
def test_an_integer_keeps_its_sign_digits_and_64_bits(number: int) -> None:
    masked = MASKER.number(str(number))
    assert len(masked) == len(str(number))
    assert str(int(masked)) == masked
    assert masked.startswith("-") == (number < 0)
    assert -(2**63) <= int(masked) < 2**63


@given(st.decimals(allow_nan=False, allow_infinity=False, places=4, max_value=10**9, min_value=-(10**9)))
def test_a_number_keeps_its_digits_and_equal_ones_stay_equal(number: Decimal) -> None:
    masked = MASKER.number(f"{number:f}")
    assert Decimal(masked).as_tuple().sign == number.as_tuple().sign
    assert masked == MASKER.number(f"{number:f}00" if "." in f"{number:f}" else f"{number:f}.00")
    assert len(masked.partition(".")[2]) == len(f"{number:f}".partition(".")[2].rstrip("0"))


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_float_stays_one(number: float) -> None:
    masked = float(MASKER.number(repr(number)))
    assert (masked < 0) == (number < 0)


@given(st.dates())
def test_a_date_stays_one(day: dt.date) -> None:
    masked = dt.date.fromisoformat(MASKER.moment(day.isoformat()))
    assert (1900 <= day.year < 2100) == (1900 <= masked.year < 2100)


@given(st.datetimes())
def test_a_time_stays_one_in_its_form(moment: dt.datetime) -> None:
    text = moment.isoformat(" ")
    masked = MASKER.moment(text)
    dt.datetime.fromisoformat(masked)
    assert re.sub(r"\d", "0", masked).rstrip("0") == re.sub(r"\d", "0", text).rstrip("0")
    assert MASKER.moment(f"{text}+00") == f"{masked}+00"


@pytest.mark.parametrize("value", ["infinity", "-infinity", "24:00:00"])
def test_moments_without_another_of_their_kind_stay(value: str) -> None:
    assert MASKER.moment(value) == value


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_stays(value: str) -> None:
    assert MASKER.number(value) == value


def test_a_date_before_christ_keeps_its_form() -> None:
    assert re.fullmatch(r"\d{4}-\d\d-\d\d BC", MASKER.moment("0044-03-15 BC"))


def test_texts_that_differ_in_case_have_masks_that_do() -> None:
    lower, title = MASKER.text("ann smith"), MASKER.text("Ann Smith")
    assert lower != title
    assert lower == title.lower()


def test_a_json_value_keeps_its_keys_and_form() -> None:
    value = {"name": "Ann", "ages": [1, 2.5, -30], "is": True, "none": None, "ann": {"at": "x@y.de"}}
    masked = json.loads(MASKER.json(json.dumps(value)))
    assert list(masked) == list(value)
    assert masked["name"] != "Ann"
    assert shape(masked["name"]) == shape("Ann")
    assert [type(one) for one in masked["ages"]] == [int, float, int]
    assert (masked["is"], masked["none"]) == (True, None)
    assert shape(masked["ann"]["at"]) == shape("x@y.de")


def test_the_key_decides_the_mask() -> None:
    values = [f"customer {n}" for n in range(50)]
    ours = [MASKER.text(value) for value in values]
    assert ours == [Masker(b"a key of this test").text(value) for value in values]
    theirs = [Masker(b"another key").text(value) for value in values]
    assert not any(a == b for a, b in zip(ours, theirs, strict=True))


def test_a_mask_tells_little_of_how_alike_values_are() -> None:
    # Customers that differ in the last digit alone have masks that differ in most places.
    masks = [MASKER.text(f"abcdefgh{n}") for n in range(10)]
    alike = [sum(a == b for a, b in zip(masks[0], mask, strict=True)) for mask in masks[1:]]
    assert max(alike) <= 4
