// SPDX-License-Identifier: Apache-2.0
//! Attention from Rust, through the C interface flashjit.h, with the standard library alone. Its kernel runs in the
//! emulator, so that no GPU is needed. On a GPU the engine would not emulate, tensors would be device memory (kDLCUDA),
//! and calls would return before the kernel has run.

mod ffi;
mod flashjit;

use std::process::ExitCode;

use flashjit::{Engine, Error, Tensor};

const SHAPE: [usize; 4] = [1, 100, 2, 64];
const SEQLEN: usize = SHAPE[1];
const HEADS: usize = SHAPE[2];
const HEAD_DIM: usize = SHAPE[3];

fn main() -> ExitCode {
    match attention_is_right() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn attention_is_right() -> Result<bool, Error> {
    let [q, k, v] = [1, 2, 3].map(|seed| Tensor::from_fn(SHAPE, random_numbers(seed)));
    let mut out = Tensor::from_fn(SHAPE, || 0.0);
    Engine::emulating("sm_90a")?.attention(&q, &k, &v, &mut out, true)?;

    let exact = plain_attention(&q.to_f64(), &k.to_f64(), &v.to_f64());
    let errors: Vec<f64> = out.to_f64().iter().zip(&exact).map(|(got, exact)| (got - exact).abs()).collect();
    let bound = largest(&v.to_f64()) / 256.0; // probabilities and sums are rounded to bf16, each by at most 1 in 512
    println!("largest error {:.6}, of at most {bound:.6} by rounding", largest(&errors));
    Ok(errors.iter().all(|error| *error <= bound)) // not so of NaN
}

/// In double precision, by the definition: query i sees the keys up to its own.
fn plain_attention(q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    for query in 0..SEQLEN {
        for head in 0..HEADS {
            let score = |key| dot(row(q, query, head), row(k, key, head)) / (HEAD_DIM as f64).sqrt();
            let weights: Vec<f64> = (0..=query).map(|key| score(key).exp()).collect();
            let sum: f64 = weights.iter().sum();
            for (key, weight) in weights.iter().enumerate() {
                for (to, value) in out[start(query, head)..].iter_mut().zip(row(v, key, head)) {
                    *to += weight / sum * value;
                }
            }
        }
    }
    out
}

fn start(position: usize, head: usize) -> usize {
    (position * HEADS + head) * HEAD_DIM
}

fn row(of: &[f64], position: usize, head: usize) -> &[f64] {
    &of[start(position, head)..][..HEAD_DIM]
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn largest(numbers: &[f64]) -> f64 {
    numbers.iter().fold(0.0, |largest, number| number.abs().max(largest))
}

/// From -1 to 1, by Knuth's linear congruential generator.
fn random_numbers(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
