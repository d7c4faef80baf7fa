//! Checks of attention: what each new token sees, stated by a scenario, against the outputs of a call.

use crate::json::{flatten, Fields, Json};
use crate::session::{Partial, Session};
use crate::tensor::{HostTensor, Type};
use crate::values::{attend, parse_ids, rotate, value, values, Ids, Key, Kind, Rope, Softmax, Vector};
use kvcache::{AttnOptions, TensorRef};

/// One attention call, as the formulas take it.
pub struct Rows {
    /// Layers whose formulas make q, and K and V.
    pub q_layer: i64,
    pub key_layer: i64,
    pub q_heads: usize,
    pub kv_heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    /// V is the first v_dim elements of K.
    pub v_is_k: bool,
    pub rope: Rope,
    pub ids: Ids,
}

impl Rows {
    pub fn of_layer(session: &Session, layer: usize) -> Rows {
        let view = &session.model.layers[layer];
        Rows {
            q_layer: layer as i64,
            key_layer: session.model.keys_of(layer) as i64,
            q_heads: view.q_heads,
            kv_heads: view.kv_heads,
            k_dim: view.k_dim,
            v_dim: view.v_dim,
            v_is_k: view.v_is_k || view.latent_rank > 0,
            rope: view.rope.clone(),
            ids: session.batch.ids.clone(),
        }
    }

    /// A layer that the scenario has not got is asked for with the first one's shapes; one without heads
    /// (STATE, NONE) with some: the call is to be refused for its layer.
    pub fn of_any(session: &Session, layer: usize) -> Rows {
        let mut rows = Rows::of_layer(session, if layer < session.model.layers.len() { layer } else { 0 });
        if rows.q_heads < 1 {
            (rows.q_heads, rows.kv_heads) = (1, 1);
        }
        if rows.k_dim < 1 {
            (rows.k_dim, rows.v_dim) = (4, 4);
        }
        rows
    }

    /// With one row more than there are tokens: padding, which no call may touch. It stays NaN.
    pub fn query(&self, step: &Json, padding: usize) -> HostTensor {
        match step.text("q", "zero") {
            "formula" => {
                key_tensor(Kind::Query, self.q_layer, &self.ids, (self.q_heads, self.k_dim), padding)
            }
            "zero" => {
                let zeros = vec![0.0; self.ids.len() * self.q_heads * self.k_dim];
                let shape = [self.ids.len() + padding, self.q_heads, self.k_dim];
                HostTensor::of(&shape, Type::F32, zeros)
            }
            other => panic!("'q' is \"zero\" or \"formula\", not {other}"),
        }
    }

    pub fn keys(&self) -> HostTensor {
        key_tensor(Kind::Key, self.key_layer, &self.ids, (self.kv_heads, self.k_dim), 1)
    }

    pub fn values(&self) -> HostTensor {
        key_tensor(Kind::Value, self.key_layer, &self.ids, (self.kv_heads, self.v_dim), 1)
    }

    pub fn outputs(&self, padding: usize) -> Partial {
        let tokens = self.ids.len() + padding;
        Partial {
            out: HostTensor::f32(&[tokens, self.q_heads, self.v_dim]),
            lse: HostTensor::f32(&[tokens, self.q_heads]),
        }
    }

    /// K of a token as a layer stores it, or the latent of an MLA layer.
    pub fn key_vector(&self, id: i64, head: usize, position: &[f64], use_long: bool) -> Vector {
        let mut k = values(Kind::Key, self.key_layer, id, head, self.k_dim);
        rotate(&self.rope, position, use_long, &mut k);
        k
    }
}

/// `[tokens][heads][dim]` of one formula, and rows of padding.
pub fn key_tensor(
    kind: Kind,
    layer: i64,
    ids: &[i64],
    (heads, dim): (usize, usize),
    padding: usize,
) -> HostTensor {
    let elements = ids.iter().flat_map(|id| {
        (0..heads).flat_map(move |head| (0..dim).map(move |d| value(kind, layer, *id, head, d)))
    });
    HostTensor::of(&[ids.len() + padding, heads, dim], Type::F32, elements)
}

