//! The calls of a case, with their arguments as the crate takes them.

use crate::case::{Fields, HostTensor, Json};
use crate::config::{config_of, kind, rope_of};
use crate::player::{integers, Answer, HostPool, HostScales, Moving, Played, Player, Target};
use kvcache::ops::{self, OpOptions, Pool, PoolMut, Scales, ScalesMut, Table};
use kvcache::{
    Activation, AttnOptions, Batch, CacheRef, Decay, Error, EventKind, Forward, LinearInputs, LinearOptions,
    LoadOptions, OpLayout, Plan, PoolKind, PrefixKey, Quant, Query, ReceiveOptions, SendOptions, SeqOp,
    TableKind, TensorMut, TensorRef, Transport, TransportOptions,
};
use kvcache_sys as sys;
use std::collections::HashMap;
use std::time::Duration;

/// The tensor under a key, where the step has one.
fn given(step: Fields<'_>, key: &str) -> Option<HostTensor> {
    step.find(key).map(|spec| HostTensor::of(Fields(spec)))
}

/// A new tensor for a result.
fn result(step: Fields<'_>, key: &str) -> Option<HostTensor> {
    let spec = step.object(key);
    step.has(key).then(|| HostTensor::new(spec.sizes("shape"), spec.text("dtype"), Vec::new()))
}

/// Binds names to the step's tensors of these names: `Option<&TensorRef>`.
macro_rules! views {
    ($step:expr => $($name:ident),*) => {$(
        let $name = given($step, stringify!($name));
        let $name = $name.as_ref().map(HostTensor::view);
        let $name = $name.as_ref();
    )*};
}

fn of<'a, 'b>(tensor: Option<&'a TensorRef<'b>>) -> &'a TensorRef<'b> {
    tensor.expect("a tensor is missing")
}

/// Two results of which the second may be absent, as calls take them.
fn pair<T>(
    results: &mut [Option<HostTensor>; 2],
    call: impl FnOnce(Option<&mut TensorMut<'_>>, Option<&mut TensorMut<'_>>) -> T,
) -> T {
    let [first, second] = results;
    let mut first = first.as_mut().map(HostTensor::view_mut);
    let mut second = second.as_mut().map(HostTensor::view_mut);
    call(first.as_mut(), second.as_mut())
}

/// A call with results under two keys, which are compared afterwards.
fn with_results(
    p: &mut Player,
    step: Fields<'_>,
    keys: [&str; 2],
    call: impl FnOnce(Option<&mut TensorMut<'_>>, Option<&mut TensorMut<'_>>) -> Answer,
) -> Answer {
    let mut results = keys.map(|key| result(step, key));
    pair(&mut results, call)?;
    for (key, tensor) in keys.iter().zip(&results) {
        tensor.iter().for_each(|tensor| p.compare(step, key, tensor));
    }
    if let [Some(out), Some(lse)] = results {
        if step.has("into") {
            p.partials.insert(step.text("into").into(), (out, lse));
        }
    }
    Ok(())
}

fn with_out(p: &mut Player, step: Fields<'_>, call: impl FnOnce(&mut TensorMut<'_>) -> Answer) -> Answer {
    with_results(p, step, ["out", ""], |out, _| call(out.expect("out")))
}

fn with_opt<T>(step: Fields<'_>, call: impl FnOnce(&AttnOptions<'_>) -> T) -> T {
    let opt = step.object("opt");
    views!(opt => sink_logits, alibi, bias, spans);
    let flags = opt.int_or("flags", 0);
    call(&AttnOptions {
        scale: opt.num("scale") as f32,
        soft_cap: opt.num("soft_cap") as f32,
        window: opt.int_or("window", 0),
        deterministic: flags & 1 != 0,
        batch_invariant: flags & 2 != 0,
        no_cascade: flags & 4 != 0,
        sink_logits,
        alibi_slopes: alibi,
        bias,
        spans,
    })
}

