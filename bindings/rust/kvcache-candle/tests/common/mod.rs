//! What the tests share: the example's model, and a seed that can be repeated.

#![allow(dead_code)]

#[path = "../../examples/llama/caches.rs"]
pub mod caches;
#[path = "../../examples/llama/generate.rs"]
pub mod generate;
#[path = "../../examples/llama/model.rs"]
pub mod model;

/// KVC_TEST_SEED, or always the same; printed when the test fails.
pub fn seed() -> u64 {
    let seed = std::env::var("KVC_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(20_260_701);
    println!("KVC_TEST_SEED={seed}");
    seed
}
