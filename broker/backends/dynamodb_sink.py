"""Writes rows to Amazon DynamoDB, or to what speaks its language at another endpoint.

Exact: rows go in transactions, each of which also moves the cursor, and only if it is where it
should be. So each row is applied once. A row's own statements are applied all or none. Otherwise
rows are written one by one and the cursor behind the whole batch: cheaper, and nothing is harmed
by a change of an item that comes again, but an own statement may be carried out twice.

What the service refuses for good (an item above 400 KB, a value that it does not take) is a dead
letter: the transaction is tried again in smaller ones until the refused change is alone. Read next:
`broker.backends.dynamodb_actions`, `broker.backends.dynamodb_groups`.
"""

import json
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import boto3
import botocore.config
import botocore.exceptions

from broker.backends.comparing.dynamodb_listing import DynamodbListing
from broker.backends.comparing.listing import Entry, Window
from broker.backends.dynamodb_actions import (
    ADD,
    ADVANCE,
    CURSOR_TABLE,
    DELETE,
    DELETE_ALL,
    EXPIRES_AT,
    EXPIRING,
    FEED,
    KEYS,
    MSG_ID_SET,
    PUT,
    SET,
    TOPIC_MSG_MAP,
    Bound,
    Change,
    DynamodbActions,
    Item,
    text,
)
from broker.backends.dynamodb_groups import STEPS_MAX, Group, Part, Step
from broker.backends.message_ids import number_of
from broker.backends.rows import Cursor, RowBatch
from broker.backends.sink import (
    Fence,
    FenceRefused,
    Options,
    Poison,
    Refusal,
    Unavailable,
    Unusable,
    place_of,
)
from storage.tables.feed_rows import FeedEvent

DEFAULT_REGION: Final = "us-east-1"  # an endpoint of one's own needs some name
FENCE: Final = "fence"
REFUSED: Final = "refused"
REFUSED_MAX: Final = 16  # kept; the broker has at most four batches unanswered
WHY_CHARACTERS_MAX: Final = 300
BATCH_WRITE_MAX: Final = 25
BATCH_READ_MAX: Final = 100
LEFT_OVER_TRIES: Final = 5  # for what a call left undone because the service was busy
LEFT_OVER_S: Final = 0.05
CREATE_S: Final = 240.0
CREATE_POLL_S: Final = 0.5

# The service will never take it. All other errors pass, or are for an operator to mend.
_FOR_GOOD: Final = frozenset(
    {
        "ConditionalCheckFailed",
        "ConditionalCheckFailedException",
        "DuplicateItem",
        "DuplicateItemException",
        "ItemCollectionSizeLimitExceeded",
        "ItemCollectionSizeLimitExceededException",
        "ValidationError",
        "ValidationException",
    }
)
_NO_TABLE: Final = frozenset({"ResourceNotFound", "ResourceNotFoundException"})


class _Refused(Exception):
    """The service will never take a call; `at` has the places that it named, perhaps none."""

    def __init__(self, why: str, at: dict[int, str] | None = None) -> None:
        super().__init__(why)
        self.why: Final = why
        self.at: Final = at or {}


