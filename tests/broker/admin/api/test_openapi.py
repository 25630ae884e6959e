"""The OpenAPI document: valid, whole, and true for what the API answers to whatever is sent."""

import json
from typing import Final

import hypothesis
import pytest
import schemathesis
from openapi_spec_validator import validate
from schemathesis.specs.openapi.checks import ignored_auth, positive_data_acceptance

from broker.admin.api.openapi import document
from broker.admin.api.table import BASE, ENDPOINTS
from tests.broker.admin.running import Running

# It would never end by itself.
ENDLESS: Final = BASE + "/events"
# That roles are asked for is checked elsewhere. A schema cannot tell the cursors that were given
# out, nor topic names and filters that are well-formed.
NOT_CHECKED: Final = [ignored_auth, positive_data_acceptance]
EXAMPLES: Final = 40  # of each endpoint


def test_the_document_is_valid_and_has_every_endpoint() -> None:
    made = document(ENDPOINTS, BASE)
    validate(made)
    found = {
        (method.upper(), path.removeprefix(BASE))
        for path, methods in made["paths"].items()
        for method in methods
    }
    assert found == {(each.method, each.path) for each in ENDPOINTS}
    names = [each["operationId"] for path in made["paths"].values() for each in path.values()]
    assert len(names) == len(set(names)) == len(ENDPOINTS)


def test_every_record_that_is_referred_to_is_there_and_says_what_it_is() -> None:
    made = document(ENDPOINTS, BASE)
    schemas = made["components"]["schemas"]
    text = json.dumps(made)
    for name, schema in schemas.items():
        assert f'"#/components/schemas/{name}"' in text, f"nobody refers to {name}"
        assert schema.get("description") or schema.get("title"), name


def test_the_api_serves_its_document(shared: Running) -> None:
    served = shared.http("viewer").get(BASE + "/openapi.json").json()
    assert served == document(ENDPOINTS, BASE)


@pytest.mark.ci
def test_whatever_is_sent_is_answered_as_the_document_says(shared: Running) -> None:
    headers = {"Authorization": f"Bearer {shared.tokens['admin']}"}
    api = schemathesis.openapi.from_url(f"{shared.url}{BASE}/openapi.json", headers=headers)
    met = set()
    for each in api.get_all_operations():
        operation = each.ok()
        met.add((operation.method.upper(), operation.path.removeprefix(BASE)))
        if operation.path == ENDLESS:
            continue
        modes = [schemathesis.GenerationMode.POSITIVE]
        if operation.query or operation.path_parameters:
            modes.append(schemathesis.GenerationMode.NEGATIVE)
        for mode in modes:

            @hypothesis.settings(
                max_examples=EXAMPLES,
                deadline=None,
                derandomize=True,
                database=None,
                suppress_health_check=list(hypothesis.HealthCheck),
            )
            @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
            def meet(case: schemathesis.Case) -> None:
                case.call_and_validate(headers=headers, timeout=60, excluded_checks=NOT_CHECKED)

            meet()
    # It does not look at the document itself.
    expected = {(each.method, each.path) for each in ENDPOINTS if each.name != "openapi"}
    assert met == expected
    assert "admin_bug" not in shared.broker.log()
