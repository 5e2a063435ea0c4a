/* SPDX-License-Identifier: Apache-2.0 */
/* What does not depend on where the arrays come from: the options of a call. */
#include <stddef.h>

#include "python/core/core.h"

const TensorOption tensor_options[kTensorOptions] = {
    {"alibi_slopes", offsetof(flashjit_attention_options, alibi_slopes)},
    {"sinks", offsetof(flashjit_attention_options, sinks)},
    {"bias", offsetof(flashjit_attention_options, bias)},
    {"boolean_mask", offsetof(flashjit_attention_options, boolean_mask)},
    {"documents", offsetof(flashjit_attention_options, documents)},
    {"prefix", offsetof(flashjit_attention_options, prefix)},
    {"tree", offsetof(flashjit_attention_options, tree)},
    {"query_offsets", offsetof(flashjit_attention_options, query_offsets)},
    {"key_offsets", offsetof(flashjit_attention_options, key_offsets)},
    {"block_mask", offsetof(flashjit_attention_options, block_mask)},
    {"dropout_state", offsetof(flashjit_attention_options, dropout_state)},
    {"dropout_mask", offsetof(flashjit_attention_options, dropout_mask)},
    {"cu_seqlens_q", offsetof(flashjit_attention_options, cu_seqlens_q)},
    {"cu_seqlens_kv", offsetof(flashjit_attention_options, cu_seqlens_kv)},
    {"seqused_q", offsetof(flashjit_attention_options, seqused_q)},
    {"seqused_kv", offsetof(flashjit_attention_options, seqused_kv)},
    {"leftpad_kv", offsetof(flashjit_attention_options, leftpad_kv)},
    {"batch_indices_kv", offsetof(flashjit_attention_options, batch_indices_kv)},
    {"page_table", offsetof(flashjit_attention_options, page_table)},
    {"k_scale", offsetof(flashjit_attention_options, k_scale)},
    {"v_scale", offsetof(flashjit_attention_options, v_scale)},
    {"q_scale", offsetof(flashjit_attention_options, q_scale)},
    {"k_rotary", offsetof(flashjit_attention_options, k_rotary)},
    {"out_scale", offsetof(flashjit_attention_options, out_scale)}};

const DLTensor** place_of(void* options, const TensorOption* option) {
  return (const DLTensor**)((char*)options + option->field);
}

/* Of a new reference, which it takes. */
static int take_int64(PyObject* value, int64_t* number) {
  PyObject* const index = value ? PyNumber_Index(value) : NULL;
  *number = index ? PyLong_AsLongLong(index) : -1;
  Py_XDECREF(index);
  Py_XDECREF(value);
  return !PyErr_Occurred();
}

static int read_window(PyObject* pair, flashjit_window* window) {
  if ((PyTuple_Check(pair) || PyList_Check(pair)) && PySequence_Size(pair) == 2 &&
      take_int64(PySequence_GetItem(pair, 0), &window->left) &&
      take_int64(PySequence_GetItem(pair, 1), &window->right)) {
    return 1;
  }
  return refuse_value("window", "a pair (left, right) of ints of 64 bits, or None", pair);
}

/* A number of rows. True is for prepare(), and would be chunks of one key. */
static int read_length(const char* name, PyObject* value, int64_t* length) {
  if (!PyBool_Check(value)) {
    Py_INCREF(value);
    if (take_int64(value, length) && *length >= 0) return 1;
  }
  return refuse_value(name, "an int from 0 to 2**63 - 1, or None", value);
}

static int read_number(const char* name, const char* must, PyObject* value, double* number) {
  *number = PyFloat_AsDouble(value);
  return !PyErr_Occurred() || refuse_value(name, must, value);
}

/* True is for prepare(), and would be a cap of 1. A number that rounds to 0 would be no cap. */
static int read_softcap(PyObject* value, float* softcap) {
  static const char must[] = "a number of float32, or None";
  double number = 0;
  if (PyBool_Check(value)) return refuse_value("softcap", must, value);
  if (!read_number("softcap", must, value, &number)) return 0;
  *softcap = (float)number;
  return (*softcap != 0) == (number != 0) || refuse_value("softcap", must, value);
}

/* Of 64 bits, without a sign. */
static int read_counter(const char* name, PyObject* value, uint64_t* counter) {
  PyObject* const index = PyBool_Check(value) ? NULL : PyNumber_Index(value);
  *counter = index ? PyLong_AsUnsignedLongLong(index) : 0;
  Py_XDECREF(index);
  if (!PyBool_Check(value) && !PyErr_Occurred()) return 1;
  return refuse_value(name, "an int from 0 to 2**64 - 1", value);
}

