//! Steps that open a forward and look at it.

use super::inside;
use crate::json::{flatten, Fields, Json};
use crate::session::{Answer, Session};
use crate::tensor::{HostTensor, Type};
use crate::values::Ids;
use kvcache::{Batch, CacheRef, Error, Forward, LayerKind};
use serde_json::json;

/// A list; or {"star": n}, {"chain": n}, {"binary": n}: node i hangs off node 0, i - 1, (i - 1) / 2, and node
/// 0 is a root.
fn tree_parents(json: &Json) -> Vec<i32> {
    if let Some(list) = json.as_array() {
        return list.iter().map(|parent| parent.as_i64().unwrap() as i32).collect();
    }
    let (shape, count) = json.as_object().unwrap().iter().next().unwrap();
    let parent = |i: i32| match shape.as_str() {
        _ if i == 0 => -1,
        "star" => 0,
        "chain" => i - 1,
        "binary" => (i - 1) / 2,
        other => panic!("'{other}' is no shape of a tree"),
    };
    (0..count.as_i64().unwrap() as i32).map(parent).collect()
}

/// Numbers of the tokens: from the step's start of each entry, else on from the largest one so far.
fn token_ids(session: &Session, step: &Json, lengths: &[i64]) -> Ids {
    let mut next = session.next_id;
    let mut ids = Ids::new();
    for (entry, length) in lengths.iter().enumerate() {
        if step.has("ids") {
            next = step.ints("ids")[entry];
        }
        ids.extend(next..next + (*length).max(0));
        next += (*length).max(0);
    }
    ids
}

fn remember_positions(session: &mut Session, json: &[Json]) {
    for (t, id) in session.batch.ids.iter().enumerate() {
        let position = match json[0].as_array() {
            None => vec![json[t].as_f64().unwrap()],
            Some(_) => json.iter().map(|row| row[t].as_f64().unwrap()).collect(),
        };
        session.given_positions.insert(*id, position);
    }
}

pub fn begin<'c>(session: &mut Session, cache: &'c mut CacheRef, step: &Json) -> Result<Forward<'c>, Error> {
    let (seqs, lengths) = (step.ints("seqs"), step.ints("lengths"));
    let ids = token_ids(session, step, &lengths);
    let mut batch = Batch::new(&seqs, &lengths);
    let parents = step.get("tree_parents").map(tree_parents);
    if let Some(parents) = &parents {
        batch = batch.tree_parents(parents);
    }
    let tokens: Vec<i32> = ids.iter().map(|id| *id as i32).collect();
    if step.flag("publish", false) {
        batch = batch.tokens(&tokens);
    }
    if step.flag("partial", false) {
        batch = batch.partial();
    }
    let (shape, elements) = flatten(step.list("positions"));
    let positions = HostTensor::of(&shape, Type::I32, elements);
    if step.has("positions") {
        batch = batch.positions(positions.view());
    }
    let cross_lengths = step.ints("cross_lengths");
    if step.has("cross_lengths") {
        batch = batch.cross_lengths(&cross_lengths);
    }
    let first_cross = step.ints("cross_ids");
    let cross = cross_lengths.iter().zip(first_cross);
    let cross_ids = cross.flat_map(|(length, first)| first..first + *length).collect();

    let forward = cache.begin(&batch)?;
    assert_eq!(forward.num_tokens(), ids.len());
    session.next_id = ids.iter().fold(session.next_id, |next, id| next.max(id + 1));
    session.batch = crate::session::Batch { seqs, lengths, ids, cross_ids };
    if step.has("positions") {
        remember_positions(session, step.list("positions"));
    }
    Ok(forward)
}

/// The call that a layer of this kind gets in a plain forward.
fn run_layer(session: &mut Session, forward: &Forward<'_>, step: &Json, layer: usize) {
    let call = |session: &mut Session, op: &str, arguments: &Json| {
        inside(session, forward, op, arguments)
            .unwrap_or_else(|error| panic!("{op} on layer {layer}: {error}"));
    };
    let view = session.model.layers[layer].clone();
    let mut arguments = json!({ "layer": layer });
    for key in ["q", "at", "q_at", "long_from", "opt", "sees"] {
        if let Some(argument) = step.get(key) {
            arguments[key] = argument.clone();
        }
    }
    if let Some(sees) = step.get("layer_sees").and_then(|sees| sees.get(layer.to_string())) {
        arguments["sees"] = sees.clone();
    }
    match view.kind {
        LayerKind::Attention | LayerKind::Mla | LayerKind::Shared => {
            arguments["append"] = (view.kind != LayerKind::Shared).into();
            call(session, "attn", &arguments);
        }
        LayerKind::Cross => {
            let mut cross = json!({ "layer": layer, "give": !session.batch.cross_ids.is_empty() });
            for (from, to) in [("q", "q"), ("cross_sees", "sees")] {
                if let Some(argument) = step.get(from) {
                    cross[to] = argument.clone();
                }
            }
            call(session, "cross", &cross);
        }
        LayerKind::State => {
            for state in 0..view.states.len() {
                for (key, op) in [("get", "state_get"), ("set", "state_set")] {
                    if let Some(values) = step.get(key) {
                        call(session, op, &json!({ "layer": layer, "state": state, "values": values }));
                    }
                }
            }
        }
        _ => {}
    }
}

/// begin, every layer once, end.
pub fn forward(session: &mut Session, cache: &mut CacheRef, step: &Json) -> Answer {
    let forward = begin(session, cache, step)?;
    if session.model.has_storage() {
        for layer in session.model.layer_begin()..session.model.layer_end() {
            run_layer(session, &forward, step, layer);
        }
    }
    forward.end().unwrap_or_else(|error| panic!("end: {error}"));
    Ok(())
}

pub fn positions(session: &Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let (mut shape, wanted) = flatten(step.list("values"));
    *shape.last_mut().unwrap() = session.batch.ids.len();
    let mut out = HostTensor::new(&shape, Type::I32);
    forward.positions(&mut out.view_mut())?;
    assert_eq!(out.elements(), wanted, "positions of the new tokens");
    Ok(())
}