/// The options of a step, whose tensors it owns, and the same for the reference.
pub struct Options {
    scale: f32,
    soft_cap: f32,
    window: i64,
    flags: Vec<String>,
    sinks: Option<HostTensor>,
    alibi: Option<HostTensor>,
    spans: Option<HostTensor>,
    bias: Option<HostTensor>,
    bias_columns: usize,
}

impl Options {
    pub fn new(step: &Json, q_heads: usize) -> Self {
        let none = Json::Object(Default::default());
        let opt = step.get("opt").unwrap_or(&none);
        let of_heads = |key: &str| opt.has(key).then(|| HostTensor::of(&[q_heads], Type::F32, opt.nums(key)));
        let spans = opt.has("spans").then(|| {
            let (_, elements) = flatten(opt.list("spans"));
            HostTensor::of(&[elements.len() / 3, 3], Type::I32, elements)
        });
        let rows = opt.list("bias");
        let bias_columns = rows.first().map_or(0, |row| row.as_array().expect("a row").len());
        let bias = opt.has("bias").then(|| {
            let elements = rows.iter().flat_map(|row| row.as_array().expect("a row"));
            let elements = elements.map(|x| x.as_f64().unwrap_or(f64::NEG_INFINITY));
            HostTensor::of(&[rows.len(), bias_columns], Type::F32, elements)
        });
        Options {
            scale: opt.num("scale", 0.0) as f32,
            soft_cap: opt.num("soft_cap", 0.0) as f32,
            window: opt.int("window", 0),
            flags: opt.list("flags").iter().map(|flag| flag.as_str().expect("a flag").into()).collect(),
            sinks: of_heads("sink_logits"),
            alibi: of_heads("alibi"),
            spans,
            bias,
            bias_columns,
        }
    }