class DynamodbSink:
    """The tables of one backend."""

    def __init__(self, options: Options) -> None:
        """Raises `Unusable` for options that cannot work."""
        self._options: Final = options
        self._values: Final = options.values
        self._prefix: Final[str] = options.values.get("table_prefix", "mqtt_")
        self.is_exact: Final = bool(options.values.get("exact", True))
        self.feed: Final = self._prefix + options.name
        self._client: Any = None
        self.refused: list[str] = []  # as kept in the store, JSON
        try:
            self._actions: Final = DynamodbActions(options)
        except ValueError as problem:
            raise Unusable(f"backend {options.name}: expected {problem}") from None

    # The interface of a sink

    def open(self) -> Fence | None:
        """Connect, and return the store's fence."""
        self.close()
        self._client = self._connect()
        kept = self._get(self.feed + ":" + REFUSED)
        self.refused = [each["S"] for each in kept.get(REFUSED, {}).get("L", ())]
        return self.look()

    def start(self, fence: Fence, *, is_rewind: bool) -> None:
        """Put the fence where a run begins."""
        item = {FEED: text(self.feed), FENCE: text(fence.encode().decode())}
        self._own_call("put_item", TableName=CURSOR_TABLE, Item=item)

    def apply(self, batch: RowBatch, instance: str) -> list[Poison]:
        """Apply a batch once, and move the fence behind it."""
        poisons: list[Poison] = []
        parts: list[list[tuple[int, Change | Bound]]] = []
        for index, row in enumerate(batch.rows):
            try:
                parts.append(self._actions.work(row))
            except Exception as bug:  # shell boundary: one row must not stop all behind it
                poisons.append(Poison(index, 0, f"{type(bug).__name__}: {bug}"))
                parts.append([])
        try:
            return poisons + _Application(self, batch, instance).run(parts)
        except FenceRefused:
            fence = self.look()
            if fence is not None and fence.encode() == Fence(instance, batch.upto).encode():
                return poisons  # an answer was lost: refusals are in the store
            raise

    def refusals(self, instance: str) -> list[Refusal]:
        """Return what the service has refused in the last batches that had such rows."""
        fence = self.look()
        found: list[Refusal] = []
        for line in self.refused:
            theirs, upto, at, rule, why = json.loads(line)
            is_passed = fence is not None and all(map(int.__le__, upto, fence.cursor))
            if theirs == instance and is_passed:
                found.append(Refusal((upto[0], upto[1]), (at[0], at[1]), rule, why))
        return found

    def look(self) -> Fence | None:
        """Return the store's fence again."""
        value = self._get(self.feed).get(FENCE, {}).get("S", "")
        return Fence.decode(value.encode())

    def health(self) -> dict[str, Any]:
        """Return whether the tables are there and take rows."""
        missing = [name for name in self.tables() if self._status_of(name) is None]
        problems = [f"the table {name} is missing: {self._how_to_create()}" for name in missing]
        if TOPIC_MSG_MAP in self._actions.tables:
            problems.append(
                "layout v1 keeps all ids of a topic in one item, which is full after about 8,700: "
                "layout = 'v2' has no such limit"
            )
        if not self.is_exact:
            problems.append("exact = false: own statements may be carried out twice after a crash")
        fence = self.look()
        probe = {FEED: text(self.feed + ":check")}
        self._own_call("put_item", TableName=CURSOR_TABLE, Item=probe)
        self._own_call("delete_item", TableName=CURSOR_TABLE, Key=probe)
        client = self._opened()
        return {
            "server": "DynamoDB",
            "version": f"at {client.meta.endpoint_url}",
            "role": f"region {client.meta.region_name}",
            "writable": not missing,
            "persistence": "by the service",
            "fence": None if fence is None else fence.encode().decode(),
            "problems": problems,
        }

    def listing(self, window: Window) -> Iterator[Entry]:
        """Yield what the store has, for a comparison."""
        self._opened()

        def scan(table: str, **asked: Any) -> Any:
            return self._own_call("scan", TableName=self.name_of(table), **asked)

        yield from DynamodbListing(scan, self._actions.tables, window).entries()

    def create(self) -> list[str]:
        """Make the tables that are missing, and return their names."""
        if self._client is None:
            self._client = self._connect()
        made = [name for name in self.tables() if self._status_of(name) is None]
        for name in made:
            self._make(name)
        deadline = time.monotonic() + CREATE_S
        for name in made:
            while self._status_of(name) != "ACTIVE":
                if time.monotonic() > deadline:
                    raise self._unavailable(f"the table {name} is not there after {CREATE_S:g} s")
                time.sleep(CREATE_POLL_S)
        for table in set(EXPIRING) & set(self._actions.tables):
            self._let_expire(self.name_of(table))
        return made

    def close(self) -> None:
        """Close connections."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    # Tables

    def tables(self) -> list[str]:
        """Return the names of the tables that the rules need, and of the cursors'."""
        return [CURSOR_TABLE, *map(self.name_of, self._actions.tables)]

    def name_of(self, table: str) -> str:
        """Return the name that a table has in the store; the cursors' is the same for all."""
        return table if table == CURSOR_TABLE else self._prefix + table

    def _status_of(self, name: str) -> str | None:
        """Return the state of a table, None if it is missing."""
        client = self._opened()
        try:
            return str(client.describe_table(TableName=name)["Table"]["TableStatus"])
        except client.exceptions.ResourceNotFoundException:
            return None
        except _ERRORS as problem:
            raise self._unavailable(problem) from None

    def _make(self, name: str) -> None:
        keys = KEYS[name if name == CURSOR_TABLE else name[len(self._prefix) :]]
        kinds = ("HASH", "RANGE")
        client = self._opened()
        try:
            client.create_table(
                TableName=name,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in keys],
                KeySchema=[
                    {"AttributeName": key, "KeyType": kind}
                    for key, kind in zip(keys, kinds, strict=False)
                ],
            )
        except client.exceptions.ResourceInUseException:
            return  # somebody else makes it
        except _ERRORS as problem:
            raise self._unavailable(problem) from None

    def _let_expire(self, name: str) -> None:
        told = self._own_call("describe_time_to_live", TableName=name)
        if told["TimeToLiveDescription"].get("TimeToLiveStatus") == "DISABLED":
            wanted = {"Enabled": True, "AttributeName": EXPIRES_AT}
            self._own_call("update_time_to_live", TableName=name, TimeToLiveSpecification=wanted)

    # Connecting

    def call(self, method: str, **arguments: Any) -> Any:
        """Call the service. Raises `Unavailable`, or `_Refused` for what it will never take."""
        try:
            return getattr(self._opened(), method)(**arguments)
        except botocore.exceptions.ParamValidationError as problem:
            raise _Refused(_line(problem)) from None
        except botocore.exceptions.ClientError as problem:
            error: Any = problem.response["Error"]
            if error.get("Code") == "TransactionCanceledException":
                self._take_reasons(problem)
            if error.get("Code") in _FOR_GOOD:
                raise _Refused(_line(error.get("Message") or problem)) from None
            raise self._unavailable(problem) from None
        except _ERRORS as problem:
            raise self._unavailable(problem) from None

    def _take_reasons(self, problem: Any) -> None:
        """Raise `_Refused` if a transaction was cancelled by what is refused for good."""
        at: dict[int, str] = {}
        for place, reason in enumerate(problem.response.get("CancellationReasons", ())):
            code = reason.get("Code") or "None"
            if code in _NO_TABLE:
                raise self._unavailable(problem, is_missing=True)
            if code in _FOR_GOOD:
                at[place] = f"{code}: {_line(reason.get('Message') or '')}"
            elif code != "None":
                return
        if at:
            raise _Refused(next(iter(at.values())), at)

    def _get(self, feed: str) -> Item:
        key = {FEED: text(feed)}
        answer = self._own_call("get_item", TableName=CURSOR_TABLE, Key=key, ConsistentRead=True)
        item: Item = answer.get("Item", {})
        return item

    def _own_call(self, method: str, **arguments: Any) -> Any:
        """Call the service for what is no row: what it refuses is for an operator to mend."""
        try:
            return self.call(method, **arguments)
        except _Refused as problem:
            raise self._unavailable(f"{arguments['TableName']}: {problem.why}") from None

    def _opened(self) -> Any:
        if self._client is None:
            raise Unavailable("not connected")
        return self._client

    def _connect(self) -> Any:
        values = self._values
        timeout_s = values.get("timeout_ms", 5000) / 1000
        endpoint = values.get("endpoint")
        given: dict[str, Any] = {}
        if values.get("access_key_id"):
            given["aws_access_key_id"] = values["access_key_id"]
            given["aws_secret_access_key"] = self._secret()
        try:
            session = boto3.session.Session(region_name=values.get("region"), **given)
            if session.region_name is None and endpoint is not None:
                session = boto3.session.Session(region_name=DEFAULT_REGION, **given)
            return session.client(
                "dynamodb",
                endpoint_url=endpoint,
                config=botocore.config.Config(
                    connect_timeout=timeout_s,
                    read_timeout=timeout_s,
                    # The worker connects again, and looks where the store is.
                    retries={"total_max_attempts": 1, "mode": "standard"},
                    user_agent_extra="holdfast",
                ),
            )
        except _ERRORS as problem:
            raise self._unavailable(problem) from None

    def _secret(self) -> str:
        """Return the secret; a file is read again at each connect, so that it can be changed."""
        path = self._values.get("secret_access_key_file")
        if path is None:
            return str(self._values["secret_access_key"])
        try:
            with open(path, encoding="utf-8") as file:
                return file.readline().rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as problem:
            raise Unavailable(f"secret_access_key_file {path}: {problem}") from None

    def _how_to_create(self) -> str:
        return f"`holdfast backend create {self._options.name}` makes it"

    def _unavailable(self, problem: object, *, is_missing: bool = False) -> Unavailable:
        """Close, and return the error to raise."""
        self.close()
        place = self._values.get("endpoint") or f"DynamoDB {self._values.get('region') or ''}"
        if isinstance(problem, botocore.exceptions.ClientError):
            is_missing |= problem.response["Error"].get("Code") in _NO_TABLE
        if is_missing:
            return Unavailable(f"{place.strip()}: a table is missing: {self._how_to_create()}")
        return Unavailable(f"{place.strip()}: {_line(problem)}")


