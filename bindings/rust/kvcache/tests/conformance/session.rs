//! One run of a scenario: the cache, the open forward, and the checks that follow every step.

use crate::json::{Fields, Json};
use crate::model::Model;
use crate::tensor::HostTensor;
use crate::values::{Ids, Vector};
use crate::{expectations, steps};
use kvcache::{Cache, CacheRef, CpuIsa, Error, Forward, ManagedTensor, Plan, SeqId};
use std::collections::HashMap;

/// The sequences of the forward that was begun last.
#[derive(Default)]
pub struct Batch {
    pub seqs: Vec<SeqId>,
    pub lengths: Vec<i64>,
    /// Of the new tokens, packed.
    pub ids: Ids,
    /// Of the encoder tokens that this forward writes, packed.
    pub cross_ids: Ids,
}

/// A result of an attention call that a later step merges.
pub struct Partial {
    pub out: HostTensor,
    pub lse: HostTensor,
}

/// A pool of a host program, for the operators.
pub struct HostPool {
    pub k: HostTensor,
    pub v: Option<HostTensor>,
    pub layout: kvcache::OpLayout,
    pub heads: usize,
    pub k_dim: usize,
    pub v_dim: usize,
}

pub struct Session {
    pub isa: CpuIsa,
    tolerance: f64,
    pub model: Model,
    pub plan: Plan,
    pub batch: Batch,
    pub next_id: i64,
    pub given_positions: HashMap<i64, Vector>,
    pub partials: HashMap<String, Partial>,
    pub pools: HashMap<String, HostPool>,
    /// Steps that this crate's types do not let one write, such as a call on a forward that has ended.
    pub inexpressible: usize,
}

/// What a step acts on: the cache, or the open forward, which lends its cache.
pub enum Target<'a, 'c> {
    Cache(&'a mut CacheRef),
    Forward(&'a mut Forward<'c>),
}

impl Target<'_, '_> {
    pub fn cache(&self) -> &CacheRef {
        match self {
            Target::Cache(cache) => cache,
            Target::Forward(forward) => forward.cache(),
        }
    }

    pub fn cache_mut(&mut self) -> &mut CacheRef {
        match self {
            Target::Cache(cache) => cache,
            Target::Forward(forward) => forward.cache_mut(),
        }
    }
}

/// The status of a step's call; mismatches of its results are panics.
pub type Answer = Result<(), Error>;

/// What a handler has to say.
pub enum Played {
    Called(Answer),
    /// No program that compiles makes this call.
    Inexpressible,
}

impl From<Answer> for Played {
    fn from(answer: Answer) -> Self {
        Played::Called(answer)
    }
}

pub fn integers(tensor: &ManagedTensor) -> Vec<i64> {
    match tensor.as_slice::<i64>() {
        Some(elements) => elements.to_vec(),
        None => tensor.as_slice::<i32>().expect("a table of integers").iter().map(|x| (*x).into()).collect(),
    }
}

fn allowed_statuses(step: &Json) -> Vec<&str> {
    match step.get("status") {
        None => vec!["KVC_OK"],
        Some(Json::String(status)) => vec![status],
        Some(list) => list.as_array().unwrap().iter().map(|status| status.as_str().unwrap()).collect(),
    }
}

impl Session {
    pub fn position_of(&self, id: i64) -> Vector {
        self.given_positions.get(&id).cloned().unwrap_or_else(|| vec![id as f64])
    }

    pub fn assert_near(&self, actual: f64, expected: f64, what: impl FnOnce() -> String) {
        let near = if expected.is_infinite() {
            actual == expected
        } else {
            (actual - expected).abs() <= self.tolerance * expected.abs().max(1.0)
        };
        assert!(near, "{}: {actual} instead of {expected}", what());
    }

    /// Number of the page table that a layer reads.
    pub fn group_of(&self, layer: usize) -> usize {
        usize::try_from(self.plan.layer(layer).unwrap().group).expect("a layer with pages")
    }

    pub fn seq_pages(&self, cache: &CacheRef, seq: SeqId, group: usize) -> Vec<i64> {
        integers(&cache.export_seq_pages(seq, group).unwrap())
    }

    fn snapshot(&self, cache: &CacheRef) -> String {
        let mut text = format!("{} {}", cache.free_pages(), cache.total_length());
        let groups = self.plan.info().unwrap().num_groups as usize;
        for seq in cache.sequences().unwrap() {
            let pages: Vec<_> = (0..groups).map(|group| self.seq_pages(cache, seq, group)).collect();
            text += &format!("\n{seq} {:?} {pages:?}", cache.seq_info(seq).unwrap());
        }
        text
    }

