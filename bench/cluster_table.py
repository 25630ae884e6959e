"""Write what a cluster costs as Markdown: beside one node, at a takeover, and what is promised.

Pure: it formats what `bench.run` has written with `--cluster`. Read next: `bench.clusters`,
`bench.takeover`.
"""

import statistics
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bench.brokers import (
    COMPILED,
    COMPILED_KAFKA,
    HOLDFAST,
    KAFKA,
    NATS,
    REPLICATED,
)
from bench.goals import UNITS, WORKS, Entry, entries, limit, ratio, written
from bench.takeover import HAND_OVER, KILL, Turn

# The works of `--cluster`, in the order of their keys' scenarios.
KEYS: Final = (
    *("devices1000x1", "turn1", "fanin_turn", "lone", "qos1", "offline", "fanin_default"),
)
ORDER: Final = (HOLDFAST, KAFKA, COMPILED, COMPILED_KAFKA, NATS)
BUILDS: Final = {HOLDFAST: COMPILED, KAFKA: COMPILED_KAFKA}  # which promise the same

PROMISES: Final = {
    HOLDFAST: "one node: PUBACK after the sync of its disk. Whoever loses that disk loses all",
    KAFKA: "a leader and a follower, three Kafka brokers, `min.insync.replicas = 2`: PUBACK after "
    "the sync of the leader's own disk, after two Kafka brokers have the record, and after it was "
    "read back. Kafka brokers do not sync before they acknowledge. QoS 2 exactly once over a "
    "takeover",
    NATS: "three servers, JetStream with three replicas, `sync_interval: always`: PUBACK after a "
    "majority of the servers has the message in its log and has synced it. MQTT 3.1.1 only; a "
    "subscription that exists at QoS 1 is a consumer with a Raft group of its own",
}


def report(document: Mapping[str, Any]) -> list[str]:
    """Return the whole result as Markdown lines, without a title."""
    about = document["about"]
    found = entries(document["cells"])
    sync = about["sync_ms"]
    lines = [
        f"- {about['machine']}; load average before the run {about['load_average']}; one fdatasync "
        f"of 4 KiB: {sync['p50']:.2f} ms, p99 {sync['p99']:.2f} ms",
        *(f"- {version}" for version in about["versions"]),
        "- All processes of a cluster, the load generator and the clients share this machine.",
        f"- {about['rounds']} rounds of {about['seconds']:g} s; fresh nodes, directories and topic "
        "each time, brokers taking turns; medians",
        f"- command: `{about['command']}`",
        *(f"- {note}" for note in about.get("notes", ())),
        "",
        *promises(document),
        "",
        *comparison(found, about["cores"]),
        "",
        "`over one node` is the rate over that of the same build alone. `limit`: the side that had "
        "no processor time left; `waiting` = for the disk, for the log or for each other. CPU time "
        "is for each delivered message (for an offline session: each acknowledged one).",
    ]
    if document["takeovers"]:
        lines += ["", *takeovers(document["takeovers"])]
    failed = sorted(
        {each["trouble"] for each in (*document["cells"], *document["takeovers"]) if not each["ok"]}
    )
    runs = len(document["cells"])
    said = "; ".join(failed) or "every message was accounted for"
    return [*lines, "", f"In all {runs} runs {said}."]


def promises(document: Mapping[str, Any]) -> list[str]:
    """Return what a PUBACK of each broker that was measured means."""
    kinds = {each["broker"] for each in (*document["cells"], *document["takeovers"])}
    rows = ["| | what an acknowledgement promises |", "| --- | --- |"]
    for kind, text in PROMISES.items():
        if kinds & {kind, BUILDS.get(kind, kind)}:
            rows.append(f"| {kind} | {text} |")
    return rows


def comparison(found: Mapping[str, Mapping[str, Entry]], cores: int) -> list[str]:
    """Return a row per work and broker."""
    rows = [
        "| work | broker | median (range) | over one node | ack p50, p99 | CPU µs/message: node "
        "| other nodes | Kafka | limit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for work in WORKS:
        title = work.title
        for kind in ORDER:
            entry = found.get(work.key, {}).get(kind)
            if entry is None:
                continue
            rows.append(f"| {title} | {kind} | {_cells(kind, entry, found[work.key], cores)} |")
            title = ""
    return rows


def _cells(kind: str, entry: Entry, kinds: Mapping[str, Entry], cores: int) -> str:
    metrics = entry.metrics
    if "rate" not in metrics:
        return f"**NOT OK**: {entry.trouble}" + " | -" * 6
    rate = written("rate", metrics["rate"])
    if entry.rounds > 1:
        form = UNITS["rate"][0]
        rate += f" ({form.format(entry.rates[0])} to {form.format(entry.rates[1])})"
    if not entry.is_ok:
        rate += f" **NOT OK**: {entry.trouble}"
    alone = kinds.get(REPLICATED.get(kind, ""))
    over = ratio(entry, alone, "rate") if alone else None
    acks = [f"{metrics[name]:.2f}" for name in ("ack50_ms", "ack_ms") if name in metrics]
    costs = [
        f"{metrics[name]:.1f}" if name in metrics else "-" for name in ("us", "peers_us", "log_us")
    ]
    return " | ".join(
        [
            rate,
            "-" if over is None else f"{over:.2f}",
            f"{', '.join(acks)} ms" if acks else "-",
            *costs,
            limit(metrics, cores),
        ]
    )


def takeovers(turns: Iterable[Turn]) -> list[str]:
    """Return a row per broker and number of sessions: medians of its turns."""
    sorted_out: dict[tuple[str, int], list[Turn]] = {}
    for turn in turns:
        sorted_out.setdefault((turn["broker"], turn["sessions"]), []).append(turn)
    rows = [
        "| broker | sessions (connected) | leader killed: detection | work until the first CONNACK "
        "| of it recovery | without PUBACK | hand-over: without CONNACK | without PUBACK |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (kind, sessions), found in sorted_out.items():
        bad = [turn["trouble"] for turn in found if not turn["ok"]]
        if bad:
            rows.append(f"| {kind} | {sessions:,} | **NOT OK**: {bad[0]}" + " | -" * 5 + " |")
            continue
        killed = [turn for turn in found if turn["how"] == KILL]
        handed = [turn for turn in found if turn["how"] == HAND_OVER]
        cells = [
            *(_median(killed, name) for name in ("detection_s", "work_s", "recovery_s", "pause_s")),
            *(_median(handed, name) for name in ("connack_s", "pause_s")),
        ]
        held = max(turn["held"] for turn in found)
        rows.append(f"| {kind} | {sessions:,} ({held:,}) | {' | '.join(cells)} |")
    return [
        *rows,
        "",
        "Medians of the turns. A killed leader is found out after `takeover` (3 s). What follows "
        "is work: recovery reads the filters of all sessions, and ends the connections of those "
        "that were connected. One client publishes all the time and comes back at once: what it "
        "waits for a PUBACK is the pause.",
    ]


def _median(turns: list[Turn], name: str) -> str:
    values = [turn[name] for turn in turns if name in turn]
    return f"{statistics.median(values):.2f} s" if values else "-"
