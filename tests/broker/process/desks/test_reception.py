"""Each request to the control socket has one desk, and a running broker has all of them."""

from collections.abc import Callable

from broker.operations.control_socket import ControlError, ask
from broker.process import feeding
from broker.process.desks import bans, clients, configuration, owing, publishing, restart, tracing
from tests.durability.process import BrokerProcess

DESKS = (bans, clients, configuration, feeding, owing, publishing, restart, tracing)
UNKNOWN = "the running broker does not know the request"


def said(broker: BrokerProcess, do: str) -> str:
    """Return what the broker says to a request without fields, an error or not."""
    try:
        return str(ask(broker.data_dir, {"do": do}))
    except ControlError as problem:
        return str(problem)


def test_no_request_has_two_desks() -> None:
    requests = [each for desk in DESKS for each in desk.REQUESTS]
    assert len(requests) == len(set(requests))


def test_a_running_broker_knows_every_request_and_no_other(
    prepare: Callable[..., BrokerProcess],
) -> None:
    broker = prepare()
    broker.start()
    answers = {each: said(broker, each) for desk in DESKS for each in desk.REQUESTS}
    assert not [each for each, answer in answers.items() if UNKNOWN in answer]
    assert "expected a checkpoint" in said(broker, "checkpoint")
    assert UNKNOWN in said(broker, "no_such_request")
