//! The numbers of the scenarios: every value is a function of what it is, which layer, which token, which
//! head and which element.

pub type Ids = Vec<i64>;
pub type Vector = Vec<f64>;

#[derive(Clone, Copy)]
pub enum Kind {
    Query = 1,
    Key = 2,
    Value = 3,
    State = 4,
    Input = 5,
    Weight = 6,
    Decay = 7,
    Beta = 8,
}

pub fn value(kind: Kind, layer: i64, id: i64, head: usize, element: usize) -> f64 {
    let term = |number: i64, factor: u32| (number as u32).wrapping_mul(factor);
    let mut x = [
        term(layer, 0x85EB_CA77),
        term(head as i64, 0xC2B2_AE3D),
        term(element as i64, 0x27D4_EB2F),
        term(kind as i64, 0x1656_67B1),
    ]
    .iter()
    .fold(term(id, 0x9E37_79B1), |sum, term| sum.wrapping_add(*term));
    x ^= x >> 15;
    x = x.wrapping_mul(0x2C1B_3C6D);
    x ^= x >> 12;
    x = x.wrapping_mul(0x297A_2D39);
    x ^= x >> 15;
    (f64::from(x & 127) - 64.0) / 64.0
}

/// `value` of `size` elements of a head.
pub fn values(kind: Kind, layer: i64, id: i64, head: usize, size: usize) -> Vector {
    (0..size).map(|element| value(kind, layer, id, head, element)).collect()
}

fn parse_number(text: &str, own: Option<i64>) -> i64 {
    let Some(offset) = text.strip_prefix('@') else {
        return text.parse().unwrap_or_else(|_| panic!("'{text}' is no number"));
    };
    let own = own.expect("'@' has no meaning in this list");
    own + if offset.is_empty() { 0 } else { offset.parse::<i64>().expect("a number after @") }
}

/// "0..3,7,@-1..@": inclusive ranges and numbers; '@' is `own`. Numbers below zero are left out when `own` is
/// given.
pub fn parse_ids(text: &str, own: Option<i64>) -> Ids {
    let mut ids = Ids::new();
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once("..").unwrap_or((part, part));
        let (first, last) = (parse_number(first, own), parse_number(last, own));
        assert!(first <= last, "'{part}' is an empty range");
        ids.extend((first..=last).filter(|id| own.is_none() || *id >= 0));
    }
    ids
}

/// Angles of the rotary embedding of one layer, as a scenario states them.
#[derive(Clone, Default)]
pub struct Rope {
    pub on: bool,
    pub on_append: bool,
    pub interleaved: bool,
    /// First element that turns.
    pub offset: usize,
    pub rotary_dim: usize,
    pub scale: f64,
    pub magnitude: f64,
    pub frequencies: Vector,
    /// When they differ by length, else empty.
    pub long_frequencies: Vector,
    pub sections: Vec<i32>,
    pub sections_interleaved: bool,
}

/// Turns a vector in place at `position`: one number, or one of each section.
pub fn rotate(rope: &Rope, position: &[f64], use_long: bool, x: &mut [f64]) {
    if !rope.on {
        return;
    }
    let long = use_long && !rope.long_frequencies.is_empty();
    let frequencies = if long { &rope.long_frequencies } else { &rope.frequencies };
    let half = rope.rotary_dim / 2;
    let sections: Vec<usize> = rope.sections.iter().map(|pairs| *pairs as usize).collect();
    for i in 0..half {
        let section = match sections.len() {
            0 | 1 => 0,
            n if rope.sections_interleaved => {
                if i / n < sections[i % n] {
                    i % n
                } else {
                    0
                }
            }
            _ => {
                let mut end = 0;
                sections
                    .iter()
                    .position(|pairs| {
                        end += pairs;
                        i < end
                    })
                    .expect("sections cover all pairs")
            }
        };
        let p = if position.len() == 1 { position[0] } else { position[section] };
        let (sin, cos) = (p * rope.scale * frequencies[i]).sin_cos();
        let first = rope.offset + if rope.interleaved { 2 * i } else { i };
        let second = if rope.interleaved { first + 1 } else { first + half };
        let (a, b) = (x[first], x[second]);
        x[first] = rope.magnitude * (a * cos - b * sin);
        x[second] = rope.magnitude * (b * cos + a * sin);
    }
}

/// One query head over the keys it sees.
pub struct Softmax {
    pub scale: f64,
    pub soft_cap: f64,
    pub sink: Option<f64>,
}

pub struct Key {
    pub k: Vector,
    pub v: Vector,
    /// Added to the score; -inf masks the key.
    pub bias: f64,
}

pub struct Attended {
    pub out: Vector,
    pub lse: f64,
}

pub fn attend(softmax: &Softmax, q: &[f64], keys: &[Key], v_dim: usize) -> Attended {
    let score = |key: &Key| {
        let s = softmax.scale * q.iter().zip(&key.k).map(|(q, k)| q * k).sum::<f64>();
        let cap = softmax.soft_cap;
        key.bias + if cap > 0.0 { cap * (s / cap).tanh() } else { s }
    };
    let scores: Vector = keys.iter().map(score).collect();
    let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let mut result = Attended { out: vec![0.0; v_dim], lse: f64::NEG_INFINITY };
    if top == f64::NEG_INFINITY {
        return result;
    }
    let mut sum = 0.0;
    for (score, key) in scores.iter().zip(keys) {
        let weight = (score - top).exp();
        sum += weight;
        for (out, v) in result.out.iter_mut().zip(&key.v) {
            *out += weight * v;
        }
    }
    result.lse = top + sum.ln();
    let denominator = sum + softmax.sink.map_or(0.0, |sink| (sink - top).exp());
    result.out.iter_mut().for_each(|x| *x /= denominator);
    result
}
