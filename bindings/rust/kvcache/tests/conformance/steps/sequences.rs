//! Steps on the plan, the cache and its sequences.

use crate::expectations::{check_fields, numbered};
use crate::json::{Fields, Json};
use crate::model::Model;
use crate::session::{Answer, Played, Session, Target};
use kvcache::{Plan, SeqOp};
use std::collections::HashMap;

fn check_plan(step: &Json, plan: &Plan, layer_begin: usize) {
    if step.has("groups") {
        let found = plan.info().unwrap().num_groups;
        assert_eq!(i64::from(found), step.int("groups", 0), "number of page tables of a sequence");
    }
    for (layer, fields) in numbered(step, "layers") {
        check_fields(&plan.layer(layer as usize).unwrap(), fields, &format!("layer {layer}"));
    }
    // Equal entries: the layers share a page table; different entries: they don't; -1: no table.
    let (mut stated, mut found) = (HashMap::new(), HashMap::new());
    for (index, wanted) in step.ints("layer_groups").into_iter().enumerate() {
        let layer = layer_begin + index;
        let group = plan.layer(layer).unwrap().group;
        if wanted == -1 || group == -1 {
            assert_eq!(i64::from(group), wanted, "group of layer {layer}");
            continue;
        }
        assert_eq!(*stated.entry(wanted).or_insert(group), group, "layer {layer}");
        assert_eq!(*found.entry(group).or_insert(wanted), wanted, "layer {layer}");
    }
    for (tokens, wanted) in numbered(step, "request_pages") {
        let pages = plan.request_pages(tokens).unwrap();
        assert_eq!(pages, wanted.as_i64().unwrap(), "pages of a request of {tokens} tokens");
    }
}

/// Plans the step's own configuration, or asks about the scenario's plan.
fn plan(session: &Session, step: &Json) -> Answer {
    let Some(config) = step.get("config") else {
        check_plan(step, &session.plan, session.model.layer_begin());
        return Ok(());
    };
    let model = Model::new(config, session.isa);
    check_plan(step, &Plan::new(&model.config)?, model.layer_begin());
    Ok(())
}

pub fn play(session: &mut Session, target: &mut Target<'_, '_>, op: &str, step: &Json) -> Option<Played> {
    let need = |key: &str| step.need(key).as_i64().unwrap_or_else(|| panic!("{key}"));
    let (seqs, lengths) = (step.ints("seqs"), || step.ints("lengths"));
    let answer = match op {
        "plan" => plan(session, step),
        "add" => target.cache_mut().add(step.seq()),
        "remove" => target.cache_mut().remove(step.seq()),
        "checkpoint" => target.cache_mut().checkpoint(step.seq()),
        "fork" => {
            let pos = Some(step.int("pos", -1)).filter(|pos| *pos != -1);
            target.cache_mut().fork(need("parent"), need("child"), pos)
        }
        "pop" => target.cache_mut().pop(step.seq(), need("n")),
        "shift" => target.cache_mut().shift(step.seq(), need("begin"), need("end"), need("delta")),
        "set_window" => target.cache_mut().set_window(step.seq(), need("window"), step.int("sink", 0)),
        "clear" => target.cache_mut().clear(),
        "resize" => target.cache_mut().resize(need("num_pages")),
        "can_append" => target.cache().can_append(&seqs, &lengths()).map(|missing| {
            assert_eq!(missing, need("missing"), "missing pages");
        }),
        "can" => {
            let what = match step.text("what", "") {
                "FORK" => SeqOp::Fork,
                "POP" => SeqOp::Pop,
                "SHIFT" => SeqOp::Shift,
                other => panic!("what {other}"),
            };
            target.cache().can(step.seq(), what, need("pos")).map(|nearest| {
                assert_eq!(nearest.unwrap_or(-1), need("nearest"), "nearest position");
            })
        }
        "commit" => {
            let leaves: Vec<_> = step.ints("leaves").into_iter().map(|leaf| leaf as i32).collect();
            target.cache_mut().tree_commit(&seqs, &leaves)
        }
        _ => return None,
    };
    Some(answer.into())
}
