"""Every key of the configuration: where it is written, what it fills and how it is read.

Read next: `broker.configuration.option_types` (how values are written) and `session.settings` (what
the options of the engine mean).
"""

from typing import Final, Literal, TypeAlias

from broker.configuration import backend_options
from broker.configuration.listener_options import IDENTITIES, TYPES
from broker.configuration.option_types import (
    Choice,
    Detail,
    Durability,
    Duration,
    FileMode,
    Flag,
    Headers,
    Integer,
    Kind,
    Lines,
    Matching,
    Name,
    Origins,
    Pairs,
    Secret,
    Servers,
    Size,
    Text,
    Url,
)

ENV_PREFIX: Final = "HOLDFAST__"

Owner: TypeAlias = Literal["settings", "shell", "listener", "backend", "rule"]


class Option:
    """One key of the configuration: where it is written, what it fills and how it is read."""

    __slots__ = ("attribute", "help", "key", "kind", "owner", "section")

    def __init__(
        self, section: str, key: str, owner: Owner, attribute: str, kind: Kind, help: str
    ) -> None:
        self.section: str = section
        self.key: str = key
        self.owner: Owner = owner
        self.attribute: str = attribute
        self.kind: Kind = kind
        self.help: str = help

    @property
    def name(self) -> str:
        """The key with its section, as error messages say it."""
        return f"{self.section}.{self.key}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"{ENV_PREFIX}{self.section.upper()}__{self.key.upper()}"


_MS: Final = 1
_S: Final = 1000
PACE_MS_MAX: Final = 20
_NONE: Final = ", 0 = no limit"
# A packet's remaining length is at most 268,435,455 and its fixed header 5 bytes.
_PACKET_MAX: Final = 268_435_460

_URL: Final = r"https?://[^\s\"'<>\\]+"

