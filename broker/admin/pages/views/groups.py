"""The page of one shared group: what waits for it, and who shares it. Pure.

Read next: `broker.admin.records`.
"""

from typing import Any

from broker.admin.pages.views.owed import shown
from broker.admin.pages.words import amounts, links, names
from broker.admin.records import Group


def subject(group: Group) -> str:
    """Return the subscription that the members share."""
    return f"$share/{group.share_name}/{group.topic_filter}"


def address(path: str, group: Group, **fields: object) -> str:
    """Return the address of a page about a group; empty if its name is too long for one."""
    if not links.is_short(group.share_name + group.topic_filter):
        return ""
    return links.url(path, name=group.share_name, filter=group.topic_filter, **fields)


def context(group: Group, *, as_of: str, may_act: bool) -> dict[str, Any]:
    """Return what the page shows."""
    more = group.members - len(group.first_members)
    return {
        "group": group,
        "subject": subject(group),
        "address": address("/group", group),
        "purge": address("/group/purge", group) if may_act else "",
        "more": f"and {amounts.count(more)} more members" if more > 0 else "",
        "shown": shown(len(group.first_members), as_of),
    }


def would_purge(group: Group, older: str, topic: str) -> list[str]:
    """Return what a purge would do, a sentence each."""
    if not group.waiting and group.waiting is not None and not group.returned:
        return ["No message waits for it: nothing would be dropped."]
    which = f" older than {older}" if older else ""
    if topic:
        which += f" on topics that match {names.plain(topic)}"
    waits = "It is not known how many messages wait for it."
    if group.waiting is not None:
        waits = f"{amounts.plural(group.waiting, 'message')} wait for it."
    if group.waiting == 1:
        waits = "1 message waits for it."
    if group.returned:
        waits += f" {amounts.count(group.returned)} came back from members."
    lines = [waits]
    if which:
        lines.append(f"Of them, those{which} would be dropped, for good; the others stay.")
    else:
        lines.append("All of that would be dropped, for good.")
    if group.in_flight:
        lines.append(f"{amounts.plural(group.in_flight, 'message')} in flight stay.")
    lines.append("The subscription and its members stay: what is published from now on waits.")
    return lines
