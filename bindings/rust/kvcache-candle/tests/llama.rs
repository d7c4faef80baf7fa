//! The example's model with candle's own cache and with pages.

mod common;

use candle_core::{DType, Device, Tensor};
use common::generate::{greedy_appended, greedy_contiguous, greedy_paged, Run};
use common::seed;
use common::{caches, model};
use model::{Attend, Config, Llama, Random};

type Result = std::result::Result<(), Box<dyn std::error::Error>>;

const NEW_TOKENS: usize = 16;

fn assert_equal_runs(run: &Run, reference: &Run) {
    let (distance, range) = (run.distance(reference), reference.range());
    println!("max |dlogit| {distance:.2e} of a range of {range:.1}");
    assert_eq!(run.tokens, reference.tokens, "greedy tokens");
    assert!(distance <= 1e-4 * range, "max |dlogit| {distance} of a range of {range}");
}

#[test]
fn attention_over_pages_chooses_the_tokens_of_candles_own_cache() -> Result {
    let seed = seed();
    let model = Llama::new(Config::tiny(DType::F32), seed)?;
    let mut random = Random::new(seed + 1);
    for prompt_len in [1, 15, 16, 17, 75] {
        let prompt = random.tokens(prompt_len, model.config.vocab);
        let mut cache = caches::paged_cache(&model.config, 8)?;
        cache.add(0)?;
        let run = greedy_paged(&model, &mut cache, &[0], &[&prompt], NEW_TOKENS)?.remove(0);
        assert_equal_runs(&run, &greedy_contiguous(&model, &prompt, NEW_TOKENS)?);
        cache.cache().check()?;
    }
    Ok(())
}

#[test]
fn pages_behind_append_give_the_same_bits_as_candles_own_cache() -> Result {
    let seed = seed();
    for dtype in [DType::F32, DType::F16, DType::BF16] {
        let model = Llama::new(Config::tiny(dtype), seed)?;
        let prompt = Random::new(seed + 1).tokens(37, model.config.vocab);
        let mut cache = caches::paged_cache(&model.config, 8)?;
        cache.add(0)?;
        let run = greedy_appended(&model, cache, &prompt, NEW_TOKENS)?;
        let reference = greedy_contiguous(&model, &prompt, NEW_TOKENS)?;
        assert_eq!(run.tokens, reference.tokens, "{dtype:?}");
        assert!(run.logits == reference.logits, "{dtype:?}: max |dlogit| {}", run.distance(&reference));
    }
    Ok(())
}

#[test]
fn a_batch_of_16_sequences_of_unequal_lengths_equals_16_single_runs() -> Result {
    let seed = seed();
    let model = Llama::new(Config::tiny(DType::F32), seed)?;
    let mut random = Random::new(seed + 1);
    let mut cache = caches::paged_cache(&model.config, 160)?;
    let seqs: Vec<i64> = (0..16).collect();
    let prompts: Vec<_> = (0..16)
        .map(|_| {
            let len = 1 + random.below(90);
            random.tokens(len, model.config.vocab)
        })
        .collect();
    for seq in &seqs {
        cache.add(*seq)?;
    }
    let feeds: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let runs = greedy_paged(&model, &mut cache, &seqs, &feeds, NEW_TOKENS)?;
    for (run, prompt) in runs.iter().zip(&prompts) {
        assert_equal_runs(run, &greedy_contiguous(&model, prompt, NEW_TOKENS)?);
    }
    cache.cache().check()?;
    Ok(())
}

