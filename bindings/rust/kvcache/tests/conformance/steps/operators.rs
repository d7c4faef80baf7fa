//! Steps on the stateless operators, over pools that the scenario makes. The formulas take layer number 0.

use crate::json::{flatten, Fields, Json};
use crate::linear::Linear;
use crate::model::read_rope;
use crate::rows::{check_rows, key_tensor, Options, Rows};
use crate::session::{Answer, HostPool, Partial, Session};
use crate::tensor::{HostTensor, Type};
use crate::values::{attend, parse_ids, rotate, value, values, Attended, Ids, Key, Kind, Rope, Softmax};
use kvcache::ops::{self, OpOptions, Pool, PoolMut, Table};
use kvcache::OpLayout;

fn ids_of(step: &Json, key: &str) -> Ids {
    parse_ids(step.text(key, ""), None)
}

fn integers(step: &Json, key: &str, kind: Type) -> Option<HostTensor> {
    step.has(key).then(|| {
        let (shape, elements) = flatten(step.list(key));
        HostTensor::of(&shape, kind, elements)
    })
}

/// The options of a step, with what they point at.
struct OperatorOptions {
    attn: Options,
    positions: Option<HostTensor>,
    rope: Option<(kvcache::Rope, Rope)>,
    full: bool,
    has_attn: bool,
}

impl OperatorOptions {
    fn new(step: &Json, positions: &str, (q_heads, head_dim): (usize, usize)) -> Self {
        OperatorOptions {
            attn: Options::new(step, q_heads),
            positions: integers(step, positions, Type::I32),
            rope: step.get("rope").map(|rope| read_rope(rope, head_dim, 0)),
            full: step.flag("full", false),
            has_attn: step.has("opt"),
        }
    }

    fn view(&self) -> Rope {
        self.rope.as_ref().map(|(_, view)| view.clone()).unwrap_or_default()
    }