OPTIONS: Final[tuple[Option, ...]] = (
    Option("listener", "type", "listener", "type", Choice(*TYPES), "transport of MQTT;"
           " further listeners are tables [listener.NAME] with the same keys"),
    Option("listener", "host", "listener", "host", Text(), "address to listen on"),
    Option("listener", "port", "listener", "port", Integer(0, 65_535),
           "TCP port, 0 = any free one"),
    Option("listener", "backlog", "listener", "backlog", Integer(1, 65_535), "connections the"
           " kernel may queue before the broker accepts them"),
    Option("listener", "path", "listener", "path", Text(empty_is_none=True), "socket file of"
           " a unix listener"),
    Option("listener", "mode", "listener", "mode", FileMode(), "permissions of that file"),
    Option("listener", "tls_certificate", "listener", "tls_certificate", Text(empty_is_none=True),
           "file of the certificate and its chain (PEM); empty = no TLS"),
    Option("listener", "tls_key", "listener", "tls_key", Text(empty_is_none=True),
           "file of its private key; empty = in the certificate's file"),
    Option("listener", "tls_client_ca", "listener", "tls_client_ca", Text(empty_is_none=True),
           "file of the CA certificates for clients; if set, clients must show a certificate"),
    Option("listener", "tls_identity", "listener", "tls_identity", Choice(*IDENTITIES),
           "user name from the client's certificate: cn = common name, san = first DNS, e-mail"
           " or URI name, none = not from there"),
    Option("listener", "proxy_protocol", "listener", "proxy_protocol", Flag(),
           "require the PROXY protocol 1 or 2 of a load balancer, for the client's address"),
    Option("listener", "origins", "listener", "origins", Origins(),
           "web pages that may connect to a websocket listener from a browser; empty = all"),
    Option("storage", "data_dir", "shell", "data_dir", Text(), "directory of the database"),
    Option("storage", "durability", "shell", "durability", Durability(), "what an acknowledgement"
           " waits for: fsync = on disk, os = with the kernel (survives kill -9, not a power cut),"
           " interval:MS = synced every MS milliseconds"),
    Option("storage", "pace", "shell", "rest_max_ms", Duration(_MS, high=PACE_MS_MAX),
           "while hundreds of devices a second publish: longest wait until messages that come"
           " meanwhile are written together, 0 = none"),
    Option("storage", "low_water", "shell", "low_water_bytes", Size(auto="auto"),
           "free disk space below which new durable state is refused, 0 = never;"
           " auto = 5 % of the disk, at least 128 MiB"),
    Option("storage", "ballast", "shell", "ballast_bytes", Size(), "size of the file deleted"
           " when the disk is full, 0 = none"),
    Option("storage", "generation_size", "settings", "generation_size_bytes", Size(1 << 16),
           "messages are deleted from disk in whole generations of this size"),
    Option("storage", "generation_age", "settings", "generation_age_s", Duration(_S, low=1),
           "a generation is closed at this age too"),
    Option("storage", "layout", "settings", "layout", Choice("blocks", "filters", "timeline"),
           "key layout of new generations"),
    Option("storage", "store", "settings", "store", Choice("durable", "all"),
           "durable = store what a durable subscription matches, all = store everything"),
    Option("storage", "total_bytes", "settings", "total_bytes_max", Size(),
           "bytes of all stored messages together, 0 = no limit"),
    Option("session", "expiry_max", "settings", "session_expiry_max_s",
           Duration(_S, never="never"), "ceiling for a session's expiry interval"),
    Option("session", "max_inflight", "settings", "max_inflight", Integer(1, 65_535),
           "un-acknowledged QoS 1/2 messages sent to one session"),
    Option("session", "max_offline_messages", "settings", "max_offline_messages", Integer(0),
           "messages that may wait for one offline session" + _NONE),
    Option("session", "max_offline_bytes", "settings", "max_offline_bytes", Size(),
           "bytes that may wait for one offline session" + _NONE),
    Option("session", "max_age", "settings", "max_age_s", Duration(_S),
           "age at which a waiting message is dropped" + _NONE),
    Option("session", "on_limit", "settings", "on_limit",
           Choice("drop_oldest", "drop_new", "reject"),
           "what to drop at these limits; reject = drop nothing, answer 0x97 to the publisher"),
    Option("session", "store_qos0", "settings", "store_qos0", Flag(),
           "queue QoS 0 messages for offline sessions too"),
    Option("session", "subscriptions_max", "settings", "subscriptions_per_session_max", Integer(1),
           "topic filters one session may hold"),
    Option("session", "subscriptions_bytes", "settings", "subscription_bytes_max", Size(1),
           "bytes of all its topic filters together"),
    Option("session", "pending_messages", "settings", "pending_messages_max", Integer(1),
           "messages waiting in RAM before a live session reads from disk"),
    Option("session", "clean_queue_messages", "settings", "clean_queue_messages_max", Integer(0),
           "messages waiting in RAM for a clean session before on_limit applies"),
    Option("session", "pending_bytes", "settings", "pending_bytes_max", Size(1),
           "payload bytes waiting in RAM before a live session reads from disk"),
    Option("session", "clean_queue_bytes", "settings", "clean_queue_bytes_max", Size(1),
           "payload bytes waiting in RAM for a clean session before on_limit applies"),
    Option("session", "progress_delay", "settings", "progress_delay_ms",
           Duration(_MS, high=60_000), "how late a QoS 1 acknowledgement may reach the disk"),
    Option("limits", "receive_maximum", "settings", "receive_maximum", Integer(1, 65_535),
           "un-acknowledged QoS 1/2 messages accepted from one client"),
    Option("limits", "maximum_packet_size", "settings", "maximum_packet_size",
           Size(128, _PACKET_MAX), "largest packet accepted"),
    Option("limits", "topic_alias_maximum", "settings", "topic_alias_maximum", Integer(0, 65_535),
           "topic aliases a client may set"),
    Option("limits", "outbound_topic_alias_maximum", "settings", "outbound_topic_alias_maximum",
           Integer(0, 65_535), "topic aliases used towards a client"),
    Option("limits", "maximum_qos", "settings", "maximum_qos", Integer(0, 2), "highest QoS served"),
    Option("limits", "retain_available", "settings", "retain_available", Flag(),
           "accept retained messages"),
    Option("limits", "retained_messages", "settings", "retained_messages_max", Integer(0),
           "retained messages kept" + _NONE),
    Option("limits", "wildcard_subscriptions", "settings", "wildcard_subscriptions", Flag(),
           "serve topic filters with wildcards"),
    Option("limits", "shared_subscriptions", "settings", "shared_subscriptions", Flag(),
           "serve $share subscriptions"),
    Option("limits", "subscription_identifiers", "settings", "subscription_identifiers", Flag(),
           "serve subscription identifiers"),
    Option("limits", "keep_alive_max", "settings", "keep_alive_max_s",
           Duration(_S, high=65_535), "ceiling for Keep Alive" + _NONE),
    Option("limits", "connect_timeout", "settings", "connect_timeout_ms",
           Duration(_MS, low=100), "time from accept to a complete CONNECT"),
    Option("limits", "max_connections", "settings", "max_connections", Integer(0),
           "open connections" + _NONE),
    Option("limits", "connections_per_address", "settings", "connections_per_address", Integer(0),
           "open connections of one network address" + _NONE),
    Option("limits", "connection_rate", "settings", "connection_rate", Integer(0),
           "new connections per second" + _NONE),
    Option("limits", "connect_size", "settings", "connect_size_max", Size(128, _PACKET_MAX),
           "largest CONNECT accepted"),
    Option("limits", "publish_rate", "settings", "publish_rate", Integer(0),
           "PUBLISH packets per second from one client" + _NONE),
    Option("limits", "receive_rate", "settings", "receive_rate_bytes", Size(),
           "bytes per second from one client" + _NONE),
    Option("limits", "on_rate", "settings", "on_rate", Choice("throttle", "disconnect"),
           "above these two: read more slowly, or close with 0x96"),
    Option("limits", "client_id_bytes", "settings", "client_id_bytes_max", Integer(23, 65_535),
           "longest client identifier"),
    Option("limits", "topic_levels", "settings", "topic_levels_max", Integer(1, 32_768),
           "levels of a topic name or filter"),
    Option("limits", "out_buffer", "settings", "out_buffer_bytes_max", Size(1 << 10),
           "bytes waiting for one slow client before it gets no new messages"),
    Option("limits", "held_bytes", "settings", "held_bytes_max", Size(1 << 10),
           "bytes of one client waiting for a commit before reading from it stops"),
    Option("limits", "expiry_slice", "settings", "expiry_slice", Integer(1, 1_000_000),
           "rows deleted per turn of the event loop when sessions or messages expire"),
    Option("limits", "tick_work", "settings", "tick_work_max", Integer(1, 1_000_000),
           "packets, deliveries, rows or 128 bytes read, per turn of the loop; the rest waits"),
    Option("limits", "heartbeat", "settings", "heartbeat_ms", Duration(_MS, low=100, high=60_000),
           "period of the row that tells the time of a crash"),
    Option("limits", "drain_timeout", "shell", "drain_timeout_ms", Duration(_MS, low=100),
           "longest wait for clients and the disk at SIGTERM"),
    Option("limits", "user_properties", "settings", "user_properties", Pairs(),
           "user properties of every v5 CONNACK"),
    Option("redirect", "server_reference", "settings", "server_reference", Text(empty_is_none=True),
           "other brokers to send v5 clients to: host:port, separated by spaces"),
    Option("redirect", "permanent", "settings", "server_moved", Flag(),
           "true = server moved (0x9D), false = use another server (0x9C)"),
    Option("redirect", "when", "settings", "redirect_when", Choice("drain", "always"),
           "drain = when this broker ends, always = accept no clients"),
    Option("metrics", "enabled", "shell", "metrics_enabled", Flag(),
           "serve /metrics, /healthz and /readyz"),
    Option("metrics", "host", "shell", "metrics_host", Text(), "address of the metrics server"),
    Option("metrics", "port", "shell", "metrics_port", Integer(0, 65_535),
           "port of the metrics server, 0 = any free one"),
    Option("metrics", "backlog_interval", "shell", "backlog_interval_s", Duration(_S),
           "how often what is owed is counted in the background, 0 = never; less often if that "
           "takes more than a fiftieth of a core"),
    Option("auth", "password_file", "shell", "password_file", Text(empty_is_none=True),
           "file of `holdfast passwd` or mosquitto_passwd; empty = no passwords"),
    Option("auth", "acl_file", "shell", "acl_file", Text(empty_is_none=True),
           "who may publish and read what, as mosquitto's acl_file; empty = no rules"),
    Option("auth", "allow_anonymous", "shell", "allow_anonymous", Flag(),
           "allow clients without a user name (default: only without a password file)"),
    Option("auth", "hash_threads", "shell", "hash_threads", Integer(1, 64),
           "threads that verify passwords (19 MiB each)"),
    Option("log", "level", "shell", "log_level", Choice("debug", "info", "warning", "error"),
           "lowest level written"),
    Option("log", "format", "shell", "log_format", Choice("auto", "logfmt", "json"),
           "auto = logfmt on a terminal, json otherwise"),
    Option("history", "detail", "settings", "history_detail", Detail(), "what is recorded: off,"
           " sessions = no messages, books = also counters of messages per minute, sampled:1/N ="
           " also every event of one message in N, full = every event of every message"),
    Option("history", "dir", "shell", "history_dir", Text(empty_is_none=True),
           "directory of the exported segments (Parquet); empty = history in the data directory"),
    Option("history", "node", "shell", "history_node", Name(empty_is_none=True),
           "name of this broker in it; empty = the host's when the data directory was new"),
    Option("history", "outbox_bytes_max", "shell", "history_outbox_bytes_max", Size(1 << 20),
           "bytes that may wait in the database for their export; near it less is recorded"),
    Option("history", "seal_events", "shell", "history_seal_events", Integer(1000, 5_000_000),
           "events of one segment at most"),
    Option("history", "seal_seconds", "shell", "history_seal_s", Integer(1, 3600),
           "seconds after which events are exported at the latest"),
    Option("history", "drain_timeout", "shell", "history_drain_ms", Duration(_MS, high=600_000),
           "longest wait at SIGTERM for the export of the rest, 0 = the next start exports it"),
    Option("history", "keep_days", "shell", "history_keep_days", Integer(0, 36_500),
           "days after which exported segments are removed, 0 = never"),
    Option("history", "hash_names", "settings", "history_hash_names", Flag(),
           "record keyed hashes in place of client ids, user names, topics and topic filters"),
    Option("history", "hash_key", "settings", "history_hash_key", Secret(),
           "key of these hashes, at least 16 characters; whoever has it can test guesses"),
    Option("sys", "interval", "settings", "sys_interval_s", Duration(_S),
           "period of the $SYS topics, 0 = off"),
)  # fmt: skip

