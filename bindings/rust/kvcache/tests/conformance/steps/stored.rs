//! Steps that compare what the pages and states hold with the formulas, and write it.

use super::state::{conv_input, linear_of, state_value, view_of};
use crate::json::{Fields, Json};
use crate::rows::{key_tensor, Rows};
use crate::session::{Answer, Played, Session, Target};
use crate::tensor::{HostTensor, Type};
use crate::values::{parse_ids, value, Ids, Kind, Vector};
use kvcache::{CacheRef, Forward, LayerKind};
use std::ops::Range;

fn ids_of(step: &Json) -> Ids {
    parse_ids(step.text("ids", ""), None)
}

fn range_of(step: &Json, ids: &[i64]) -> Range<i64> {
    let begin = step.int("begin", 0);
    begin..step.int("end", begin + ids.len() as i64)
}

/// Tokens of a range that may be a bad one.
fn count(range: &Range<i64>) -> usize {
    (range.end - range.start).clamp(0, 1 << 20) as usize
}

/// K and V of one layer as the library returned them, `[n >= ids][heads][dim]`; empty ones are not looked at.
fn check_stored(session: &Session, step: &Json, layer: usize, ids: &[i64], (k, v): (&[f64], &[f64])) {
    let mut rows = Rows::of_layer(session, layer);
    rows.rope.on = rows.rope.on_append;
    let at = step.get("at").map(|at| parse_ids(at.as_str().unwrap(), None));
    for (i, id) in ids.iter().enumerate() {
        let position = at.as_ref().map_or_else(|| session.position_of(*id), |at| vec![at[i] as f64]);
        for head in 0..rows.kv_heads {
            let key = rows.key_vector(*id, head, &position, *id >= step.int("long_from", i64::MAX));
            let row = i * rows.kv_heads + head;
            let place = |what: &str, d: usize| {
                format!("{what} of token {i} (id {id}) layer {layer} head {head} element {d}")
            };
            for (d, want) in key.iter().enumerate().filter(|_| !k.is_empty()) {
                session.assert_near(k[row * rows.k_dim + d], *want, || place("K", d));
            }
            for d in (0..rows.v_dim).filter(|_| !v.is_empty()) {
                let want = value(Kind::Value, rows.key_layer, *id, head, d);
                session.assert_near(v[row * rows.v_dim + d], want, || place("V", d));
            }
        }
    }
}

fn stored_in_layer(session: &Session, cache: &CacheRef, step: &Json, layer: usize) -> Answer {
    let ids = ids_of(step);
    let rows = Rows::of_layer(session, if layer < session.model.layers.len() { layer } else { 0 });
    let range = range_of(step, &ids);
    let n = count(&range);
    let heads = rows.kv_heads.max(1);
    let mut k = HostTensor::f32(&[n, heads, rows.k_dim.max(1)]);
    let mut v = HostTensor::f32(&[if rows.v_is_k { 0 } else { n }, heads, rows.v_dim.max(1)]);
    let (mut k_out, mut v_out) = (k.view_mut(), v.view_mut());
    let v_out = (!rows.v_is_k).then_some(&mut v_out);
    cache.debug_get_layer(step.seq(), layer, range, Some(&mut k_out), v_out)?;
    assert_eq!(ids.len(), n, "'ids' does not cover [begin, end)");
    check_stored(session, step, layer, &ids, (&k.elements(), &v.elements()));
    Ok(())
}

/// Without "layer": every layer that keeps its own tokens.
fn stored(session: &Session, cache: &CacheRef, step: &Json) -> Answer {
    if step.has("layer") {
        return stored_in_layer(session, cache, step, step.layer());
    }
    (session.model.layer_begin()..session.model.layer_end())
        .filter(|layer| session.model.layers[*layer].keeps_tokens())
        .try_for_each(|layer| stored_in_layer(session, cache, step, layer))
}

/// Values as they are to be stored: K is not turned.
fn store(session: &Session, cache: &mut CacheRef, step: &Json) -> Answer {
    let rows = Rows::of_layer(session, step.layer());
    let formula = |kind, dim| key_tensor(kind, rows.key_layer, &ids_of(step), (rows.kv_heads, dim), 0);
    let (k, v) = (formula(Kind::Key, rows.k_dim), formula(Kind::Value, rows.v_dim));
    let (k, v) = (k.view(), v.view());
    let v = (!rows.v_is_k).then_some(&v);
    cache.debug_set_layer(step.seq(), step.layer(), step.int("begin", 0), Some(&k), v)
}

pub fn gather(session: &Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let rows = Rows::of_layer(session, step.layer());
    let ids = ids_of(step);
    // A refusal may come before or after the shapes are looked at: leave room for any sequence of a scenario.
    let room = ids.len().max(if step.has("status") { 64 } else { 0 });
    let mut k = HostTensor::f32(&[room, rows.kv_heads, rows.k_dim]);
    let mut v = HostTensor::f32(&[if rows.v_is_k { 0 } else { room }, rows.kv_heads, rows.v_dim]);
    let (mut k_out, mut v_out) = (k.view_mut(), v.view_mut());
    let v_out = (!rows.v_is_k).then_some(&mut v_out);
    forward.kv_gather(step.layer(), step.seq(), Some(&mut k_out), v_out)?;
    check_stored(session, step, step.layer(), &ids, (&k.elements(), &v.elements()));
    Ok(())
}

/// All layers of one kind of the slice, which have equal shapes in such scenarios.
struct Stack {
    layers: Vec<usize>,
    rows: Rows,
    /// Layers of the slice, those of other kinds too.
    height: usize,
    begin: usize,
}