    /// Calls with the options of the crate.
    pub fn with<T>(&self, call: impl FnOnce(&AttnOptions<'_>) -> T) -> T {
        let flag = |name: &str| self.flags.iter().any(|flag| flag == name);
        let view = |tensor: &'_ Option<HostTensor>| -> Option<TensorRef<'static>> {
            // SAFETY: for the length of this function, whose borrow of self is longer.
            tensor.as_ref().map(|tensor| unsafe {
                std::mem::transmute::<TensorRef<'_>, TensorRef<'static>>(tensor.view())
            })
        };
        let (sinks, alibi) = (view(&self.sinks), view(&self.alibi));
        let (spans, bias) = (view(&self.spans), view(&self.bias));
        call(&AttnOptions {
            scale: self.scale,
            soft_cap: self.soft_cap,
            window: self.window,
            batch_invariant: flag("BATCH_INVARIANT"),
            deterministic: flag("DETERMINISTIC"),
            no_cascade: flag("NO_CASCADE"),
            sink_logits: sinks.as_ref(),
            alibi_slopes: alibi.as_ref(),
            bias: bias.as_ref(),
            spans: spans.as_ref(),
        })
    }

    fn softmax(&self, head: usize, k_dim: usize) -> Softmax {
        Softmax {
            scale: if self.scale != 0.0 { self.scale.into() } else { 1.0 / (k_dim as f64).sqrt() },
            soft_cap: self.soft_cap.into(),
            sink: self.sinks.as_ref().map(|sinks| sinks.get(head)),
        }
    }

    /// What is added to the score of a key.
    fn bias(&self, head: usize, row: usize, query_position: f64, key_position: f64) -> f64 {
        let alibi =
            self.alibi.as_ref().map_or(0.0, |slopes| -slopes.get(head) * (query_position - key_position));
        let column = key_position as usize;
        alibi + self.bias.as_ref().map_or(0.0, |bias| bias.get(row * self.bias_columns + column))
    }
}

/// The text of one row, or nothing when the scenario does not state it.
fn text_of_row(texts: &Json, row: usize, num_rows: usize) -> Option<&str> {
    match texts {
        Json::String(text) => Some(text),
        Json::Array(list) => {
            assert_eq!(list.len(), num_rows, "a list has one entry for each new token");
            list[row].as_str()
        }
        rows => rows.get(row.to_string()).and_then(Json::as_str),
    }
}

/// Rotary positions of the keys that a row sees.
fn key_positions(session: &Session, step: &Json, rows: &Rows, row: usize, ids: &[i64]) -> Vec<Vector> {
    let Some(at) = step.get("at") else {
        return ids.iter().map(|id| session.position_of(*id)).collect();
    };
    let text = text_of_row(at, row, rows.ids.len()).expect("'at' states the rows that 'sees' states");
    let positions = parse_ids(text, Some(rows.ids[row]));
    assert_eq!(positions.len(), ids.len(), "'at' and 'sees' differ in length");
    positions.into_iter().map(|position| vec![position as f64]).collect()
}

fn check_row(
    (session, step): (&Session, &Json),
    rows: &Rows,
    options: &Options,
    (row, ids, positions): (usize, &[i64], &[Vector]),
    result: &Partial,
) {
    let own = rows.ids[row];
    let long_from = step.int("long_from", i64::MAX);
    let q_position = match step.get("q_at") {
        Some(positions) => vec![positions[row].as_f64().expect("q_at")],
        None => session.position_of(own),
    };
    for head in 0..rows.q_heads {
        let kv_head = head / (rows.q_heads / rows.kv_heads);
        let mut q = match step.text("q", "zero") {
            "formula" => values(Kind::Query, rows.q_layer, own, head, rows.k_dim),
            _ => vec![0.0; rows.k_dim],
        };
        rotate(&rows.rope, &q_position, own >= long_from, &mut q);
        let keys: Vec<Key> = ids
            .iter()
            .zip(positions)
            .map(|(id, position)| {
                let k = rows.key_vector(*id, kv_head, position, *id >= long_from);
                let own_v = || values(Kind::Value, rows.key_layer, *id, kv_head, rows.v_dim);
                let v = if rows.v_is_k { k.clone() } else { own_v() };
                Key { k, v, bias: options.bias(head, row, q_position[0], position[0]) }
            })
            .collect();
        let want = attend(&options.softmax(head, rows.k_dim), &q, &keys, rows.v_dim);
        let at = row * rows.q_heads + head;
        if result.lse.size() > 0 {
            session.assert_near(result.lse.get(at), want.lse, || format!("LSE of row {row} head {head}"));
        }
        for (d, want) in want.out.iter().enumerate() {
            session.assert_near(result.out.get(at * rows.v_dim + d), *want, || {
                format!("out of row {row} head {head} element {d}")
            });
        }
    }
}

/// `sees`: a template for all rows, one text per row, or an object of row numbers. Absent: nothing is
/// compared.
pub fn check_rows(session: &Session, step: &Json, rows: &Rows, options: &Options, result: &Partial) {
    let Some(sees) = step.get("sees") else { return };
    for row in 0..rows.ids.len() {
        let Some(text) = text_of_row(sees, row, rows.ids.len()) else { continue };
        let ids = parse_ids(text, Some(rows.ids[row]));
        let positions = key_positions(session, step, rows, row, &ids);
        check_row((session, step), rows, options, (row, &ids, &positions), result);
    }
    let written = rows.ids.len() * rows.q_heads;
    for (name, tensor, end) in [("out", &result.out, written * rows.v_dim), ("lse", &result.lse, written)] {
        assert!((end..tensor.size()).all(|i| tensor.get(i).is_nan()), "padding rows of {name} were written");
    }
}
