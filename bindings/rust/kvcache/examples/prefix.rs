//! Fifty continuations of one prompt: it is computed and kept once.
//!
//! A stand-in for a model makes Q, K and V from token ids. Each continuation attaches to the prompt's pages,
//! appends a question of its own and decodes. Run: `cargo run --example prefix`.

use kvcache::{
    AttnOptions, Batch, Cache, CacheRef, Config, DType, Layer, Query, Result, TensorMut, TensorRef,
};

const LAYERS: usize = 4;
const Q_HEADS: usize = 8;
const KV_HEADS: usize = 2;
const DIM: usize = 64;
const PROMPT: usize = 512;
const CONTINUATIONS: i64 = 50;
const DECODED: usize = 8;

/// Rows of a projection of these tokens: any function of layer, token and element.
fn rows(layer: usize, tokens: &[i32], heads: usize, salt: usize) -> Vec<f32> {
    let element =
        |token: i32, i: usize| ((token as usize * 31 + layer * 17 + i * 7 + salt) % 64) as f32 / 32.0 - 1.0;
    tokens.iter().flat_map(|token| (0..heads * DIM).map(move |i| element(*token, i))).collect()
}

/// One pass of the model over new tokens of some sequences; returns the last layer's output.
fn forward(cache: &mut CacheRef, seqs: &[i64], lengths: &[i64], tokens: &[i32]) -> Result<Vec<f32>> {
    let n = tokens.len();
    let mut out = vec![0.0; n * Q_HEADS * DIM];
    let step = cache.begin(&Batch::new(seqs, lengths).tokens(tokens))?;
    for layer in 0..LAYERS {
        let q = rows(layer, tokens, Q_HEADS, 1);
        let (k, v) = (rows(layer, tokens, KV_HEADS, 2), rows(layer, tokens, KV_HEADS, 3));
        let shape = [n, KV_HEADS, DIM];
        step.attn(
            layer,
            &AttnOptions::default(),
            &TensorRef::new(&q, &[n, Q_HEADS, DIM])?,
            (&TensorRef::new(&k, &shape)?, &TensorRef::new(&v, &shape)?),
            &mut TensorMut::new(&mut out, &[n, Q_HEADS, DIM])?,
        )?;
    }
    step.end()?;
    Ok(out)
}

fn main() -> Result<()> {
    let layer = Layer::attention(Q_HEADS as i32, KV_HEADS as i32, DIM as i32).dtype(DType::BF16);
    let mut cache = Cache::with_config(&Config::new(vec![layer; LAYERS]).num_pages(256))?;
    let prompt: Vec<i32> = (0..PROMPT as i32).collect();

    cache.prefix_attach(0, &Query::new(&prompt))?;
    forward(&mut cache, &[0], &[PROMPT as i64], &prompt)?;
    let one = cache.stats()?.pages_used;

    let mut computed = 0;
    for seq in 1..=CONTINUATIONS {
        let mut tokens = prompt.clone();
        tokens.extend([10_000 + seq as i32; 3]);
        let hit = cache.prefix_attach(seq, &Query::new(&tokens))? as usize;
        forward(&mut cache, &[seq], &[(tokens.len() - hit) as i64], &tokens[hit..])?;
        computed += tokens.len() - hit;
    }

    // All of them decode together; the shared prompt is read once for all.
    let seqs: Vec<i64> = (1..=CONTINUATIONS).collect();
    let lengths = vec![1; seqs.len()];
    for token in 0..DECODED as i32 {
        forward(&mut cache, &seqs, &lengths, &vec![20_000 + token; seqs.len()])?;
    }

    let stats = cache.stats()?;
    let alone = (CONTINUATIONS + 1) * one;
    println!("prompt: {PROMPT} tokens in {one} pages");
    println!(
        "{CONTINUATIONS} continuations: {computed} tokens computed, {} of the prompts' found",
        stats.prefix_hit_tokens
    );
    println!(
        "pages in use: {} ({} shared); without sharing at least {alone}",
        stats.pages_used, stats.pages_shared
    );
    assert!(stats.pages_used < alone / 5, "the prompt is kept once");
    Ok(())
}
