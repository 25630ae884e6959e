"""Applies one batch to DynamoDB: in transactions that move the cursor, or one by one.

What the service refuses for good (an item above 400 KB, a value that it does not take) is a dead
letter: the transaction is tried again in smaller ones until the refused change is alone. Knows no
driver. Read next: `broker.backends.dynamodb_groups`, `broker.backends.dynamodb_sink`.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, Protocol

from broker.backends.dynamodb_actions import (
    ADD,
    ADVANCE,
    DELETE,
    DELETE_ALL,
    KEEP,
    PUT,
    RELEASE,
    SET,
    Bound,
    Change,
)
from broker.backends.dynamodb_groups import STEPS_MAX, Group, Part, Step
from broker.backends.dynamodb_tables import (
    BATCH_READ_MAX,
    CLAIM,
    CLAIMED_UNTIL,
    CONDITION_FAILED,
    CURSOR_TABLE,
    FEED,
    KEYS,
    MSG_ID_SET,
    CallRefused,
    Item,
    Tables,
    text,
)
from broker.backends.message_ids import number_of
from broker.backends.rows import Cursor, RowBatch
from broker.backends.sink import Fence, FenceRefused, Poison, Unavailable, place_of
from storage.tables.feed_rows import FeedEvent

FENCE: Final = "fence"
REFUSED: Final = "refused"
REFUSED_MAX: Final = 16  # kept; the broker has at most four batches unanswered
WHY_CHARACTERS_MAX: Final = 300
BATCH_WRITE_MAX: Final = 25


class Store(Tables, Protocol):
    """The tables of a backend, and its cursor."""

    refused: list[str]  # as kept in the store, JSON

    @property
    def is_exact(self) -> bool:
        """Is each row applied once?"""
        ...

    @property
    def connections(self) -> int:
        """How many calls may be under way at once."""
        ...

    @property
    def feed(self) -> str:
        """The key of the cursor."""
        ...

    def look(self) -> Fence | None:
        """Return the store's fence."""
        ...


class _Row:
    """The statements of one row."""

    __slots__ = ("index", "statements", "upto")

    def __init__(self, index: int, upto: Cursor, statements: list[tuple[int, Bound]]) -> None:
        self.index: Final = index
        self.upto: Final = upto  # the cursor behind it
        self.statements: Final = statements


