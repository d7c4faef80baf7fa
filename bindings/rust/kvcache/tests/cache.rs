//! The safe interface as a program uses it: prompts, forks, steps that are undone, and input that the types
//! let through but the library refuses by name.

mod common;

use common::{config, step, Folder};
use kvcache::{
    AttnOptions, Batch, Cache, CacheRef, Config, DType, Error, Forward, HfOptions, Layer, LoadOptions,
    LogLevel, Plan, Quant, Query, Rope, SeqOp, Status, Storage, SwapDirection, TableKind, TensorMut,
    TensorRef,
};
use std::panic::{catch_unwind, AssertUnwindSafe};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn cache() -> Cache {
    Cache::with_config(&config()).unwrap()
}

#[test]
fn every_token_sees_the_mean_of_what_came_before() {
    let mut cache = cache();
    cache.add(0).unwrap();
    assert_eq!(step(&mut cache, &[0], &[4], &[1.0, 3.0, 5.0, 7.0]).unwrap(), [1.0, 2.0, 3.0, 4.0]);
    cache.fork(0, 1, None).unwrap();
    assert_eq!(step(&mut cache, &[0, 1], &[1, 1], &[9.0, -1.0]).unwrap(), [5.0, 3.0]);
    assert_eq!(cache.sequences().unwrap(), [0, 1]);
    assert_eq!(cache.length(1).unwrap(), 5);
    assert_eq!(cache.stats().unwrap().pages_used, 3);
    assert_eq!(cache.can(1, SeqOp::Pop, 2).unwrap(), Some(2));
    cache.check().unwrap();
}

#[test]
fn huge_pages_have_a_switch() {
    let small = config().no_huge_pages(true);
    let mut cache = Cache::with_config(&small).unwrap();
    cache.add(0).unwrap();
    assert_eq!(step(&mut cache, &[0], &[2], &[1.0, 3.0]).unwrap(), [1.0, 2.0]);
    let error = Plan::new(&small.storage(Storage::None)).unwrap_err();
    assert!(error.to_string().contains("NO_HUGE_PAGES"), "{error}");
}

#[test]
fn a_trim_gives_free_pages_back() {
    let mut cache = Cache::with_config(&config().num_pages(1 << 16)).unwrap();
    let values: Vec<f32> = (0..4_000).map(|x| (x % 7) as f32).collect();
    for seq in [0, 1] {
        cache.add(seq).unwrap();
        step(&mut cache, &[seq], &[4_000], &values).unwrap();
    }
    let before = step(&mut cache, &[1], &[1], &[2.0]).unwrap();
    cache.pop(1, 1).unwrap();
    cache.remove(0).unwrap();
    assert!(cache.trim().unwrap() >= 100_000);
    assert_eq!(step(&mut cache, &[1], &[1], &[2.0]).unwrap(), before);
    cache.clear().unwrap();
    assert_eq!(cache.trim().unwrap(), 0);
}

#[test]
fn a_dropped_forward_is_undone() {
    let mut cache = cache();
    cache.add(0).unwrap();
    let free = cache.available_pages();
    drop(cache.begin(&Batch::new(&[0], &[3])).unwrap());
    assert_eq!((cache.length(0).unwrap(), cache.available_pages()), (0, free));
}

#[test]
fn an_early_return_undoes_the_forward() {
    fn half_a_step(cache: &mut CacheRef) -> Result<(), Error> {
        let forward = cache.begin(&Batch::new(&[0], &[3]))?;
        let short = [0.0f32; 4];
        forward.kv_append(0, &TensorRef::new(&short, &[1, 1, 4])?)?;
        forward.end()
    }
    let mut cache = cache();
    cache.add(0).unwrap();
    let free = cache.available_pages();
    let error = half_a_step(&mut cache).unwrap_err();
    assert!(matches!(error.status(), Status::Shape | Status::InvalidArgument), "{error}");
    assert_eq!((cache.length(0).unwrap(), cache.available_pages()), (0, free));
    step(&mut cache, &[0], &[1], &[1.0]).unwrap();
}

#[test]
fn a_panic_inside_a_step_undoes_it() {
    let mut cache = cache();
    cache.add(0).unwrap();
    let free = cache.available_pages();
    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _forward = cache.begin(&Batch::new(&[0], &[3])).unwrap();
        std::panic::resume_unwind(Box::new("the model"));
    }));
    assert!(caught.is_err());
    assert_eq!((cache.length(0).unwrap(), cache.available_pages()), (0, free));
    assert_eq!(step(&mut cache, &[0], &[1], &[2.0]).unwrap(), [2.0]);
}

