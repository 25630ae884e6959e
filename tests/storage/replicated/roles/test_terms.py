"""The settings of a replica that nobody sets are those that the documents tell."""

from storage.replicated.roles.terms import Settings


def test_a_node_takes_over_after_several_signs_of_life_are_missing() -> None:
    settings = Settings("ann", ("ann", "bob"))
    assert settings.takeover_ms >= 3 * settings.heartbeat_ms
    assert settings.takeover_ms >= 3 * settings.presence_ms
    assert settings.lease_ms <= settings.takeover_ms
