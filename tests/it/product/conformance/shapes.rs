//! The objects of Connect's REST API, by their names in its contract.

use super::shape::Kind::{
    Flag, ListOf, Map, MapOrNull, Number, NumberOrNull, Of, OneOf, Text, TextMap, TextOrNull, Texts,
};
use super::shape::{ObjectShape, Others};

/// Of a connector; a task is never STOPPED.
const CONNECTOR_STATES: &[&str] = &["RUNNING", "PAUSED", "STOPPED", "FAILED", "UNASSIGNED", "RESTARTING"];
const TASK_STATES: &[&str] = &["RUNNING", "PAUSED", "FAILED", "UNASSIGNED", "RESTARTING"];
const CONNECTOR_TYPES: &[&str] = &["source", "sink", "unknown"];
/// In a listing of connectors only.
pub(crate) const CONNECTOR_PLUGIN_TYPES: &[&str] = &["source", "sink"];
const PLUGIN_TYPES: &[&str] =
    &["source", "sink", "converter", "header_converter", "transformation", "predicate"];
const KEY_TYPES: &[&str] =
    &["BOOLEAN", "STRING", "INT", "SHORT", "LONG", "DOUBLE", "LIST", "CLASS", "PASSWORD"];

pub(crate) const ERROR: ObjectShape = ObjectShape {
    name: "error",
    required: &[("error_code", Number), ("message", Text)],
    optional: &[],
    others: Others::None,
};

pub(crate) const SERVER_INFO: ObjectShape = ObjectShape {
    name: "server info",
    required: &[("version", Text), ("commit", Text), ("kafka_cluster_id", Text)],
    optional: &[],
    others: Others::Any,
};

pub(crate) const HEALTH: ObjectShape = ObjectShape {
    name: "health",
    required: &[("status", OneOf(&["healthy", "starting", "unhealthy"])), ("message", Text)],
    optional: &[],
    others: Others::None,
};

pub(crate) const INFO: ObjectShape = ObjectShape {
    name: "info",
    required: &[
        ("name", Text),
        ("config", TextMap),
        ("tasks", ListOf(&TASK_ID)),
        ("type", OneOf(CONNECTOR_TYPES)),
    ],
    optional: &[],
    others: Others::Any,
};

pub(crate) const TASK_ID: ObjectShape = ObjectShape {
    name: "task id",
    required: &[("connector", Text), ("task", Number)],
    optional: &[],
    others: Others::None,
};

pub(crate) const TASK_INFO: ObjectShape = ObjectShape {
    name: "task info",
    required: &[("id", Of(&TASK_ID)), ("config", TextMap)],
    optional: &[],
    others: Others::None,
};

pub(crate) const STATUS: ObjectShape = ObjectShape {
    name: "status",
    required: &[
        ("name", Text),
        ("connector", Of(&CONNECTOR_STATE)),
        ("tasks", ListOf(&TASK_STATE)),
        ("type", OneOf(CONNECTOR_TYPES)),
    ],
    optional: &[],
    others: Others::Any,
};

/// Terraform decodes it as a map of texts.
const CONNECTOR_STATE: ObjectShape = ObjectShape {
    name: "connector state",
    required: &[("state", OneOf(CONNECTOR_STATES)), ("worker_id", Text)],
    optional: &[("trace", Text), ("version", Text)],
    others: Others::Texts,
};

pub(crate) const TASK_STATE: ObjectShape = ObjectShape {
    name: "task state",
    required: &[("id", Number), ("state", OneOf(TASK_STATES)), ("worker_id", Text)],
    optional: &[("trace", Text), ("version", Text)],
    others: Others::Any,
};

pub(crate) const EXPANDED: ObjectShape = ObjectShape {
    name: "expanded connector",
    required: &[("info", Of(&INFO)), ("status", Of(&STATUS))],
    optional: &[],
    others: Others::None,
};

pub(crate) const TOPICS: ObjectShape =
    ObjectShape { name: "topics", required: &[("topics", Texts)], optional: &[], others: Others::None };

pub(crate) const OFFSETS: ObjectShape = ObjectShape {
    name: "offsets",
    required: &[("offsets", ListOf(&OFFSET))],
    optional: &[],
    others: Others::None,
};

const OFFSET: ObjectShape = ObjectShape {
    name: "offset",
    required: &[("partition", Map), ("offset", MapOrNull)],
    optional: &[],
    others: Others::None,
};

pub(crate) const MESSAGE: ObjectShape =
    ObjectShape { name: "message", required: &[("message", Text)], optional: &[], others: Others::None };

pub(crate) const PLUGIN: ObjectShape = ObjectShape {
    name: "plugin",
    required: &[("class", Text), ("type", OneOf(PLUGIN_TYPES))],
    optional: &[("version", Text)],
    others: Others::Any,
};

/// AKHQ reads `order`, which Connect 4 does not send.
pub(crate) const KEY_DEFINITION: ObjectShape = ObjectShape {
    name: "key definition",
    required: &[
        ("name", Text),
        ("type", OneOf(KEY_TYPES)),
        ("required", Flag),
        ("default_value", TextOrNull),
        ("importance", OneOf(&["HIGH", "MEDIUM", "LOW"])),
        ("documentation", Text),
        ("group", TextOrNull),
        ("order_in_group", Number),
        ("width", OneOf(&["NONE", "SHORT", "MEDIUM", "LONG"])),
        ("display_name", Text),
        ("dependents", Texts),
    ],
    optional: &[("order", Number)],
    others: Others::None,
};

const KEY_VALUE: ObjectShape = ObjectShape {
    name: "key value",
    required: &[
        ("name", Text),
        ("value", TextOrNull),
        ("recommended_values", Texts),
        ("errors", Texts),
        ("visible", Flag),
    ],
    optional: &[],
    others: Others::None,
};

const VALIDATED_KEY: ObjectShape = ObjectShape {
    name: "validated key",
    required: &[("definition", Of(&KEY_DEFINITION)), ("value", Of(&KEY_VALUE))],
    optional: &[],
    others: Others::None,
};

pub(crate) const VALIDATION: ObjectShape = ObjectShape {
    name: "validation",
    required: &[
        ("name", Text),
        ("error_count", Number),
        ("groups", Texts),
        ("configs", ListOf(&VALIDATED_KEY)),
    ],
    optional: &[],
    others: Others::None,
};

pub(crate) const LOGGER: ObjectShape = ObjectShape {
    name: "logger",
    required: &[("level", Text), ("last_modified", NumberOrNull)],
    optional: &[],
    others: Others::None,
};
