"""Asks external stores what they are, for `holdfast backend check`; the broker may run or not.

Starts the process of a store as a broker does and asks it one question. It writes nothing but a key
that is deleted at once: no row, and no cursor. Read next: `broker.backends.process`, the other end.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from broker.backends.link import Answer, BackendLink, LinkFailed
from broker.backends.rows import CONFIG, QUESTION, json_frame

START_S: Final = 10.0  # for the process, besides the store's own timeout
QUESTION_ID: Final = 1


class Health:
    """What became of the question to one store."""

    __slots__ = ("told", "why")

    def __init__(self, told: dict[str, Any], why: str = "") -> None:
        self.told: Final = told  # of the server: version, persistence, problems, ...
        self.why: Final = why  # why it cannot be used, "" = it can


def ask(configurations: dict[str, dict[str, Any]]) -> dict[str, Health]:
    """Ask the stores that have these configurations (`rules.configuration`), all at once."""
    return asyncio.run(_ask_all(configurations))


async def _ask_all(configurations: dict[str, dict[str, Any]]) -> dict[str, Health]:
    asked = [_ask(told) for told in configurations.values()]
    return dict(zip(configurations, await asyncio.gather(*asked), strict=True))


async def _ask(configuration: dict[str, Any]) -> Health:
    heard: asyncio.Queue[Health] = asyncio.Queue()

    def answered(answer: Answer) -> None:
        if answer.get("id") == QUESTION_ID and "health" in answer:
            heard.put_nowait(Health(answer["health"]))
        elif "error" in answer:
            heard.put_nowait(Health({}, str(answer["error"])))

    link = BackendLink(answered, lambda why: heard.put_nowait(Health({}, why)))
    try:
        await link.open()
    except LinkFailed as problem:
        return Health({}, str(problem))
    link.send(json_frame(CONFIG, {**configuration, "instance": ""}))
    link.send(json_frame(QUESTION, {"id": QUESTION_ID, "what": "health"}))
    wait_s = START_S + 2 * configuration["options"]["timeout_ms"] / 1000
    try:
        return await asyncio.wait_for(heard.get(), wait_s)
    except TimeoutError:
        return Health({}, f"no answer in {wait_s:g} s")
    finally:
        link.kill()
        await link.wait_gone()


def as_json(configurations: dict[str, dict[str, Any]], found: dict[str, Health]) -> str:
    """Return what was found as JSON."""
    return json.dumps(
        [
            {
                "backend": name,
                "type": configurations[name]["type"],
                "servers": _places(configurations[name]),
                "rules": len(configurations[name]["rules"]),
                "usable": not health.why,
                "why": health.why,
                **health.told,
            }
            for name, health in found.items()
        ],
        indent=2,
    )


def as_lines(configurations: dict[str, dict[str, Any]], found: dict[str, Health]) -> Iterator[str]:
    """Yield what was found for people."""
    for name, health in found.items():
        told = configurations[name]
        yield f"{name}: {told['type']} at {', '.join(_places(told))}"
        lines = [("rules", str(len(told["rules"])) if told["rules"] else "none: it gets nothing")]
        if health.why:
            lines.append(("unusable", health.why))
        else:
            lines += _server_lines(health.told)
        for word, text in lines:
            yield f"  {word:<12} {text}"


def _places(told: dict[str, Any]) -> list[str]:
    """Return where a store is; of a URL without what may be secret in it."""
    url = told["options"].get("url")
    if not url:
        return list(told["options"]["servers"])
    scheme, netloc, *_ = urlsplit(url)
    return [f"{scheme}://{netloc}"]


def _server_lines(told: dict[str, Any]) -> Iterator[tuple[str, str]]:
    role = f", {told['role']}" if told.get("role") else ""
    yield "server", f"{told['server']} {told['version']}{role}"
    yield "writable", "yes" if told["writable"] else "no"
    if "persistence" in told:
        yield "persistence", str(told["persistence"])
    fence = str(told.get("fence") or "").split(":")
    if "fence" not in told:
        yield "cursor", "kept by the broker: rows arrive at least once"
    elif len(fence) == 3:
        yield "cursor", f"position {fence[1]}, event {fence[2]}, of the database {fence[0]}"
    else:
        yield "cursor", "none: no broker has written here under this name"
    for problem in told["problems"]:
        yield "problem", str(problem)