/// A call that attends.
fn attend(
    p: &mut Player,
    step: Fields<'_>,
    call: impl FnOnce(&AttnOptions<'_>, (&mut TensorMut<'_>, &mut TensorMut<'_>)) -> Answer,
) -> Answer {
    with_opt(step, |opt| {
        with_results(p, step, ["out", "lse"], |out, lse| call(opt, (out.expect("out"), lse.expect("lse"))))
    })
}

// ---- The plan and the cache

fn plan(p: &mut Player, step: Fields<'_>) -> Answer {
    if step.has("config") {
        let plan = Plan::new(&config_of(step.object("config"), p.isa))?;
        check_plan(p, step, &plan);
    } else {
        let plan = p.plan.clone();
        check_plan(p, step, &plan);
    }
    Ok(())
}

fn check_plan(p: &mut Player, step: Fields<'_>, plan: &Plan) {
    let layer_info = |layer: &str| plan.layer(layer.parse().unwrap()).unwrap();
    p.answer(step, "groups", plan.info().unwrap().num_groups.into());
    for (layer, _) in step.members("layers") {
        p.check_fields(&layer_info(layer), step.object("layers"), layer, &format!("layer {layer}"));
    }
    // Equal numbers: the layers share a page table; different ones: they do not; -1: the layer has none.
    let (mut stated, mut found) = (HashMap::from([(-1, -1)]), HashMap::from([(-1, -1)]));
    for (layer, wanted) in step.members("layer_groups") {
        let (group, wanted) = (i64::from(layer_info(layer).group), wanted.as_i64().unwrap());
        p.equal(*stated.entry(wanted).or_insert(group), group, &format!("page table of layer {layer}"));
        p.equal(*found.entry(group).or_insert(wanted), wanted, &format!("page table of layer {layer}"));
    }
    for (tokens, wanted) in step.members("request_pages") {
        let pages = plan.request_pages(tokens.parse().unwrap()).unwrap();
        p.equal(Some(pages), wanted.as_i64(), &format!("pages of a request of {tokens} tokens"));
    }
}

fn export_pool(p: &mut Player, cache: &mut CacheRef, step: Fields<'_>) -> Answer {
    let tensor = cache.export_pool(step.layer(), kind!(step, "kind", PoolKind, kvc_pool_kind))?;
    if step.has("shape") {
        p.equal(tensor.shape().to_vec(), step.ints("shape"), "shape");
    }
    Ok(())
}

fn stored(p: &mut Player, cache: &CacheRef, step: Fields<'_>) -> Answer {
    let (seq, range) = (step.seq(), step.int("begin")..step.int("end"));
    with_results(p, step, ["k", "v"], |k, v| match step.text("op") {
        "stored" => cache.debug_get_layer(seq, step.layer(), range, k, v),
        "stored_kv" => cache.debug_get_kv(seq, range, k, v),
        _ => cache.debug_get_mla(seq, range, k.expect("k")),
    })
}

fn store(cache: &mut CacheRef, step: Fields<'_>) -> Answer {
    views!(step => k, v);
    let (seq, begin) = (step.seq(), step.int("begin"));
    match step.text("op") {
        "store" => cache.debug_set_layer(seq, step.layer(), begin, k, v),
        "store_kv" => cache.debug_set_kv(seq, begin, k, v),
        _ => cache.debug_set_mla(seq, begin, of(k)),
    }
}

/// Calls on the cache; `None` for those on a forward.
fn on_cache(p: &mut Player, target: &mut Target<'_, '_>, step: Fields<'_>) -> Option<Played> {
    let op = step.text("op");
    if !matches!(
        op,
        "stored" | "stored_kv" | "stored_mla" | "stored_state" | "can" | "around" | "can_append" | "match"
    ) {
        return on_cache_mut(p, target.cache_mut(), step);
    }
    let cache = target.cache();
    let answer = match op {
        "can" => {
            let what = kind!(step, "what", SeqOp, kvc_seq_op);
            let found = cache.can(step.seq(), what, step.int("pos"));
            found.map(|nearest| p.answer(step, "nearest", nearest.unwrap_or(-1)))
        }
        "around" => {
            let what = kind!(step, "what", SeqOp, kvc_seq_op);
            let found = cache.positions(step.seq(), what, step.int("pos"));
            found.map(|(below, above)| {
                p.answer(step, "below", below.unwrap_or(-1));
                p.answer(step, "above", above.unwrap_or(-1));
            })
        }
        "can_append" => {
            let missing = cache.can_append(&step.ints("seqs"), &step.ints("lengths"));
            missing.map(|missing| p.answer(step, "missing", missing))
        }
        "match" => return Some(with_query(p, step, |query| cache.prefix_match(query))),
        "stored_state" => {
            with_out(p, step, |out| cache.debug_get_state(step.seq(), step.layer(), step.state(), out))
        }
        _ => stored(p, cache, step),
    };
    Some(Some(answer))
}

fn save(p: &mut Player, cache: &CacheRef, step: Fields<'_>) -> Answer {
    let name = step.text("file").to_string();
    p.files.insert(name, cache.save(&step.ints("seqs"), None)?);
    Ok(())
}

fn load(p: &Player, cache: &mut CacheRef, step: Fields<'_>) -> Answer {
    let mut file = p.files[step.text("file")].clone();
    if step.has("flip") {
        let at = step.int("flip") as usize % file.len();
        file[at] ^= 1;
    }
    cache.load(&file, &step.ints("seqs"), &LoadOptions::default())
}

/// The cache of a name, where `cache` is the one that the step is about.
fn named<'a>(p: &'a mut Player, cache: &'a mut CacheRef, name: &str) -> &'a mut CacheRef {
    match name == p.name {
        true => cache,
        false => &mut p.sides.get_mut(name).expect("a cache of the case").cache,
    }
}

/// With `num_tokens` the senders have not computed all of them yet, and both sides stay open.
fn transfer(p: &mut Player, cache: &mut CacheRef, step: Fields<'_>) -> Answer {
    let (seq, begin, as_computed) = (step.seq(), step.int_or("begin", 0), step.has("num_tokens"));
    let mut senders: Vec<_> = step.list("senders").iter().map(|name| name.as_str().unwrap()).collect();
    if senders.is_empty() {
        senders.push(step.text("cache"));
    }
    let mut options = ReceiveOptions::new(step.int("to"), 0);
    (options.begin, options.publish) = (begin, step.flag("publish"));
    let info = named(p, cache, senders[0]).seq_info(seq)?;
    options.num_tokens = step.int_or("num_tokens", info.length - begin);
    options.cross_length = if begin == 0 { info.cross_length } else { 0 };
    options.sender_tp_size = senders.len() as i32;
    let transport = Transport::open(&TransportOptions::default())?;
    let receiving = cache.receive(&transport, &options)?;
    let ticket = receiving.ticket()?;
    let mut moving = Moving { transport, receiving, sending: Vec::new() };
    let (mut send, mut sent) = (SendOptions::default(), Ok(()));
    (send.as_computed, send.tp_size) = (as_computed, options.sender_tp_size);
    for name in senders {
        sent = sent.and_then(|()| {
            let one = named(p, cache, name).send(&moving.transport, seq, begin, &ticket, &send)?;
            moving.sending.push((name.into(), one));
            Ok(())
        });
        send.tp_rank += 1;
    }
    if sent.is_err() || !as_computed {
        return arrive(p, cache, moving, sent);
    }
    p.moving = Some(moving);
    Ok(())
}

/// Waits for the senders, then for the receiver, who is cancelled where a sender has failed.
fn arrive(p: &mut Player, cache: &mut CacheRef, moving: Moving, mut sent: Answer) -> Answer {
    const LONG: Option<Duration> = Some(Duration::from_secs(60));
    for (name, one) in &moving.sending {
        sent = sent.and_then(|()| named(p, cache, name).wait_transfer(one, LONG));
    }
    if sent.is_err() {
        moving.receiving.cancel()?;
    }
    sent.and(cache.wait_transfer(&moving.receiving, LONG))
}

fn on_cache_mut(p: &mut Player, cache: &mut CacheRef, step: Fields<'_>) -> Option<Played> {
    Some(Some(match step.text("op") {
        "plan" => plan(p, step),
        "add" => cache.add(step.seq()),
        "remove" => cache.remove(step.seq()),
        "checkpoint" => cache.checkpoint(step.seq()),
        "release" => cache.release_checkpoint(step.seq(), step.int("pos")),
        "fork" => {
            let pos = Some(step.int("pos")).filter(|pos| *pos != -1);
            cache.fork(step.int("parent"), step.int("child"), pos)
        }
        "pop" => cache.pop(step.seq(), step.int("n")),
        "shift" => cache.shift(step.seq(), step.int("begin"), step.int("end"), step.int("delta")),
        "set_window" => cache.set_window(step.seq(), step.int("window"), step.int("sink")),
        "clear" => cache.clear(),
        "resize" => cache.resize(step.int("num_pages")),
        "commit" => cache.tree_commit(&step.ints("seqs"), &step.ints32("leaves")),
        "save" => save(p, cache, step),
        "load" => load(p, cache, step),
        "transfer" => transfer(p, cache, step),
        "arrive" => {
            let moving = p.moving.take().expect("a transfer that waits to arrive");
            arrive(p, cache, moving, Ok(()))
        }
        "export_pool" => export_pool(p, cache, step),
        "store" | "store_kv" | "store_mla" => store(cache, step),
        "store_state" => {
            views!(step => given);
            cache.debug_set_state(step.seq(), step.layer(), step.state(), of(given))
        }
        "attach" => return Some(with_query(p, step, |query| cache.prefix_attach(step.seq(), query))),
        "insert" => return Some(with_query(p, step, |query| cache.prefix_insert(step.seq(), query))),
        "pin" => return Some(with_query(p, step, |query| cache.prefix_pin(query))),
        "unpin" => return Some(with_query(p, step, |query| cache.prefix_unpin(query))),
        "prefix_hash" => prefix_hash(p, step),
        "evict" => cache.prefix_evict(step.int("pages")).map(|freed| p.answer(step, "freed", freed)),
        "prefix_reset" => cache.prefix_reset(),
        "quota" => {
            let bytes = p.plan.info().unwrap().page_bytes * step.int("pages") as u64;
            cache.prefix_quota_set(step.text("salt").as_bytes(), bytes)
        }
        "events" => events(p, cache, step),
        _ => return None,
    }))
}

// ---- The prefix cache

fn keys_of<'a>(step: Fields<'a>) -> Vec<PrefixKey<'a>> {
    let keys = step.list("keys").iter().map(Fields);
    keys.map(|key| PrefixKey {
        kind: key.int("type") as u32,
        offset: key.int("offset"),
        data: key.text("data").as_bytes(),
    })
    .collect()
}

