"""The expressions of `-k`: words joined by `and`, `or`, `not` and brackets."""

import re
from collections.abc import Callable
from typing import Final, TypeAlias

Test: TypeAlias = Callable[[str], bool]
_TOKEN: Final = re.compile(r"\s*([()]|[^\s()]+)")


class SelectionError(Exception):
    """The expression is malformed; the message is one line for the user."""


def compile_expression(text: str) -> Test:
    """Return the test of a name that `text` describes; an empty text selects everything.

    Dots, dashes and underscores are equal: `3.1.2-24`, `3_1_2_24` and `mqtt-3.1.2` all work. A word
    that begins with a digit must be the beginning of a statement's number; any other word may be
    anywhere in the name. Raises `SelectionError`.
    """
    tokens = _TOKEN.findall(text)
    if not tokens:
        return lambda name: True
    test, rest = _either(tokens, text)
    if rest:
        raise SelectionError(f"-k {text!r}: cannot understand {' '.join(rest)!r}")
    return lambda name: test(_plain(name))


def _plain(text: str) -> str:
    return re.sub(r"[.\-]", "_", text.lower())


def _either(tokens: list[str], text: str) -> tuple[Test, list[str]]:
    left, tokens = _both(tokens, text)
    while tokens and tokens[0].lower() == "or":
        right, tokens = _both(tokens[1:], text)
        left = _join_or(left, right)
    return left, tokens


def _both(tokens: list[str], text: str) -> tuple[Test, list[str]]:
    left, tokens = _one(tokens, text)
    while tokens and tokens[0].lower() == "and":
        right, tokens = _one(tokens[1:], text)
        left = _join_and(left, right)
    return left, tokens


def _one(tokens: list[str], text: str) -> tuple[Test, list[str]]:
    if not tokens:
        raise SelectionError(f"-k {text!r}: something is missing at the end")
    word, rest = tokens[0], tokens[1:]
    if word.lower() == "not":
        test, rest = _one(rest, text)
        return lambda name: not test(name), rest
    if word == "(":
        test, rest = _either(rest, text)
        if not rest or rest[0] != ")":
            raise SelectionError(f"-k {text!r}: a bracket is not closed")
        return test, rest[1:]
    if word == ")" or word.lower() in ("and", "or"):
        raise SelectionError(f"-k {text!r}: {word!r} has nothing before it")
    wanted = _plain(word)
    if wanted[0].isdigit():  # compared level by level: 3.1 does not match 3.10
        number = re.compile(rf"\bmqtt_{re.escape(wanted)}(_|\b)")
        return lambda name: bool(number.search(name)), rest
    return lambda name: wanted in name, rest


def _join_or(left: Test, right: Test) -> Test:
    return lambda name: left(name) or right(name)


def _join_and(left: Test, right: Test) -> Test:
    return lambda name: left(name) and right(name)
