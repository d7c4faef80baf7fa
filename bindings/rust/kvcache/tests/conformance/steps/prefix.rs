//! Steps on the prefix cache. A token's id in the scenario is its id for the cache, so that what `stored`
//! finds in a page says which tokens it holds.

use crate::json::{Fields, Json};
use crate::session::{Answer, Played, Session, Target};
use crate::values::parse_ids;
use kvcache::{CacheRef, EventKind, PrefixKey, Query};
use std::collections::HashMap;

fn tokens_of(step: &Json) -> Vec<i32> {
    let ids = match step.need("tokens").as_str() {
        Some(text) => parse_ids(text, None),
        None => step.ints("tokens"),
    };
    ids.into_iter().map(|id| id as i32).collect()
}

fn keys_of(step: &Json) -> Vec<PrefixKey<'_>> {
    let key = |key| PrefixKey {
        kind: match Json::text(key, "type", "USER") {
            "ADAPTER" => PrefixKey::ADAPTER,
            "MEDIA" => PrefixKey::MEDIA,
            "USER" => PrefixKey::USER,
            other => panic!("type {other}"),
        },
        offset: key.int("offset", 0),
        data: key.text("data", "").as_bytes(),
    };
    step.list("keys").iter().map(key).collect()
}

/// Calls with the step's query, with keys of blocks instead of, or beside, the tokens where the step says so.
fn with_query(
    session: &Session,
    step: &Json,
    call: impl FnOnce(&Query<'_>) -> kvcache::Result<i64>,
) -> Played {
    let (tokens, keys, salt) = (tokens_of(step), keys_of(step), step.text("salt", "").as_bytes());
    let num_tokens = step.int("num_tokens", tokens.len() as i64);
    let mut hashes = if step.has("hashes") {
        let block = session.plan.info().unwrap().prefix_block;
        match kvcache::prefix_hash(&tokens, block, salt, &keys) {
            Ok(hashes) => hashes,
            Err(error) => return Err(error).into(),
        }
    } else {
        Vec::new()
    };
    let mut query = match step.get("hashes") {
        Some(only) if only == "only" => Query::of_hashes(&hashes, num_tokens),
        given => {
            // A number of tokens other than the slice's cannot be given.
            let Some(tokens) = usize::try_from(num_tokens).ok().and_then(|n| tokens.get(..n)) else {
                return Played::Inexpressible;
            };
            // More keys than there are blocks: of anything.
            hashes.resize(given.and_then(Json::as_u64).map_or(hashes.len(), |count| count as usize), [0; 32]);
            Query::new(tokens).hashes(&hashes)
        }
    };
    query = query.salt(salt).keys(&keys).priority(step.int("priority", 0) as i32);
    for flag in step.list("flags") {
        query = match flag.as_str() {
            Some("ALL_TOKENS") => query.all_tokens(),
            Some("WHOLE_BLOCKS") => query.whole_blocks(),
            _ => panic!("flag {flag}"),
        };
    }
    let found = call(&query).map(|tokens| {
        if step.has("hit") {
            assert_eq!(tokens, step.int("hit", 0), "tokens found");
        }
    });
    found.into()
}

fn prefix_hash(step: &Json) -> Answer {
    let (salt, block) = (step.text("salt", "").as_bytes(), step.int("block", 0) as i32);
    let hashes = kvcache::prefix_hash(&tokens_of(step), block, salt, &keys_of(step))?;
    let hashes: Vec<_> = hashes.iter().map(|hash| crate::hex(hash)).collect();
    let wanted: Vec<_> = step.list("values").iter().map(|value| value.as_str().unwrap()).collect();
    assert_eq!(hashes, wanted);
    Ok(())
}

/// Polls everything that waits, two events at a time.
fn events(cache: &mut CacheRef, step: &Json) -> Answer {
    let mut counts = HashMap::new();
    loop {
        let some = cache.events_poll(2)?;
        if some.is_empty() {
            break;
        }
        for event in some {
            *counts.entry(event.kind).or_insert(0) += 1;
        }
    }
    let kinds = [
        ("STORED", EventKind::Stored),
        ("REMOVED", EventKind::Removed),
        ("MOVED", EventKind::Moved),
        ("CLEARED", EventKind::Cleared),
    ];
    for (name, kind) in kinds {
        let wanted = step.get("counts").map_or(0, |counts| counts.int(name, 0));
        assert_eq!(counts.get(&kind).copied().unwrap_or(0), wanted, "{name}");
    }
    Ok(())
}

pub fn play(session: &mut Session, target: &mut Target<'_, '_>, op: &str, step: &Json) -> Option<Played> {
    Some(match op {
        "match" => with_query(session, step, |query| target.cache().prefix_match(query)),
        "attach" => with_query(session, step, |query| target.cache_mut().prefix_attach(step.seq(), query)),
        "insert" => with_query(session, step, |query| target.cache_mut().prefix_insert(step.seq(), query)),
        "pin" => with_query(session, step, |query| target.cache_mut().prefix_pin(query)),
        "unpin" => with_query(session, step, |query| target.cache_mut().prefix_unpin(query)),
        "prefix_hash" => prefix_hash(step).into(),
        "evict" => {
            let freed = target.cache_mut().prefix_evict(step.int("pages", 0));
            freed.map(|freed| assert_eq!(freed, step.int("freed", freed), "freed")).into()
        }
        "prefix_reset" => target.cache_mut().prefix_reset().into(),
        "quota" => {
            let bytes = session.plan.info().unwrap().page_bytes * step.int("pages", 0) as u64;
            target.cache_mut().prefix_quota_set(step.text("salt", "").as_bytes(), bytes).into()
        }
        "events" => events(target.cache_mut(), step).into(),
        _ => return None,
    })
}