/// A call with the query of the step; keys of blocks stand instead of, or beside, its tokens.
fn with_query(
    p: &mut Player,
    step: Fields<'_>,
    call: impl FnOnce(&Query<'_>) -> kvcache::Result<i64>,
) -> Played {
    let (tokens, keys, salt) = (step.ints32("tokens"), keys_of(step), step.text("salt").as_bytes());
    let num_tokens = step.int_or("num_tokens", tokens.len() as i64);
    let (how, mut hashes) = (step.find("hashes"), Vec::new());
    if how.is_some() {
        match kvcache::prefix_hash(&tokens, p.plan.info().unwrap().prefix_block, salt, &keys) {
            Ok(found) => hashes = found,
            Err(error) => return Some(Err(error)),
        }
    }
    let mut query = if how.is_some_and(|how| how == "only") {
        Query::of_hashes(&hashes, num_tokens)
    } else {
        // A number of tokens other than the slice's cannot be given.
        let tokens = usize::try_from(num_tokens).ok().and_then(|n| tokens.get(..n))?;
        // More keys than there are blocks: of anything.
        hashes.resize(how.and_then(Json::as_u64).map_or(hashes.len(), |count| count as usize), [0; 32]);
        Query::new(tokens).hashes(&hashes)
    };
    query = query.salt(salt).keys(&keys).priority(step.int_or("priority", 0) as i32);
    let flags = step.int_or("flags", 0);
    query = if flags & 1 != 0 { query.all_tokens() } else { query };
    query = if flags & 2 != 0 { query.whole_blocks() } else { query };
    Some(call(&query).map(|tokens| p.answer(step, "hit", tokens)))
}

fn prefix_hash(p: &mut Player, step: Fields<'_>) -> Answer {
    let (salt, block) = (step.text("salt").as_bytes(), step.int("block") as i32);
    let hashes = kvcache::prefix_hash(&step.ints32("tokens"), block, salt, &keys_of(step))?;
    let hashes: Vec<_> = hashes.iter().map(|hash| crate::hex(hash)).collect();
    let wanted = step.list("values").iter().map(|value| value.as_str().unwrap().to_string()).collect();
    p.equal(hashes, wanted, "keys");
    Ok(())
}

/// Polls everything that waits, two events at a time.
fn events(p: &mut Player, cache: &mut CacheRef, step: Fields<'_>) -> Answer {
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
        let wanted = step.object("counts").int_or(name, 0);
        p.equal(counts.get(&kind).copied().unwrap_or(0), wanted, name);
    }
    Ok(())
}