#[test]
fn a_forgotten_forward_is_busy_but_harmless() {
    let mut cache = cache();
    cache.add(0).unwrap();
    std::mem::forget(cache.begin(&Batch::new(&[0], &[3])).unwrap());
    let error = cache.begin(&Batch::new(&[0], &[1])).unwrap_err();
    assert!(error.is_busy(), "{error}");
}

#[test]
fn errors_say_what_was_wrong_with_both_values() {
    let mut cache = cache();
    cache.add(0).unwrap();
    let error = cache.length(7).unwrap_err();
    assert!(error.is_not_found() && error.message().contains('7'), "{error}");
    assert_eq!(error.status().name(), "KVC_E_NOT_FOUND");
    let error = cache.fork(0, 1, Some(-1)).unwrap_err();
    assert!(error.status() == Status::OutOfRange && error.message().contains("-1"), "{error}");
    let error = cache.begin(&Batch::new(&[0, 1], &[1])).unwrap_err();
    assert!(error.status() == Status::InvalidArgument, "{error}");
    assert!(error.message().contains('1') && error.message().contains('2'), "{error}");
    let boxed: Box<dyn std::error::Error + Send + Sync> = error.into();
    assert!(boxed.to_string().ends_with("(KVC_E_INVALID_ARGUMENT)"));
}

#[test]
fn arrays_that_are_too_short_for_the_batch_are_refused() {
    let mut cache = cache();
    cache.add(0).unwrap();
    for batch in [
        Batch::new(&[0], &[3]).tokens(&[1, 2]),
        Batch::new(&[0], &[3]).tree_parents(&[-1]),
        Batch::new(&[0], &[3]).cross_lengths(&[]),
        Batch::new(&[0], &[-1]).tokens(&[]),
        Batch::new(&[0], &[i64::MAX]).tokens(&[]),
    ] {
        assert_eq!(cache.begin(&batch).unwrap_err().status(), Status::InvalidArgument);
    }
    assert_eq!(cache.can_append(&[0], &[]).unwrap_err().status(), Status::InvalidArgument);
    assert_eq!(cache.tree_commit(&[0], &[]).unwrap_err().status(), Status::InvalidArgument);
}

#[test]
fn a_full_cache_says_how_many_pages_are_missing() {
    let mut cache = cache();
    cache.add(0).unwrap();
    let room = cache.available_pages() * 4;
    let missing = cache.can_append(&[0], &[room + 4]);
    assert!(missing.is_err_and(|error| error.is_never_fits()));
    step(&mut cache, &[0], &[room - 4], &vec![0.0; room as usize - 4]).unwrap();
    cache.add(1).unwrap();
    let error = cache.begin(&Batch::new(&[1], &[9])).unwrap_err();
    assert!(error.is_no_pages() && error.detail() == 2, "{error}");
    assert_eq!(cache.can_append(&[1], &[9]).unwrap(), 2);
}

#[test]
fn tensors_of_another_type_or_shape_are_refused_by_name() {
    let mut cache = cache();
    cache.add(0).unwrap();
    let forward = cache.begin(&Batch::new(&[0], &[2])).unwrap();
    let (wide, integers) = ([0.0f32; 64], [0i32; 64]);
    let opt = AttnOptions::default();
    let q = TensorRef::new(&wide, &[2, 2, 4]).unwrap();
    let k = TensorRef::new(&wide, &[2, 1, 4]).unwrap();
    let mut out = [0.0f32; 16];
    let mut attend = |q: &TensorRef<'_>, k: &TensorRef<'_>, shape: &[usize]| {
        forward
            .attn(0, &opt, q, (k, k), &mut TensorMut::new(&mut out, shape).unwrap())
            .map_err(|e| e.status())
    };
    let whole = [2, 2, 4];
    assert_eq!(attend(&TensorRef::new(&integers, &whole).unwrap(), &k, &whole), Err(Status::Dtype));
    assert_eq!(attend(&TensorRef::new(&wide, &[2, 8]).unwrap(), &k, &whole), Err(Status::Shape));
    assert_eq!(attend(&q, &TensorRef::new(&wide, &[1, 1, 4]).unwrap(), &whole), Err(Status::Shape));
    assert_eq!(attend(&q, &TensorRef::new(&wide, &[2, 1, 8]).unwrap(), &whole), Err(Status::Shape));
    assert_eq!(attend(&q, &k, &[1, 2, 4]), Err(Status::Shape));
    let last_dim = TensorRef::with_strides(&wide, &[2, 2, 4], &[16, 8, 2]).unwrap();
    assert_eq!(attend(&last_dim, &k, &whole), Err(Status::Shape));
    assert_eq!(attend(&q, &k, &whole), Ok(()));
    let mut out = TensorMut::new(&mut out, &whole).unwrap();
    assert_eq!(forward.attn(9, &opt, &q, (&k, &k), &mut out).unwrap_err().status(), Status::OutOfRange);
    assert_eq!(forward.attn(usize::MAX, &opt, &q, (), &mut out).unwrap_err().status(), Status::OutOfRange);
    forward.end().unwrap();
}

