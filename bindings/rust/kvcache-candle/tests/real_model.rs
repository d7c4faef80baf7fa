//! A model of a GGUF file, its weights unpacked to float32: candle's own Llama with its own cache, and the example's model with the same
//! weights over pages. KVC_TEST_GGUF names the file; tests/clients/candle/run sets it.

mod common;

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::llama;
use common::generate::{greedy_appended, greedy_contiguous, greedy_paged, Run};
use common::{caches, model};
use model::{Config, Llama};
use std::collections::HashMap;
use std::error::Error;
use std::fs::File;

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// A text to go on from, and what tokens of it a prompt and an answer have at most.
const TEXT: &str = include_str!("../../../../docs/guide.md");
const PROMPT: usize = 3000;
const NEW_TOKENS: usize = 256;
/// Of the range of logits. Measured: 3.2e-6.
const ROUNDING: f32 = 1e-4;

struct Model {
    config: llama::Config,
    /// By the names of transformers.
    weights: HashMap<String, Tensor>,
    vocabulary: HashMap<String, u32>,
}

/// Row `pair + half * element` of a head from row `2 * pair + element`: files rotate neighbours, candle the halves of a head.
fn halves(weight: &Tensor, heads: usize) -> candle_core::Result<Tensor> {
    let (rows, columns) = weight.dims2()?;
    weight.reshape((heads, rows / heads / 2, 2, columns))?.transpose(1, 2)?.reshape((rows, columns))
}