fn stack_of(session: &Session, kind: LayerKind) -> Stack {
    let slice = session.model.layer_begin()..session.model.layer_end();
    let (height, begin) = (slice.len(), slice.start);
    let layers: Vec<_> = slice.filter(|layer| session.model.layers[*layer].kind == kind).collect();
    let rows = Rows::of_layer(session, layers.first().copied().unwrap_or(0));
    Stack { layers, rows, height, begin }
}

fn stored_stack(session: &Session, cache: &CacheRef, step: &Json, mla: bool) -> Answer {
    let Stack { layers, rows, height, begin } =
        stack_of(session, if mla { LayerKind::Mla } else { LayerKind::Attention });
    let ids = ids_of(step);
    let range = range_of(step, &ids);
    let n = count(&range);
    let (k_size, v_size) = (n * rows.kv_heads * rows.k_dim, n * rows.kv_heads * rows.v_dim);
    let (mla_shape, k_shape) = ([height, n, rows.k_dim], [height, n, rows.kv_heads, rows.k_dim]);
    let mut k = HostTensor::f32(if mla { &mla_shape } else { &k_shape });
    let mut v = HostTensor::f32(&[height, n, rows.kv_heads, rows.v_dim]);
    if mla {
        cache.debug_get_mla(step.seq(), range, &mut k.view_mut())?;
    } else {
        cache.debug_get_kv(step.seq(), range, Some(&mut k.view_mut()), Some(&mut v.view_mut()))?;
    }
    assert_eq!(ids.len(), n, "'ids' does not cover [begin, end)");
    let (k, v) = (k.elements(), v.elements());
    for layer in layers {
        let slot = layer - begin;
        let v = if mla { &[] } else { &v[slot * v_size..(slot + 1) * v_size] };
        check_stored(session, step, layer, &ids, (&k[slot * k_size..(slot + 1) * k_size], v));
    }
    Ok(())
}

fn store_stack(session: &Session, cache: &mut CacheRef, step: &Json, mla: bool) -> Answer {
    let Stack { rows, height, begin, .. } =
        stack_of(session, if mla { LayerKind::Mla } else { LayerKind::Attention });
    let ids = ids_of(step);
    let layers = begin..begin + height;
    let formula = |kind: Kind, dim: usize| -> Vec<f64> {
        let one = |layer: usize| key_tensor(kind, layer as i64, &ids, (rows.kv_heads, dim), 0).elements();
        layers.clone().flat_map(one).collect()
    };
    let mla_shape = [height, ids.len(), rows.k_dim];
    let k_shape = [height, ids.len(), rows.kv_heads, rows.k_dim];
    let k =
        HostTensor::of(if mla { &mla_shape } else { &k_shape }, Type::F32, formula(Kind::Key, rows.k_dim));
    if mla {
        return cache.debug_set_mla(step.seq(), step.int("begin", 0), &k.view());
    }
    let v_shape = [height, ids.len(), rows.kv_heads, rows.v_dim];
    let v = HostTensor::of(&v_shape, Type::F32, formula(Kind::Value, rows.v_dim));
    cache.debug_set_kv(step.seq(), step.int("begin", 0), Some(&k.view()), Some(&v.view()))
}

/// What a stored state must hold: a formula's value, the last inputs of a convolution, or what a recurrence
/// leaves.
fn expected_state(session: &Session, step: &Json) -> Vector {
    let shape = view_of(session, step).shape;
    if step.has("conv_inputs") {
        let all = parse_ids(step.text("conv_inputs", ""), None);
        let kept = shape[1];
        let input =
            |c: usize, j: usize| conv_input(step.layer(), &all, (all.len() + j) as i64 - kept as i64, c);
        return (0..shape[0])
            .flat_map(|c| (0..kept).map(move |j| (c, j)))
            .map(|(c, j)| input(c, j))
            .collect();
    }
    if let Some(linear) = step.get("linear") {
        let history = parse_ids(linear.text("history", ""), None);
        let (_, states) = linear_of(session, step, linear).run(&history, &[]);
        return states.into_iter().flatten().flatten().collect();
    }
    let elements = 0..shape.iter().product();
    elements.map(|i| state_value(session, step, step.int("value", -1), i)).collect()
}

fn stored_state(session: &Session, cache: &CacheRef, step: &Json) -> Answer {
    let mut out = HostTensor::f32(&view_of(session, step).shape);
    cache.debug_get_state(step.seq(), step.layer(), step.size("state", 0), &mut out.view_mut())?;
    for (i, want) in expected_state(session, step).into_iter().enumerate() {
        session.assert_near(out.get(i), want, || format!("element {i} of the state"));
    }
    Ok(())
}

fn store_state(session: &Session, cache: &mut CacheRef, step: &Json) -> Answer {
    let shape = view_of(session, step).shape;
    let value = |i: usize| state_value(session, step, step.int("value", -1), i);
    let values = HostTensor::of(&shape, Type::F32, (0..shape.iter().product()).map(value));
    cache.debug_set_state(step.seq(), step.layer(), step.size("state", 0), &values.view())
}

pub fn play(session: &mut Session, target: &mut Target<'_, '_>, op: &str, step: &Json) -> Option<Played> {
    let answer = match op {
        "stored" => stored(session, target.cache(), step),
        "store" => store(session, target.cache_mut(), step),
        "stored_kv" => stored_stack(session, target.cache(), step, false),
        "stored_mla" => stored_stack(session, target.cache(), step, true),
        "store_kv" => store_stack(session, target.cache_mut(), step, false),
        "store_mla" => store_stack(session, target.cache_mut(), step, true),
        "stored_state" => stored_state(session, target.cache(), step),
        "store_state" => store_state(session, target.cache_mut(), step),
        _ => return None,
    };
    Some(answer.into())
}