#[test]
fn strided_rows_give_the_same_as_compact_ones() {
    let rows: Vec<f32> = (0..48).map(|x| x as f32 / 16.0).collect();
    let compact: Vec<f32> = rows.chunks(24).flat_map(|row| row[..8].to_vec()).collect();
    let mut outs = Vec::new();
    for (data, stride) in [(&rows, 24), (&compact, 8)] {
        let mut cache = cache();
        cache.add(0).unwrap();
        let forward = cache.begin(&Batch::new(&[0], &[2])).unwrap();
        let q = TensorRef::with_strides(data, &[2, 2, 4], &[stride, 4, 1]).unwrap();
        let k = TensorRef::with_strides(data, &[2, 1, 4], &[stride, 4, 1]).unwrap();
        let mut out = vec![f32::NAN; 40];
        let mut strided = TensorMut::with_strides(&mut out, &[2, 2, 4], &[20, 8, 1]).unwrap();
        forward.attn(0, &AttnOptions::default(), &q, (&k, &k), &mut strided).unwrap();
        forward.end().unwrap();
        assert!(out[4..8].iter().all(|gap| gap.is_nan()), "gaps of an output are left alone");
        outs.push([&out[0..4], &out[8..12], &out[20..24], &out[28..32]].concat());
    }
    assert_eq!(outs[0], outs[1]);
    assert!(outs[0].iter().all(|x| x.is_finite()));
}

#[test]
fn other_sequences_change_while_a_forward_is_open() {
    let mut cache = cache();
    cache.add(0).unwrap();
    cache.add(1).unwrap();
    let mut forward = cache.begin(&Batch::new(&[0], &[2])).unwrap();
    forward.cache_mut().add(2).unwrap();
    forward.cache_mut().remove(1).unwrap();
    assert!(forward.cache_mut().remove(0).unwrap_err().is_busy());
    assert!(forward.cache_mut().clear().unwrap_err().is_busy());
    assert!(forward.cache_mut().trim().unwrap_err().is_busy());
    // What is lent cannot be carried away: only addresses change hands, and they name the same cache
    // afterwards.
    let mut other = self::cache();
    std::mem::swap(forward.cache_mut(), &mut *other);
    assert_eq!(forward.cache().sequences().unwrap(), [0, 2]);
    assert!(other.sequences().unwrap().is_empty());
    forward.abort().unwrap();
    assert_eq!(cache.sequences().unwrap(), [0, 2]);
}

#[test]
fn threads_ask_while_one_attends() {
    let mut cache = cache();
    cache.add(0).unwrap();
    step(&mut cache, &[0], &[8], &[1.0; 8]).unwrap();
    let asked = AtomicUsize::new(0);
    let forward = cache.begin(&Batch::new(&[0], &[1])).unwrap();
    let cache_ref = forward.cache();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for _ in 0..500 {
                    assert_eq!(cache_ref.length(0).unwrap(), 8);
                    cache_ref.check().unwrap();
                    assert!(cache_ref.stats().unwrap().pages_used >= 2);
                    asked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let numbers = [0.0f32; 8];
        let (q, k) =
            (TensorRef::new(&numbers, &[1, 2, 4]).unwrap(), TensorRef::new(&numbers, &[1, 1, 4]).unwrap());
        let mut out = [0.0f32; 8];
        // At least once: the threads may be done before this one begins.
        loop {
            let mut out = TensorMut::new(&mut out, &[1, 2, 4]).unwrap();
            forward.attn(0, &AttnOptions::default(), &q, (&k, &k), &mut out).unwrap();
            if asked.load(Ordering::Relaxed) == 1000 {
                break;
            }
        }
    });
    forward.end().unwrap();
}