fn name_of(name: &str) -> String {
    let parts = [
        ("blk.", "model.layers."),
        ("attn_norm", "input_layernorm"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q.", "self_attn.q_proj."),
        ("attn_k.", "self_attn.k_proj."),
        ("attn_v.", "self_attn.v_proj."),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
        ("output_norm", "model.norm"),
        ("token_embd", "model.embed_tokens"),
    ];
    let named = parts.iter().fold(name.to_string(), |name, (from, to)| name.replacen(from, to, 1));
    if named == "output.weight" {
        "lm_head.weight".into()
    } else {
        named
    }
}

impl Model {
    fn read(path: &str) -> Result<Self> {
        let mut file = File::open(path)?;
        let content = Content::read(&mut file)?;
        let value = |key: &str| content.metadata.get(key).ok_or(format!("{path}: no {key}"));
        let count = |key: &str| Ok::<_, Box<dyn Error>>(value(&format!("llama.{key}"))?.to_u32()? as usize);
        let (heads, kv_heads) = (count("attention.head_count")?, count("attention.head_count_kv")?);
        let mut weights = HashMap::new();
        for name in content.tensor_infos.keys() {
            let weight = content.tensor(&mut file, name, &Device::Cpu)?.dequantize(&Device::Cpu)?;
            let weight = match name {
                name if name.contains("attn_q.") => halves(&weight, heads)?,
                name if name.contains("attn_k.") => halves(&weight, kv_heads)?,
                _ => weight,
            };
            weights.insert(name_of(name), weight);
        }
        let embedding = weights["model.embed_tokens.weight"].clone();
        let tied = !weights.contains_key("lm_head.weight");
        weights.entry("lm_head.weight".into()).or_insert(embedding);
        let tokens = value("tokenizer.ggml.tokens")?.to_vec()?;
        let texts = tokens.iter().map(Value::to_string).collect::<candle_core::Result<Vec<_>>>()?;
        let config = llama::Config {
            hidden_size: count("embedding_length")?,
            intermediate_size: count("feed_forward_length")?,
            vocab_size: tokens.len(),
            num_hidden_layers: count("block_count")?,
            num_attention_heads: heads,
            num_key_value_heads: kv_heads,
            use_flash_attn: false,
            rms_norm_eps: value("llama.attention.layer_norm_rms_epsilon")?.to_f32()?.into(),
            rope_theta: value("llama.rope.freq_base")?.to_f32()?,
            bos_token_id: None,
            eos_token_id: None,
            rope_scaling: None,
            max_position_embeddings: count("context_length")?,
            tie_word_embeddings: tied,
        };
        let vocabulary = texts.into_iter().zip(0..).map(|(text, id)| (text.clone(), id)).collect();
        Ok(Model { config, weights, vocabulary })
    }

    /// The longest tokens of the vocabulary, one after another: not those of its merges, but the same text.
    fn tokens(&self, text: &str) -> Vec<u32> {
        let text: Vec<char> = text.chars().filter(char::is_ascii).collect();
        let shown = |c: &char| match c {
            ' ' | '\n' | '\t' => char::from_u32(*c as u32 + 256).unwrap(),
            c => *c,
        };
        let mut tokens = Vec::new();
        let mut at = 0;
        while at < text.len() {
            let longest = (1..=32.min(text.len() - at)).rev().find_map(|length| {
                let word: String = text[at..at + length].iter().map(shown).collect();
                self.vocabulary.get(&word).map(|id| (*id, length))
            });
            let (id, length) = longest.expect("every character has a token");
            tokens.push(id);
            at += length;
        }
        tokens
    }

    /// The example's model.
    fn example(&self) -> Result<Llama> {
        let of = &self.config;
        let config = Config {
            vocab: of.vocab_size,
            hidden: of.hidden_size,
            layers: of.num_hidden_layers,
            heads: of.num_attention_heads,
            kv_heads: of.num_key_value_heads,
            head_dim: of.hidden_size / of.num_attention_heads,
            intermediate: of.intermediate_size,
            max_positions: of.max_position_embeddings,
            rope_theta: of.rope_theta,
            norm_eps: of.rms_norm_eps,
            dtype: DType::F32,
        };
        Ok(Llama::with_weights(config, |name, shape| {
            let weight = &self.weights[name];
            assert_eq!(weight.dims(), shape, "{name}");
            Ok(weight.clone())
        })?)
    }

    /// Greedy tokens and logits of candle's Llama with its own cache.
    fn candle(&self, prompt: &[u32], new_tokens: usize) -> Result<Run> {
        let weights = VarBuilder::from_tensors(self.weights.clone(), DType::F32, &Device::Cpu);
        let model = llama::Llama::load(weights, &self.config)?;
        let mut cache = llama::Cache::new(true, DType::F32, &self.config, &Device::Cpu)?;
        let mut run = Run::default();
        let mut feed = prompt.to_vec();
        let mut at = 0;
        for _ in 0..new_tokens {
            let tokens = Tensor::new(feed.as_slice(), &Device::Cpu)?.unsqueeze(0)?;
            let logits = model.forward(&tokens, at, &mut cache)?.squeeze(0)?.to_vec1()?;
            at += feed.len();
            feed = vec![run.push(logits)];
        }
        Ok(run)
    }
}

fn assert_equal_runs(what: &str, run: &Run, reference: &Run) {
    let (distance, range) = (run.distance(reference), reference.range());
    println!("{what}: {} tokens, max |dlogit| {distance:.2e} of a range of {range:.1}", run.tokens.len());
    assert_eq!(run.tokens, reference.tokens, "{what}: greedy tokens");
    assert!(distance <= ROUNDING * range, "{what}: max |dlogit| {distance} of a range of {range}");
}

#[test]
#[ignore = "needs a file, KVC_TEST_GGUF"]
fn candles_llama_chooses_the_same_tokens_with_its_own_cache_and_over_pages() -> Result {
    let path = std::env::var("KVC_TEST_GGUF").map_err(|_| "KVC_TEST_GGUF is not set")?;
    let model = Model::read(&path)?;
    let new_tokens = NEW_TOKENS.min(model.config.max_position_embeddings / 8);
    let mut prompt = model.tokens(TEXT);
    prompt.truncate(PROMPT.min(model.config.max_position_embeddings - new_tokens));
    println!("{path}: {} tokens", prompt.len());
    let reference = model.candle(&prompt, new_tokens)?;
    let example = model.example()?;

    let pages = (prompt.len() + new_tokens) as i64 / 16 + 1;
    let mut cache = caches::paged_cache(&example.config, 2 * pages)?;
    cache.add(0)?;
    let paged = greedy_paged(&example, &mut cache, &[0], &[&prompt], new_tokens)?.remove(0);
    assert_equal_runs("attention over pages", &paged, &reference);
    let contiguous = greedy_contiguous(&example, &prompt, new_tokens)?;
    assert_equal_runs("candle's KvCache", &contiguous, &reference);
    let mut behind = caches::paged_cache(&example.config, pages)?;
    behind.add(0)?;
    let appended = greedy_appended(&example, behind, &prompt, new_tokens)?;
    assert_equal_runs("pages behind append", &appended, &reference);
    assert!(appended.logits == contiguous.logits, "append: max |dlogit| {}", appended.distance(&contiguous));

    // Another answer to the same prompt, of which nothing is computed again.
    cache.fork_at(0, 1, prompt.len() as i64)?;
    let reply = model.tokens("\n\nIn short: ");
    let forked = greedy_paged(&example, &mut cache, &[1], &[&reply], 32)?.remove(0);
    let whole = [prompt.as_slice(), &reply].concat();
    assert_equal_runs("forked", &forked, &model.candle(&whole, 32)?);
    cache.cache().check()?;
    Ok(())
}
