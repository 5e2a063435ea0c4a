/* SPDX-License-Identifier: Apache-2.0 */
/* A thin C interface to the default engine, for other languages. Every function is thread-safe. */
#ifndef FLASHJIT_C_API_H
#define FLASHJIT_C_API_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum flashjit_dtype { FLASHJIT_F16 = 0, FLASHJIT_BF16 = 1, FLASHJIT_F32 = 2 } flashjit_dtype;

/* A view of device memory; shape and strides (in elements) have rank entries. See flashjit/tensor.h. */
typedef struct flashjit_tensor {
  void* data;
  int32_t dtype; /* flashjit_dtype */
  int32_t rank;  /* at most 4 */
  int64_t shape[4];
  int64_t strides[4];
} flashjit_tensor;

typedef struct flashjit_attention_options {
  int32_t causal;            /* 0 or 1 */
  int32_t has_softmax_scale; /* 0: 1 / sqrt(head_dim) */
  float softmax_scale;
  const flashjit_tensor* lse; /* null: not written */
  void* stream;               /* CUstream; null: the default stream */
  const char* variant;        /* a spelling that parse_variant reads; null: the default */
} flashjit_attention_options;

/* 0, or 1 + the value of flashjit::ErrorCode; the message is in flashjit_last_error. options may be null.
   Shapes and rules: flashjit::attention in flashjit/attention.h, with out in the caller's memory. */
int flashjit_attention(const flashjit_tensor* q, const flashjit_tensor* k, const flashjit_tensor* v,
                       const flashjit_tensor* out, const flashjit_attention_options* options);

/* The message of this thread's last failed call; "" when there was none. Valid until this thread's next call. */
const char* flashjit_last_error(void);

/* "major.minor.patch" */
const char* flashjit_version(void);

/* Rate of a loop of nothing but mma.sync in bf16 on the current device, in TFLOPS; negative on error. */
double flashjit_measure_mma_ceiling(void);

#ifdef __cplusplus
}
#endif

#endif
