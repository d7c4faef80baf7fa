//! A Llama-like model with candle's own cache and with pages: the same tokens, then what only pages can do.
//!
//! ```text
//! cargo run --example llama
//! ```

mod caches;
mod generate;
mod model;

use caches::paged_cache;
use candle_core::DType;
use generate::{greedy_appended, greedy_contiguous, greedy_paged, Run};
use model::{Config, Llama, Random};

const NEW_TOKENS: usize = 24;

/// Prints how far two runs are apart, and ends the program when they chose different tokens.
fn compare(what: &str, run: &Run, reference: &Run) {
    println!(
        "{what}: tokens {}, max |dlogit| {:.2e} of a range of {:.1}",
        if run.tokens == reference.tokens { "equal" } else { "DIFFER" },
        run.distance(reference),
        reference.range()
    );
    assert_eq!(run.tokens, reference.tokens, "{what}");
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = Llama::new(Config::tiny(DType::F32), 1)?;
    let vocab = model.config.vocab;
    let mut random = Random::new(2);

    // One sequence, three caches.
    let prompt = random.tokens(90, vocab);
    let reference = greedy_contiguous(&model, &prompt, NEW_TOKENS)?;
    let mut cache = paged_cache(&model.config, 128)?;
    cache.add(0)?;
    let paged = greedy_paged(&model, &mut cache, &[0], &[&prompt], NEW_TOKENS)?.remove(0);
    compare("attention over pages", &paged, &reference);
    let mut gathering = paged_cache(&model.config, 16)?;
    gathering.add(0)?;
    compare("pages behind append ", &greedy_appended(&model, gathering, &prompt, NEW_TOKENS)?, &reference);

    // The prompt of another user begins alike: its pages are found, and only the rest is computed.
    cache.prefix_insert(0, &prompt)?;
    let longer: Vec<u32> = prompt.iter().copied().chain(random.tokens(10, vocab)).collect();
    let found = cache.prefix_attach(1, &longer)? as usize;
    println!("prefix: {found} of {} tokens found, {} computed", longer.len(), longer.len() - found);
    let attached = greedy_paged(&model, &mut cache, &[1], &[&longer[found..]], NEW_TOKENS)?.remove(0);
    compare("shared prefix       ", &attached, &greedy_contiguous(&model, &longer, NEW_TOKENS)?);

    // Two continuations of one prompt: a fork copies nothing.
    cache.fork_at(0, 2, prompt.len() as i64)?;
    let reply = random.tokens(5, vocab);
    let forked = greedy_paged(&model, &mut cache, &[2], &[&reply], NEW_TOKENS)?.remove(0);
    let whole = [prompt.as_slice(), &reply].concat();
    compare("forked              ", &forked, &greedy_contiguous(&model, &whole, NEW_TOKENS)?);

    // Sixteen sequences of unequal lengths in one batch.
    cache.cache_mut().clear()?;
    let prompts: Vec<_> = (0..16).map(|index| random.tokens(3 + 7 * index, vocab)).collect();
    let seqs: Vec<i64> = (0..16).collect();
    for seq in &seqs {
        cache.add(*seq)?;
    }
    let feeds: Vec<&[u32]> = prompts.iter().map(Vec::as_slice).collect();
    let runs = greedy_paged(&model, &mut cache, &seqs, &feeds, NEW_TOKENS)?;
    let mut batch = Run::default();
    let mut single = Run::default();
    for (run, prompt) in runs.into_iter().zip(&prompts) {
        let alone = greedy_contiguous(&model, prompt, NEW_TOKENS)?;
        batch.tokens.extend(run.tokens);
        batch.logits.extend(run.logits);
        single.tokens.extend(alone.tokens);
        single.logits.extend(alone.logits);
    }
    compare("16 unequal sequences", &batch, &single);
    println!("free pages: {} of 128", cache.cache().available_pages());
    Ok(())
}
