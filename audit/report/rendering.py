"""Makes HTML of templates: everything they are given is escaped. Pure but for reading its files.

Names from clients go through the filter `name` or `plain`. Must never mark text from outside as
safe: only shapes of charts and what a template has made are. Read next: `audit.report.text`.
"""

from functools import cache
from importlib import resources
from typing import Any, Final

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from audit.report import text

FOLDER: Final = "templates"


def render(template: str, **context: Any) -> Markup:
    """Return a template, filled."""
    made = _environment().get_template(f"{template}.html").render(context)
    return Markup(made)  # made by a template that escapes


def file(name: str) -> str:
    """Return a file of this folder: the style sheet, the script."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


@cache
def _environment() -> Environment:
    folder = resources.files(__package__).joinpath(FOLDER)
    sources = {each.name: each.read_text("utf-8") for each in folder.iterdir()}
    # StrictUndefined: a template that names what it is not given is a bug that tests find.
    made = Environment(
        loader=DictLoader({name: source for name, source in sources.items() if "html" in name}),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        bytes=text.size,
        compact=text.compact,
        count=text.count,
        duration=text.duration,
        json=text.json_text,
        name=text.name,
        plain=text.plain,
        plural=text.plural,
        when=text.when,
    )
    return made
