"""Server-sent events: figures as they come, for so many, and no stream for ever."""

import json
from typing import Any

import httpx

from broker.admin.api.table import BASE
from broker.admin.figures import WATCHERS_MAX
from tests.broker.admin.running import Running
from tests.durability.rawclient import RawClient

EVENTS = BASE + "/events"


def figures(answer: httpx.Response) -> Any:
    """Yield the figures of a stream."""
    for line in answer.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def test_figures_come_and_follow_the_broker(shared: Running) -> None:
    with shared.http("viewer").stream("GET", EVENTS) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        coming = figures(answer)
        first = next(coming)
        assert first["broker_answers"] and first["connected"] == 0 and first["phase"] == "ready"
        client = RawClient(shared.broker.port, "watched")
        client.connect()
        assert any(each["connected"] == 1 for each in coming)
        client.disconnect()
        assert any(each["connected"] == 0 for each in coming)


def test_there_are_only_so_many_streams_and_an_ended_one_makes_room(shared: Running) -> None:
    client = shared.http("viewer")
    with client.stream("GET", EVENTS):
        streams = [
            shared.http("viewer").send(client.build_request("GET", EVENTS), stream=True)
            for _ in range(WATCHERS_MAX)
        ]
        refused = [each for each in streams if each.status_code != 200]
        assert [each.status_code for each in refused] == [503]
        assert refused[0].headers["retry-after"] == "2"
        for each in streams:
            each.close()
    shared.wait(lambda: _has_room(shared))


def test_nobody_watches_by_asking_for_the_headers_alone(shared: Running) -> None:
    answer = shared.http("viewer").head(EVENTS)
    assert (answer.status_code, answer.headers["allow"]) == (405, "GET")


def _has_room(shared: Running) -> bool:
    with shared.http("viewer").stream("GET", EVENTS) as answer:
        return answer.status_code == 200
