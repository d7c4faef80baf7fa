//! Questions that any step may ask about the cache.

use crate::json::{Fields, Json};
use crate::session::Session;
use kvcache::CacheRef;
use std::fmt::Debug;

/// Fields of a struct of numbers by their C names, taken from how it prints itself.
pub fn field(of: &impl Debug, name: &str) -> i64 {
    let text = format!("{of:?}");
    let start = text.find(&format!(" {name}: ")).unwrap_or_else(|| panic!("{text} has no field '{name}'"));
    let number = &text[start + name.len() + 3..];
    let kind = number.find('(').filter(|open| number[..*open].starts_with("kvc_"));
    let number = &number[kind.map_or(0, |open| open + 1)..];
    let end = number.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(number.len());
    number[..end].parse().unwrap_or_else(|_| panic!("{name} of {text} is no number"))
}

pub fn check_fields(of: &impl Debug, expected: &Json, what: &str) {
    for (name, wanted) in expected.as_object().expect("fields") {
        assert_eq!(field(of, name), wanted.as_i64().expect("a number"), "{name} of {what}");
    }
}

/// The entries of an object whose keys are numbers.
pub fn numbered<'a>(of: &'a Json, key: &str) -> impl Iterator<Item = (i64, &'a Json)> {
    let object = of.get(key).and_then(Json::as_object).into_iter().flatten();
    object.map(|(number, value)| (number.parse().expect("a number as key"), value))
}

pub fn check(session: &Session, cache: &CacheRef, expect: &Json) {
    for (seq, wanted) in numbered(expect, "lengths") {
        assert_eq!(cache.length(seq).unwrap(), wanted.as_i64().unwrap(), "length of sequence {seq}");
    }
    if expect.has("free_pages") {
        assert_eq!(cache.free_pages(), expect.int("free_pages", 0), "free pages");
    }
    if let Some(empty) = expect.get("empty") {
        let wanted = empty.as_bool().unwrap_or_else(|| empty.as_i64() == Some(1));
        assert_eq!(cache.is_empty(), wanted, "is empty");
    }
    if expect.has("total_length") {
        assert_eq!(cache.total_length(), expect.int("total_length", 0), "total length");
    }
    if expect.has("seqs") {
        assert_eq!(cache.sequences().unwrap(), expect.ints("seqs"));
    }
    for (seq, fields) in numbered(expect, "info") {
        check_fields(&cache.seq_info(seq).unwrap(), fields, &format!("sequence {seq}"));
    }
    for (seq, layers) in numbered(expect, "pages") {
        for (layer, wanted) in layers.as_object().unwrap() {
            let group = session.group_of(layer.parse().unwrap());
            let kept = session.seq_pages(cache, seq, group).len() as u64;
            assert_eq!(kept, wanted.as_u64().unwrap(), "pages of sequence {seq} for layer {layer}");
        }
    }
    if let Some(stats) = expect.get("stats") {
        check_fields(&cache.stats().unwrap(), stats, "the cache's statistics");
    }
}