// ---- The forward

pub fn begin<'c>(p: &mut Player, cache: &'c mut CacheRef, step: Fields<'_>) -> Result<Forward<'c>, Error> {
    let (seqs, lengths) = (step.ints("seqs"), step.ints("lengths"));
    let (parents, tokens) = (step.ints32("tree_parents"), step.ints32("tokens"));
    let (cross_lengths, positions) = (step.ints("cross_lengths"), given(step, "positions"));
    let mut batch = Batch::new(&seqs, &lengths);
    if step.has("tree_parents") {
        batch = batch.tree_parents(&parents);
    }
    if step.has("tokens") {
        batch = batch.tokens(&tokens);
    }
    if step.flag("partial") {
        batch = batch.partial();
    }
    if let Some(positions) = &positions {
        batch = batch.positions(positions.view());
    }
    if step.has("cross_lengths") {
        batch = batch.cross_lengths(&cross_lengths);
    }
    let forward = cache.begin(&batch)?;
    p.answer(step, "num_tokens", forward.num_tokens() as i64);
    Ok(forward)
}

fn tables(p: &mut Player, forward: &Forward<'_>, step: Fields<'_>) -> Played {
    let group = p.group_of(step.layer());
    if step.has("kind") {
        let kind = TableKind::from_raw(sys::kvc_table_kind(step.int("kind") as _))?;
        return Some(forward.export_page_table(group, kind).map(drop));
    }
    let names =
        ["indptr", "indices", "last_page_len", "block_table", "slot_mapping", "seq_lens", "qo_indptr"];
    let mut found = HashMap::new();
    for (number, name) in names.into_iter().chain(["page_position"]).enumerate() {
        let kind = TableKind::from_raw(sys::kvc_table_kind(number as _)).expect("a kind");
        match forward.export_page_table(group, kind) {
            Ok(table) => found.insert(name, integers(&table)),
            Err(error) => return Some(Err(error)),
        };
        if step.has(name) {
            p.equal(found[name].clone(), step.ints(name), name);
        }
    }
    // Every form of the table says the same.
    let (page_size, new_tokens) = (step.int("page_size"), step.ints("new_tokens"));
    let (indptr, blocks) = (&found["indptr"], &found["block_table"]);
    assert_eq!(indptr.len(), new_tokens.len() + 1);
    let width = blocks.len() / new_tokens.len();
    let mut slots = found["slot_mapping"].iter();
    for (entry, new) in new_tokens.iter().enumerate() {
        let row = &blocks[entry * width..(entry + 1) * width];
        let kept = || row.iter().enumerate().filter(|(_, page)| **page >= 0);
        let pages: Vec<_> = kept().map(|(_, page)| *page).collect();
        let positions: Vec<_> = kept().map(|(column, _)| column as i64 * page_size).collect();
        let slice = |name| found[name][indptr[entry] as usize..indptr[entry + 1] as usize].to_vec();
        p.equal(slice("indices"), pages, "INDICES against BLOCK_TABLE");
        p.equal(slice("page_position"), positions, "PAGE_POSITION against BLOCK_TABLE");
        let length = found["seq_lens"][entry];
        for index in length - new..length {
            let slot = row[(index / page_size) as usize] * page_size + index % page_size;
            p.equal(slots.next(), Some(&slot), "SLOT_MAPPING of a new token");
        }
    }
    Some(Ok(()))
}

