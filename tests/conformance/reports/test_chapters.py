"""What chapters are called."""

from conformance.reports.chapters import chapter_name


def test_chapters_are_named_by_version() -> None:
    assert chapter_name(4, "4.8") == "4.8 Errors"
    assert chapter_name(5, "4.8") == "4.8 Shared subscriptions"
    assert chapter_name(5, "X") == "Rules without a number"
