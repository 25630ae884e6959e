"""Defaults are usable as they are, and what the protocol forbids is named."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from session.settings import CHANGEABLE, Settings
from storage.history import events


def test_the_defaults_are_good() -> None:
    assert Settings().problems() == []


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("receive_maximum", 0),
        ("receive_maximum", 65_536),
        ("max_inflight", 0),
        ("topic_alias_maximum", -1),
        ("outbound_topic_alias_maximum", 65_536),
        ("maximum_qos", 3),
        ("keep_alive_max_s", 65_536),
        ("maximum_packet_size", 127),
        ("maximum_packet_size", 268_435_461),
        ("client_id_bytes_max", 22),
        ("topic_levels_max", 0),
        ("pending_messages_max", 0),
        ("heartbeat_ms", 0),
        ("expiry_slice", 0),
    ],
)
def test_a_value_out_of_range_is_named_with_what_was_expected(attribute: str, value: int) -> None:
    settings = Settings()
    setattr(settings, attribute, value)
    (problem,) = settings.problems()
    assert attribute in problem
    assert str(value) in problem
    assert "expected" in problem


@pytest.mark.parametrize(
    ("detail", "level", "sample"),
    [
        ("off", events.OFF, 0),
        ("sessions", events.SESSIONS, 0),
        ("books", events.BOOKS_LEVEL, 0),
        ("sampled:1/1", events.SAMPLED, 1),
        ("sampled:1/250", events.SAMPLED, 250),
        ("full", events.FULL, 1),
    ],
)
def test_the_detail_of_the_history_is_a_level_and_a_sample(
    detail: str, level: int, sample: int
) -> None:
    settings = Settings()
    assert settings.history_level == events.BOOKS_LEVEL
    settings.history_detail = detail
    assert (settings.history_level, settings.history_sample) == (level, sample)


def test_hashed_names_want_a_key_that_cannot_be_tried_out() -> None:
    settings = Settings()
    settings.history_hash_names = True
    settings.history_hash_key = "k" * 15
    (problem,) = settings.problems()
    assert problem.startswith("history.hash_names = true: expected history.hash_key")
    assert settings.history_hash_key not in problem
    settings.history_hash_key += "k"
    assert settings.problems() == []
    settings.history_hash_key = "k" * 65
    assert settings.problems() == ["history.hash_key: expected at most 64 bytes"]


def test_two_settings_do_not_share_state() -> None:
    first, second = Settings(), Settings()
    first.max_inflight = 1
    assert second.max_inflight == 256


ROOT = Path(__file__).resolve().parents[2]
SHORT_LIVED = {"backlog_trim.py"}  # made for one look at one backlog


def copies(path: Path) -> Iterator[str]:
    """Yield the settings that an `__init__` of a module looks at."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            for inner in ast.walk(node):
                if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Load):
                    if ast.unparse(inner.value).endswith("settings"):
                        yield inner.attr


def test_nobody_keeps_a_copy_of_a_setting_that_may_change() -> None:
    kept = {
        f"{path.name}: {name}"
        for room in ("session", "broker")
        for path in (ROOT / room).rglob("*.py")
        if path.name not in SHORT_LIVED
        for name in copies(path)
    }
    assert "keep_alive.py: connect_timeout_ms" in kept  # it does find them
    assert {name for name in kept if name.partition(": ")[2] in CHANGEABLE} == set()