#[test]
fn a_forward_moves_to_another_thread() {
    let mut cache = cache();
    cache.add(0).unwrap();
    let forward = cache.begin(&Batch::new(&[0], &[1]).partial()).unwrap();
    std::thread::scope(|scope| scope.spawn(move || forward.end()).join().unwrap()).unwrap();
    assert_eq!(cache.length(0).unwrap(), 1);
    std::thread::spawn(move || drop(cache)).join().unwrap();
}

#[test]
fn handles_are_as_shareable_as_the_header_says() {
    fn both<T: Send + Sync>() {}
    fn send<T: Send>() {}
    both::<Plan>();
    both::<Cache>();
    both::<Config>();
    both::<Error>();
    both::<kvcache::Fence>();
    both::<kvcache::ManagedTensor>();
    send::<Forward<'_>>();
}

#[test]
fn plans_answer_before_anything_is_allocated() {
    let layer = Layer::attention(32, 8, 128).rope(Rope::half(500_000.0));
    let plan = Plan::new(&Config::new(vec![layer; 32]).byte_budget(1 << 30)).unwrap();
    let info = plan.info().unwrap();
    assert_eq!(info.bytes_per_token, 32 * 2 * 8 * 128 * 2);
    assert_eq!(info.num_pages, plan.pages_for(1 << 30).unwrap());
    assert_eq!(plan.request_pages(17).unwrap(), 2);
    assert!(plan.max_tokens(1 << 30).unwrap() > 0);
    assert_eq!(plan.group(0).unwrap().num_layers, 32);
    assert!(plan.group(1).is_err());
    assert_eq!(Plan::min_pages(&[&plan, &plan]).unwrap(), info.num_pages);
    assert!(plan.describe().unwrap().contains("pages"));
    let json: serde_json::Value = serde_json::from_str(&plan.to_json().unwrap()).unwrap();
    assert_eq!(json["num_pages"], info.num_pages);
}

#[test]
fn v_is_quantised_apart_from_k() {
    let k_alone = Layer::attention(2, 2, 16).k_dtype(Some(DType::I8)).quant(Quant::PerTokenHead);
    let v_alone = Layer::attention(2, 2, 16).v_dtype(Some(DType::F8_E4M3FN)).v_quant(Some(Quant::PerTensor));
    let layers = vec![k_alone.v_quant(Some(Quant::None)), v_alone.v_scale(0.5)];
    let plan = Plan::new(&Config::new(layers).num_pages(4)).unwrap();
    let [first, second] = [plan.layer(0).unwrap(), plan.layer(1).unwrap()];
    assert_eq!((first.quant, first.v_quant), (Quant::PerTokenHead.to_raw(), Quant::None.to_raw()));
    assert_eq!((first.v_dtype.bits, first.bytes_per_token), (16, 2 * (16 + 4 + 32)));
    assert_eq!((second.quant, second.v_quant), (Quant::None.to_raw(), Quant::PerTensor.to_raw()));
    assert_eq!(second.bytes_per_token, 2 * (32 + 16));
}

#[test]
fn the_first_tokens_are_kept_unquantised() {
    let quantised = Layer::attention(2, 2, 16).dtype(DType::I8).quant(Quant::PerTokenHead);
    let plan = Plan::new(&Config::new(vec![quantised.keep_tokens(4)]).num_pages(4)).unwrap();
    let layer = plan.layer(0).unwrap();
    assert_eq!((layer.keep_tokens, layer.kept_group), (4, 1));
    assert_eq!((plan.group(0).unwrap().keep_tokens, plan.group(1).unwrap().keep_tokens), (0, 4));
    let error = Plan::new(&Config::new(vec![Layer::attention(2, 2, 16).keep_tokens(4)])).unwrap_err();
    assert!(error.message().contains("layers[0].keep_tokens = 4 with quant = NONE (0)"), "{error}");
}

