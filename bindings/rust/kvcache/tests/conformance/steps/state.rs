//! Steps on recurrent state inside a forward: read, set, linear attention, convolution.

use crate::json::{Fields, Json};
use crate::linear::Linear;
use crate::model::StateView;
use crate::session::{Answer, Session};
use crate::tensor::{HostTensor, Type};
use crate::values::{parse_ids, value, Kind};
use kvcache::{Activation, Forward};

/// A state that the scenario has not got is asked for with a shape of its own.
pub fn view_of(session: &Session, step: &Json) -> StateView {
    let layer = session.model.layers.get(step.layer());
    let state = layer.and_then(|layer| layer.states.get(step.size("state", 0)));
    state.cloned().unwrap_or_else(|| StateView { shape: vec![2], init: -1 })
}

/// Element of the value that `id` names: -1 is the initial value.
pub fn state_value(session: &Session, step: &Json, id: i64, element: usize) -> f64 {
    let id = if id < 0 { view_of(session, step).init } else { id };
    if id < 0 {
        return 0.0;
    }
    value(Kind::State, step.layer() as i64, id, step.size("state", 0), element)
}

pub fn linear_of(session: &Session, step: &Json, json: &Json) -> Linear {
    let shape = view_of(session, step).shape;
    let sizes = if let [heads, k_dim, v_dim] = shape[..] { (heads, k_dim, v_dim) } else { (1, 2, 2) };
    Linear::new(json, step.layer(), sizes)
}

/// Input `index` of a convolution over `all` tokens; zero before the first.
pub fn conv_input(layer: usize, all: &[i64], index: i64, channel: usize) -> f64 {
    usize::try_from(index).map_or(0.0, |index| value(Kind::Input, layer as i64, all[index], 0, channel))
}

/// One padding row behind the batch.
fn batch_shape(session: &Session, step: &Json) -> Vec<usize> {
    let mut shape = view_of(session, step).shape;
    shape.insert(0, session.batch.seqs.len() + 1);
    shape
}

fn state_get(session: &Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let mut out = HostTensor::f32(&batch_shape(session, step));
    forward.state_get(step.layer(), step.size("state", 0), &mut out.view_mut())?;
    let size: usize = view_of(session, step).shape.iter().product();
    for (entry, id) in step.ints("values").into_iter().enumerate() {
        for i in 0..size {
            let wanted = state_value(session, step, id, i);
            assert_eq!(out.get(entry * size + i), wanted, "state of entry {entry} is not value {id}");
        }
    }
    Ok(())
}

fn state_set(session: &Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let size: usize = view_of(session, step).shape.iter().product();
    let ids = step.ints("values");
    let elements = ids.iter().flat_map(|id| (0..size).map(move |i| state_value(session, step, *id, i)));
    let values = HostTensor::of(&batch_shape(session, step), Type::F32, elements);
    forward.state_set(step.layer(), step.size("state", 0), &values.view())
}

fn linear(session: &Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let linear = linear_of(session, step, step);
    let ids = &session.batch.ids;
    let mut out = HostTensor::f32(&[ids.len(), linear.heads, linear.v_dim]);
    linear.with(step.size("state", 0), ids, |opt, inputs| {
        forward.attn_linear(step.layer(), opt, inputs, &mut out.view_mut())
    })?;
    let mut row = 0;
    for (history, length) in step.list("history").iter().zip(&session.batch.lengths) {
        let history = parse_ids(history.as_str().unwrap(), None);
        let (want, _) = linear.run(&history, &ids[row..row + *length as usize]);
        for t in 0..*length as usize {
            for (head, want) in want.iter().enumerate() {
                for (d, want) in want[t].iter().enumerate() {
                    let got = out.get(((row + t) * linear.heads + head) * linear.v_dim + d);
                    session.assert_near(got, *want, || format!("row {} head {head} element {d}", row + t));
                }
            }
        }
        row += *length as usize;
    }
    Ok(())
}

fn conv(session: &Session, forward: &Forward<'_>, step: &Json) -> Answer {
    let shape = view_of(session, step).shape;
    let (channels, width) = (shape[0], shape.get(1).copied().unwrap_or(1) + 1);
    let (layer, ids) = (step.layer(), &session.batch.ids);
    let weight_of =
        |part: i64, channel: usize, element: usize| value(Kind::Weight, layer as i64, part, channel, element);
    let over_channels = |n: usize| (0..channels).flat_map(move |c| (0..n).map(move |j| (c, j)));
    let x = (0..ids.len()).flat_map(|t| over_channels(1).map(move |(c, _)| (t, c)));
    let x = x.map(|(t, c)| conv_input(layer, ids, t as i64, c));
    let x = HostTensor::of(&[ids.len(), channels], Type::F32, x);
    let weight = over_channels(width).map(|(c, j)| weight_of(0, c, j));
    let weight = HostTensor::of(&[channels, width], Type::F32, weight);
    let bias = HostTensor::of(&[channels], Type::F32, over_channels(1).map(|(c, _)| weight_of(1, c, 0)));
    let bias = bias.view();
    let bias = step.flag("bias", false).then_some(&bias);
    let silu = step.text("activation", "NONE") == "SILU";
    let activation = if silu { Activation::Silu } else { Activation::None };
    let mut out = HostTensor::f32(&[ids.len(), channels]);
    let at = (layer, step.size("state", 0));
    forward.state_conv(at, &x.view(), &weight.view(), bias, activation, &mut out.view_mut())?;
    let mut row = 0;
    for (history, length) in step.list("history").iter().zip(&session.batch.lengths) {
        let mut all = parse_ids(history.as_str().unwrap(), None);
        for _ in 0..*length {
            all.push(ids[row]);
            for c in 0..channels {
                let input = |j: usize| conv_input(layer, &all, (all.len() + j) as i64 - width as i64, c);
                let mut want = if bias.is_some() { weight_of(1, c, 0) } else { 0.0 };
                want += (0..width).map(|j| weight_of(0, c, j) * input(j)).sum::<f64>();
                if silu {
                    want /= 1.0 + (-want).exp();
                }
                session.assert_near(out.get(row * channels + c), want, || format!("row {row} channel {c}"));
            }
            row += 1;
        }
    }
    Ok(())
}

pub fn play(session: &Session, forward: &Forward<'_>, op: &str, step: &Json) -> Answer {
    match op {
        "state_get" => state_get(session, forward, step),
        "state_set" => state_set(session, forward, step),
        "linear" => linear(session, forward, step),
        _ => conv(session, forward, step),
    }
}
