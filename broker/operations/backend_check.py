"""Asks external stores one question each, for `holdfast backend check` and `create`.

Starts the process of a store as a broker does, which may run or not. `check` writes nothing but a
key that is deleted at once, `create` makes tables: no row, and no cursor. Read next:
`broker.backends.process`, the other end.
"""

import asyncio
import json
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import urlsplit

from broker.backends.link import Answer, BackendLink, LinkFailed
from broker.backends.rows import CONFIG, QUESTION, json_frame

START_S: Final = 10.0  # for the process, besides the store's own timeout
CREATE_S: Final = 300.0  # for tables to be there
HEALTH: Final = "health"
CREATE: Final = "create"
QUESTION_ID: Final = 1


class Health:
    """What became of the question to one store."""

    __slots__ = ("told", "why")

    def __init__(self, told: dict[str, Any], why: str = "") -> None:
        # Of the server: version, persistence, problems, ...; or the tables that it has made.
        self.told: Final = told
        self.why: Final = why  # why it cannot be used, "" = it can


def ask(configurations: dict[str, dict[str, Any]]) -> dict[str, Health]:
    """Ask the stores that have these configurations (`rules.configuration`), all at once."""
    return asyncio.run(_ask_all(configurations, HEALTH))


def create(configurations: dict[str, dict[str, Any]]) -> dict[str, Health]:
    """Have the stores make the tables that are missing; `told` has their names as `create`."""
    return asyncio.run(_ask_all(configurations, CREATE))


async def _ask_all(configurations: dict[str, dict[str, Any]], question: str) -> dict[str, Health]:
    asked = [_ask(told, question) for told in configurations.values()]
    return dict(zip(configurations, await asyncio.gather(*asked), strict=True))


async def _ask(configuration: dict[str, Any], question: str) -> Health:
    heard: asyncio.Queue[Health] = asyncio.Queue()

    def answered(answer: Answer) -> None:
        if answer.get("id") == QUESTION_ID and question in answer:
            found = answer[question]
            heard.put_nowait(Health(found if isinstance(found, dict) else {question: found}))
        elif "error" in answer:
            heard.put_nowait(Health({}, str(answer["error"])))

    link = BackendLink(answered, lambda why: heard.put_nowait(Health({}, why)))
    try:
        await link.open()
    except LinkFailed as problem:
        return Health({}, str(problem))
    link.send(json_frame(CONFIG, {**configuration, "instance": ""}))
    link.send(json_frame(QUESTION, {"id": QUESTION_ID, "what": question}))
    wait_s = CREATE_S if question == CREATE else START_S
    wait_s += 2 * configuration["options"]["timeout_ms"] / 1000
    try:
        return await asyncio.wait_for(heard.get(), wait_s)
    except TimeoutError:
        return Health({}, f"no answer in {wait_s:g} s")
    finally:
        link.kill()
        await link.wait_gone()


def servers_of(options: dict[str, Any]) -> list[str]:
    """Return where a store is, without what may be a secret in an address."""
    if "servers" in options:
        return list(options["servers"])
    address = options.get("url") or options.get("endpoint")
    if address is None:
        return [f"AWS {options.get('region') or 'in its default region'}"]
    parts = urlsplit(address)
    return [f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"]


def as_json(configurations: dict[str, dict[str, Any]], found: dict[str, Health]) -> str:
    """Return what was found as JSON."""
    return json.dumps(
        [
            {
                "backend": name,
                "type": configurations[name]["type"],
                "servers": servers_of(configurations[name]["options"]),
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
        yield f"{name}: {told['type']} at {', '.join(servers_of(told['options']))}"
        lines = [("rules", str(len(told["rules"])) if told["rules"] else "none: it gets nothing")]
        if health.why:
            lines.append(("unusable", health.why))
        else:
            lines += _server_lines(health.told)
        for word, text in lines:
            yield f"  {word:<12} {text}"


def created_lines(found: dict[str, Health]) -> Iterator[str]:
    """Yield what was made, for people."""
    for name, health in found.items():
        tables = ", ".join(health.told.get(CREATE, ()))
        yield f"{name}: {health.why or (f'made {tables}' if tables else 'nothing was missing')}"


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
