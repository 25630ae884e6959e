"""Is a subscription read back exactly as it was granted, or not at all?"""

from typing import Final

import pytest

from session.state.subscription import Subscription, decode_subscription
from tests.session.state.cases import BYPASSING, SUBSCRIPTIONS, golden

CASES: Final = [
    *((1, case, subscription) for case, subscription in SUBSCRIPTIONS.items()),
    *((2, case, subscription) for case, subscription in BYPASSING.items()),
]


def fields(subscription: Subscription) -> tuple[object, ...]:
    """Return everything of a subscription."""
    return tuple(getattr(subscription, name) for name in Subscription.__slots__)


def decoded(original: Subscription, value: bytes) -> Subscription:
    """Decode a value under the filter of a case."""
    return decode_subscription(
        original.topic_filter, original.share_name, original.stream_filter, value
    )


@pytest.mark.parametrize(("version", "case", "original"), CASES)
def test_a_row_gives_the_subscription_back(version: int, case: str, original: Subscription) -> None:
    value = original.encode()
    assert value[0] == version
    assert fields(decoded(original, value)) == fields(original)


@pytest.mark.parametrize(("version", "case", "original"), CASES)
def test_the_format_is_the_one_on_disk(version: int, case: str, original: Subscription) -> None:
    expected = golden(f"subscription-record-v{version}.hex")[case]
    assert original.encode().hex() == expected.hex()
    assert fields(decoded(original, expected)) == fields(original)


def test_another_size_or_version_is_refused() -> None:
    original = SUBSCRIPTIONS["smallest"]
    value = original.encode()
    for size in range(len(value)):
        with pytest.raises(ValueError):
            decoded(original, value[:size])
    for wrong in (value + b"\0", b"\x03" + value[1:], b"\0" + value[1:]):
        with pytest.raises(ValueError, match="expected version 1 or 2"):
            decoded(original, wrong)
