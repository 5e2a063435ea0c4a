/* SPDX-License-Identifier: Apache-2.0 */
/* Computes attention from C, in the emulator. Two keys with the values 1 and 3; as q is 0, each key that a query sees
   has the same weight. Exit status 77: there is no NVRTC. */
#include <flashjit.h>
#include <stdio.h>
#include <string.h>

enum { SEQLEN = 2, HEAD_DIM = 64 };

#define BF16_ONE 0x3f80
#define BF16_TWO 0x4000
#define BF16_THREE 0x4040

static uint16_t q[SEQLEN][HEAD_DIM], k[SEQLEN][HEAD_DIM], v[SEQLEN][HEAD_DIM], out[SEQLEN][HEAD_DIM];
static float lse[SEQLEN];
static int64_t shape[] = {1, SEQLEN, 1, HEAD_DIM}, lse_shape[] = {1, 1, SEQLEN};

static DLTensor view(void* data, int ndim, int64_t* sizes, uint8_t code, uint8_t bits) {
  DLTensor tensor;
  memset(&tensor, 0, sizeof tensor);
  tensor.data = data;
  tensor.device.device_type = kDLCPU;
  tensor.ndim = ndim;
  tensor.dtype.code = code;
  tensor.dtype.bits = bits;
  tensor.dtype.lanes = 1;
  tensor.shape = sizes;
  return tensor;
}

static void fill(uint16_t row[HEAD_DIM], uint16_t value) {
  int i;
  for (i = 0; i < HEAD_DIM; ++i) row[i] = value;
}

static int is_filled(const uint16_t row[HEAD_DIM], uint16_t value) {
  int i;
  for (i = 0; i < HEAD_DIM; ++i) {
    if (row[i] != value) return 0;
  }
  return 1;
}

static int fail(const char* what) {
  fprintf(stderr, "failed: %s: %s\n", what, flashjit_last_error());
  return 1;
}

static int is_near(float value, double expected) { return value > expected - 1e-4 && value < expected + 1e-4; }

/* Query 0 sees key 0 only. */
static int is_causal_attention(void) {
  const double log_of_2 = 0.693147;
  return is_filled(out[0], BF16_ONE) && is_filled(out[1], BF16_TWO) && is_near(lse[0], 0) && is_near(lse[1], log_of_2);
}

static int compute(flashjit_engine* engine) {
  const DLTensor q_view = view(q, 4, shape, kDLBfloat, 16), k_view = view(k, 4, shape, kDLBfloat, 16),
                 v_view = view(v, 4, shape, kDLBfloat, 16), out_view = view(out, 4, shape, kDLBfloat, 16),
                 lse_view = view(lse, 3, lse_shape, kDLFloat, 32);
  flashjit_attention_options options = FLASHJIT_ATTENTION_OPTIONS_INIT;
  flashjit_counters counters = FLASHJIT_COUNTERS_INIT;
  flashjit_status status;

  if (flashjit_attention(engine, NULL, &k_view, &v_view, &out_view, NULL) != FLASHJIT_INVALID_ARGUMENT)
    return fail("q must not be NULL");
  status = flashjit_attention(engine, &q_view, &k_view, &v_view, &out_view, NULL);
  if (status == FLASHJIT_NO_COMPILER) {
    printf("skipped: %s\n", flashjit_last_error());
    return 77;
  }
  if (status != FLASHJIT_OK) return fail("attention");
  if (!is_filled(out[0], BF16_TWO) || !is_filled(out[1], BF16_TWO)) return fail("attention must average the values");

  options.causal = 1;
  options.lse = &lse_view;
  if (flashjit_attention(engine, &q_view, &k_view, &v_view, &out_view, &options) != FLASHJIT_OK) return fail("causal");
  if (!is_causal_attention()) return fail("causal attention must weigh the keys that a query sees");
  if (flashjit_get_counters(engine, &counters) != FLASHJIT_OK || counters.compiles != 3)
    return fail("counters"); /* two kernels, and what combines their split keys */
  return 0;
}

int main(void) {
  flashjit_engine_options options = FLASHJIT_ENGINE_OPTIONS_INIT;
  flashjit_engine* engine = NULL;
  int result;
  options.policy = "off";
  options.emulate = "sm_90a";
  if (flashjit_engine_create(&options, &engine) != FLASHJIT_OK) return fail("engine");
  fill(v[0], BF16_ONE);
  fill(v[1], BF16_THREE);
  result = compute(engine);
  flashjit_engine_destroy(engine);
  if (result == 0) printf("flashjit %s computes attention from C\n", flashjit_version());
  return result;
}
