"""Which numbers a text states, however they are written. Knows text only.

"1,234.5 km"  1234.5     "3.2 × 10^-4"  0.00032     "1 234"  1234     "−7", "minus 7"  -7     "12.5 %"  12.5 percent
"""

import math
import re
from typing import NamedTuple

FULL_WIDTH = str.maketrans("，．％＋－٬٫٪−–", ",.%+-,.%--")
SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
RAISED = re.compile(r"(?<=10)([⁺⁻]?[⁰¹²³⁴⁵⁶⁷⁸⁹]+)")
NUMBER = re.compile(
    r"""(?<![A-Za-z0-9_])(?P<sign>[-+]|\b(?:minus|negative)\s+|[负負]\s*)?
        (?:(?P<digits>\d{1,3}(?:(?P<mark>[,'’_ \u00a0\u2009\u202f])\d{3}(?:(?P=mark)\d{3})*)(?!\d)(?:\.\d+)?
                     |\d+(?:\.\d+)?|(?<!\.)\.\d+)
           (?:[eE](?P<exponent>[-+]?\d+)(?![A-Za-z]))?
           (?:\s*(?:[×xX*·⋅]|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{?\s*(?P<power>[-+]?\d+)(?!\d)\}?)?)
        (?!_?\d)(?P<percent>\s*(?:\\?%|per\s?cent\b))?""",
    re.VERBOSE | re.IGNORECASE,
)
POWER_OF_TEN = re.compile(r"(?<![\w.,])([-+]?)10\s*(?:\^|\*\*)\s*\{?\s*([-+]?\d+)(?!\d)\}?")
TIMES_BEFORE = re.compile(r"(?:[×xX*·⋅]|\\times|\\cdot)\s*$")


class Number(NamedTuple):
    """A number as it stands in a text; infinite where it is too large for a float.

    Example:
        Number(12.5, is_percent=True)
    """

    value: float
    is_percent: bool = False

    def equals(self, other: "Number", *, tolerance: float, absolute: float) -> bool:
        """Within the tolerances; of 50 % and a number without the sign, 50 is meant, or 0.5."""
        pairs = [(self.value, other.value)]
        if self.is_percent != other.is_percent:
            pairs.append((self.value / (100 if self.is_percent else 1), other.value / (100 if other.is_percent else 1)))
        return any(math.isclose(*pair, rel_tol=tolerance, abs_tol=absolute) for pair in pairs)


def numbers_in(text: str) -> set[Number]:
    """The different numbers that a text states.

    Digits of any script count; groups of three may be parted by a comma, an apostrophe, an underscore or a space. A
    decimal comma is not read, nor are fractions and roots, which `math_answer` reads.

    Example:
        numbers_in("7 °C, that is 7.0")     {Number(7.0)}
    """
    text = text.replace("{,}", ",").replace("\\,", " ").translate(FULL_WIDTH)
    text = RAISED.sub(lambda match: "^" + match.group().translate(SUPERSCRIPTS), text)
    text = POWER_OF_TEN.sub(lone_power, text)
    return {number_of(match) for match in NUMBER.finditer(text)}


def lone_power(match: re.Match[str]) -> str:
    """`10^3` as `1e3`; what a factor stands before stays."""
    if TIMES_BEFORE.search(match.string, max(0, match.start() - 12), match.start()):
        return match.group()
    return f"{match[1]}1e{match[2]}"


def number_of(match: re.Match[str]) -> Number:
    digits = re.sub(r"[,'’_\s]", "", match["digits"])
    exponent = sum(int((match[name] or "0")[:6]) for name in ("exponent", "power"))
    value = float(f"{digits}e{exponent}")
    sign = (match["sign"] or "").strip()
    return Number(-value if sign not in ("", "+") else value, match["percent"] is not None)