# Of `[backends.NAME]`: there is none unless somebody writes it.
BACKEND_OPTIONS: Final[tuple[Option, ...]] = (
    Option("backends", "type", "backend", "type", Choice(*backend_options.TYPES),
           "what kind of store it is"),
    Option("backends", "servers", "backend", "servers", Servers(),
           "host:port of the server; of the sentinels, or of servers of the cluster, by the mode"),
    Option("backends", "mode", "backend", "mode", Choice(*backend_options.MODES),
           "one server, the one that the sentinels name, or a cluster"),
    Option("backends", "sentinel_name", "backend", "sentinel_name", Text(empty_is_none=True),
           "what the sentinels call the group of servers"),
    Option("backends", "sentinel_username", "backend", "sentinel_username",
           Text(empty_is_none=True), "user name at the sentinels; empty = the default user"),
    Option("backends", "sentinel_password", "backend", "sentinel_password", Secret(),
           "password of the sentinels; empty = none"),
    Option("backends", "sentinel_password_file", "backend", "sentinel_password_file",
           Text(empty_is_none=True),
           "file whose first line is that password, read at each connect"),
    Option("backends", "database", "backend", "database", Integer(0, 1_000_000),
           "number of the database in the server"),
    Option("backends", "username", "backend", "username", Text(empty_is_none=True),
           "user name; empty = the default user"),
    Option("backends", "password", "backend", "password", Secret(), "password; empty = none"),
    Option("backends", "password_file", "backend", "password_file", Text(empty_is_none=True),
           "file whose first line is the password, read at each connect"),
    Option("backends", "tls", "backend", "tls", Flag(), "connect with TLS"),
    Option("backends", "tls_ca", "backend", "tls_ca", Text(empty_is_none=True),
           "file of the CA certificates (PEM); empty = those of the system"),
    Option("backends", "tls_certificate", "backend", "tls_certificate", Text(empty_is_none=True),
           "file of our certificate, where the server asks for one"),
    Option("backends", "tls_key", "backend", "tls_key", Text(empty_is_none=True),
           "file of its private key; empty = in the certificate's file"),
    Option("backends", "tls_verify", "backend", "tls_verify", Flag(),
           "check the server's certificate and name"),
    Option("backends", "node", "backend", "node", Text(empty_is_none=True),
           "name of this broker in the store; empty = history.node"),
    Option("backends", "required", "backend", "required", Flag(),
           "/readyz fails while the store cannot be reached"),
    Option("backends", "rewind_keep", "backend", "rewind_keep_ms",
           Duration(_MS, high=7 * 86_400_000),
           "how long rows are kept that the store has confirmed: it may lose its newest"),
    Option("backends", "backlog_bytes_max", "backend", "backlog_bytes_max", Size(),
           "how much may wait for the store, at least 16MiB; 0 = no limit"),
    Option("backends", "on_full", "backend", "on_full",
           Choice(backend_options.DROP_OLDEST, backend_options.REJECT),
           "beyond it the oldest rows go, or QoS 1 and 2 messages for the store are refused"),
    Option("backends", "score", "backend", "score", Choice(*backend_options.SCORES),
           "score of a message in the set of its topic: its time in ms, or 1"),
    Option("backends", "channel", "backend", "channel", Text(empty_is_none=True),
           "channel where applications tell of subscriptions of clients; empty = none"),
    Option("backends", "stream", "backend", "stream", Text(empty_is_none=True),
           "stream where they do, which forgets nothing; empty = none"),
    Option("backends", "timeout", "backend", "timeout_ms", Duration(_MS, low=100, high=600_000),
           "longest wait for an answer of the store"),
    Option("backends", "connections", "backend", "connections", Integer(1, 256),
           "writes that are under way at once; those of one key keep their order"),
    Option("backends", "batch_rows", "backend", "batch_rows", Integer(1, 500),
           "rows that are sent at once, at most"),
    Option("backends", "linger", "backend", "linger_ms", Duration(_MS, high=10_000),
           "how long rows may wait for others until a batch is full"),
    Option("backends", "retry_first", "backend", "retry_first_ms",
           Duration(_MS, low=10, high=3_600_000),
           "wait before a store that fails is tried again; each further wait is twice as long"),
    Option("backends", "retry_max", "backend", "retry_max_ms",
           Duration(_MS, low=10, high=3_600_000), "longest of these waits"),
    Option("backends", "expires", "backend", "expires_s", Duration(_S),
           "age at which the store drops a message; 0 = when the message itself expires"),
    Option("backends", "max_returned_count", "backend", "max_returned_count", Integer(1, 1000),
           "messages that are fetched at once for a subscription; then the next ones are"),
    Option("backends", "time_range", "backend", "time_range_ms", Duration(_MS),
           "older messages than this are not fetched; 0 = all are"),
    Option("backends", "keyspace", "backend", "keyspace",
           Matching("[A-Za-z][A-Za-z0-9_]{0,47}", "up to 48 letters, digits and '_'"),
           "keyspace of the tables"),
    Option("backends", "table_prefix", "backend", "table_prefix",
           Matching("[A-Za-z0-9_.-]{0,64}", "up to 64 letters, digits, '_', '-' and '.'"),
           "what the names of our tables begin with"),
    Option("backends", "datacenter", "backend", "datacenter", Text(empty_is_none=True),
           "data center that is asked; empty = the one of the first server that answers"),
    Option("backends", "consistency", "backend", "consistency",
           Choice(*backend_options.CONSISTENCIES), "how many replicas must have written a row"),
    Option("backends", "sender_index", "backend", "sender_index", Flag(),
           "backend create makes an index of messages by who has sent them (Cassandra 5.0)"),
    Option("backends", "region", "backend", "region",
           Matching("[a-z0-9-]{1,64}", "the name of a region such as 'eu-central-1'",
                    empty_is_none=True), "region of AWS; empty = as AWS's own settings say"),
    Option("backends", "endpoint", "backend", "endpoint",
           Matching(_URL, "an address such as 'http://127.0.0.1:8000'", empty_is_none=True),
           "address of the service; empty = the one of AWS in the region"),
    Option("backends", "access_key_id", "backend", "access_key_id", Text(empty_is_none=True),
           "access key of AWS; empty = from the environment, the profile or the machine's role"),
    Option("backends", "secret_access_key", "backend", "secret_access_key", Secret(),
           "its secret"),
    Option("backends", "secret_access_key_file", "backend", "secret_access_key_file",
           Text(empty_is_none=True), "file whose first line is the secret, read at each connect"),
    Option("backends", "layout", "backend", "layout", Choice(*backend_options.LAYOUTS),
           "v1 = all ids of a topic in one item, at most 8,700 of them; v2 = an item for each"),
    Option("backends", "exact", "backend", "exact", Flag(),
           "write each batch in transactions that move the cursor as well"),
    Option("backends", "topic", "backend", "topic", Text(empty_is_none=True),
           "topic of the store that gets the rows; may have names such as ${topic}"),
    Option("backends", "key", "backend", "key", Choice(*backend_options.MESSAGE_KEYS),
           "what rows are kept in order by"),
    Option("backends", "value", "backend", "value", Choice(*backend_options.MESSAGE_VALUES),
           "what a row is sent as: all of it as JSON, or of a message the payload alone"),
    Option("backends", "sasl_mechanism", "backend", "sasl_mechanism",
           Choice(*backend_options.SASL_MECHANISMS), "how the user name is proved"),
    Option("backends", "url", "backend", "url", Url(), "where rows are sent"),
    Option("backends", "secret", "backend", "secret", Secret(),
           "key of the signature (HMAC-SHA256) of each request; empty = no signature"),
    Option("backends", "secret_file", "backend", "secret_file", Text(empty_is_none=True),
           "file whose first line is this key, read at each connect"),
    Option("backends", "headers", "backend", "headers", Headers(),
           "further headers of each request"),
)  # fmt: skip

