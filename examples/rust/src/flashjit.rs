// SPDX-License-Identifier: Apache-2.0
//! A safe interface to what of libflashjit this program needs: engines that emulate, and attention in bf16 on tensors
//! in host memory.

use std::ffi::{c_int, CStr, CString};
use std::mem::size_of;
use std::{error, fmt, ptr};

use crate::ffi;

/// What went wrong, in the words of the library.
#[derive(Debug)]
pub struct Error {
    status: String,
    message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}: {}", self.status, self.message)
    }
}

impl error::Error for Error {}

/// The message is that of this thread's last call, so it is fetched right behind the call.
fn check(status: c_int) -> Result<(), Error> {
    if status == ffi::OK {
        return Ok(());
    }
    // SAFETY: both are strings of the library's that end in 0 and live until this thread's next call.
    let text = |string| unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned();
    let (status, message) = unsafe { (ffi::flashjit_status_name(status), ffi::flashjit_last_error()) };
    Err(Error { status: text(status), message: text(message) })
}

/// Eight numbers in bf16. The library wants tensors that begin at a multiple of 16 bytes.
#[repr(C, align(16))]
#[derive(Clone, Copy)]
struct Block([u16; Block::LEN]);

impl Block {
    const LEN: usize = 8;
}

/// Owns numbers in bf16, packed, of shape `[batch, seqlen, heads, head_dim]`.
pub struct Tensor {
    blocks: Vec<Block>,
    shape: [i64; 4],
}

impl Tensor {
    /// Rounds numbers to bf16. Their count must be a multiple of 8, as is that of the elements of every tensor that
    /// the library takes.
    pub fn from_fn(shape: [usize; 4], mut number: impl FnMut() -> f32) -> Tensor {
        let count: usize = shape.iter().product();
        assert!(count % Block::LEN == 0, "shape: must have a multiple of 8 elements, was {shape:?}");
        let mut block = || Block(std::array::from_fn(|_| to_bf16(number())));
        Tensor { blocks: (0..count / Block::LEN).map(|_| block()).collect(), shape: shape.map(|size| size as i64) }
    }

    pub fn to_f64(&self) -> Vec<f64> {
        self.blocks.iter().flat_map(|block| block.0).map(from_bf16).collect()
    }

    /// Valid as long as this tensor is borrowed; to be written through where it is borrowed mutably.
    fn view(&self, data: *const Block) -> ffi::DLTensor {
        ffi::DLTensor {
            data: data.cast_mut().cast(),
            device: ffi::DLDevice { device_type: ffi::DL_CPU, device_id: 0 },
            ndim: self.shape.len() as c_int,
            dtype: ffi::DLDataType { code: ffi::DL_BFLOAT, bits: 16, lanes: 1 },
            shape: self.shape.as_ptr().cast_mut(), // which nobody writes to
            strides: ptr::null_mut(),              // packed
            byte_offset: 0,
        }
    }

    fn input(&self) -> ffi::DLTensor {
        self.view(self.blocks.as_ptr())
    }

    fn output(&mut self) -> ffi::DLTensor {
        let data = self.blocks.as_mut_ptr();
        self.view(data)
    }
}

/// To nearest, ties to even; NaN stays NaN.
fn to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    if number.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

fn from_bf16(bits: u16) -> f64 {
    f32::from_bits(u32::from(bits) << 16).into()
}

/// Makes kernels, keeps them and runs them.
pub struct Engine(*mut ffi::Engine);

// SAFETY: every function may be called from any thread; only destroying an engine may not race with its calls, and
// `drop` has it alone.
unsafe impl Send for Engine {}
unsafe impl Sync for Engine {}

impl Engine {
    /// Whose kernels are those of `architecture` and run on the CPU. All else is as the environment says.
    pub fn emulating(architecture: &str) -> Result<Engine, Error> {
        let architecture = CString::new(architecture).expect("an architecture without a null character");
        let options = ffi::EngineOptions {
            struct_size: size_of::<ffi::EngineOptions>(),
            policy: ptr::null(),
            cache_directory: ptr::null(),
            bundles: ptr::null(),
            tuning: ptr::null(),
            emulate: architecture.as_ptr(),
            nvrtc_path: ptr::null(),
        };
        let mut engine = ptr::null_mut();
        // SAFETY: the options live until the call returns, which copies their texts.
        check(unsafe { ffi::flashjit_engine_create(&options, &mut engine) })?;
        Ok(Engine(engine))
    }

    /// `out = softmax(q k^T / sqrt(head_dim)) v`; where it is causal, query i sees the keys up to
    /// i + seqlen_kv - seqlen_q. An engine that emulates has finished when it returns.
    pub fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, out: &mut Tensor, causal: bool) -> Result<(), Error> {
        let options = ffi::AttentionOptions {
            struct_size: size_of::<ffi::AttentionOptions>(),
            causal: causal.into(),
            has_softmax_scale: 0,
            softmax_scale: 0.0,
            lse: ptr::null(),
            stream: ptr::null_mut(),
            variant: ptr::null(),
        };
        let (q, k, v, out) = (q.input(), k.input(), v.input(), out.output());
        // SAFETY: the views are of tensors that are borrowed until the call returns, out mutably, and by then the
        // kernel has run.
        check(unsafe { ffi::flashjit_attention(self.0, &q, &k, &v, &out, &options) })
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // SAFETY: made by flashjit_engine_create, and nobody has it any more.
        unsafe { ffi::flashjit_engine_destroy(self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_words_of_the_library() {
        let engine = Engine::emulating("sm_90a").unwrap();
        let [q, mut out] = [[1, 4, 1, 64], [1, 4, 1, 32]].map(|shape| Tensor::from_fn(shape, || 1.0));
        let error = engine.attention(&q, &q, &q, &mut out, false).unwrap_err();
        assert_eq!(error.to_string(), "invalid_argument: out: head_dim must be 64 like that of v, was 32");
    }

    #[test]
    fn numbers_are_rounded_to_the_nearest_that_bf16_has() {
        let rounded = |number| from_bf16(to_bf16(number));
        assert_eq!([1.0, -1.5, 0.1].map(rounded), [1.0, -1.5, 0.10009765625]);
        assert_eq!([257.0, 259.0].map(rounded), [256.0, 260.0]); // ties
        for bits in [0x7fc00000, 0x7f800001, 0x7fffffff, 0xffffffff] {
            assert!(rounded(f32::from_bits(bits)).is_nan());
        }
    }
}
