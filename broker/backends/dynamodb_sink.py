"""Writes rows to Amazon DynamoDB, or to what speaks its language at another endpoint.

Exact: rows go in transactions, each of which also moves the cursor, and only if it is where it
should be. So each row is applied once. A row's own statements are applied all or none. Otherwise
rows are written one by one, those of different items also at once, and the cursor behind the whole
batch: cheaper, and nothing is harmed by a change of an item that comes again, but an own statement
may be carried out twice.

Read next: `broker.backends.dynamodb_batch`, `broker.backends.dynamodb_actions`.
"""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import boto3
import botocore.config
import botocore.exceptions

from broker.backends.comparing.dynamodb_listing import DynamodbListing
from broker.backends.comparing.listing import Entry, Window
from broker.backends.dynamodb_actions import Bound, Change, DynamodbActions
from broker.backends.dynamodb_batch import FENCE, REFUSED, Application
from broker.backends.dynamodb_tables import (
    CURSOR_TABLE,
    EXPIRES_AT,
    EXPIRING,
    FEED,
    KEYS,
    TOPIC_MSG,
    TOPIC_MSG_MAP,
    CallRefused,
    Item,
    text,
)
from broker.backends.inbox.dynamodb_inbox import DynamodbInbox
from broker.backends.inbox.questions import Page, Question
from broker.backends.message_ids import node_number
from broker.backends.rows import RowBatch
from broker.backends.sink import (
    Fence,
    FenceRefused,
    Options,
    Poison,
    Refusal,
    Refused,
    Unavailable,
    Unusable,
)

DEFAULT_REGION: Final = "us-east-1"  # an endpoint of one's own needs some name
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


class DynamodbSink:
    """The tables of one backend."""

    def __init__(self, options: Options) -> None:
        """Raises `Unusable` for options that cannot work."""
        self._options: Final = options
        self._values: Final = options.values
        self._prefix: Final[str] = options.values.get("table_prefix", "mqtt_")
        self.is_exact: Final = bool(options.values.get("exact", True))
        self.connections: Final[int] = options.values.get("connections", 1)
        self.feed: Final = self._prefix + options.name
        self._client: Any = None
        index = TOPIC_MSG if options.values.get("layout") == "v2" else TOPIC_MSG_MAP
        self._inbox: Final = DynamodbInbox(self, node_number(options.node), index)
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
            return poisons + Application(self, batch, instance).run(parts)
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

    def fetch(self, question: Question, fence: Fence) -> Page:
        """Return a page of what a session fetches."""
        have = self.look()
        if have is None or have.encode() != fence.encode():
            raise FenceRefused
        try:
            return self._inbox.fetch(question)
        except CallRefused as problem:
            raise Refused(f"{question.topic}: {problem.why}") from None

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
        """Call the service. Raises `Unavailable`, or `CallRefused` for what it will never take."""
        try:
            return getattr(self._opened(), method)(**arguments)
        except botocore.exceptions.ParamValidationError as problem:
            raise CallRefused(_line(problem)) from None
        except botocore.exceptions.ClientError as problem:
            error: Any = problem.response["Error"]
            if error.get("Code") == "TransactionCanceledException":
                self._take_reasons(problem)
            if error.get("Code") in _FOR_GOOD:
                why = _line(error.get("Message") or problem)
                raise CallRefused(why, code=error["Code"]) from None
            raise self._unavailable(problem) from None
        except _ERRORS as problem:
            raise self._unavailable(problem) from None

    def until_done(
        self, method: str, requests: Any, left_over: str, take: Callable[[Any], None]
    ) -> None:
        """Call until the service has left nothing undone, and give each answer to `take`."""
        for attempt in range(LEFT_OVER_TRIES):
            answer = self.call(method, RequestItems=requests)
            take(answer)
            requests = answer.get(left_over)
            if not requests:
                return
            time.sleep(LEFT_OVER_S * 2**attempt)
        raise Unavailable(f"{method}: the service takes less than is asked of it now")

    def _take_reasons(self, problem: Any) -> None:
        """Raise `CallRefused` if a transaction was cancelled by what is refused for good."""
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
            raise CallRefused(next(iter(at.values())), at)

    def _get(self, feed: str) -> Item:
        key = {FEED: text(feed)}
        answer = self._own_call("get_item", TableName=CURSOR_TABLE, Key=key, ConsistentRead=True)
        item: Item = answer.get("Item", {})
        return item

    def _own_call(self, method: str, **arguments: Any) -> Any:
        """Call the service for what is no row: what it refuses is for an operator to mend."""
        try:
            return self.call(method, **arguments)
        except CallRefused as problem:
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
                    max_pool_connections=self.connections,
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


def _line(problem: object) -> str:
    return " ".join(str(problem).split()) or type(problem).__name__
