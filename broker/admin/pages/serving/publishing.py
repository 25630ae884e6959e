"""Serves the form that publishes a message.

Read next: `broker.admin.pages.views.publishing`, `broker.admin.acting`.
"""

from starlette.responses import Response

from broker.admin.access.roles import Role
from broker.admin.acting import payload_of, publish_details
from broker.admin.pages.serving.pages import Visit, for_role
from broker.admin.pages.views import publishing as view
from broker.admin.records import Published
from broker.admin.web.gate import form_of
from broker.operations.control_socket import ControlError, Unanswered


@for_role(Role.OPERATOR)
async def publish(visit: Visit) -> Response:
    """Serve the form, and publish what it says."""
    sent = form_of(visit.request.scope)
    fields = {name: sent.get(name, default) for name, default in view.FIELDS.items()}
    problem = ""
    if visit.request.method == "POST":
        try:
            return await _publish(visit, fields)
        except Unanswered:
            raise
        except (ValueError, ControlError) as wrong:
            problem = str(wrong)
    else:
        fields["topic"] = visit.asked("topic")
    return visit.page(
        "publish",
        "/topics",
        status=400 if problem else 200,
        problem=problem,
        fields=fields,
        written=view.WRITTEN,
    )


async def _publish(visit: Visit, fields: dict[str, str]) -> Response:
    """Publish it. Raises `ValueError` for what was typed wrong, and what the broker refuses."""
    wanted = view.wanted(fields)
    payload = payload_of(wanted)
    services, who = visit.services, visit.who

    async def work() -> Published:
        return await services.acting.publish(wanted, who.name, payload)

    details = publish_details(wanted, payload)
    done = await services.change(who, Role.OPERATOR, "publish", details, work)
    return visit.go("/publish", view.notice(done), topic=wanted.topic)
