//! Plays one case: the cache, the open forward, and what is compared after every step.

use crate::calls;
use crate::case::{elements_of, Fields, HostTensor};
use crate::config::config_of;
use kvcache::{
    Cache, CacheRef, CpuIsa, Error, Forward, ManagedTensor, OpLayout, Plan, SeqId, Transfer, Transport,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::rc::Rc;

/// A pool of a host program, for the operators.
pub struct HostPool {
    pub k: HostTensor,
    pub v: Option<HostTensor>,
    pub layout: OpLayout,
    pub scales: HostScales,
}

/// The scales of its rows.
pub enum HostScales {
    None,
    PerTensor { k: f32, v: f32 },
    PerTokenHead { k: HostTensor, v: Option<HostTensor> },
}

/// A cache of a case.
pub struct Side {
    plan: Rc<Plan>,
    pub cache: Cache,
}

/// A transfer from each of some senders, whose caches have names, to one receiver.
pub struct Moving {
    pub transport: Transport,
    pub receiving: Transfer,
    pub sending: Vec<(String, Transfer)>,
}

pub struct Player {
    pub isa: CpuIsa,
    /// Plan and name of the cache that the step is about.
    pub plan: Rc<Plan>,
    pub name: String,
    /// The other caches.
    pub sides: BTreeMap<String, Side>,
    /// The transfer that waits to arrive.
    pub moving: Option<Moving>,
    tolerance: f64,
    /// Results of attention that a later step merges: out and LSE.
    pub partials: HashMap<String, (HostTensor, HostTensor)>,
    pub pools: HashMap<String, HostPool>,
    /// State files by name.
    pub files: HashMap<String, Vec<u8>>,
    pub checks: usize,
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

/// What a step has to say: its call's answer, or nothing where no program that compiles makes the call.
pub type Played = Option<Answer>;

pub fn integers(tensor: &ManagedTensor) -> Vec<i64> {
    match tensor.as_slice::<i64>() {
        Some(elements) => elements.to_vec(),
        None => tensor.as_slice::<i32>().expect("a table of integers").iter().map(|x| (*x).into()).collect(),
    }
}

/// A field of a struct of numbers by its C name, taken from how the struct prints itself.
fn field(of: &impl Debug, name: &str) -> i64 {
    let text = format!("{of:?}");
    let start = text.find(&format!(" {name}: ")).unwrap_or_else(|| panic!("{text} has no field '{name}'"));
    let number = &text[start + name.len() + 3..];
    let kind = number.find('(').filter(|open| number[..*open].starts_with("kvc_"));
    let number = &number[kind.map_or(0, |open| open + 1)..];
    let end = number.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().unwrap_or_else(|_| panic!("{name} of {text} is no number"))
}

fn number(text: &str) -> i64 {
    text.parse().expect("a number as key")
}

fn allowed_statuses(step: Fields<'_>) -> Vec<&str> {
    let stated: Vec<_> = step.list("status").iter().map(|status| status.as_str().unwrap()).collect();
    if stated.is_empty() {
        vec!["KVC_OK"]
    } else {
        stated
    }
}

impl Player {
    pub fn equal<T: Debug + PartialEq>(&mut self, actual: T, wanted: T, what: &str) {
        assert_eq!(actual, wanted, "{what}");
        self.checks += 1;
    }

    /// Compares a number with the step's, where it has one.
    pub fn answer(&mut self, step: Fields<'_>, key: &str, actual: i64) {
        if step.has(key) {
            self.equal(actual, step.int(key), key);
        }
    }

    pub fn check_fields(&mut self, of: &impl Debug, expected: Fields<'_>, key: &str, what: &str) {
        for (name, wanted) in expected.members(key) {
            self.equal(Some(field(of, name)), wanted.as_i64(), &format!("{name} of {what}"));
        }
    }

    /// Compares a result with what the step expects under a key.
    pub fn compare(&mut self, step: Fields<'_>, key: &str, got: &HostTensor) {
        let want = step.object(key);
        assert_eq!(got.shape(), want.sizes("shape"), "shape of {key}");
        let (expected, actual, rows) = (elements_of(want), got.elements(), want.sizes("rows"));
        let count = got.shape().first().copied().unwrap_or(1);
        let row = actual.len() / count.max(1);
        let own = want.has("tolerance").then(|| want.num("tolerance"));
        let tolerance = if want.flag("exact") { 0.0 } else { own.unwrap_or(self.tolerance) };
        want.text("dtype");
        for (i, wanted) in expected.iter().enumerate() {
            let at = if want.has("rows") { rows[i / row] * row + i % row } else { i };
            let near = (actual[at] - wanted).abs() <= tolerance * wanted.abs().max(1.0);
            assert!(
                actual[at] == *wanted || (wanted.is_finite() && near),
                "{key} has {} instead of {wanted} in row {}, element {}",
                actual[at],
                at / row,
                at % row
            );
        }
        self.checks += expected.len();
        let padding = &actual[want.int_or("untouched", count as i64) as usize * row..];
        assert!(padding.iter().all(|x| x.is_nan()), "padding rows of {key} were written");
    }

    /// Number of the page table that a layer reads.
    pub fn group_of(&self, layer: usize) -> usize {
        usize::try_from(self.plan.layer(layer).unwrap().group).expect("a layer with pages")
    }

    fn seq_pages(&self, cache: &CacheRef, seq: SeqId, group: usize) -> Vec<i64> {
        integers(&cache.export_seq_pages(seq, group).unwrap())
    }

    /// What a refused step must leave as it was.
    fn snapshot(&self, cache: &CacheRef) -> String {
        let mut text = format!("{} {}", cache.available_pages(), cache.total_length());
        let groups = self.plan.info().unwrap().num_groups as usize;
        for seq in cache.sequences().unwrap() {
            let pages: Vec<_> = (0..groups).map(|group| self.seq_pages(cache, seq, group)).collect();
            text += &format!("\n{seq} {:?} {pages:?}", cache.seq_info(seq).unwrap());
        }
        text
    }

    /// The snapshot before a step that may be refused.
    fn before(&self, step: Fields<'_>, cache: &CacheRef) -> String {
        if step.has("status") {
            self.snapshot(cache)
        } else {
            String::new()
        }
    }

    fn check_expectations(&mut self, cache: &CacheRef, expect: Fields<'_>) {
        for (seq, wanted) in expect.members("lengths") {
            let length = cache.length(number(seq)).unwrap();
            self.equal(Some(length), wanted.as_i64(), &format!("length of sequence {seq}"));
        }
        self.answer(expect, "available_pages", cache.available_pages());
        self.answer(expect, "total_length", cache.total_length());
        if let Some(empty) = expect.find("empty") {
            let wanted = empty.as_bool().unwrap_or_else(|| empty.as_i64() == Some(1));
            self.equal(cache.is_empty(), wanted, "is empty");
        }
        if expect.has("seqs") {
            self.equal(cache.sequences().unwrap(), expect.ints("seqs"), "sequences");
        }
        for (seq, _) in expect.members("info") {
            let info = cache.seq_info(number(seq)).unwrap();
            self.check_fields(&info, expect.object("info"), seq, &format!("sequence {seq}"));
        }
        for (seq, _) in expect.members("pages") {
            for (layer, wanted) in expect.object("pages").members(seq) {
                let group = self.group_of(number(layer) as usize);
                let kept = self.seq_pages(cache, number(seq), group).len() as i64;
                let what = format!("pages of sequence {seq} for layer {layer}");
                self.equal(Some(kept), wanted.as_i64(), &what);
            }
        }
        if expect.has("stats") {
            self.check_fields(&cache.stats().unwrap(), expect, "stats", "the cache's statistics");
        }
    }

    /// Status, guarantee and expectations, after the step's call.
    fn judge(&mut self, step: Fields<'_>, cache: &CacheRef, answer: &Answer, before: &str) {
        let allowed = allowed_statuses(step);
        let name = answer.as_ref().map_or_else(|error| error.status().name(), |()| "KVC_OK");
        assert!(allowed.contains(&name), "answered {name} {answer:?}, expected {allowed:?}");
        if let Err(error) = answer {
            self.checks += 1;
            assert!(!error.message().is_empty(), "a refusal says why");
            assert_eq!(before, self.snapshot(cache), "a refused call changed the cache");
            self.answer(step, "detail", error.detail());
        }
        self.check_expectations(cache, step.object("expect"));
        cache.check().unwrap();
        step.text("op");
    }

    /// A call that cannot be written is never one that succeeds.
    fn skip(&mut self, step: Fields<'_>, cache: &CacheRef) {
        assert!(!allowed_statuses(step).contains(&"KVC_OK"), "this crate cannot make a call that succeeds");
        step.note_all();
        self.inexpressible += 1;
        self.check_expectations(cache, step.object("expect"));
    }

    /// A step that neither opens nor closes a forward for later ones.
    fn play(&mut self, mut target: Target<'_, '_>, step: Fields<'_>) {
        let before = self.before(step, target.cache());
        match calls::play(self, &mut target, step) {
            Some(answer) => self.judge(step, target.cache(), &answer, &before),
            None => self.skip(step, target.cache()),
        }
    }

    /// Plays steps inside an open forward. Returns the number of the step that closed it, and what closing
    /// answered.
    fn play_open(
        &mut self,
        mut forward: Forward<'_>,
        all: &[Fields<'_>],
        current: &mut usize,
    ) -> (usize, Answer) {
        for (at, step) in all.iter().enumerate().skip(*current + 1) {
            *current = at;
            assert_eq!(
                step.text("cache"),
                self.name,
                "the forward of a cache is closed before another's steps"
            );
            match step.text("op") {
                "end" => return (at, forward.end()),
                "abort" => return (at, forward.abort()),
                _ => self.play(Target::Forward(&mut forward), *step),
            }
        }
        (all.len(), forward.abort())
    }

    /// A forward from its begin to its end.
    fn play_forward(&mut self, cache: &mut CacheRef, all: &[Fields<'_>], current: &mut usize) {
        let step = all[*current];
        let before = self.before(step, cache);
        let opened = calls::begin(self, cache, step).map(|forward| {
            self.judge(step, forward.cache(), &Ok(()), &before);
            self.play_open(forward, all, current)
        });
        match opened {
            Ok((closed, answer)) => {
                *current = closed;
                match all.get(closed) {
                    Some(step) => self.judge(*step, cache, &answer, ""),
                    None => answer.unwrap(),
                }
            }
            Err(error) => self.judge(step, cache, &Err(error), &before),
        }
    }

    fn play_all(&mut self, all: &[Fields<'_>], current: &mut usize) {
        while let Some(step) = all.get(*current).copied() {
            self.name = step.text("cache").into();
            let mut side = self.sides.remove(&self.name).expect("a cache of the case");
            self.plan = side.plan.clone();
            match step.text("op") {
                "begin" => self.play_forward(&mut side.cache, all, current),
                "end" | "abort" => self.skip(step, &side.cache),
                _ => self.play(Target::Cache(&mut side.cache), step),
            }
            self.sides.insert(self.name.clone(), side);
            *current += 1;
        }
    }
}

fn side_of(config: Fields<'_>, isa: CpuIsa) -> Side {
    let plan = Plan::new(&config_of(config, isa)).unwrap();
    let cache = Cache::new(&plan).unwrap();
    Side { plan: Rc::new(plan), cache }
}

/// Plays a case; `current` is the step it is at. Returns how many steps could not be written.
pub fn run(case: Fields<'_>, isa: CpuIsa, current: &mut usize) -> usize {
    let caches = case.members("caches").map(|(name, config)| (name.into(), side_of(Fields(config), isa)));
    let mut sides: BTreeMap<String, Side> = caches.collect();
    sides.insert(String::new(), side_of(case.object("config"), isa));
    let mut player = Player {
        isa,
        plan: sides[""].plan.clone(),
        name: String::new(),
        sides,
        moving: None,
        tolerance: case.num("tolerance"),
        partials: HashMap::new(),
        pools: HashMap::new(),
        files: HashMap::new(),
        checks: 0,
        inexpressible: 0,
    };
    let steps: Vec<_> = case.list("steps").iter().map(Fields).collect();
    steps.iter().for_each(|step| assert!(step.has("from")));
    player.play_all(&steps, current);
    assert!(player.moving.is_none(), "a transfer that nobody waits for");
    for Side { cache, .. } in player.sides.values_mut() {
        for seq in cache.sequences().unwrap() {
            cache.remove(seq).unwrap();
        }
        assert!(cache.is_empty(), "pages leak: all sequences are gone");
        cache.check().unwrap();
    }
    case.refuse_unread("case");
    assert!(player.checks > 0, "the case checks nothing");
    player.inexpressible
}