#[test]
fn bad_configurations_name_the_field() {
    let refused = |config: &Config| Plan::new(config).unwrap_err();
    let scaled = Layer::attention(2, 2, 4).dtype(DType::I8).quant(Quant::PerTensor);
    for (layer, text) in [
        (scaled.clone().k_scale(-0.5), "layers[0].k_scale = -0.5"),
        (scaled.v_scale(f32::INFINITY), "layers[0].v_scale = inf"),
        (Layer::attention(2, 2, 4).k_scale(2.0), "layers[0].k_scale = 2 with quant = NONE"),
    ] {
        let error = refused(&Config::new(vec![layer]).num_pages(4));
        assert!(error.message().contains(text), "{error}");
    }
    let v_alone = Layer::attention(2, 2, 4).v_quant(Some(Quant::PerTokenHead));
    let error = refused(&Config::new(vec![v_alone.clone()]).num_pages(4));
    assert!(error.message().contains("v_dtype is not set with v_quant = PER_TOKEN_HEAD (2)"), "{error}");
    let four_bits = Layer::attention(2, 2, 4).dtype(DType::I4).quant(Quant::PerTokenHead);
    let four_bits = Config::new(vec![four_bits]).num_pages(4);
    assert!(Cache::with_config(&four_bits.clone().storage(Storage::None)).is_ok());
    let error = Cache::with_config(&four_bits).unwrap_err();
    assert!(error.is_unsupported() && error.message().contains("layers[0].k_dtype = int4"), "{error}");
    let error = refused(&Config::new(Vec::new()));
    assert!(error.message().contains("num_layers"), "{error}");
    let error = refused(&config().page_size(-1));
    assert!(error.message().contains("page_size"), "{error}");
    let mut rope = Rope::half(1e4);
    rope.long_freq_factors = vec![1.0; 3];
    let error = refused(&Config::new(vec![Layer::attention(1, 1, 4).rope(rope)]));
    assert!(error.message().contains("long_freq_factors"), "{error}");
    let error = Config::from_hf_json(r#"{"model_type": "no such model"}"#).unwrap_err();
    assert!(error.is_unsupported(), "{error}");
    assert_eq!(Config::from_hf_json("{").unwrap_err().status(), Status::InvalidArgument);
    assert_eq!(Config::from_hf_json("{\0}").unwrap_err().status(), Status::InvalidArgument);
}

#[test]
fn context_parallel_ranks_are_planned_and_not_served() {
    let config = Config::new(vec![Layer::attention(2, 2, 64)]).num_pages(64);
    assert_eq!(Plan::new(&config).unwrap().request_pages(1000).unwrap(), 63);
    let dealt = config.cp_size(4);
    assert_eq!(Plan::new(&dealt).unwrap().request_pages(1000).unwrap(), 16);
    let error = Cache::with_config(&dealt).unwrap_err();
    assert!(error.is_unsupported() && error.message().contains("cp_size = 4"), "{error}");
}

#[test]
fn a_model_type_that_is_not_known_is_read_as_the_options_say() {
    let strange = r#"{"model_type": "novel", "num_hidden_layers": 4, "hidden_size": 64,
        "num_attention_heads": 4, "kv_groups_map": 3, "sliding_window": 32, "sliding_window_pattern": "LG"}"#;
    let assume = |family| Config::from_hf(strange, &HfOptions { assume: Some(family), ..Default::default() });
    let config = assume("llama").unwrap();
    assert_eq!(config.layers.iter().map(|layer| layer.window).collect::<Vec<_>>(), [32, 0, 32, 0]);
    assert!(Config::from_hf_json(strange).unwrap_err().message().contains("kv_groups_map"));
    let error = assume("lama").unwrap_err();
    assert_eq!(error.status(), Status::InvalidArgument);
    assert!(error.message().contains("assume = 'lama'"), "{error}");
    let drafting = strange.replace("kv_groups_map", "num_nextn_predict_layers");
    let with = |mtp_layers| Config::from_hf(&drafting, &HfOptions { mtp_layers, ..Default::default() });
    assert_eq!(with(3).unwrap().layers.len(), 7);
    assert_eq!(with(4).unwrap_err().status(), Status::OutOfRange);
    assert!(assume("lla\0ma").unwrap_err().message().contains("assume: byte 3 is zero"));
}

