"""Templates escape what they are given, and name nothing that they are not given."""

import pytest
from jinja2 import UndefinedError

from audit.report import rendering


def test_what_a_template_is_given_is_text() -> None:
    card = rendering.render("card", title="<b>", body="<i>", lead="'\"", wide=False)
    assert "<b>" not in card and "<i>" not in card
    assert "&lt;b&gt;" in card and "&lt;i&gt;" in card


def test_what_a_template_has_made_is_markup() -> None:
    inner = rendering.render("who", tenant="", client_id="<c>")
    assert "<bdi>&lt;c&gt;</bdi>" in rendering.render(
        "card", title="", body=inner, lead="", wide=True
    )


def test_a_name_that_is_not_given_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        rendering.render("card", title="t")


def test_the_files_of_the_page_come_along() -> None:
    assert "use strict" in rendering.file("report.js")
    assert ":root" in rendering.file("report.css")
