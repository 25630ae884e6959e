"""A notice is shown once, to whoever has its key."""

from broker.admin.pages.notices import KEPT_MAX, Notices


def test_a_notice_is_told_once() -> None:
    notices = Notices()
    key = notices.put("done")
    assert notices.take("another") == ""
    assert (notices.take(key), notices.take(key)) == ("done", "")


def test_only_so_many_wait() -> None:
    notices = Notices()
    keys = [notices.put(str(number)) for number in range(KEPT_MAX + 1)]
    assert notices.take(keys[0]) == ""
    assert notices.take(keys[-1]) == str(KEPT_MAX)
