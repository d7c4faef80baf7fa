//! Which keys a scenario may have.

use crate::json::{parse, Fields, Json};
use std::path::Path;

type Keys = &'static [&'static str];

const SCENARIO: Keys = &["name", "about", "config", "tolerance", "steps"];
const CONFIG: Keys = &[
    "page_size",
    "num_pages",
    "byte_budget",
    "layers",
    "layer_begin",
    "layer_end",
    "max_seqs",
    "max_seq_len",
    "storage",
    "max_tokens_per_forward",
    "pool_layout",
    "max_cross_len",
    "num_state_slots",
    "state_stride",
    "num_threads",
    "event_capacity",
    "pad_pages",
];
const LAYER: Keys = &[
    "kind",
    "heads",
    "q_heads",
    "k_dim",
    "v_dim",
    "dtype",
    "v_dtype",
    "rope",
    "window",
    "chunk",
    "source",
    "latent_rank",
    "latent_rope_dim",
    "v_is_k",
    "states",
];
const STATE: Keys = &["shape", "dtype", "init"];
const ROPE: Keys = &[
    "mode",
    "style",
    "rotary_dim",
    "theta",
    "scale",
    "freq_factors",
    "long_freq_factors",
    "scaling",
    "sections",
    "section_layout",
    "factor",
    "low_freq_factor",
    "high_freq_factor",
    "beta_fast",
    "beta_slow",
    "attention_factor",
    "original_context",
    "frequencies",
    "magnitude",
];
const EXPECT: Keys = &["lengths", "free_pages", "empty", "total_length", "seqs", "info", "pages", "stats"];
const OPTIONS: Keys = &["scale", "soft_cap", "window", "sink_logits", "alibi", "spans", "bias", "flags"];
const TABLE: Keys = &["seq_lens", "qo_indptr", "page_indptr", "page_indices", "block_table"];
const EVERY_STEP: Keys = &["op", "about", "status", "detail", "expect"];
const BATCH: Keys = &[
    "seqs",
    "lengths",
    "ids",
    "tree_parents",
    "positions",
    "cross_lengths",
    "cross_ids",
    "publish",
    "partial",
];
const QUERY: Keys = &["tokens", "num_tokens", "salt", "keys", "flags", "priority", "hashes", "hit"];
const QUERY_KEY: Keys = &["type", "offset", "data"];
const ROWS: Keys = &["q", "sees", "at", "q_at", "long_from", "opt"];