#[test]
fn an_attached_prefix_is_not_computed_again_and_changes_nothing() -> Result {
    let seed = seed();
    let model = Llama::new(Config::tiny(DType::F32), seed)?;
    let mut random = Random::new(seed + 1);
    let system = random.tokens(64, model.config.vocab);
    let mut cache = caches::paged_cache(&model.config, 32)?;
    cache.add(0)?;
    let first = [system.as_slice(), &random.tokens(9, model.config.vocab)].concat();
    // Published by the step itself, because it was told the tokens.
    let step = cache.step_tokens(&[0], &[&first])?;
    let tokens = Tensor::new(first.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
    model.forward(&tokens, &step.positions()?, &mut caches::Paged(&step))?;
    step.commit()?;

    let second = [system.as_slice(), &random.tokens(21, model.config.vocab)].concat();
    let found = cache.prefix_attach(1, &second)? as usize;
    assert!(found >= 64, "found {found} of 64 shared tokens");
    let run = greedy_paged(&model, &mut cache, &[1], &[&second[found..]], NEW_TOKENS)?.remove(0);
    assert_equal_runs(&run, &greedy_contiguous(&model, &second, NEW_TOKENS)?);
    assert_eq!(cache.prefix_attach(2, &random.tokens(50, model.config.vocab))?, 0);
    Ok(())
}

#[test]
fn forks_share_their_prompt_and_go_their_own_ways() -> Result {
    let seed = seed();
    let model = Llama::new(Config::tiny(DType::F32), seed)?;
    let mut random = Random::new(seed + 1);
    let prompt = random.tokens(50, model.config.vocab);
    let mut cache = caches::paged_cache(&model.config, 32)?;
    cache.add(0)?;
    greedy_paged(&model, &mut cache, &[0], &[&prompt], 1)?;
    let before = cache.cache().available_pages();
    cache.fork(0, 1)?;
    cache.fork_at(0, 2, 33)?;
    assert_eq!(cache.cache().available_pages(), before);

    let replies = [random.tokens(3, model.config.vocab), random.tokens(7, model.config.vocab)];
    let runs = greedy_paged(&model, &mut cache, &[1, 2], &[&replies[0], &replies[1]], NEW_TOKENS)?;
    let wholes = [[prompt.as_slice(), &replies[0]].concat(), [&prompt[..33], &replies[1]].concat()];
    for (run, whole) in runs.iter().zip(&wholes) {
        assert_equal_runs(run, &greedy_contiguous(&model, whole, NEW_TOKENS)?);
    }
    // The parent is as it was.
    cache.pop(0, 10)?;
    let whole = [&prompt[..40], &replies[0]].concat();
    let run = greedy_paged(&model, &mut cache, &[0], &[&replies[0]], NEW_TOKENS)?.remove(0);
    assert_equal_runs(&run, &greedy_contiguous(&model, &whole, NEW_TOKENS)?);
    Ok(())
}

/// Logits of all tokens of a prompt, in float32.
fn prefill(model: &Llama, prompt: &[u32], cache: &mut dyn Attend) -> candle_core::Result<Vec<f32>> {
    let tokens = Tensor::new(prompt, &Device::Cpu)?.unsqueeze(0)?;
    let positions = Tensor::arange(0, prompt.len() as u32, &Device::Cpu)?;
    model.forward(&tokens, &positions, cache)?.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}

fn mean_distance(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>() / a.len() as f64
}

#[test]
fn in_16_bits_pages_are_no_farther_from_float32_than_candle_is() -> Result {
    let seed = seed();
    let prompt = Random::new(seed + 1).tokens(120, 199);
    for dtype in [DType::F16, DType::BF16] {
        let config = Config::tiny(dtype);
        let model = Llama::new(config, seed)?;
        // The same rounded weights, computed with in float32.
        let exact = model.to_dtype(DType::F32)?;
        let reference = prefill(&exact, &prompt, &mut caches::Contiguous::new(&exact.config))?;
        let eager = prefill(&model, &prompt, &mut caches::Contiguous::new(&config))?;
        let mut cache = caches::paged_cache(&config, 8)?;
        cache.add(0)?;
        let step = cache.step(&[0], &[prompt.len() as i64])?;
        let paged = prefill(&model, &prompt, &mut caches::Paged(&step))?;
        step.commit()?;
        let (ours, theirs) = (mean_distance(&paged, &reference), mean_distance(&eager, &reference));
        println!("{dtype:?}: mean |dlogit| to float32: pages {ours:.5}, candle {theirs:.5}");
        assert!(ours <= 1.1 * theirs, "{dtype:?}: pages {ours}, candle {theirs}");
    }
    Ok(())
}
