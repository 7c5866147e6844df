"""Mask values: another value of the same type and length in the place of each, the same for the same value.

A mask is a permutation of the values that look alike (as many digits, letters and other signs at the same places), so
that two values never become one: keys stay keys, and what refers to a masked key finds it. Permutations are those of
a Feistel network whose round function is a keyed hash (BLAKE2b): without the key nobody computes a value from its
mask. What can be counted can still be counted: how often each value occurs, and how long it is.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import lru_cache

_ROUNDS = 8
_LARGEST = 2**63 - 1
_LARGEST_EXPONENT = 300  # beyond it other digits may be no float
_NUMBER = re.compile(r"(-?)(\d+)(?:\.(\d+))?(e[+-]?\d+)?", re.IGNORECASE)
_MOMENT = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?:([ T])(\d\d):(\d\d):(\d\d)(\.\d+)?)?(Z|[+-]\d\d(?::\d\d)*)?")
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)(\.\d+)?([+-]\d\d(?::\d\d)*)?")
_DAY_SECONDS = 86_400
# Days are permuted within these bounds, so that what was a date of our time remains one.
_FIRST_DAY = dt.date(1900, 1, 1).toordinal()
_LAST_DAY = dt.date(2099, 12, 31).toordinal()
_HEX = "0123456789abcdef"


class Masker:
    """Masks under a key: the same key gives the same masks."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=b"jaxrl_sql.mask").digest()
        self.kinds: dict[str, Callable[[str], str]] = {
            "text": self.text,
            "number": self.number,
            "moment": self.moment,
            "uuid": self.uuid,
            "json": self.json,
            "bytes": self.hexadecimal,
        }
        """What masks the text of a value, by the kind of its type."""

    def text(self, value: str) -> str:
        """Mask letters by letters and digits by digits of the same alphabet; other signs stay where they are.

        ASCII letters keep their case, and texts that differ in it alone have masks that do, too.
        """
        places = [_sign(character) for character in value]
        symbols = [(place, sign) for place, sign in enumerate(places) if sign is not None]
        masked = self._permute("text", [sign[0] for _, sign in symbols], [len(sign[1]) for _, sign in symbols])
        out = list(value)
        for (place, (_, alphabet)), symbol in zip(symbols, masked, strict=True):
            out[place] = alphabet[symbol]
        return "".join(out)

    def number(self, value: str) -> str:
        """Mask a number, written in decimal digits, by one of the same sign and as many digits on both sides.

        Numbers that are equal (1.5 and 1.50) have equal masks, and those of 64 bits remain so. Infinities, what is
        no number, and floats at the ends of their range stay as they are.
        """
        found = _NUMBER.fullmatch(value)
        if found is None or abs(int((found[4] or "e0")[1:])) > _LARGEST_EXPONENT:
            return value
        sign, whole, part, exponent = found[1], found[2].lstrip("0") or "0", (found[3] or "").rstrip("0"), found[4]
        digits = whole + part
        if sign and not digits.strip("0"):
            return value  # a negative zero
        lows = [0] * len(digits)
        lows[0] = int(len(whole) > 1 or (bool(sign) and not part))
        lows[-1] = max(lows[-1], int(bool(part)))
        kind = f"number{sign}{len(whole)}{exponent or ''}"
        largest = _LARGEST + bool(sign)
        is_small = not part and int(digits) <= largest
        while True:  # walking on within a cycle of the permutation keeps it one, among the numbers of 64 bits too
            digits = self._digits(kind, digits, lows)
            if part or (int(digits) <= largest) == is_small:
                break
        point = f".{digits[len(whole) :]}" if part else ""
        return f"{sign}{digits[: len(whole)]}{point}{exponent or ''}"

    def moment(self, value: str) -> str:
        """Mask a date, a time of day or both, in the form of ISO 8601, by another of the same form.

        A day from 1900 to 2099 remains there. Infinities stay as they are; other forms are masked as texts.
        """
        clock = _CLOCK.fullmatch(value)
        if clock is not None:
            return self._clock(clock.groups()) + (clock[5] or "")
        if value.endswith(" BC"):
            return f"{self.text(value[:-3])} BC"
        found = _MOMENT.fullmatch(value)
        if found is None:
            return value if value in ("infinity", "-infinity") else self.text(value)
        try:
            day = dt.date(int(found[1]), int(found[2]), int(found[3])).toordinal()
        except ValueError:
            return self.text(value)
        if day < _FIRST_DAY:
            first, last = 1, _FIRST_DAY - 1
        elif day > _LAST_DAY:
            first, last = _LAST_DAY + 1, dt.date.max.toordinal()
        else:
            first, last = _FIRST_DAY, _LAST_DAY
        masked = dt.date.fromordinal(first + self._below("day", day - first, last - first + 1))
        time = f"{found[4]}{self._clock(found.groups()[4:8])}" if found[4] else ""
        return f"{masked.isoformat()}{time}{found[9] or ''}"

    def uuid(self, value: str) -> str:
        """Mask the hexadecimal digits of an identifier, in lower case."""
        places = [place for place, character in enumerate(value) if character in _HEX]
        masked = self._permute("uuid", [_HEX.index(value[place]) for place in places], [16] * len(places))
        out = list(value)
        for place, symbol in zip(places, masked, strict=True):
            out[place] = _HEX[symbol]
        return "".join(out)

    def json(self, value: str) -> str:
        """Mask the texts and numbers of a JSON value; its keys, booleans and nulls stay."""
        return json.dumps(self._inner(json.loads(value, parse_float=_Digits, parse_int=_Digits)), ensure_ascii=False)

    def hexadecimal(self, value: str) -> str:
        """Mask bytes, written in hexadecimal, by as many bytes."""
        return bytes(self._permute("bytes", list(bytes.fromhex(value)), [256] * (len(value) // 2))).hex()

    def _inner(self, value: object) -> object:
        if isinstance(value, dict):
            return {name: self._inner(one) for name, one in value.items()}
        if isinstance(value, list):
            return [self._inner(one) for one in value]
        if isinstance(value, _Digits):
            masked = self.number(value)
            return float(masked) if set(masked) & set(".eE") else int(masked)
        return self.text(value) if isinstance(value, str) else value

    def _clock(self, parts: Sequence[str | None]) -> str:
        """Return the mask of (hours, minutes, seconds, fraction or None); 24:00:00 and leap seconds stay."""
        hours, minutes, seconds, fraction = (part or "" for part in parts[:4])
        number = int(hours) * 3600 + int(minutes) * 60 + int(seconds)
        if number < _DAY_SECONDS and int(seconds) < 60:
            number = self._below("clock", number, _DAY_SECONDS)
            hours, minutes, seconds = (f"{part:02}" for part in (number // 3600, number // 60 % 60, number % 60))
        part = fraction.strip(".").rstrip("0")
        if part:
            fraction = "." + self._digits("fraction", part, [0] * (len(part) - 1) + [1])
        return f"{hours}:{minutes}:{seconds}{fraction}"

    def _digits(self, kind: str, digits: str, lows: Sequence[int]) -> str:
        """Permute texts of digits, none of them below the lowest for its place."""
        symbols = [int(digit) - low for digit, low in zip(digits, lows, strict=True)]
        masked = self._permute(kind, symbols, [10 - low for low in lows])
        return "".join(str(symbol + low) for symbol, low in zip(masked, lows, strict=True))

    def _below(self, kind: str, number: int, bound: int) -> int:
        """Permute the numbers below a bound, by walking along cycles of a permutation of as many digits."""
        digits = len(str(bound - 1))
        while True:
            symbols = self._permute(kind, [int(digit) for digit in f"{number:0{digits}}"], [10] * digits)
            number = int("".join(map(str, symbols)))
            if number < bound:
                return number

    def _permute(self, kind: str, symbols: Sequence[int], radices: Sequence[int]) -> list[int]:
        """Permute the sequences of symbols, each below its radix (at most 256), by a Feistel network of two halves."""
        if not symbols:
            return []
        tweak = hashlib.blake2b(repr((kind, tuple(radices))).encode(), key=self._key, digest_size=32).digest()
        if len(symbols) == 1:
            return [_shuffled(tweak, radices[0])[symbols[0]]]
        middle = len(symbols) // 2
        halves = [list(symbols[:middle]), list(symbols[middle:])]
        bounds = [radices[:middle], radices[middle:]]
        for number in range(_ROUNDS):
            source, target = halves[number % 2], halves[1 - number % 2]
            stream = hashlib.shake_256(tweak + bytes([number, *source])).digest(4 * len(target))
            for place, radix in enumerate(bounds[1 - number % 2]):
                target[place] = (target[place] + int.from_bytes(stream[4 * place : 4 * place + 4], "big")) % radix
        return halves[0] + halves[1]


class _Digits(str):
    """A number of a JSON value as it was written."""

    __slots__ = ()


@lru_cache(maxsize=4096)
def _shuffled(secret: bytes, size: int) -> tuple[int, ...]:
    """Return a permutation of the numbers below `size`, by the secret."""
    marks = [hashlib.blake2b(number.to_bytes(4, "big"), key=secret, digest_size=16).digest() for number in range(size)]
    return tuple(sorted(range(size), key=marks.__getitem__))


@lru_cache(maxsize=65536)
def _sign(character: str) -> tuple[int, str] | None:
    """Return a letter's or digit's place in its alphabet, and the alphabet; None for what stays as it is.

    Outside of ASCII an alphabet is what has the same category among 256 neighbours.
    """
    if character.isascii():
        for alphabet in ("0123456789", "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"):
            if character in alphabet:
                return alphabet.index(character), alphabet
        return None
    category = unicodedata.category(character)
    if category[0] != "L" and category != "Nd":
        return None
    return _neighbours(ord(character) >> 8, category).index(character), _neighbours(ord(character) >> 8, category)


@lru_cache(maxsize=4096)
def _neighbours(page: int, category: str) -> str:
    characters = (chr(number) for number in range(page << 8, (page + 1) << 8))
    return "".join(one for one in characters if not one.isascii() and unicodedata.category(one) == category)
