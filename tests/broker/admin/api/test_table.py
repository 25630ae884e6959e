"""The table can be served: no two endpoints are one, and paths name their parameters."""

from broker.admin.api.table import ENDPOINTS


def test_every_endpoint_is_one_and_its_path_names_its_parameters() -> None:
    places = [(each.method, each.path) for each in ENDPOINTS]
    assert len(set(places)) == len(places)
    for each in ENDPOINTS:
        in_path = [level.strip("{}") for level in each.levels if level.startswith("{")]
        assert in_path == [one.name for one in each.parameters if one.in_path], each.name
        names = [one.name for one in each.parameters]
        assert len(set(names)) == len(names), each.name


def test_only_one_endpoint_can_be_meant_by_a_path() -> None:
    for one in ENDPOINTS:
        for other in ENDPOINTS:
            if one is other or one.method != other.method or len(one.levels) != len(other.levels):
                continue
            pairs = zip(one.levels, other.levels, strict=True)
            assert any(a != b and "{" not in a + b for a, b in pairs), (one.name, other.name)
