// SPDX-License-Identifier: Apache-2.0
//! What of dlpack/dlpack.h and flashjit.h this program uses, as it is declared there.

use std::ffi::{c_char, c_int, c_void};

pub const DL_CPU: c_int = 1;
pub const DL_BFLOAT: u8 = 4;
pub const OK: c_int = 0;

#[repr(C)]
pub struct DLDevice {
    pub device_type: c_int,
    pub device_id: c_int,
}

#[repr(C)]
pub struct DLDataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub struct DLTensor {
    pub data: *mut c_void,
    pub device: DLDevice,
    pub ndim: c_int,
    pub dtype: DLDataType,
    pub shape: *mut i64,
    pub strides: *mut i64,
    pub byte_offset: u64,
}

/// Only its address is ever seen here.
#[repr(C)]
pub struct Engine {
    _opaque: [u8; 0],
}

#[repr(C)]
pub struct EngineOptions {
    pub struct_size: usize,
    pub policy: *const c_char,
    pub cache_directory: *const c_char,
    pub bundles: *const c_char,
    pub tuning: *const c_char,
    pub emulate: *const c_char,
    pub nvrtc_path: *const c_char,
}

/// The first fields: what stands behind `struct_size` bytes has its default.
#[repr(C)]
pub struct AttentionOptions {
    pub struct_size: usize,
    pub causal: i32,
    pub has_softmax_scale: i32,
    pub softmax_scale: f32,
    pub lse: *const DLTensor,
    pub stream: *mut c_void,
    pub variant: *const c_char,
}

extern "C" {
    pub fn flashjit_engine_create(options: *const EngineOptions, engine: *mut *mut Engine) -> c_int;
    pub fn flashjit_engine_destroy(engine: *mut Engine);
    pub fn flashjit_attention(
        engine: *mut Engine,
        q: *const DLTensor,
        k: *const DLTensor,
        v: *const DLTensor,
        out: *const DLTensor,
        options: *const AttentionOptions,
    ) -> c_int;
    pub fn flashjit_last_error() -> *const c_char;
    pub fn flashjit_status_name(status: c_int) -> *const c_char;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env;
    use std::io::Write;
    use std::mem::{offset_of, size_of};
    use std::process::{Command, Stdio};

    /// The size of a field, which is not read.
    fn size_of_field<Struct, Field>(_: fn(&Struct) -> &Field) -> usize {
        size_of::<Field>()
    }

    /// Claims in C that a struct's fields lie there where they do here.
    macro_rules! same_layout {
        ($rust:ident is $c:literal { $($field:ident),* }) => {
            [$(format!(
                "_Static_assert(offsetof({c}, {f}) == {} && sizeof((({c}*)0)->{f}) == {}, \"{c}.{f}\");\n",
                offset_of!($rust, $field), size_of_field(|of: &$rust| &of.$field), c = $c, f = stringify!($field)
            )),*].concat()
        };
    }

    fn claims() -> String {
        [
            same_layout!(DLDevice is "DLDevice" { device_type, device_id }),
            same_layout!(DLDataType is "DLDataType" { code, bits, lanes }),
            same_layout!(DLTensor is "DLTensor" { data, device, ndim, dtype, shape, strides, byte_offset }),
            same_layout!(EngineOptions is "flashjit_engine_options" {
                struct_size, policy, cache_directory, bundles, tuning, emulate, nvrtc_path
            }),
            same_layout!(AttentionOptions is "flashjit_attention_options" {
                struct_size, causal, has_softmax_scale, softmax_scale, lse, stream, variant
            }),
            format!("_Static_assert(sizeof(DLTensor) == {}, \"DLTensor\");\n", size_of::<DLTensor>()),
            format!("_Static_assert(kDLCPU == {DL_CPU} && kDLBfloat == {DL_BFLOAT}, \"DLPack\");\n"),
            format!("_Static_assert(FLASHJIT_OK == {OK}, \"status\");\n"),
        ]
        .concat()
    }

    /// What a C compiler, which has read flashjit.h, has against them.
    fn complaints(claims: &str) -> String {
        let mut compiler = Command::new(env::var("CC").unwrap_or_else(|_| "cc".into()))
            .args(["-std=c11", "-fsyntax-only", "-x", "c", "-I", std::env!("FLASHJIT_INCLUDE"), "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("a C compiler, cc or what CC names");
        let source = format!("#include <flashjit.h>\n{claims}");
        compiler.stdin.take().unwrap().write_all(source.as_bytes()).unwrap();
        let finished = compiler.wait_with_output().unwrap();
        String::from_utf8_lossy(&finished.stderr).into_owned()
    }

    #[test]
    fn structs_are_laid_out_as_in_flashjit_h() {
        assert_eq!(complaints(&claims()), "");
        assert_ne!(complaints("_Static_assert(offsetof(DLTensor, ndim) == 1, \"\");"), "");
    }
}
