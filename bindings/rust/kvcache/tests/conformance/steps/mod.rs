//! The steps of scenarios, by what they act on.

mod attention;
mod exports;
pub mod forward;
mod operators;
mod prefix;
mod sequences;
mod state;
mod stored;

use crate::json::{Fields, Json};
use crate::session::{Played, Session, Target};

/// Performs a step and checks its results when it succeeded.
pub fn play(session: &mut Session, target: &mut Target<'_, '_>, step: &Json) -> Played {
    let op = step.text("op", "");
    if let Some(answer) = sequences::play(session, target, op, step)
        .or_else(|| stored::play(session, target, op, step))
        .or_else(|| prefix::play(session, target, op, step))
    {
        return answer;
    }
    if op.starts_with("op_") {
        return operators::play(session, op, step).into();
    }
    match (op, target) {
        ("export_pool", target) => exports::export_pool(target.cache_mut(), step).into(),
        ("begin" | "forward", Target::Forward(forward)) => {
            // Refused, so what it would lend is gone by the end of this arm.
            forward::begin(session, forward.cache_mut(), step).map(drop).into()
        }
        ("forward", Target::Cache(cache)) => forward::forward(session, cache, step).into(),
        (_, Target::Cache(_)) => Played::Inexpressible,
        ("positions", Target::Forward(forward)) => forward::positions(session, forward, step).into(),
        ("tables", Target::Forward(forward)) => exports::tables(session, forward, step),
        ("gather", Target::Forward(forward)) => stored::gather(session, forward, step).into(),
        (_, Target::Forward(forward)) => inside(session, forward, op, step).into(),
    }
}

/// Calls of layers.
pub fn inside(
    session: &mut Session,
    forward: &kvcache::Forward<'_>,
    op: &str,
    step: &Json,
) -> crate::session::Answer {
    match op {
        "state_get" | "state_set" | "linear" | "conv" => state::play(session, forward, op, step),
        _ => attention::play(session, forward, op, step),
    }
}
