"""Write results as Markdown: the comparison and the goals.

Pure: it formats what `bench.run` has written. Read next: `bench.goals`.
"""

from collections.abc import Mapping
from typing import Any, Final

from bench.brokers import COMPILED, HOLDFAST, MOSQUITTO, OTHERS, OURS, SINK
from bench.goals import (
    BUSY,
    BY_KEY,
    FULL,
    MET,
    MISSED,
    NAMES,
    UNITS,
    WORKS,
    Entries,
    Entry,
    Judgement,
    Work,
    entries,
    judge,
    limit,
    ratio,
    written,
)

ORDER: Final = (*OTHERS, HOLDFAST, COMPILED)
# The good ones and the others.
README_ROWS: Final = (
    *("devices5000x1", "devices1000x1", "turn1", "turn2", "fanin_turn"),
    *("qos0", "qos1", "qos2", "fanout0", "fanout1", "fanin_default", "fanin", "publish", "drain"),
)

About = Mapping[str, Any]


def comparison(found: Entries, cores: int) -> list[str]:
    """Return a row per work and broker."""
    rows = [
        "| work | broker | median (range) | ratio | CPU µs/message (ratio) | limit | also |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for work in WORKS:
        title = work.title
        for kind in ORDER:
            entry = found.get(work.key, {}).get(kind)
            if entry is None:
                continue
            rows.append(f"| {title} | {kind} | {_cells(work, entry, found[work.key], cores)} |")
            title = ""
    return rows


def _cells(work: Work, entry: Entry, kinds: Mapping[str, Entry], cores: int) -> str:
    base = kinds.get(MOSQUITTO)
    metrics = entry.metrics
    main = written(work.main, metrics[work.main]) if work.main in metrics else "-"
    if entry.rounds > 1 and work.main in metrics:
        form = UNITS[work.main][0]
        main += f" ({form.format(entry.low)} to {form.format(entry.high)})"
    over = ratio(entry, base, work.main) if base else None
    cost = "-"
    if metrics.get("us"):
        cost = f"{metrics['us']:.2f}"
        saved = ratio(entry, base, "us") if base else None
        cost += f" ({saved:.2f})" if saved else ""
    also = [f"{NAMES[name]} {written(name, metrics[name])}" for name in _extras(work, metrics)]
    if not entry.is_ok:
        also.append(f"**NOT OK**: {entry.trouble}")
    shown = "-" if over is None else f"{over:.2f}"
    return " | ".join([main, shown, cost, limit(metrics, cores), ", ".join(also)])


def _extras(work: Work, metrics: Mapping[str, float]) -> list[str]:
    return [name for name in (*work.extras, "lost") if name in metrics]


def judgements(
    found: Entries, cores: int, sizes: Mapping[str, float]
) -> list[tuple[str, str, dict[str, Judgement]]]:
    """Return (work, text of the goal, verdict per build of Holdfast) for every goal that was run.

    `sizes` are the works that were scaled down, with their factors: goals are for the full size.
    """
    rows = []
    for work in WORKS:
        if work.key not in found:
            continue
        for goal in work.goals:
            verdicts = {kind: judge(goal, work.key, found[work.key], kind, cores) for kind in OURS}
            if work.key in sizes:
                for verdict in verdicts.values():
                    note = f"at {sizes[work.key]:.0%} of the size"
                    verdict.note = f"{note}; {verdict.note}" if verdict.note else note
            rows.append((work.title, goal.text(), verdicts))
    return rows


def goals_table(found: Entries, cores: int, sizes: Mapping[str, float]) -> list[str]:
    """Return a row per goal with its verdicts, interpreted and compiled."""
    rows = ["| work | goal | interpreted | compiled |", "| --- | --- | --- | --- |"]
    last = ""
    for title, text, verdicts in judgements(found, cores, sizes):
        cells = [_verdict(verdicts[kind]) for kind in OURS]
        rows.append(f"| {'' if title == last else title} | {text} | {' | '.join(cells)} |")
        last = title
    return rows


def _verdict(judgement: Judgement) -> str:
    if judgement.verdict == MET:
        said = f"**met** {judgement.text}"
    elif judgement.verdict == MISSED:
        said = f"missed: {judgement.text}"
    else:
        return "-" if judgement.text == "-" else f"{judgement.text} ({judgement.note})"
    return said + (f" ({judgement.note})" if judgement.note else "")


def ceilings(found: Entries) -> list[str]:
    """Return the rates of the generator against bench/sink.c: its own limit."""
    parts = []
    for work in WORKS:
        entry = found.get(work.key, {}).get(SINK)
        if entry is not None:
            generator, sink = (entry.metrics.get(side, 0.0) for side in ("generator", "broker"))
            parts.append(
                f"{work.title}: {entry.metrics['rate']:,.0f}/s (generator {generator:.0%} of a "
                f"core, sink {sink:.0%})"
            )
    if not parts:
        return []
    return ["What the generator reaches against a sink that only copies: " + "; ".join(parts) + "."]


def setting(about: About) -> list[str]:
    """Return the machine, the versions and the settings of the measurement."""
    synced, sync = "", about["sync_ms"]
    if sync:
        synced = f"; one fdatasync of 4 KiB: {sync['p50']:.2f} ms, p99 {sync['p99']:.2f} ms"
    return [
        f"- {about['machine']}; load average before the run {about['load_average']}" + synced,
        *(f"- {version}" for version in about["versions"]),
        f"- Holdfast: default configuration, `durability = {about['durability']}`, durable "
        "sessions; mosquitto: default configuration but for its limit of queued messages, in "
        "memory",
        f"- {about['rounds']} rounds of {about['seconds']:g} s; long works fewer; a fresh broker "
        "and directory each time, brokers taking turns; medians",
        f"- command: `{about['command']}`",
        *(f"- {note}" for note in about.get("notes", ())),
    ]


def report(document: Mapping[str, Any]) -> list[str]:
    """Return the whole result as Markdown lines, without a title."""
    about, found = document["about"], entries(document["cells"])
    cores = about["cores"]
    lines = [*setting(about), "", *comparison(found, cores), ""]
    lines += [
        "`ratio` is over mosquitto in the same work. `limit` is the side that used "
        f"{BUSY:.0%} of a core or more (of a broker: its busiest thread); `all cores`: together "
        f"{FULL:.0%} of the machine; `other processes`: the machine was not idle beside them; "
        "`waiting`: none of these, so for the disk or each other.",
        "",
        *goals_table(found, cores, about.get("scaled", {})),
        "",
    ]
    ceiling = ceilings(found)
    if ceiling:
        lines += [*ceiling, ""]
    failed = sorted({c["trouble"] for c in document["cells"] if not c["ok"]})
    some = any(cell["metrics"].get("lost") for cell in document["cells"])
    said = "every message was accounted for: nothing lost" + (" but at QoS 0, see above" * some)
    said += ", repeated at QoS 2 or out of order"
    lines.append(f"In all {len(document['cells'])} runs " + ("; ".join(failed) or said) + ".")
    return lines


def readme(document: Mapping[str, Any]) -> list[str]:
    """Return the short table of the README."""
    found = entries(document["cells"])
    rows = [
        "| | mosquitto, in memory | Holdfast, interpreted | Holdfast, compiled |",
        "| --- | --- | --- | --- |",
    ]
    for key in README_ROWS:
        kinds = found.get(key, {})
        main = BY_KEY[key].main
        if any(main not in kinds[kind].metrics for kind in (MOSQUITTO, *OURS) if kind in kinds):
            continue  # it could not run
        if not {MOSQUITTO, *OURS} <= set(kinds):
            continue
        cells = [_short(main, kinds[MOSQUITTO].metrics[main])]
        for kind in OURS:
            over = ratio(kinds[kind], kinds[MOSQUITTO], main) or 0.0
            shown = f"{over:.1f}x" if over < 10 else f"{over:.0f}x"
            cells.append(f"{_short(main, kinds[kind].metrics[main])} ({shown})")
        rows.append(f"| {BY_KEY[key].title} | {' | '.join(cells)} |")
    return rows


def _short(metric: str, value: float) -> str:
    return f"{round(value, -3):,.0f} msg/s" if metric == "rate" else written(metric, value)
