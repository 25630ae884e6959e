"""An endpoint is cut into levels; parameters keep what they are given."""

from broker.admin.access.roles import Role
from broker.admin.api.endpoints import Call, Endpoint
from broker.admin.api.values import LIMITED


async def nothing(call: Call) -> None:
    """Do nothing."""


def test_a_path_is_cut_at_its_slashes_and_the_defaults_are_those_of_most() -> None:
    made = Endpoint("GET", "/a/{b}/c", "name", Role.VIEWER, "helps", nothing, dict, LIMITED)
    assert made.levels == ["a", "{b}", "c"]
    assert (made.media, made.body, made.is_payload) == ("application/json", None, False)
    assert made.parameters == (LIMITED,)