fn merge(p: &mut Player, forward: &Forward<'_>, step: Fields<'_>) -> Answer {
    let (into, other) = (step.text("into"), step.text("other"));
    let (mut out, mut lse) = p.partials.remove(into).unwrap_or_else(|| panic!("no result {into}"));
    let part = p.partials.get(other).unwrap_or_else(|| panic!("no result {other}"));
    let (other_out, other_lse) = (part.0.view(), part.1.view());
    let answer = forward.attn_merge((&mut out.view_mut(), &mut lse.view_mut()), (&other_out, &other_lse));
    if answer.is_ok() {
        p.compare(step, "out", &out);
        p.compare(step, "lse", &lse);
    }
    p.partials.insert(into.into(), (out, lse));
    answer
}

fn with_linear<T>(step: Fields<'_>, call: impl FnOnce(&LinearOptions<'_>, &LinearInputs<'_>) -> T) -> T {
    views!(step => q, k, v, decay, beta, skip);
    let options = LinearOptions {
        decay: kind!(step, "decay_kind", Decay, kvc_decay),
        delta: step.flag("delta"),
        state: step.state(),
        scale: step.num("scale") as f32,
        skip,
    };
    call(&options, &LinearInputs { q: of(q), k: of(k), v: of(v), decay, beta })
}