# Of `[[rules]]`.
RULE_OPTIONS: Final[tuple[Option, ...]] = (
    Option("rules", "on", "rule", "on", Text(), "hook: when something is done"),
    Option("rules", "topic", "rule", "topic", Text(), "topic filter: for which topics"),
    Option("rules", "backend", "rule", "backend", Text(), "name of the backend"),
    Option("rules", "action", "rule", "action", Text(aliases=backend_options.ACTION_ALIASES),
           "what is done"),
    Option("rules", "commands", "rule", "commands", Lines(), "own commands, in place of an action"),
    Option("rules", "cql", "rule", "cql", Lines(), "own statements of a Cassandra backend"),
    Option("rules", "statements", "rule", "statements", Lines(),
           "own PartiQL statements of a DynamoDB backend"),
    Option("rules", "expires", "rule", "expires_s", Duration(_S),
           "as of the backend, for this rule; 0 = what the backend says"),
    Option("rules", "max_returned_count", "rule", "max_returned_count", Integer(0, 1000),
           "the same"),
    Option("rules", "time_range", "rule", "time_range_ms", Duration(_MS), "the same"),
    Option("rules", "sync", "rule", "sync", Choice(*backend_options.SYNCS),
           "what the store lists is added, or also removed when it is there no more"),
    Option("rules", "bypass_acl", "rule", "bypass_acl", Flag(),
           "clients get also what they may not subscribe to or read themselves"),
    Option("rules", "qos0", "rule", "qos0", Flag(),
           "for messages with QoS 0, too; without an action"),
    Option("rules", "wait", "rule", "wait_ms", Duration(_MS, high=60_000),
           "how long a CONNECT waits for its list, up to 60s; 0 = not at all"),
    Option("rules", "required", "rule", "required", Flag(),
           "refuse a client whose list is not to be had in that time"),
)  # fmt: skip

BY_NAME: Final = {option.name: option for option in OPTIONS}
SECTIONS: Final = tuple(dict.fromkeys(option.section for option in OPTIONS))
BACKEND_KEYS: Final = {option.key: option for option in BACKEND_OPTIONS}
RULE_KEYS: Final = {option.key: option for option in RULE_OPTIONS}
