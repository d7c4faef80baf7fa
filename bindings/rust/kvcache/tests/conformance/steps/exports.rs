//! Steps that export pools and page tables, and compare the forms of one table with each other.

use crate::json::{Fields, Json};
use crate::session::{integers, Answer, Played, Session};
use kvcache::{CacheRef, Forward, LayerKind, PoolKind, TableKind};
use std::collections::HashMap;

pub fn export_pool(cache: &mut CacheRef, step: &Json) -> Answer {
    let kind = match step.text("kind", "") {
        "K" => PoolKind::K,
        "V" => PoolKind::V,
        "KV" => PoolKind::Kv,
        "BYTES" => PoolKind::Bytes,
        other => panic!("kind {other}"),
    };
    let tensor = cache.export_pool(step.layer(), kind)?;
    if step.has("shape") {
        assert_eq!(tensor.shape(), step.ints("shape"));
    }
    Ok(())
}

const KINDS: [(TableKind, &str); 8] = [
    (TableKind::Indptr, "indptr"),
    (TableKind::Indices, "indices"),
    (TableKind::LastPageLen, "last_page_len"),
    (TableKind::BlockTable, "block_table"),
    (TableKind::SlotMapping, "slot_mapping"),
    (TableKind::SeqLens, "seq_lens"),
    (TableKind::QoIndptr, "qo_indptr"),
    (TableKind::PagePosition, "page_position"),
];

/// Every form of the table says the same: INDICES and PAGE_POSITION list what BLOCK_TABLE has, SLOT_MAPPING
/// points into it.
fn check_forms(session: &Session, tables: &HashMap<TableKind, Vec<i64>>, is_cross: bool) {
    let page_size = i64::from(session.model.config.page_size);
    let entries = session.batch.seqs.len();
    let (indptr, blocks) = (&tables[&TableKind::Indptr], &tables[&TableKind::BlockTable]);
    assert_eq!(indptr.len(), entries + 1);
    let width = blocks.len() / entries;
    let mut slots = tables[&TableKind::SlotMapping].iter();
    for entry in 0..entries {
        let row = &blocks[entry * width..(entry + 1) * width];
        let kept = || row.iter().enumerate().filter(|(_, page)| **page >= 0);
        let pages: Vec<_> = kept().map(|(_, page)| *page).collect();
        let positions: Vec<_> = kept().map(|(column, _)| column as i64 * page_size).collect();
        let slice = |kind| &tables[&kind][indptr[entry] as usize..indptr[entry + 1] as usize];
        assert_eq!(slice(TableKind::Indices), pages, "INDICES against BLOCK_TABLE, entry {entry}");
        assert_eq!(slice(TableKind::PagePosition), positions, "PAGE_POSITION, entry {entry}");
        let (length, new) = (tables[&TableKind::SeqLens][entry], session.batch.lengths[entry]);
        for index in (length - new..length).filter(|_| !is_cross) {
            let slot = row[(index / page_size) as usize] * page_size + index % page_size;
            assert_eq!(slots.next(), Some(&slot), "SLOT_MAPPING of token {index} of entry {entry}");
        }
    }
}

pub fn tables(session: &Session, forward: &Forward<'_>, step: &Json) -> Played {
    let layer = step.layer();
    let group = session.group_of(layer);
    if step.has("kind") {
        let Some((kind, _)) = KINDS.get(step.size("kind", 0)) else { return Played::Inexpressible };
        return forward.export_page_table(group, *kind).map(drop).into();
    }
    let export = |(kind, _): (TableKind, &str)| {
        forward.export_page_table(group, kind).map(|table| (kind, integers(&table)))
    };
    let tables: HashMap<_, _> = match KINDS.into_iter().map(export).collect() {
        Ok(tables) => tables,
        Err(error) => return Err(error).into(),
    };
    for (kind, key) in KINDS.into_iter().filter(|(_, key)| step.has(key)) {
        assert_eq!(tables[&kind], step.ints(key), "{key}");
    }
    check_forms(session, &tables, session.model.layers[layer].kind == LayerKind::Cross);
    Played::Called(Ok(()))
}