fn on_forward(p: &mut Player, forward: &Forward<'_>, step: Fields<'_>) -> Answer {
    let op = step.text("op");
    views!(step => q, k, v, qkv, latent, given, x, weight, bias);
    match op {
        "positions" => with_out(p, step, |out| forward.positions(out)),
        "attn" => attend(p, step, |opt, out| forward.attn(step.layer(), opt, of(q), (k, v), out)),
        "self" => {
            attend(p, step, |opt, out| forward.attn_self(step.layer(), opt, of(q), (of(k), of(v)), out))
        }
        "cached" => attend(p, step, |opt, out| forward.attn_cached(step.layer(), opt, of(q), out)),
        "cross" => attend(p, step, |opt, out| forward.attn_cross(step.layer(), opt, of(q), (k, v), out)),
        "shared_kv" => {
            let source = step.int("source") as usize;
            attend(p, step, |opt, out| forward.attn_shared_kv(source, opt, of(q), out))
        }
        "fused" => with_opt(step, |opt| {
            with_out(p, step, |out| forward.attn_fused_qkv(step.layer(), opt, of(qkv), out))
        }),
        "merge" => merge(p, forward, step),
        "append" => forward.kv_append(step.layer(), (k, v)),
        "mla_append" => forward.mla_append(step.layer(), of(latent)),
        "gather" => {
            with_results(p, step, ["k", "v"], |k, v| forward.kv_gather(step.layer(), step.seq(), k, v))
        }
        "state_get" => with_out(p, step, |out| forward.state_get(step.layer(), step.state(), out)),
        "state_set" => forward.state_set(step.layer(), step.state(), of(given)),
        "linear" => with_linear(step, |opt, inputs| {
            with_out(p, step, |out| forward.attn_linear(step.layer(), opt, inputs, out))
        }),
        "conv" => {
            let activation = kind!(step, "activation", Activation, kvc_activation);
            let at = (step.layer(), step.state());
            with_out(p, step, |out| forward.state_conv(at, of(x), of(weight), bias, activation, out))
        }
        other => panic!("no step '{other}'"),
    }
}

// ---- Operators over pools of the case

fn with_op_opt<T>(p: &Player, step: Fields<'_>, call: impl FnOnce(&OpOptions<'_>) -> T) -> T {
    views!(step => positions);
    let rope = rope_of(step);
    with_opt(step, |attn| {
        call(&OpOptions {
            cpu_isa: p.isa,
            full: step.flag("full"),
            attn: step.has("opt").then_some(attn),
            positions,
            rope: rope.as_ref(),
            ..OpOptions::default()
        })
    })
}

fn with_table<T>(step: Fields<'_>, call: impl FnOnce(&Table<'_>) -> T) -> T {
    let table = step.object("table");
    views!(table => seq_lens, qo_indptr, page_indptr, page_indices, block_table);
    call(&Table { seq_lens: of(seq_lens), qo_indptr, page_indptr, page_indices, block_table })
}