/* True is for prepare(). */
static int read_dropout(flashjit_attention_options* options, const GivenSettings* given) {
  static const char must[] = "a number from 0 to below 1, or None";
  if (is_given(given->dropout)) {
    if (PyBool_Check(given->dropout)) return refuse_value("dropout", must, given->dropout);
    if (!read_number("dropout", must, given->dropout, &options->dropout)) return 0;
  }
  return (!is_given(given->dropout_seed) ||
          read_counter("dropout_seed", given->dropout_seed, &options->dropout_seed)) &&
         (!is_given(given->dropout_offset) ||
          read_counter("dropout_offset", given->dropout_offset, &options->dropout_offset));
}

int read_flag(const char* name, PyObject* value) {
  const int flag = value ? PyObject_IsTrue(value) : 0;
  if (flag < 0) refuse_value(name, "True or False", value);
  return flag;
}

/* Which keys a query sees. */
static int read_masks(Settings* settings, const GivenSettings* given) {
  flashjit_attention_options* const options = &settings->options;
  options->causal = read_flag("causal", given->causal);
  if (options->causal < 0) return 0;
  if (is_given(given->window)) {
    if (!read_window(given->window, &settings->window)) return 0;
    options->window = &settings->window;
  }
  return !is_given(given->chunk) || read_length("chunk", given->chunk, &options->chunk);
}

/* Numbers of rows: of ragged batches, and of splits. */
static int read_bounds(flashjit_attention_options* options, const GivenSettings* given) {
  return (!is_given(given->max_seqlen_q) || read_length("max_seqlen_q", given->max_seqlen_q, &options->max_seqlen_q)) &&
         (!is_given(given->max_seqlen_kv) ||
          read_length("max_seqlen_kv", given->max_seqlen_kv, &options->max_seqlen_kv)) &&
         (!is_given(given->fixed_split_size) ||
          read_length("fixed_split_size", given->fixed_split_size, &options->fixed_split_size));
}

/* How products of e4m3 are summed. */
static int read_accumulate(PyObject* value, int32_t* fast_sums) {
  if (PyUnicode_Check(value) && PyUnicode_CompareWithASCIIString(value, "exact") == 0) return 1;
  if (!PyUnicode_Check(value) || PyUnicode_CompareWithASCIIString(value, "fast") != 0)
    return refuse_value("accumulate", "'exact' or 'fast', or None", value);
  *fast_sums = 1;
  return 1;
}

int is_of_8_bits(DLDataType dtype) {
  const int float8_e4m3fn = 10, float8_e5m2 = 12; /* of DLPack 1.1, which older headers lack */
  return (dtype.code == float8_e4m3fn || dtype.code == float8_e5m2) && dtype.bits == 8 && dtype.lanes == 1;
}

void set_out_dtype(Settings* settings, const DLTensor* q, const DLTensor* out) {
  const int may_be = out->dtype.bits == 16 && (out->dtype.code == kDLFloat || out->dtype.code == kDLBfloat);
  if (is_of_8_bits(q->dtype) && (may_be || is_of_8_bits(out->dtype)))
    settings->options.out_dtype = out->dtype; /* else the library tells what out must be */
}

/* What becomes of scores. */
static int read_scores(flashjit_attention_options* options, const GivenSettings* given) {
  if (is_given(given->scale)) {
    double number = 0;
    if (!read_number("scale", "a number", given->scale, &number)) return 0;
    options->has_softmax_scale = 1;
    options->softmax_scale = (float)number;
  }
  return !is_given(given->softcap) || read_softcap(given->softcap, &options->softcap);
}

static int read_functions(Settings* settings, const GivenSettings* given) {
  if (given->score && given->score->text) {
    if (!read_function(kScoreFunction, given->score, &settings->score)) return 0;
    settings->options.score = &settings->score.function;
  }
  if (given->mask && given->mask->text) {
    if (!read_function(kMaskFunction, given->mask, &settings->mask)) return 0;
    settings->options.mask = &settings->mask.function;
  }
  return 1;
}

int read_settings(Settings* settings, const GivenSettings* given) {
  const flashjit_attention_options defaults = FLASHJIT_ATTENTION_OPTIONS_INIT;
  flashjit_attention_options* const options = &settings->options;
  *options = defaults;
  if (!find_engine(given->engine, &settings->engine)) return 0;
  if (!read_masks(settings, given) || !read_scores(options, given) || !read_dropout(options, given) ||
      !read_bounds(options, given) || !read_functions(settings, given) || !find_plan(given->plan, &options->plan)) {
    return 0;
  }
  if (is_given(given->accumulate) && !read_accumulate(given->accumulate, &options->fast_sums)) return 0;
  if (!is_given(given->variant) || PyArg_Parse(given->variant, "s:attention", &options->variant)) return 1;
  return refuse_value("variant", "a str without null characters", given->variant);
}

flashjit_status run(const Settings* settings, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                    const DLTensor* out) {
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_attention(settings->engine, q, k, v, out, &settings->options);
  Py_END_ALLOW_THREADS;
  return status;
}