#[test]
fn a_config_json_keeps_windows_and_rotations() {
    let mamba = Config::from_hf_json(
        r#"{"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32,
            "state_size": 4, "conv_kernel": 4}"#,
    )
    .unwrap();
    assert!(
        mamba.layers.iter().all(|layer| layer.states.iter().all(|state| state.shape[0] > 0)),
        "{mamba:?}"
    );
    assert!(mamba.layers[0].states.len() >= 2);
    let config = Config::from_hf_json(
        r#"{"model_type": "gemma2", "num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 32, "max_position_embeddings": 512,
            "torch_dtype": "float16"}"#,
    )
    .unwrap();
    assert_eq!(config.layers.len(), 4);
    assert_eq!(config.max_seq_len, 512);
    assert!(config.layers.iter().any(|layer| layer.window == 32));
    assert!(config.layers.iter().all(|layer| layer.rope.is_some() && layer.k_dtype == Some(DType::F16)));
    Cache::with_config(&config.num_pages(64)).unwrap();
}

#[test]
fn a_layer_that_is_forgotten_is_named_unless_the_forward_is_partial() {
    let mut cache = cache();
    cache.add(0).unwrap();
    let prompt = [1, 2, 3, 4];
    let batch = Batch::new(&[0], &[4]).tokens(&prompt);
    let error = cache.begin(&batch).unwrap().end().unwrap_err();
    assert_eq!(error.status(), Status::InvalidState);
    assert!(error.to_string().contains("layer 0"), "{error}");
    assert_eq!(cache.length(0).unwrap(), 0, "a forward that cannot end is undone");
    cache.begin(&batch.partial()).unwrap().end().unwrap();
    assert_eq!(cache.length(0).unwrap(), 4);
    assert_eq!(cache.prefix_match(&Query::new(&[1, 2, 3, 4, 5])).unwrap(), 0);
}

#[test]
fn cleared_pages_show_nothing_of_who_had_them_before() {
    // The library clears what it alone writes. A caller that has the pool's memory writes rows itself.
    for (clears, is_exported) in [(false, true), (false, false), (true, true)] {
        let mut cache = Cache::with_config(&config().clear_pages(clears)).unwrap();
        let _pool = is_exported.then(|| cache.export_pool(0, kvcache::PoolKind::K).unwrap());
        cache.add(0).unwrap();
        step(&mut cache, &[0], &[64], &[7.0; 64]).unwrap();
        cache.remove(0).unwrap();
        cache.add(1).unwrap();
        cache.begin(&Batch::new(&[1], &[64]).partial()).unwrap().end().unwrap();
        let mut v = [1.0f32; 64 * 4];
        let mut rows = TensorMut::new(&mut v, &[64, 1, 4]).unwrap();
        cache.debug_get_layer(1, 0, 0..64, None, Some(&mut rows)).unwrap();
        let expected = if clears || !is_exported { 0.0 } else { 7.0 };
        assert!(v.iter().all(|x| *x == expected), "cleared: {clears}, exported: {is_exported}");
    }
}

#[test]
fn page_tables_are_slices() {
    let mut cache = cache();
    cache.add(0).unwrap();
    step(&mut cache, &[0], &[5], &[0.0; 5]).unwrap();
    let forward = cache.begin(&Batch::new(&[0], &[1]).partial()).unwrap();
    let indptr = forward.export_page_table(0, TableKind::Indptr).unwrap();
    assert_eq!(indptr.as_slice::<i32>().unwrap(), [0, 2]);
    assert!(indptr.as_slice::<i64>().is_none(), "of another type");
    let slots = forward.export_page_table(0, TableKind::SlotMapping).unwrap();
    assert_eq!(slots.as_slice::<i64>().unwrap()[0] % 4, 1);
    forward.end().unwrap();
    let pages = cache.export_seq_pages(0, 0).unwrap();
    let pool = cache.export_pool(0, kvcache::PoolKind::K).unwrap();
    drop(cache);
    assert_eq!(pages.as_slice::<i32>().unwrap().len(), 2);
    assert!(pool.as_slice::<f32>().is_none(), "a pool is shared and written");
    assert_eq!(pool.shape(), [16, 1, 4, 4]);
}

