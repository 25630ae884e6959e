"""Is a subscription read back exactly as it was granted, or not at all?"""

import pytest

from session.state.subscription import Subscription, decode_subscription
from tests.session.state.cases import SUBSCRIPTIONS, golden


def fields(subscription: Subscription) -> tuple[object, ...]:
    """Return everything of a subscription."""
    return tuple(getattr(subscription, name) for name in Subscription.__slots__)


def decoded(case: str, value: bytes) -> Subscription:
    """Decode a value under the filter of a case."""
    original = SUBSCRIPTIONS[case]
    return decode_subscription(
        original.topic_filter, original.share_name, original.stream_filter, value
    )


@pytest.mark.parametrize("case", SUBSCRIPTIONS)
def test_a_row_gives_the_subscription_back(case: str) -> None:
    original = SUBSCRIPTIONS[case]
    assert fields(decoded(case, original.encode())) == fields(original)


@pytest.mark.parametrize("case", SUBSCRIPTIONS)
def test_the_format_is_the_one_on_disk(case: str) -> None:
    expected = golden("subscription-record-v1.hex")[case]
    assert SUBSCRIPTIONS[case].encode().hex() == expected.hex()
    assert fields(decoded(case, expected)) == fields(SUBSCRIPTIONS[case])


def test_another_size_or_version_is_refused() -> None:
    value = SUBSCRIPTIONS["smallest"].encode()
    for size in range(len(value)):
        with pytest.raises(ValueError):
            decoded("smallest", value[:size])
    for wrong in (value + b"\0", b"\x02" + value[1:]):
        with pytest.raises(ValueError, match="expected version 1"):
            decoded("smallest", wrong)