_ERRORS: Final = (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError, OSError)


class _Row:
    """The statements of one row."""

    __slots__ = ("index", "statements", "upto")

    def __init__(self, index: int, upto: Cursor, statements: list[tuple[int, Bound]]) -> None:
        self.index: Final = index
        self.upto: Final = upto  # the cursor behind it
        self.statements: Final = statements


class _Application:
    """Applies one batch."""

    def __init__(self, sink: DynamodbSink, batch: RowBatch, instance: str) -> None:
        self._sink: Final = sink
        self._batch: Final = batch
        self._instance: Final = instance
        self._at: Cursor = batch.after  # the store's cursor
        self._behind: Cursor = batch.after  # the last row that is in the group, or written
        self._group = Group()
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
        except _Refused as problem:  # of a question: a key that the service does not take
            self._refuse(row, rule, problem.why)

    def _take(self, part: Part) -> None:
        if not self._group.take(part):
            # The row may be in it in part: that harms nothing if it comes again.
            self._write()
            self._group.take(part)

    def _write(self) -> None:
        steps, self._group = self._group.steps(), Group()
        if steps:
            self._write_steps(steps, self._behind)

    def _write_steps(self, steps: list[Step], upto: Cursor) -> None:
        """Write steps, those of them that are not refused, and move the cursor to `upto`."""
        try:
            self._commit(steps, upto)
            return
        except _Refused as problem:
            refused = problem
        at = refused.at or ({0: refused.why} if len(steps) == 1 else {})
        if not at:
            middle = len(steps) // 2
            self._write_steps(steps[:middle], self._at)
            self._write_steps(steps[middle:], upto)
            return
        for place, why in at.items():
            parts = steps[place].parts
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
        except _Refused as problem:
            raise self._without_cursor(problem, before, bool(steps)) from None
        self._at = upto
        self._is_told = True

    def _without_cursor(self, problem: _Refused, before: int, has_steps: bool) -> Exception:
        """Return the error for what was refused besides the cursor's move."""
        if problem.at.get(0, "").startswith("ConditionalCheckFailed"):
            return FenceRefused()
        if not has_steps or any(place < before for place in problem.at):
            return Unavailable(f"table {CURSOR_TABLE}: {problem.why}")
        return _Refused(problem.why, {place - before: why for place, why in problem.at.items()})

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
        """Write steps without a transaction. Raises `_Refused`; some may be written then."""
        whole = [step for step in steps if step.change.kind in (PUT, DELETE)]
        for start in range(0, len(whole), BATCH_WRITE_MAX):
            requests: dict[str, list[Any]] = {}
            for step in whole[start : start + BATCH_WRITE_MAX]:
                table = self._sink.name_of(step.change.table)
                is_put = step.change.kind == PUT
                body = {"Item" if is_put else "Key": step.change.item}
                request = {"PutRequest" if is_put else "DeleteRequest": body}
                requests.setdefault(table, []).append(request)
            self._until_done("batch_write_item", requests, "UnprocessedItems", lambda answer: None)
        for place, step in enumerate(steps):
            if step.change.kind not in (PUT, DELETE):
                table = self._sink.name_of(step.change.table)
                try:
                    self._sink.call("update_item", TableName=table, **_update(step.change))
                except _Refused as problem:
                    raise _Refused(problem.why, {place: problem.why}) from None

    def _until_done(
        self, method: str, requests: Any, left_over: str, take: Callable[[Any], None]
    ) -> None:
        """Call until the service has left nothing undone."""
        for attempt in range(LEFT_OVER_TRIES):
            answer = self._sink.call(method, RequestItems=requests)
            take(answer)
            requests = answer.get(left_over)
            if not requests:
                return
            time.sleep(LEFT_OVER_S * 2**attempt)
        raise Unavailable(f"{method}: the service takes less than is asked of it now")

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
                self._until_done("batch_get_item", asked, "UnprocessedKeys", take)
            except _Refused:
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
        except _Refused as problem:
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
        except _Refused as problem:
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


def _key_of(change: Change) -> Item:
    return {name: change.item[name] for name in KEYS[change.table]}


def _line(problem: object) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__