    /// Status, guarantee and expectations, after the step's call.
    fn judge(&self, step: &Json, cache: &CacheRef, answer: &Answer, before: &str) {
        let allowed = allowed_statuses(step);
        let name = answer.as_ref().map_or_else(|error| error.status().name(), |()| "KVC_OK");
        assert!(allowed.contains(&name), "answered {name} {answer:?}, expected {allowed:?}");
        if let Err(error) = answer {
            assert!(!error.message().is_empty(), "a refusal says why");
            assert_eq!(before, self.snapshot(cache), "a refused call changed the cache");
            if step.has("detail") {
                assert_eq!(error.detail(), step.int("detail", 0), "{error}");
            }
        }
        if let Some(expect) = step.get("expect") {
            expectations::check(self, cache, expect);
        }
        cache.check().unwrap();
    }

    /// A step that neither opens nor closes a forward for later ones.
    fn play(&mut self, mut target: Target<'_, '_>, step: &Json) {
        let before = self.snapshot(target.cache());
        match steps::play(self, &mut target, step) {
            Played::Called(answer) => self.judge(step, target.cache(), &answer, &before),
            Played::Inexpressible => self.skip(step, target.cache()),
        }
    }

    /// A call that cannot be written is never one that succeeds.
    fn skip(&mut self, step: &Json, cache: &CacheRef) {
        assert!(
            !allowed_statuses(step).contains(&"KVC_OK"),
            "this crate cannot make the call of a step that succeeds"
        );
        self.inexpressible += 1;
        if let Some(expect) = step.get("expect") {
            expectations::check(self, cache, expect);
        }
    }

    /// Plays steps from `at` on inside an open forward. Returns the number of the step that closed it, and
    /// what closing answered.
    fn play_open(
        &mut self,
        mut forward: Forward<'_>,
        all: &[Json],
        mut at: usize,
        current: &mut usize,
    ) -> (usize, Answer) {
        while at < all.len() {
            *current = at;
            match all[at].text("op", "") {
                "end" => return (at, forward.end()),
                "abort" => return (at, forward.abort()),
                _ => self.play(Target::Forward(&mut forward), &all[at]),
            }
            at += 1;
        }
        (at, forward.abort())
    }

    fn play_all(&mut self, cache: &mut CacheRef, all: &[Json], current: &mut usize) {
        let mut at = 0;
        while at < all.len() {
            *current = at;
            let step = &all[at];
            match step.text("op", "") {
                "begin" => {
                    let before = self.snapshot(cache);
                    // What happened in the open forward, so that its borrow of the cache is over when that is
                    // judged.
                    let opened = steps::forward::begin(self, cache, step).map(|forward| {
                        self.judge(step, forward.cache(), &Ok(()), &before);
                        self.play_open(forward, all, at + 1, current)
                    });
                    match opened {
                        Ok((closed, answer)) => {
                            match all.get(closed) {
                                Some(step) => self.judge(step, cache, &answer, ""),
                                None => answer.unwrap(),
                            }
                            at = closed;
                        }
                        Err(error) => self.judge(step, cache, &Err(error), &before),
                    }
                }
                "end" | "abort" => self.skip(step, cache),
                _ => self.play(Target::Cache(cache), step),
            }
            at += 1;
        }
    }
}

/// Plays a scenario; `current` is the step it is at. Returns how many steps could not be written.
pub fn run(scenario: &Json, isa: CpuIsa, current: &mut usize) -> usize {
    let model = Model::new(scenario.need("config"), isa);
    let plan = Plan::new(&model.config).unwrap();
    let mut cache = Cache::new(&plan).unwrap();
    let mut session = Session {
        isa,
        tolerance: scenario.num("tolerance", 1e-5),
        model,
        plan,
        batch: Batch::default(),
        next_id: 0,
        given_positions: HashMap::new(),
        partials: HashMap::new(),
        pools: HashMap::new(),
        inexpressible: 0,
    };
    session.play_all(&mut cache, scenario.list("steps"), current);
    *current = scenario.list("steps").len();
    for seq in cache.sequences().unwrap() {
        cache.remove(seq).unwrap();
    }
    assert!(cache.is_empty(), "pages leak: all sequences are gone");
    cache.check().unwrap();
    session.inexpressible
}