class Application:
    """Applies one batch."""

    def __init__(self, sink: Store, batch: RowBatch, instance: str) -> None:
        self._sink: Final = sink
        self._batch: Final = batch
        self._instance: Final = instance
        self._at: Cursor = batch.after  # the store's cursor
        self._behind: Cursor = batch.after  # the last row that is in the group, or written
        # Without a transaction there may be enough for each connection.
        wanted = 0 if sink.is_exact else BATCH_WRITE_MAX * sink.connections
        self._steps_max: Final = max(STEPS_MAX, wanted)
        self._group = Group(self._steps_max)
        self._rows: list[_Row] = []
        self._poisons: list[Poison] = []
        self._is_told = True  # are all refusals in the store?
        self._uptos: Final = list(_cursors(batch))

    def run(self, work: Sequence[list[tuple[int, Change | Bound]]]) -> list[Poison]:
        """Apply what is to be done for each row; return what was refused."""
        if not self._sink.is_exact:
            fence = self._sink.look()
            if fence is None or fence.encode() != self._fence(self._at).encode():
                raise FenceRefused
        newest = self._read_newest(work)
        for index, found in enumerate(work):
            changes = [(rule, each) for rule, each in found if isinstance(each, Change)]
            statements = [(rule, each) for rule, each in found if isinstance(each, Bound)]
            if changes:
                self._execute()
            for rule, change in changes:
                self._take_change(index, rule, change, newest)
            upto = self._uptos[index]
            if statements:
                self._write()
                if len(statements) + sum(len(row.statements) for row in self._rows) > STEPS_MAX:
                    self._execute()
                self._rows.append(_Row(index, upto, statements))
            self._behind = upto
        self._write()
        self._execute()
        if self._at != self._batch.upto or not self._is_told:
            self._commit([], self._batch.upto)
        return self._poisons

    def _fence(self, cursor: Cursor) -> Fence:
        return Fence(self._instance, cursor)

    # Changes of items

    def _take_change(self, row: int, rule: int, change: Change, newest: dict[Any, int]) -> None:
        try:
            for each in self._resolved(change, newest):
                self._take(Part(row, rule, each))
        except CallRefused as problem:  # of a question: a key that the service does not take
            self._refuse(row, rule, problem.why)

    def _take(self, part: Part) -> None:
        if not self._group.take(part):
            # The row may be in it in part: that harms nothing if it comes again.
            self._write()
            self._group.take(part)

    def _write(self) -> None:
        steps, self._group = self._group.steps(), Group(self._steps_max)
        if steps:
            self._write_steps(steps, self._behind)

    def _write_steps(self, steps: list[Step], upto: Cursor) -> None:
        """Write steps, those of them that are not refused, and move the cursor to `upto`."""
        try:
            self._commit(steps, upto)
            return
        except CallRefused as problem:
            refused = problem
        at = refused.at or ({0: refused.why} if len(steps) == 1 else {})
        if not at:
            middle = len(steps) // 2
            self._write_steps(steps[:middle], self._at)
            self._write_steps(steps[middle:], upto)
            return
        for place, why in at.items():
            parts = steps[place].parts
            if steps[place].change.kind in (KEEP, RELEASE) and why.startswith(CONDITION_FAILED):
                continue  # the message is gone, or somebody else's
            if len(parts) == 1:
                self._refuse(parts[0].row, parts[0].rule, why)
                continue
            for part in parts:
                self._write_steps([Step(part)], self._at)
        self._write_steps([step for place, step in enumerate(steps) if place not in at], upto)

    def _commit(self, steps: list[Step], upto: Cursor) -> None:
        """Write steps and move the cursor, all or nothing if the backend is exact."""
        if not self._sink.is_exact:
            self._write_plain(steps)
            if upto != self._batch.upto or steps:
                return  # the cursor moves once, behind the batch
        items = [self._cursor_update(upto)]
        if not self._is_told:
            key = text(f"{self._sink.feed}:{REFUSED}")
            kept = {FEED: key, REFUSED: {"L": [text(each) for each in self._sink.refused]}}
            items.append({"Put": {"TableName": CURSOR_TABLE, "Item": kept}})
        before = len(items)
        if self._sink.is_exact:
            items += [self._transact_item(step.change) for step in steps]
        try:
            self._sink.call("transact_write_items", TransactItems=items)
        except CallRefused as problem:
            raise self._without_cursor(problem, before, bool(steps)) from None
        self._at = upto
        self._is_told = True

    def _without_cursor(self, problem: CallRefused, before: int, has_steps: bool) -> Exception:
        """Return the error for what was refused besides the cursor's move."""
        if problem.at.get(0, "").startswith(CONDITION_FAILED):
            return FenceRefused()
        if not has_steps or any(place < before for place in problem.at):
            return Unavailable(f"table {CURSOR_TABLE}: {problem.why}")
        return CallRefused(problem.why, {place - before: why for place, why in problem.at.items()})

    def _cursor_update(self, upto: Cursor) -> dict[str, Any]:
        return {
            "Update": {
                "TableName": CURSOR_TABLE,
                "Key": {FEED: text(self._sink.feed)},
                "UpdateExpression": "SET fence = :upto",
                "ConditionExpression": "fence = :at",
                "ExpressionAttributeValues": {
                    ":upto": text(self._fence(upto).encode().decode()),
                    ":at": text(self._fence(self._at).encode().decode()),
                },
            }
        }

    def _transact_item(self, change: Change) -> dict[str, Any]:
        table = self._sink.name_of(change.table)
        if change.kind == PUT:
            return {"Put": {"TableName": table, "Item": change.item}}
        if change.kind == DELETE:
            return {"Delete": {"TableName": table, "Key": change.item}}
        return {"Update": {"TableName": table, **_update(change)}}

    def _write_plain(self, steps: list[Step]) -> None:
        """Write steps without a transaction. Raises `CallRefused`; some may be written then.

        Each is for another item, so they may be written in any order, and at once. Nothing is under
        way any more on return.
        """
        whole = [step for step in steps if step.change.kind in (PUT, DELETE)]
        calls: list[Callable[[], None]] = [
            partial(self._write_items, whole[start : start + BATCH_WRITE_MAX])
            for start in range(0, len(whole), BATCH_WRITE_MAX)
        ]
        for place, step in enumerate(steps):
            if step.change.kind not in (PUT, DELETE):
                calls.append(partial(self._update_item, place, step.change))
        refused = together(calls, self._sink.connections)
        if refused:
            at = {place: why for problem in refused for place, why in problem.at.items()}
            raise CallRefused(refused[0].why, at)

    def _write_items(self, steps: list[Step]) -> None:
        requests: dict[str, list[Any]] = {}
        for step in steps:
            table = self._sink.name_of(step.change.table)
            is_put = step.change.kind == PUT
            body = {"Item" if is_put else "Key": step.change.item}
            request = {"PutRequest" if is_put else "DeleteRequest": body}
            requests.setdefault(table, []).append(request)
        self._sink.until_done("batch_write_item", requests, "UnprocessedItems", lambda answer: None)

    def _update_item(self, place: int, change: Change) -> None:
        table = self._sink.name_of(change.table)
        try:
            self._sink.call("update_item", TableName=table, **_update(change))
        except CallRefused as problem:
            why = CONDITION_FAILED if problem.is_condition else problem.why
            raise CallRefused(problem.why, {place: why}) from None

    # What depends on what is there

    def _read_newest(self, work: Sequence[list[tuple[int, Change | Bound]]]) -> dict[Any, int]:
        """Return the number of the message that each item names which is to be advanced."""
        wanted = {
            each.key: each
            for found in work
            for _, each in found
            if isinstance(each, Change) and each.kind == ADVANCE
        }
        newest: dict[Any, int] = {}

        def take(answer: Any) -> None:
            for items in answer["Responses"].values():
                for item in items:
                    key = (table, *(item[name]["S"] for name in KEYS[table]))
                    newest[key] = number_of(item.get("msgid", {}).get("S", ""))

        changes = list(wanted.values())
        for start in range(0, len(changes), BATCH_READ_MAX):
            table = changes[start].table
            keys = [_key_of(each) for each in changes[start : start + BATCH_READ_MAX]]
            asked = {self._sink.name_of(table): {"Keys": keys, "ConsistentRead": True}}
            try:
                self._sink.until_done("batch_get_item", asked, "UnprocessedKeys", take)
            except CallRefused:
                continue  # a key that the service does not take is refused when it is written
        return newest

    def _resolved(self, change: Change, newest: dict[Any, int]) -> Iterator[Change]:
        """Yield the changes that a change means, by what is there now."""
        if change.kind == DELETE_ALL:
            self._write()
            yield from self._all_of(change)
            return
        if change.kind != ADVANCE:
            if change.key in newest:
                newest[change.key] = 0
            yield change
            return
        number = number_of(change.item["msgid"]["S"])
        if newest.get(change.key, 0) < number:
            newest[change.key] = number
            yield Change(PUT, change.table, change.item)

    def _all_of(self, change: Change) -> Iterator[Change]:
        """Yield the deletion of each item of a partition."""
        ((name, value),) = change.item.items()
        page: dict[str, Any] = {}
        while True:
            answer = self._sink.call(
                "query",
                TableName=self._sink.name_of(change.table),
                ConsistentRead=True,
                KeyConditionExpression="#name = :value",
                ExpressionAttributeNames={"#name": name},
                ExpressionAttributeValues={":value": value},
                **page,
            )
            for item in answer["Items"]:
                key = {each: item[each] for each in KEYS[change.table]}
                yield Change(DELETE, change.table, key)
            if "LastEvaluatedKey" not in answer:
                return
            page = {"ExclusiveStartKey": answer["LastEvaluatedKey"]}

    # Own statements

    def _execute(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._execute_rows(rows)

    def _execute_rows(self, rows: list[_Row]) -> None:
        """Carry out the statements of rows, of each row all or none, and move the cursor."""
        if not self._is_told:
            self._commit([], self._at)
        try:
            self._carry_out(rows)
            return
        except CallRefused as problem:
            refused = problem
        if len(rows) > 1:
            middle = len(rows) // 2
            self._execute_rows(rows[:middle])
            self._execute_rows(rows[middle:])
            return
        for rule in dict.fromkeys(rule for rule, _ in rows[0].statements):
            self._refuse(rows[0].index, rule, refused.why)
        self._commit([], rows[0].upto)

    def _carry_out(self, rows: list[_Row]) -> None:
        statements = [
            {"Statement": each.text, **({"Parameters": each.values} if each.values else {})}
            for row in rows
            for _, each in row.statements
        ]
        if not self._sink.is_exact:
            if len(rows) > 1:
                for row in rows:
                    self._execute_rows([row])
                return
            for statement in statements:
                self._sink.call("execute_statement", **statement)
            return
        upto = rows[-1].upto
        cursor = {
            "Statement": f'UPDATE "{CURSOR_TABLE}" SET fence = ? WHERE feed = ? AND fence = ?',
            "Parameters": [
                text(self._fence(upto).encode().decode()),
                text(self._sink.feed),
                text(self._fence(self._at).encode().decode()),
            ],
        }
        try:
            self._sink.call("execute_transaction", TransactStatements=[cursor, *statements])
        except CallRefused as problem:
            raise self._without_cursor(problem, 1, True) from None
        self._at = upto

    def _refuse(self, row: int, rule: int, why: str) -> None:
        """Take something as a dead letter, and have the store remember it."""
        self._poisons.append(Poison(row, rule, why[:WHY_CHARACTERS_MAX]))
        place = place_of(self._batch.rows[row], self._batch)
        told = [self._instance, self._uptos[row], place, rule, why[:WHY_CHARACTERS_MAX]]
        line = json.dumps(told)
        kept = [each for each in self._sink.refused if each != line]
        self._sink.refused = [*kept, line][-REFUSED_MAX:]
        self._is_told = False


def together(calls: Sequence[Callable[[], None]], at_once: int) -> list[CallRefused]:
    """Make all calls, so many at once, and return what was refused. Raises `Unavailable`.

    Returns or raises once all of them have ended: nothing is written behind the back of what comes
    next.
    """
    if at_once == 1 or len(calls) < 2:
        return [problem for call in calls if (problem := _refusal(call)) is not None]
    with ThreadPoolExecutor(min(at_once, len(calls))) as threads:
        made = [threads.submit(_refusal, call) for call in calls]
    return [problem for each in made if (problem := each.result()) is not None]


def _refusal(call: Callable[[], None]) -> CallRefused | None:
    try:
        call()
    except CallRefused as problem:
        return problem
    return None


def _cursors(batch: RowBatch) -> Iterator[Cursor]:
    """Yield the cursor behind each row of a batch."""
    position, seq = batch.after
    for row in batch.rows:
        if isinstance(row, FeedEvent):
            position, seq = max(position, row.end), row.seq
        else:
            position = max(position, row.offset)
        yield position, seq


def _update(change: Change) -> dict[str, Any]:
    """Return what changes some attributes of an item."""
    key = _key_of(change)
    rest = {name: value for name, value in change.item.items() if name not in key}
    if change.kind in (KEEP, RELEASE):
        return _claim_update(key, change)
    if change.kind == SET:
        pairs = ", ".join(f"#{name} = :{name}" for name in rest)
        expression = f"SET {pairs}"
    else:
        word = "ADD" if change.kind == ADD else "DELETE"
        expression = f"{word} #{MSG_ID_SET} :{MSG_ID_SET}"
    return {
        "Key": key,
        "UpdateExpression": expression,
        "ExpressionAttributeNames": {f"#{name}": name for name in rest},
        "ExpressionAttributeValues": {f":{name}": value for name, value in rest.items()},
    }


def _claim_update(key: Item, change: Change) -> dict[str, Any]:
    """Return what keeps a message for a client for good, or lets go what is that client's."""
    if change.kind == KEEP:
        expression = f"SET {CLAIM} = :client REMOVE {CLAIMED_UNTIL}"
        condition = "attribute_exists(msgid)"
    else:
        expression = f"REMOVE {CLAIM}, {CLAIMED_UNTIL}"
        condition = f"{CLAIM} = :client"
    return {
        "Key": key,
        "UpdateExpression": expression,
        "ConditionExpression": condition,
        "ExpressionAttributeValues": {":client": change.item[CLAIM]},
    }


def _key_of(change: Change) -> Item:
    return {name: change.item[name] for name in KEYS[change.table]}