#[test]
fn swapped_sequences_come_back_as_they_were() {
    let config = config().host_byte_budget(1 << 20).event_capacity(16);
    let mut cache = Cache::with_config(&config).unwrap();
    cache.add(0).unwrap();
    step(&mut cache, &[0], &[7], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
    let fence = cache.swap_out(&[0]).unwrap();
    assert!(fence.is_done().unwrap() && fence.wait_timeout(Duration::from_secs(120)).unwrap());
    assert_eq!(cache.seq_info(0).unwrap().is_swapped, 1);
    assert_eq!(cache.begin(&Batch::new(&[0], &[1])).unwrap_err().status(), Status::InvalidState);
    cache.swap_in(&[0]).unwrap().wait().unwrap();
    assert_eq!(step(&mut cache, &[0], &[1], &[4.0]).unwrap(), [4.0]);
    let pairs = [0i64, 0, 0, 1];
    let pairs = TensorRef::new(&pairs, &[2, 2]).unwrap();
    let error = cache.pages_swap(&pairs, SwapDirection::Out).unwrap_err();
    assert_eq!(error.status(), Status::InvalidState, "the host pool is used by sequences");
    assert!(cache.pages_copy(&TensorRef::new(&[7i64, 8], &[1, 2]).unwrap()).unwrap().is_done().unwrap());
}

#[test]
fn pages_move_as_bytes_into_reserved_tokens() {
    let plan = Plan::new(&config()).unwrap();
    let (mut from, mut to) = (Cache::new(&plan).unwrap(), Cache::new(&plan).unwrap());
    from.add(0).unwrap();
    step(&mut from, &[0], &[3], &[1.0, 2.0, 6.0]).unwrap();
    to.add(5).unwrap();
    to.reserve(5, 3).unwrap();
    assert_eq!(to.length(5).unwrap(), 3);
    let bytes = plan.layer(0).unwrap().page_bytes as usize;
    let page =
        |cache: &Cache, seq| i64::from(cache.export_seq_pages(seq, 0).unwrap().as_slice::<i32>().unwrap()[0]);
    let mut row = vec![0u8; bytes];
    for layer in 0..plan.info().unwrap().num_layers as usize {
        let (source, target) = ([page(&from, 0)], [page(&to, 5)]);
        let mut out = TensorMut::new(&mut row, &[1, bytes]).unwrap();
        from.pages_export(layer, &TensorRef::new(&source, &[1]).unwrap(), &mut out).unwrap();
        let data = TensorRef::new(&row, &[1, bytes]).unwrap();
        to.pages_import(layer, &TensorRef::new(&target, &[1]).unwrap(), &data).unwrap();
    }
    assert_eq!(step(&mut to, &[5], &[1], &[3.0]).unwrap(), step(&mut from, &[0], &[1], &[3.0]).unwrap());
    let error = to.pages_import(
        0,
        &TensorRef::new(&[999i64], &[1]).unwrap(),
        &TensorRef::new(&row, &[1, bytes]).unwrap(),
    );
    assert_eq!(error.unwrap_err().status(), Status::OutOfRange);
    assert_eq!(to.reserve(77, 1).unwrap_err().status(), Status::NotFound);
}

#[test]
fn saved_sequences_go_on_in_another_cache() {
    let mut cache = Cache::with_config(&config()).unwrap();
    cache.add(0).unwrap();
    step(&mut cache, &[0], &[7], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]).unwrap();
    cache.fork(0, 1, None).unwrap();
    let file = cache.save(&[0, 1], Some("m")).unwrap();
    assert!(kvcache::describe_state_bytes(&file).unwrap().contains("\"model_id\": \"m\""));
    let folder = Folder::new();
    let path = folder.path().join("two.kvc");
    assert_eq!(cache.save_file(&path, &[0, 1], Some("m")).unwrap(), file.len() as u64);
    assert_eq!(std::fs::read(&path).unwrap(), file);
    let expected = step(&mut cache, &[0], &[1], &[4.0]).unwrap();

    let mut other = Cache::with_config(&config()).unwrap();
    let fingerprint = Plan::new(&config()).unwrap().fingerprint().unwrap();
    assert!(kvcache::describe_state_file(&path).unwrap().contains(&fingerprint));
    let options = LoadOptions::default();
    other.load_file(&path, &[5, 6], &options).unwrap();
    drop(folder);
    assert_eq!((other.length(5).unwrap(), other.stats().unwrap().pages_shared), (7, 2));
    assert_eq!(step(&mut other, &[5], &[1], &[4.0]).unwrap(), expected);
    other.load(&file, &[7, 8], &options).unwrap();
    let error = other.load(&file, &[7, 8], &options).unwrap_err();
    assert_eq!(error.status(), Status::AlreadyExists);
    let error = other.load(&file[..file.len() - 1], &[9, 10], &options).unwrap_err();
    assert_eq!(error.status(), Status::Corrupt);
    let error = other.load_file(&path, &[9, 10], &options).unwrap_err();
    assert_eq!(error.status(), Status::Io);

    struct Full;
    impl std::io::Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(std::io::Error::other("no room today"))
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let error = cache.save_to(Full, &[0], None).unwrap_err();
    assert_eq!(error.status(), Status::Io);
    assert!(error.to_string().contains("no room today"), "{error}");
    cache.check().unwrap();
    other.check().unwrap();
}