    fn with<T>(&self, session: &Session, call: impl FnOnce(&OpOptions<'_>) -> T) -> T {
        let positions = self.positions.as_ref().map(HostTensor::view);
        self.attn.with(|attn| {
            call(&OpOptions {
                cpu_isa: session.isa,
                full: self.full,
                attn: self.has_attn.then_some(attn),
                positions: positions.as_ref(),
                rope: self.rope.as_ref().map(|(rope, _)| rope),
                ..OpOptions::default()
            })
        })
    }
}

/// Calls with the page tables of a step.
fn with_table<T>(step: &Json, call: impl FnOnce(&Table<'_>) -> T) -> T {
    let table = step.need("table");
    let tensor = |key: &str| integers(table, key, Type::I32);
    let [lens, qo, indptr, indices, blocks] =
        ["seq_lens", "qo_indptr", "page_indptr", "page_indices", "block_table"].map(tensor);
    let [lens, qo, indptr, indices, blocks] =
        [&lens, &qo, &indptr, &indices, &blocks].map(|tensor| tensor.as_ref().map(HostTensor::view));
    call(&Table {
        seq_lens: lens.as_ref().expect("seq_lens"),
        qo_indptr: qo.as_ref(),
        page_indptr: indptr.as_ref(),
        page_indices: indices.as_ref(),
        block_table: blocks.as_ref(),
    })
}

impl HostPool {
    fn with<T>(&self, call: impl FnOnce(&Pool<'_>) -> T) -> T {
        let (k, v) = (self.k.view(), self.v.as_ref().map(HostTensor::view));
        call(&Pool { k: &k, v: v.as_ref(), layout: self.layout })
    }

    fn as_mut(&mut self) -> PoolMut<'_> {
        PoolMut { k: self.k.view_mut(), v: self.v.as_mut().map(HostTensor::view_mut), layout: self.layout }
    }

    fn rows(&self, step: &Json) -> Rows {
        Rows {
            q_layer: 0,
            key_layer: 0,
            q_heads: step.size("q_heads", self.heads as i64),
            kv_heads: self.heads,
            k_dim: self.k_dim,
            v_dim: if self.v.is_none() { step.size("latent_rank", self.k_dim as i64) } else { self.v_dim },
            v_is_k: self.v.is_none(),
            rope: Rope::default(),
            ids: ids_of(step, "q_ids"),
        }
    }
}

fn op_pool(session: &mut Session, step: &Json) -> Answer {
    let layout = match step.text("layout", "") {
        "HND" => OpLayout::Hnd,
        "NHD" => OpLayout::Nhd,
        "MLA" => OpLayout::Mla,
        other => panic!("layout {other}"),
    };
    let (pages, page_size) = (step.size("num_pages", 0), step.size("page_size", 0));
    let mla = layout == OpLayout::Mla;
    let heads = if mla { 1 } else { step.size("heads", 1) };
    let k_dim = step.size("k_dim", 4);
    let v_dim = if mla { 0 } else { step.size("v_dim", k_dim as i64) };
    let tensor = |dim: usize| {
        let shape = match layout {
            OpLayout::Hnd => vec![pages, heads, page_size, dim],
            OpLayout::Nhd => vec![pages, page_size, heads, dim],
            _ => vec![pages, page_size, dim],
        };
        HostTensor::new(&shape, Type::of(step.text("dtype", "f32")))
    };
    let pool = HostPool { k: tensor(k_dim), v: (!mla).then(|| tensor(v_dim)), layout, heads, k_dim, v_dim };
    session.pools.insert(step.text("pool", "").into(), pool);
    Ok(())
}

fn op_append(session: &mut Session, pool: &mut HostPool, step: &Json) -> Answer {
    let ids = ids_of(step, "ids");
    let slots = integers(step, "slots", Type::I64).expect("slots");
    let options = OperatorOptions::new(step, "positions", (pool.heads, pool.k_dim));
    let k = key_tensor(Kind::Key, 0, &ids, (pool.heads, pool.k_dim), 1);
    let v = key_tensor(Kind::Value, 0, &ids, (pool.heads, pool.v_dim), 1);
    let (k, v) = (k.view(), v.view());
    let v = pool.v.is_some().then_some(&v);
    options.with(session, |opt| ops::append(&mut pool.as_mut(), opt, &slots.view(), &k, v))
}

/// Attention over a pool; outputs have exactly T rows: no padding.
fn over_pool(session: &mut Session, pool: &HostPool, step: &Json, mla: bool) -> Answer {
    let mut rows = pool.rows(step);
    let options = OperatorOptions::new(step, "q_at", (rows.q_heads, rows.k_dim));
    rows.rope = options.view();
    let q = rows.query(step, 0);
    let mut result = rows.outputs(0);
    let Partial { out, lse } = &mut result;
    pool.with(|pool| {
        with_table(step, |table| {
            options.with(session, |opt| {
                let (mut out, mut lse) = (out.view_mut(), lse.view_mut());
                let out = (&mut out, &mut lse);
                if mla {
                    ops::mla_paged(pool, table, step.int("latent_rank", 0) as i32, opt, &q.view(), out)
                } else {
                    ops::attention_paged(pool, table, opt, &q.view(), out)
                }
            })
        })
    })?;
    check_rows(session, step, &rows, &options.attn, &result);
    Ok(())
}

fn op_ragged(session: &mut Session, step: &Json) -> Answer {
    let (heads, dim) = (step.size("heads", 1), step.size("dim", 4));
    let rows = Rows {
        q_layer: 0,
        key_layer: 0,
        q_heads: step.size("q_heads", heads as i64),
        kv_heads: heads,
        k_dim: dim,
        v_dim: dim,
        v_is_k: false,
        rope: Rope::default(),
        ids: ids_of(step, "q_ids"),
    };
    let options = OperatorOptions::new(step, "q_at", (rows.q_heads, dim));
    let keys = ids_of(step, "k_ids");
    let (k, v) = (
        key_tensor(Kind::Key, 0, &keys, (heads, dim), 0),
        key_tensor(Kind::Value, 0, &keys, (heads, dim), 0),
    );
    let q = rows.query(step, 0);
    let qo = integers(step, "qo_indptr", Type::I32).expect("qo_indptr");
    let kv = integers(step, "kv_indptr", Type::I32);
    let kv = kv.as_ref().map(HostTensor::view);
    let mut result = rows.outputs(0);
    let Partial { out, lse } = &mut result;
    options.with(session, |opt| {
        let out = (&mut out.view_mut(), &mut lse.view_mut());
        ops::attention_ragged((&qo.view(), kv.as_ref()), opt, &q.view(), (&k.view(), &v.view()), out)
    })?;
    check_rows(session, step, &rows, &options.attn, &result);
    Ok(())
}

/// `parts`: for each row two lists of keys; the formula's query attends to each, and the merge has to equal
/// attending to both.
fn op_merge(session: &mut Session, step: &Json) -> Answer {
    let (heads, dim, parts) = (step.size("heads", 1), step.size("dim", 4), step.list("parts"));
    let softmax = Softmax { scale: 1.0, soft_cap: 0.0, sink: None };
    let over = |ids: &[i64], row: usize, head: usize| -> Attended {
        let key = |id: &i64| Key {
            k: values(Kind::Key, 0, *id, head, dim),
            v: values(Kind::Value, 0, *id, head, dim),
            bias: 0.0,
        };
        let keys: Vec<_> = ids.iter().map(key).collect();
        attend(&softmax, &values(Kind::Query, 0, row as i64, head, dim), &keys, dim)
    };
    let lists = |row: usize| -> [Ids; 2] {
        [0, 1].map(|part: usize| parse_ids(parts[row][part].as_str().expect("a list"), None))
    };
    let every = |ids: &dyn Fn(usize) -> Ids| -> Vec<Attended> {
        let cells = (0..parts.len()).flat_map(|row| (0..heads).map(move |head| (row, head)));
        cells.map(|(row, head)| over(&ids(row), row, head)).collect()
    };
    let tensors = |part: usize| {
        let attended = every(&|row| lists(row)[part].clone());
        let out = attended.iter().flat_map(|cell| cell.out.clone());
        Partial {
            out: HostTensor::of(&[parts.len(), heads, dim], Type::F32, out),
            lse: HostTensor::of(&[parts.len(), heads], Type::F32, attended.iter().map(|cell| cell.lse)),
        }
    };
    let (mut first, second) = (tensors(0), tensors(1));
    OperatorOptions::new(step, "", (heads, dim)).with(session, |opt| {
        ops::merge(
            opt,
            (&mut first.out.view_mut(), &mut first.lse.view_mut()),
            (&second.out.view(), &second.lse.view()),
        )
    })?;
    for (i, want) in every(&|row| lists(row).concat()).iter().enumerate() {
        session.assert_near(first.lse.get(i), want.lse, || format!("LSE of row and head {i}"));
        for (d, want) in want.out.iter().enumerate() {
            session.assert_near(first.out.get(i * dim + d), *want, || format!("out of row and head {i}"));
        }
    }
    Ok(())
}

fn op_gather(session: &mut Session, pool: &HostPool, step: &Json) -> Answer {
    let ids = ids_of(step, "ids");
    let options = OperatorOptions::new(step, "", (pool.heads, pool.k_dim));
    let mut k = HostTensor::f32(&[ids.len(), pool.heads, pool.k_dim]);
    let mut v = HostTensor::f32(&[ids.len(), pool.heads, pool.v_dim]);
    let (mut k_out, mut v_out) = (k.view_mut(), v.view_mut());
    let v_out = pool.v.is_some().then_some(&mut v_out);
    pool.with(|pool| {
        with_table(step, |table| {
            options.with(session, |opt| ops::gather(pool, table, opt, Some(&mut k_out), v_out))
        })
    })?;
    let want = |kind, dim| key_tensor(kind, 0, &ids, (pool.heads, dim), 0).elements();
    assert_eq!(k.elements(), want(Kind::Key, pool.k_dim), "K");
    assert_eq!(v.elements(), want(Kind::Value, pool.v_dim), "V");
    Ok(())
}

fn op_rotate(session: &mut Session, step: &Json) -> Answer {
    let (ids, heads, dim) = (ids_of(step, "ids"), step.size("heads", 1), step.size("dim", 4));
    let options = OperatorOptions::new(step, "positions", (heads, dim));
    let mut x = key_tensor(Kind::Key, 0, &ids, (heads, dim), 0);
    let mut separate = HostTensor::f32(&[ids.len(), heads, dim]);
    let in_place = step.flag("in_place", false);
    options.with(session, |opt| {
        if in_place {
            ops::rotate_in_place(opt, &mut x.view_mut())
        } else {
            ops::rotate(opt, &x.view(), &mut separate.view_mut())
        }
    })?;
    let out = if in_place { x } else { separate }.elements();
    for (t, id) in ids.iter().enumerate() {
        for head in 0..heads {
            let mut want: Vec<_> = (0..dim).map(|d| value(Kind::Key, 0, *id, head, d)).collect();
            rotate(&options.view(), &[step.nums("positions")[t]], false, &mut want);
            for (d, want) in want.into_iter().enumerate() {
                session.assert_near(out[(t * heads + head) * dim + d], want, || format!("row {t}"));
            }
        }
    }
    Ok(())
}

/// From zero states, over sequences cut by qo_indptr.
fn op_linear(session: &mut Session, step: &Json) -> Answer {
    let (ids, cuts) = (ids_of(step, "ids"), step.ints("qo_indptr"));
    let sizes = (step.size("heads", 0), step.size("k_dim", 0), step.size("v_dim", 0));
    let linear = Linear::new(step, 0, sizes);
    let sequences = cuts.len() - 1;
    let per_sequence = sizes.0 * sizes.1 * sizes.2;
    let shape = [sequences, sizes.0, sizes.1, sizes.2];
    let mut states = HostTensor::of(&shape, Type::F32, vec![0.0; sequences * per_sequence]);
    let mut out = HostTensor::f32(&[ids.len(), linear.heads, linear.v_dim]);
    let indptr = integers(step, "qo_indptr", Type::I32).expect("qo_indptr");
    let options = OperatorOptions::new(step, "", (1, 4));
    linear.with(0, &ids, |linear, inputs| {
        options.with(session, |opt| {
            let (states, out) = (&mut states.view_mut(), &mut out.view_mut());
            ops::linear_step(linear, opt, Some(&indptr.view()), states, inputs, out)
        })
    })?;
    for (s, cut) in cuts.windows(2).enumerate() {
        let own = cut[0] as usize..cut[1] as usize;
        let (want, state) = linear.run(&[], &ids[own.clone()]);
        for (t, row) in own.enumerate() {
            for (head, want) in want.iter().enumerate() {
                for (d, want) in want[t].iter().enumerate() {
                    let at = (row * linear.heads + head) * linear.v_dim + d;
                    session.assert_near(out.get(at), *want, || format!("out of row {row}"));
                }
            }
        }
        for (i, want) in state.into_iter().flatten().flatten().enumerate() {
            session.assert_near(states.get(s * per_sequence + i), want, || format!("state of {s}"));
        }
    }
    Ok(())
}

pub fn play(session: &mut Session, op: &str, step: &Json) -> Answer {
    match op {
        "op_pool" => return op_pool(session, step),
        "op_ragged" => return op_ragged(session, step),
        "op_merge" => return op_merge(session, step),
        "op_rotate" => return op_rotate(session, step),
        "op_linear" => return op_linear(session, step),
        _ => {}
    }
    let name = step.text("pool", "");
    let mut pool = session.pools.remove(name).unwrap_or_else(|| panic!("no pool {name}"));
    let answer = match op {
        "op_append" => op_append(session, &mut pool, step),
        "op_attention" => over_pool(session, &pool, step, false),
        "op_mla" => over_pool(session, &pool, step, true),
        "op_gather" => op_gather(session, &pool, step),
        "op_copy_pages" => {
            let pairs = integers(step, "pairs", Type::I64).expect("pairs");
            let options = OperatorOptions::new(step, "", (1, 4));
            options.with(session, |opt| ops::copy_pages(&mut pool.as_mut(), opt, &pairs.view()))
        }
        other => panic!("no step '{other}'"),
    };
    session.pools.insert(name.into(), pool);
    answer
}