/// Keys of an operation, besides those of every step.
const OPERATIONS: &[(&str, &[Keys])] = &[
    ("plan", &[&["config", "groups", "layer_groups", "request_pages", "layers"]]),
    ("add", &[&["seq"]]),
    ("remove", &[&["seq"]]),
    ("fork", &[&["parent", "child", "pos"]]),
    ("pop", &[&["seq", "n"]]),
    ("shift", &[&["seq", "begin", "end", "delta"]]),
    ("set_window", &[&["seq", "window", "sink"]]),
    ("clear", &[]),
    ("resize", &[&["num_pages"]]),
    ("can_append", &[&["seqs", "lengths", "missing"]]),
    ("can", &[&["seq", "what", "pos", "nearest"]]),
    ("checkpoint", &[&["seq"]]),
    ("commit", &[&["seqs", "leaves"]]),
    ("begin", &[BATCH]),
    ("end", &[]),
    ("abort", &[]),
    ("forward", &[BATCH, ROWS, &["layer_sees", "cross_sees", "get", "set"]]),
    ("positions", &[&["values"]]),
    ("tables", &[&["layer", "indptr", "last_page_len", "seq_lens", "qo_indptr", "page_position", "kind"]]),
    ("attn", &[ROWS, &["layer", "append", "rows"]]),
    ("fused", &[ROWS, &["layer"]]),
    ("self", &[ROWS, &["layer", "into"]]),
    ("cached", &[ROWS, &["layer", "into"]]),
    ("merge", &[ROWS, &["layer", "into", "other"]]),
    ("append", &[&["layer"]]),
    ("mla_append", &[&["layer"]]),
    ("cross", &[ROWS, &["layer", "give"]]),
    ("shared_kv", &[ROWS, &["source", "q_heads"]]),
    ("gather", &[&["layer", "seq", "ids", "at", "long_from"]]),
    ("state_get", &[&["layer", "state", "values"]]),
    ("state_set", &[&["layer", "state", "values"]]),
    ("linear", &[&["layer", "state", "decay", "delta", "beta", "scale", "skip", "heads_k", "history"]]),
    ("conv", &[&["layer", "state", "bias", "activation", "history"]]),
    ("stored", &[&["seq", "layer", "begin", "end", "ids", "at", "long_from"]]),
    ("store", &[&["seq", "layer", "begin", "ids"]]),
    ("stored_kv", &[&["seq", "begin", "end", "ids"]]),
    ("store_kv", &[&["seq", "begin", "ids"]]),
    ("stored_mla", &[&["seq", "begin", "end", "ids"]]),
    ("store_mla", &[&["seq", "begin", "ids"]]),
    ("stored_state", &[&["seq", "layer", "state", "value", "conv_inputs", "linear"]]),
    ("store_state", &[&["seq", "layer", "state", "value"]]),
    ("export_pool", &[&["layer", "kind", "shape"]]),
    ("op_pool", &[&["pool", "layout", "num_pages", "page_size", "heads", "k_dim", "v_dim", "dtype"]]),
    ("op_append", &[&["pool", "slots", "ids", "positions", "rope"]]),
    ("op_attention", &[ROWS, &["pool", "table", "q_ids", "q_heads", "full", "rope"]]),
    ("op_mla", &[ROWS, &["pool", "table", "q_ids", "q_heads", "latent_rank"]]),
    ("op_ragged", &[ROWS, &["qo_indptr", "kv_indptr", "q_ids", "k_ids", "q_heads", "heads", "dim", "full"]]),
    ("op_merge", &[&["heads", "dim", "parts"]]),
    ("op_gather", &[&["pool", "table", "ids"]]),
    ("op_copy_pages", &[&["pool", "pairs"]]),
    ("op_rotate", &[&["ids", "heads", "dim", "positions", "rope", "in_place"]]),
    ("prefix_hash", &[&["tokens", "salt", "keys", "block", "values"]]),
    ("match", &[QUERY]),
    ("attach", &[QUERY, &["seq"]]),
    ("insert", &[QUERY, &["seq"]]),
    ("pin", &[QUERY]),
    ("unpin", &[QUERY]),
    ("evict", &[&["pages", "freed"]]),
    ("prefix_reset", &[]),
    ("quota", &[&["salt", "pages"]]),
    ("events", &[&["counts"]]),
    ("op_linear", &[&["ids", "qo_indptr", "heads", "k_dim", "v_dim", "decay", "delta", "beta", "scale"]]),
];

fn check_keys(object: &Json, known: &[Keys], place: &str) {
    let object = object.as_object().unwrap_or_else(|| panic!("{place} has to be an object"));
    for key in object.keys() {
        assert!(known.iter().any(|keys| keys.contains(&key.as_str())), "{place}: unknown key '{key}'");
    }
}

fn check_config(config: &Json, place: &str) {
    check_keys(config, &[CONFIG], place);
    for layer in config.list("layers") {
        check_keys(layer, &[LAYER], &format!("{place}.layers"));
        layer.get("rope").inspect(|rope| check_keys(rope, &[ROPE], &format!("{place}.layers.rope")));
        layer
            .list("states")
            .iter()
            .for_each(|state| check_keys(state, &[STATE], &format!("{place}.layers.states")));
    }
}

fn check_step(step: &Json, place: &str) {
    let op = step.need("op").as_str().expect("op");
    let known = OPERATIONS
        .iter()
        .find(|(name, _)| *name == op)
        .unwrap_or_else(|| panic!("{place}: unknown op '{op}'"));
    check_keys(step, &[&[EVERY_STEP], known.1].concat(), place);
    for (key, keys) in [("expect", EXPECT), ("opt", OPTIONS), ("table", TABLE), ("rope", ROPE)] {
        step.get(key).inspect(|object| check_keys(object, &[keys], &format!("{place}.{key}")));
    }
    step.list("keys").iter().for_each(|key| check_keys(key, &[QUERY_KEY], &format!("{place}.keys")));
    step.get("config").inspect(|config| check_config(config, &format!("{place}.config")));
}

pub fn load_scenario(path: &Path) -> Json {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let scenario = parse(&text);
    check_keys(&scenario, &[SCENARIO], "scenario");
    for key in ["name", "about", "config", "steps"] {
        scenario.need(key);
    }
    check_config(&scenario["config"], "config");
    for (number, step) in scenario.list("steps").iter().enumerate() {
        check_step(step, &format!("step {number}"));
    }
    scenario
}
