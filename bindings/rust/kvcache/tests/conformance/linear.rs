//! Linear attention as scenarios state it: its inputs by formula, its outputs by the recurrence over a
//! sequence's whole history.

use crate::json::{Fields, Json};
use crate::rows::key_tensor;
use crate::tensor::{HostTensor, Type};
use crate::values::{value, values, Kind, Vector};
use kvcache::{Decay, LinearInputs, LinearOptions};

pub struct Linear {
    layer: i64,
    pub heads: usize,
    heads_k: usize,
    pub k_dim: usize,
    pub v_dim: usize,
    decay: Decay,
    delta: bool,
    beta: bool,
    /// As the call takes it: 0 is 1/sqrt(k_dim).
    scale: f64,
    skip: bool,
}

/// One token of a head.
struct Token {
    q: Vector,
    k: Vector,
    v: Vector,
    /// ln(decay) of each row of the state.
    decay: Vector,
    beta: f64,
    skip: f64,
}

/// State of a head: `[Dk][Dv]`.
type State = Vec<Vector>;

impl Linear {
    pub fn new(json: &Json, layer: usize, (heads, k_dim, v_dim): (usize, usize, usize)) -> Self {
        Linear {
            layer: layer as i64,
            heads,
            heads_k: json.size("heads_k", heads as i64),
            k_dim,
            v_dim,
            decay: match json.text("decay", "NONE") {
                "NONE" => Decay::None,
                "HEAD" => Decay::Head,
                "TOKEN" => Decay::Token,
                "CHANNEL" => Decay::Channel,
                other => panic!("decay {other}"),
            },
            delta: json.flag("delta", false),
            beta: json.flag("beta", false),
            scale: json.num("scale", 0.0),
            skip: json.flag("skip", false),
        }
    }

    fn token(&self, id: i64, head: usize) -> Token {
        let head_k = head / (self.heads / self.heads_k);
        let decay = |i: usize| {
            let x = match self.decay {
                Decay::Head => value(Kind::Decay, self.layer, 0, head, 0),
                Decay::Token => value(Kind::Decay, self.layer, id, head, 0),
                Decay::Channel => value(Kind::Decay, self.layer, id, head, i),
                _ => -1.0,
            };
            -(x + 1.0) / 4.0
        };
        let beta = (value(Kind::Beta, self.layer, id, head, 0) + 1.0) / 2.0;
        Token {
            q: values(Kind::Query, self.layer, id, head_k, self.k_dim),
            k: values(Kind::Key, self.layer, id, head_k, self.k_dim),
            v: values(Kind::Value, self.layer, id, head, self.v_dim),
            decay: (0..self.k_dim).map(decay).collect(),
            beta: if self.beta { beta } else { 1.0 },
            skip: if self.skip { value(Kind::Weight, self.layer, 0, head, 0) } else { 0.0 },
        }
    }

    fn step(&self, token: &Token, state: &mut State) -> Vector {
        for (row, decay) in state.iter_mut().zip(&token.decay) {
            row.iter_mut().for_each(|s| *s *= decay.exp());
        }
        let mut u = token.v.clone();
        for (j, u) in u.iter_mut().enumerate() {
            if self.delta {
                *u -= state.iter().zip(&token.k).map(|(row, k)| row[j] * k).sum::<f64>();
            }
            *u *= token.beta;
        }
        for (row, k) in state.iter_mut().zip(&token.k) {
            row.iter_mut().zip(&u).for_each(|(s, u)| *s += k * u);
        }
        let scale = if self.scale == 0.0 { 1.0 / (self.k_dim as f64).sqrt() } else { self.scale };
        let read = |j: usize| state.iter().zip(&token.q).map(|(row, q)| row[j] * q).sum::<f64>();
        (0..self.v_dim).map(|j| scale * read(j) + token.skip * token.v[j]).collect()
    }

    /// Outputs of `ids` after `history`: `[head][token][v_dim]`, and the state of each head after them.
    pub fn run(&self, history: &[i64], ids: &[i64]) -> (Vec<Vec<Vector>>, Vec<State>) {
        let head = |head: usize| {
            let mut state = vec![vec![0.0; self.v_dim]; self.k_dim];
            for id in history {
                self.step(&self.token(*id, head), &mut state);
            }
            let outputs = ids.iter().map(|id| self.step(&self.token(*id, head), &mut state)).collect();
            (outputs, state)
        };
        (0..self.heads).map(head).unzip()
    }

    fn decay_tensor(&self, ids: &[i64]) -> HostTensor {
        let (of_tokens, of_channels) =
            (matches!(self.decay, Decay::Token | Decay::Channel), self.decay == Decay::Channel);
        let mut shape = vec![self.heads];
        if of_tokens {
            shape.insert(0, ids.len());
        }
        if of_channels {
            shape.push(self.k_dim);
        }
        let ids = if of_tokens { ids } else { &[0] };
        let channels = if of_channels { self.k_dim } else { 1 };
        let elements = ids
            .iter()
            .flat_map(|id| (0..self.heads).flat_map(|head| self.token(*id, head).decay[..channels].to_vec()));
        HostTensor::of(&shape, Type::F32, elements.collect::<Vec<_>>())
    }

    /// Calls with the options and inputs of the crate.
    pub fn with<T>(
        &self,
        state: usize,
        ids: &[i64],
        call: impl FnOnce(&LinearOptions<'_>, &LinearInputs<'_>) -> T,
    ) -> T {
        let formula = |kind, heads, dim| key_tensor(kind, self.layer, ids, (heads, dim), 0);
        let q = formula(Kind::Query, self.heads_k, self.k_dim);
        let k = formula(Kind::Key, self.heads_k, self.k_dim);
        let v = formula(Kind::Value, self.heads, self.v_dim);
        let decay = self.decay_tensor(ids);
        let per_head = |id: i64| (0..self.heads).map(move |head| (id, head));
        let betas = ids.iter().flat_map(|id| per_head(*id)).map(|(id, head)| self.token(id, head).beta);
        let beta = HostTensor::of(&[ids.len(), self.heads], Type::F32, betas);
        let skips = per_head(0).map(|(id, head)| self.token(id, head).skip);
        let skip = HostTensor::of(&[self.heads], Type::F32, skips);
        let (q, k, v) = (q.view(), k.view(), v.view());
        let (decay, beta, skip) = (decay.view(), beta.view(), skip.view());
        call(
            &LinearOptions {
                decay: self.decay,
                delta: self.delta,
                state,
                scale: self.scale as f32,
                skip: self.skip.then_some(&skip),
            },
            &LinearInputs {
                q: &q,
                k: &k,
                v: &v,
                decay: (self.decay != Decay::None).then_some(&decay),
                beta: self.beta.then_some(&beta),
            },
        )
    }
}