fn on_pool(p: &mut Player, pool: &mut HostPool, step: Fields<'_>) -> Answer {
    let op = step.text("op");
    views!(step => q);
    if matches!(op, "op_append" | "op_copy_pages") {
        let (k_pool, v_pool) = (pool.k.view_mut(), pool.v.as_mut().map(HostTensor::view_mut));
        let scales = match &mut pool.scales {
            HostScales::None => ScalesMut::None,
            HostScales::PerTensor { k, v } => ScalesMut::PerTensor { k: *k, v: *v },
            HostScales::PerTokenHead { k, v } => {
                ScalesMut::PerTokenHead { k: k.view_mut(), v: v.as_mut().map(HostTensor::view_mut) }
            }
        };
        let mut pool = PoolMut { k: k_pool, v: v_pool, layout: pool.layout, scales };
        if op == "op_append" {
            views!(step => slots, k, v);
            return with_op_opt(p, step, |opt| ops::append(&mut pool, opt, of(slots), of(k), v));
        }
        let flat = step.list("pairs").iter().flat_map(|pair| pair.as_array().expect("a pair"));
        let flat: Vec<_> = flat.map(|page| page.as_f64().expect("a page")).collect();
        let pairs = HostTensor::new(vec![flat.len() / 2, 2], "i64", flat);
        return with_op_opt(p, step, |opt| ops::copy_pages(&mut pool, opt, &pairs.view()));
    }
    let (k, v) = (pool.k.view(), pool.v.as_ref().map(HostTensor::view));
    let (k_rows, v_rows) = match &pool.scales {
        HostScales::PerTokenHead { k, v } => (Some(k.view()), v.as_ref().map(HostTensor::view)),
        _ => (None, None),
    };
    let scales = match &pool.scales {
        HostScales::None => Scales::None,
        HostScales::PerTensor { k, v } => Scales::PerTensor { k: *k, v: *v },
        HostScales::PerTokenHead { .. } => {
            Scales::PerTokenHead { k: k_rows.as_ref().expect("k_scales"), v: v_rows.as_ref() }
        }
    };
    let pool = Pool { k: &k, v: v.as_ref(), layout: pool.layout, scales };
    let keys = if op == "op_gather" { ["k", "v"] } else { ["out", "lse"] };
    let mut results = keys.map(|key| result(step, key));
    pair(&mut results, |first, second| {
        with_table(step, |table| {
            with_op_opt(p, step, |opt| match (op, first, second) {
                ("op_gather", k, v) => ops::gather(&pool, table, opt, k, v),
                ("op_mla", Some(out), Some(lse)) => {
                    ops::mla_paged(&pool, table, step.int("latent_rank") as i32, opt, of(q), (out, lse))
                }
                ("op_attention", Some(out), Some(lse)) => {
                    ops::attention_paged(&pool, table, opt, of(q), (out, lse))
                }
                _ => panic!("no step '{op}'"),
            })
        })
    })?;
    for (key, tensor) in keys.iter().zip(&results) {
        tensor.iter().for_each(|tensor| p.compare(step, key, tensor));
    }
    Ok(())
}

