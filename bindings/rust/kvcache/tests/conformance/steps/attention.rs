//! Steps that append to layers and attend, inside an open forward.

use crate::json::{Fields, Json};
use crate::rows::{check_rows, key_tensor, Options, Rows};
use crate::session::{Answer, Partial, Session};
use crate::tensor::{HostTensor, Type};
use crate::values::{value, Kind};
use kvcache::{AttnOptions, Forward, TensorMut};

/// Runs a call with options and outputs, and checks what each row sees.
fn attend(
    session: &mut Session,
    step: &Json,
    rows: &Rows,
    call: impl FnOnce(&AttnOptions<'_>, (&mut TensorMut<'_>, &mut TensorMut<'_>)) -> Answer,
) -> Answer {
    let options = Options::new(step, rows.q_heads);
    let mut result = rows.outputs(1);
    let Partial { out, lse } = &mut result;
    options.with(|opt| call(opt, (&mut out.view_mut(), &mut lse.view_mut())))?;
    if step.text("op", "") == "fused" {
        result.lse = HostTensor::f32(&[0, rows.q_heads]);
    }
    check_rows(session, step, rows, &options, &result);
    if step.has("into") {
        session.partials.insert(step.text("into", "").into(), result);
    }
    Ok(())
}

fn attn(session: &mut Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let layer = step.layer();
    let rows = Rows::of_any(session, layer);
    let (q, k, v) = (rows.query(step, 1), rows.keys(), rows.values());
    let (q, k, v) = (q.view(), k.view(), v.view());
    let append = step.flag("append", true);
    let kv = (append.then_some(&k), (append && !rows.v_is_k).then_some(&v));
    attend(session, step, &rows, |opt, out| forward.attn(layer, opt, &q, kv, out))
}

fn fused(session: &mut Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let layer = step.layer();
    let rows = Rows::of_any(session, layer);
    let formula =
        |kind, heads| key_tensor(kind, rows.key_layer, &rows.ids, (heads, rows.k_dim), 0).elements();
    let q = rows.query(step, 0).elements();
    let (k, v) = (formula(Kind::Key, rows.kv_heads), formula(Kind::Value, rows.kv_heads));
    let row = |t: usize, part: &[f64], heads: usize| {
        let width = heads * rows.k_dim;
        part[t * width..(t + 1) * width].to_vec()
    };
    let elements = (0..rows.ids.len()).flat_map(|t| {
        [row(t, &q, rows.q_heads), row(t, &k, rows.kv_heads), row(t, &v, rows.kv_heads)].concat()
    });
    let shape = [rows.ids.len() + 1, rows.q_heads + 2 * rows.kv_heads, rows.k_dim];
    let qkv = HostTensor::of(&shape, Type::F32, elements);
    attend(session, step, &rows, |opt, (out, _)| forward.attn_fused_qkv(layer, opt, &qkv.view(), out))
}

/// MLA: the ragged form with the identity as projection: every head gets the latent as K and its first
/// elements as V.
fn self_attention(session: &mut Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let layer = step.layer();
    let rows = Rows::of_any(session, layer);
    let mla = rows.v_is_k;
    let heads = if mla { rows.q_heads } else { rows.kv_heads };
    let tensor = |kind: Kind, dim: usize| {
        let head = |h: usize| if mla { 0 } else { h };
        let elements =
            rows.ids.iter().flat_map(|id| (0..heads).flat_map(move |h| (0..dim).map(move |d| (*id, h, d))));
        let elements = elements.map(|(id, h, d)| value(kind, rows.key_layer, id, head(h), d));
        HostTensor::of(&[rows.ids.len() + 1, heads, dim], Type::F32, elements)
    };
    let k = tensor(Kind::Key, rows.k_dim);
    let v = tensor(if mla { Kind::Key } else { Kind::Value }, rows.v_dim);
    let q = rows.query(step, 1);
    attend(session, step, &rows, |opt, out| {
        forward.attn_self(layer, opt, &q.view(), (&k.view(), &v.view()), out)
    })
}

fn cached(session: &mut Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let layer = step.layer();
    let rows = Rows::of_any(session, layer);
    let q = rows.query(step, 1);
    attend(session, step, &rows, |opt, out| forward.attn_cached(layer, opt, &q.view(), out))
}

fn merge(session: &mut Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let (into, other) = (step.text("into", ""), step.text("other", ""));
    let mut result = session.partials.remove(into).unwrap_or_else(|| panic!("no result {into}"));
    let part = session.partials.get(other).unwrap_or_else(|| panic!("no result {other}"));
    let answer = forward.attn_merge(
        (&mut result.out.view_mut(), &mut result.lse.view_mut()),
        (&part.out.view(), &part.lse.view()),
    );
    if answer.is_ok() {
        let rows = Rows::of_any(session, step.layer());
        check_rows(session, step, &rows, &Options::new(step, rows.q_heads), &result);
    }
    session.partials.insert(into.into(), result);
    answer
}

fn cross(session: &mut Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let layer = step.layer();
    let rows = Rows::of_any(session, layer);
    let ids = session.batch.cross_ids.clone();
    let formula = |kind, dim| key_tensor(kind, rows.key_layer, &ids, (rows.kv_heads, dim), 1);
    let (k, v) = (formula(Kind::Key, rows.k_dim), formula(Kind::Value, rows.v_dim));
    let (q, k, v) = (rows.query(step, 1), k.view(), v.view());
    let give = step.flag("give", false);
    let kv = (give.then_some(&k), give.then_some(&v));
    attend(session, step, &rows, |opt, out| forward.attn_cross(layer, opt, &q.view(), kv, out))
}

fn shared_kv(session: &mut Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let source = step.int("source", 0) as usize;
    let mut rows = Rows::of_any(session, source);
    rows.q_heads = step.size("q_heads", rows.q_heads as i64);
    let q = rows.query(step, 1);
    attend(session, step, &rows, |opt, out| forward.attn_shared_kv(source, opt, &q.view(), out))
}

pub fn play(session: &mut Session, forward: &Forward<'_>, op: &str, step: &Json) -> Answer {
    match op {
        "attn" => attn(session, forward, step),
        "fused" => fused(session, forward, step),
        "self" => self_attention(session, forward, step),
        "cached" => cached(session, forward, step),
        "merge" => merge(session, forward, step),
        "cross" => cross(session, forward, step),
        "shared_kv" => shared_kv(session, forward, step),
        "append" => {
            let rows = Rows::of_any(session, step.layer());
            let (k, v) = (rows.keys(), rows.values());
            let (k, v) = (k.view(), v.view());
            forward.kv_append(step.layer(), (Some(&k), (!rows.v_is_k).then_some(&v)))
        }
        "mla_append" => {
            let rows = Rows::of_any(session, step.layer());
            let latent = key_tensor(Kind::Key, rows.key_layer, &rows.ids, (1, rows.k_dim), 1);
            forward.mla_append(step.layer(), &latent.view())
        }
        other => panic!("no step '{other}'"),
    }
}