#[test]
fn prompts_hit_what_others_computed() {
    let mut cache = Cache::with_config(&config().event_capacity(64)).unwrap();
    let prompt: Vec<i32> = (100..110).collect();
    assert_eq!(cache.prefix_attach(0, &Query::new(&prompt).salt(b"a")).unwrap(), 0);
    let batch = Batch::new(&[0], &[10]).tokens(&prompt);
    let forward = cache.begin(&batch).unwrap();
    let rows = [0.5f32; 40];
    let k = TensorRef::new(&rows, &[10, 1, 4]).unwrap();
    forward.kv_append(0, (&k, &k)).unwrap();
    forward.end().unwrap();
    assert_eq!(cache.prefix_match(&Query::new(&prompt).salt(b"a")).unwrap(), 8);
    assert_eq!(cache.prefix_match(&Query::new(&prompt).salt(b"b")).unwrap(), 0);
    assert_eq!(cache.prefix_attach(1, &Query::new(&prompt).salt(b"a")).unwrap(), 8);
    let hashes = kvcache::prefix_hash(&prompt, 4, b"a", &[]).unwrap();
    assert_eq!(cache.prefix_match(&Query::of_hashes(&hashes, 10).salt(b"a")).unwrap(), 8);
    let events = cache.events_poll(100).unwrap();
    let stored: Vec<_> = events.iter().map(|event| event.hash).collect();
    assert_eq!(stored, hashes);
    assert_eq!(events[0].tokens.as_deref(), Some(&prompt[..4]));
    assert_eq!(events[1].parent, hashes[0]);
    let (snapshot, number) = cache.events_snapshot().unwrap();
    assert_eq!((snapshot.len(), number), (2, events[1].number));
    assert_eq!(cache.prefix_pin(&Query::new(&prompt).salt(b"a")).unwrap(), 8);
    cache.remove(0).unwrap();
    cache.remove(1).unwrap();
    assert_eq!(cache.prefix_evict(100).unwrap(), 0, "pinned");
    cache.prefix_unpin(&Query::new(&prompt).salt(b"a")).unwrap();
    assert_eq!(cache.prefix_evict(1).unwrap(), 1);
    cache.prefix_quota_set(b"a", 1).unwrap();
    cache.prefix_reset().unwrap();
    assert!(cache.is_empty());
}

#[test]
fn a_logger_that_panics_does_no_harm() {
    kvcache::set_logger(LogLevel::Debug, |_, message| {
        assert!(!message.is_empty());
        std::panic::resume_unwind(Box::new("the logger"));
    })
    .unwrap();
    let mut cache = cache();
    cache.add(0).unwrap();
    step(&mut cache, &[0], &[2], &[1.0, 2.0]).unwrap();
    kvcache::set_logger(LogLevel::Error, |_, _| {}).unwrap();
}

#[test]
fn the_library_says_what_it_is() {
    assert!(kvcache::version().unwrap().contains('.'));
    assert_eq!(kvcache::abi_version().unwrap().0, kvcache::sys::KVC_ABI_VERSION_MAJOR);
    assert!(kvcache::has_feature("prefix").unwrap());
    assert!(!kvcache::has_feature("no such\0feature").unwrap());
    assert_eq!(kvcache::device_query(kvcache::Device::CPU).unwrap().backend_present, 1);
    assert_eq!(kvcache::device_query(kvcache::Device::cuda(0)).map_or(0, |caps| caps.backend_present), 0);
}

#[test]
fn modules_lie_in_a_directory_that_is_named_in_full() {
    for path in ["here", "./here", "", "/opt/$ORIGIN", "/opt\0"] {
        let error = kvcache::set_module_path(path).unwrap_err();
        assert_eq!(error.status(), kvcache::Status::InvalidArgument, "{error}");
        assert!(error.message().contains("path = "), "{error}");
    }
    kvcache::set_module_path(env!("CARGO_TARGET_TMPDIR")).unwrap();
    assert!(!kvcache::has_feature("cuda").unwrap());
}