fn on_nothing(p: &mut Player, step: Fields<'_>) -> Answer {
    match step.text("op") {
        "op_pool" => {
            let layout = kind!(step, "layout", OpLayout, kvc_op_layout);
            let scales = match kind!(step, "quant", Quant, kvc_quant) {
                Quant::PerTensor => {
                    HostScales::PerTensor { k: step.num("k_scale") as f32, v: step.num("v_scale") as f32 }
                }
                Quant::PerTokenHead => HostScales::PerTokenHead {
                    k: given(step, "k_scales").expect("k_scales"),
                    v: given(step, "v_scales"),
                },
                _ => HostScales::None,
            };
            let pool = HostPool { k: given(step, "k").expect("k"), v: given(step, "v"), layout, scales };
            p.pools.insert(step.text("pool").into(), pool);
            Ok(())
        }
        "op_ragged" => {
            views!(step => qo_indptr, kv_indptr, q, k, v);
            let mut results = ["out", "lse"].map(|key| result(step, key).expect(key));
            let [out, lse] = &mut results;
            with_op_opt(p, step, |opt| {
                let out = (&mut out.view_mut(), &mut lse.view_mut());
                ops::attention_ragged((of(qo_indptr), kv_indptr), opt, of(q), (of(k), of(v)), out)
            })?;
            p.compare(step, "out", &results[0]);
            p.compare(step, "lse", &results[1]);
            Ok(())
        }
        "op_merge" => {
            views!(step => other_out, other_lse);
            let [mut out, mut lse] = ["out", "lse"].map(|key| given(step, key).expect(key));
            with_op_opt(p, step, |opt| {
                ops::merge(opt, (&mut out.view_mut(), &mut lse.view_mut()), (of(other_out), of(other_lse)))
            })?;
            p.compare(step, "want_out", &out);
            p.compare(step, "want_lse", &lse);
            Ok(())
        }
        "op_rotate" => {
            let (mut x, mut out) = (given(step, "x").expect("x"), result(step, "out").expect("out"));
            let in_place = step.flag("in_place");
            with_op_opt(p, step, |opt| match in_place {
                true => ops::rotate_in_place(opt, &mut x.view_mut()),
                false => ops::rotate(opt, &x.view(), &mut out.view_mut()),
            })?;
            p.compare(step, "out", if in_place { &x } else { &out });
            Ok(())
        }
        "op_quantize" => {
            let quant = kind!(step, "quant", Quant, kvc_quant);
            let (x, mut out) = (given(step, "x").expect("x"), result(step, "out").expect("out"));
            let shared = given(step, "scales");
            let is_result = shared.is_none();
            let mut scales = shared.or_else(|| result(step, "out_scales")).expect("out_scales");
            let saturated = with_op_opt(p, step, |opt| {
                ops::quantize(opt, quant, &x.view(), &mut out.view_mut(), &mut scales.view_mut())
            })?;
            p.answer(step, "saturated", saturated as i64);
            p.compare(step, "out", &out);
            if is_result {
                p.compare(step, "out_scales", &scales);
            }
            Ok(())
        }
        "op_dequantize" => {
            let quant = kind!(step, "quant", Quant, kvc_quant);
            views!(step => x, scales);
            let mut out = result(step, "out").expect("out");
            with_op_opt(p, step, |opt| ops::dequantize(opt, quant, of(x), of(scales), &mut out.view_mut()))?;
            p.compare(step, "out", &out);
            Ok(())
        }
        "op_linear" => {
            views!(step => qo_indptr);
            let mut states = given(step, "states").expect("states");
            let mut out = result(step, "out").expect("out");
            with_linear(step, |linear, inputs| {
                with_op_opt(p, step, |opt| {
                    let (states, out) = (&mut states.view_mut(), &mut out.view_mut());
                    ops::linear_step(linear, opt, qo_indptr, states, inputs, out)
                })
            })?;
            p.compare(step, "out", &out);
            p.compare(step, "want_states", &states);
            Ok(())
        }
        _ => {
            let name = step.text("pool");
            let mut pool = p.pools.remove(name).unwrap_or_else(|| panic!("no pool {name}"));
            let answer = on_pool(p, &mut pool, step);
            p.pools.insert(name.into(), pool);
            answer
        }
    }
}

/// Performs a step and compares its results when it succeeded.
pub fn play(p: &mut Player, target: &mut Target<'_, '_>, step: Fields<'_>) -> Played {
    if step.text("op").starts_with("op_") {
        return Some(on_nothing(p, step));
    }
    if let Some(played) = on_cache(p, target, step) {
        return played;
    }
    match (step.text("op"), target) {
        // Refused, so what it would lend is gone by the end of this arm.
        ("begin", Target::Forward(forward)) => Some(begin(p, forward.cache_mut(), step).map(drop)),
        (_, Target::Cache(_)) => None,
        ("tables", Target::Forward(forward)) => tables(p, forward, step),
        (_, Target::Forward(forward)) => Some(on_forward(p, forward, step)),
    }
}
