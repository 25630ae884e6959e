"""The way of a packet through the engine for docs/design.md, made from a real trace.

`python -m tests.session.walk` updates the section; `test_walk.py` checks that it matches the code.
A step is a call from one folder of modules into another. Each is shown once with the first sentence
of its docstring; constructors, properties and private helpers are left out.
"""

import ast
import functools
import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final

from mqtt.packets import Publish
from tests.session.harness import NEVER, Broker

ROOT: Final = Path(__file__).resolve().parents[2]
DOCUMENT: Final = ROOT / "docs" / "design.md"
BEGIN: Final = "<!-- The ways of packets: written by `python -m tests.session.walk`. -->\n"
END: Final = "<!-- end of the ways -->\n"
ROOMS: Final = ("mqtt", "session", "storage")
ENGINE: Final = "session/engine.py"
# The functions that the shell calls; each begins a part of the way.
PARTS: Final = {
    "receive": "Bytes arrive",
    "end_tick": "The tick ends",
    "committed": "The commit is durable",
}
HEADER: Final = ("| file | call | what it does |", "| --- | --- | --- |")


class Trace:
    """Records the calls between modules below the shell's calls into the engine."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str]] = []  # (part, file, qualified name)
        self._stack: list[str] = []  # file of each frame below the engine's, "" = not ours
        self._part = ""

    def run(self, action: Callable[[], None]) -> None:
        """Run `action` and record its calls."""
        sys.setprofile(self._note)
        try:
            action()
        finally:
            sys.setprofile(None)

    def _note(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            code = frame.f_code
            file = _file_of(code.co_filename)
            if not self._stack:
                if file != ENGINE or code.co_name not in PARTS:
                    return
                self._part = code.co_name
            caller = next((each for each in reversed(self._stack) if each), "")
            self._stack.append(file)
            if file and Path(file).parent != Path(caller or "-/-").parent:
                self.calls.append((self._part, file, _qualified_name(frame)))
        elif event == "return" and self._stack:
            self._stack.pop()


@functools.cache
def _file_of(name: str) -> str:
    try:
        file = Path(name).relative_to(ROOT).as_posix()
    except ValueError:
        return ""
    return file if file.split("/")[0] in ROOMS else ""


def _qualified_name(frame: FrameType) -> str:
    """Return `Class.method` or `function`; Python 3.11 and later know it."""
    return frame.f_code.co_qualname


@functools.cache
def _functions(file: str) -> dict[str, ast.FunctionDef]:
    """Return the functions and methods of a module by their qualified names."""
    found: dict[str, ast.FunctionDef] = {}
    for node in ast.parse((ROOT / file).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    found[f"{node.name}.{inner.name}"] = inner
    return found


def _is_step(file: str, name: str) -> bool:
    function = _functions(file).get(name)
    if function is None or name.rsplit(".", 1)[-1].startswith("_"):
        return False
    return not any(ast.unparse(each) == "property" for each in function.decorator_list)


def _sentence(file: str, name: str) -> str:
    text = ast.get_docstring(_functions(file)[name]) or ""
    first = re.split(r"(?<=[.?!:;])\s", " ".join(text.split()), maxsplit=1)[0]
    return first.rstrip(".:;").replace("|", "\\|")


def steps(trace: Trace) -> list[str]:
    """Return the steps as lines of Markdown."""
    lines: list[str] = []
    shown: set[tuple[str, str]] = set()
    part = ""
    for where, file, name in trace.calls:
        if not _is_step(file, name) or (file, name) in shown:
            continue
        shown.add((file, name))
        if where != part:
            part = where
            lines += [
                "",
                f"{PARTS[part]}:",
                "",
                "| file | call | what it does |",
                "| --- | --- | --- |",
            ]
        lines.append(f"| {file} | `{name}` | {_sentence(file, name)} |")
    return lines


def publish() -> Trace:
    """Trace a QoS 1 PUBLISH to one connected durable session, and its commit."""
    broker = Broker(history_detail="off")
    broker.durable("reader", "t")
    publisher = broker.connect("publisher")
    broker.hold_commits()
    trace = Trace()

    def action() -> None:
        publisher.send(Publish("t", b"x", 1, packet_id=1))
        broker.commit()

    trace.run(action)
    return trace


def resume() -> Trace:
    """Trace a CONNECT that resumes a session with one message waiting for it."""
    broker = Broker(history_detail="off")
    broker.durable("reader", "t").drop()
    broker.publish("t")
    broker.hold_commits()
    trace = Trace()

    def action() -> None:
        broker.request("reader", expiry=NEVER)
        broker.commit()

    trace.run(action)
    return trace


def section() -> str:
    """Return the section of the document."""
    lines = [
        "## Two ways through the engine",
        "",
        "Each line is a call from one room into another, in the order of a real run, shown once.",
        "The history is off.",
        "",
        "### A QoS 1 PUBLISH to a connected durable session",
        *steps(publish()),
        "",
        "### A CONNECT that resumes a session with a message waiting",
        *steps(resume()),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Write the section into the document."""
    text = DOCUMENT.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    DOCUMENT.write_text(f"{before}{BEGIN}\n{section()}\n{END}{after}")


if __name__ == "__main__":
    main()
