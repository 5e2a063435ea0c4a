/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the extension flashjit._core, which see each other through this header. It is written against the
   limited API of Python 3.9, so that one build serves every later version. Functions that return PyObject* return a new
   reference, and NULL or 0 with an exception set when they fail, unless they say otherwise. */
#ifndef FLASHJIT_PYTHON_CORE_CORE_H
#define FLASHJIT_PYTHON_CORE_CORE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "flashjit.h"
#include "python/core/dlpack.h"

/* The calling convention has been the same since 3.7, but the limited API names it from 3.10 on. */
#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif

/* --- errors.c ---------------------------------------------------------------------------------------------------- */

/* Both set the exception that flashjit._errors has for the status, and return NULL. */
PyObject* raise_status(flashjit_status status); /* with flashjit_last_error() */
PyObject* raise_error(flashjit_status status, const char* format, ...);
/* In the place of what a conversion raised, which does not know the argument. What else the value's own code raised,
   an interrupt for example, stays. Always 0. */
int refuse_value(const char* name, const char* must, PyObject* value);

/* The attribute of a module of this package. */
PyObject* import_attribute(const char* module, const char* name);

static inline int is_given(PyObject* value) { return value && value != Py_None; }

/* --- engine.c ---------------------------------------------------------------------------------------------------- */

/* Makes flashjit._core.Engine. */
PyObject* make_engine_type(void);
/* The handle of an engine, or with None or NULL of the default one, which may be NULL. 0 on failure. */
int find_engine(PyObject* engine, flashjit_engine** handle);
/* engine_address(engine) of the module: the handle as an int, for libraries that are not written for Python. */
PyObject* engine_address(PyObject* module, PyObject* engine);
/* counters(engine) of the module. */
PyObject* counters(PyObject* module, PyObject* engine);

/* --- plan.c ------------------------------------------------------------------------------------------------------ */

/* Makes flashjit._core.Plan. */
PyObject* make_plan_type(void);
/* Where the handle of a flashjit.Plan is, NULL as long as nothing is planned. NULL on failure. */
flashjit_plan** place_of_plan(PyObject* plan);
/* Of None or NULL, NULL; of one without a handle a failure. 0 on failure. */
int find_plan(PyObject* plan, const flashjit_plan** handle);

/* --- attention.c ------------------------------------------------------------------------------------------------- */

/* Made once, when the module is. */
int prepare_keywords(void);
/* attention(q, k, v, *, ...) of the module, and of an engine, which has no keyword "engine". */
PyObject* attention_function(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* attention_method(PyObject* engine, PyObject* const* args, Py_ssize_t count, PyObject* keywords);

/* --- functions.c ------------------------------------------------------------------------------------------------- */

typedef enum FunctionKind { kScoreFunction, kMaskFunction } FunctionKind;
enum { kMostCaptures = 16, kLabelBytes = 128 };

/* A function as the caller gave it, by references that it holds: a str, and tuples of pairs (name, value). All NULL
   where there is none. */
typedef struct GivenFunction {
  PyObject *text, *tensors, *numbers;
} GivenFunction;
/* Of a flashjit.Score or flashjit.Mask, a str, None or NULL. 0 on failure, and nothing is held. */
int find_function(FunctionKind kind, PyObject* given, GivenFunction* function);
void drop_function(GivenFunction* function);

/* The same for the library. The first captures are tensors, whose views are yet to be made of their sources. It lives
   no longer than what it was read from, and must not be moved. */
typedef struct Function {
  flashjit_function function;
  flashjit_capture captures[kMostCaptures];
  int tensor_count;
  PyObject* sources[kMostCaptures];
  char labels[kMostCaptures][kLabelBytes]; /* for errors */
  DLTensor views[kMostCaptures];
} Function;
/* 0 on failure. */
int read_function(FunctionKind kind, const GivenFunction* given, Function* function);

/* --- options.c --------------------------------------------------------------------------------------------------- */

/* The options that are arrays, but for lse. */
typedef struct TensorOption {
  const char* name;
  size_t field;
} TensorOption;
enum { kTensorOptions = 24 };
extern const TensorOption tensor_options[kTensorOptions];
/* options: the struct that has the field. */
const DLTensor** place_of(void* options, const TensorOption* option);

/* What does not depend on where the tensors come from. options.variant points into the Python text, and what else
   options point to lies here. */
typedef struct Settings {
  flashjit_engine* engine;
  flashjit_attention_options options;
  flashjit_window window;
  Function score, mask;
} Settings;
/* What the caller gave for them, NULL or None where it gave nothing. */
typedef struct GivenSettings {
  PyObject *engine, *causal, *window, *chunk, *scale, *softcap, *dropout, *dropout_seed, *dropout_offset, *max_seqlen_q,
      *max_seqlen_kv, *fixed_split_size, *accumulate, *variant, *plan;
  const GivenFunction *score, *mask;
} GivenSettings;
/* 0 on failure. */
int read_settings(Settings* settings, const GivenSettings* given);
/* Whether products with such queries are of 8 bits, so that the output has another dtype; settings then get that. */
int is_of_8_bits(DLDataType dtype);
void set_out_dtype(Settings* settings, const DLTensor* q, const DLTensor* out);

/* 0 for an argument that is not given; -1 on failure. */
int read_flag(const char* name, PyObject* value);

/* Without the GIL. */
flashjit_status run(const Settings* settings, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                    const DLTensor* out);

/* --- launch.c ---------------------------------------------------------------------------------------------------- */

/* launch(engine, q, k, v, out, lse, tensors, score, mask, numbers, plan, stream): the call for tensors that Python code
   described. tensors is a dict of further ones by their names, score and mask are (text, tensors, numbers) or None,
   numbers is (causal, window, chunk, scale, softcap, dropout, dropout_seed, dropout_offset, max_seqlen_q,
   max_seqlen_kv, fixed_split_size, accumulate, variant). */
PyObject* launch(PyObject* module, PyObject* args);
/* backward(engine, dout, q, k, v, out, lse, dlse, (dq, dk, dv, dbias, dslopes, dsinks), deterministic, tensors, score,
   mask, numbers, stream): likewise. dlse may be None, and so may gradients that are not to be computed. */
PyObject* backward(PyObject* module, PyObject* args);
/* reference(engine, q, k, v, out, lse, tensors, score, mask, numbers): likewise, on the CPU. */
PyObject* reference(PyObject* module, PyObject* args);
/* reference_backward(engine, dout, q, k, v, dlse, gradients, tensors, score, mask, numbers): likewise, gradients as of
   backward. */
PyObject* reference_backward(PyObject* module, PyObject* args);
/* plan(plan, engine, q, k, v, memory, tensors, score, mask, numbers, stream): likewise, into a Plan that is empty; one
   that is not is made anew, and memory does not count. */
PyObject* make_plan(PyObject* module, PyObject* args);
/* block_mask(engine, into, tensors, mask, stream, (batch, heads, seqlen_q, seqlen_kv)): likewise. */
PyObject* make_block_mask(PyObject* module, PyObject* args);
/* merge(engine, ((out, lse), ...), out, lse, stream): likewise. */
PyObject* merge(PyObject* module, PyObject* args);
/* append(engine, k, v, k_cache, v_cache, q_out, k_rotary_cache, tensors, rotary_interleaved, stream): likewise; q_out
   and k_rotary_cache may be None. */
PyObject* append(PyObject* module, PyObject* args);
/* quantize(engine, x, out, scale, tensors, scale_of, scale_is_given, block_size, rotates, rotation_seed,
   rotary_interleaved, stream): likewise; scale_of is a flashjit_scale_of. */
PyObject* quantize(PyObject* module, PyObject* args);
/* prepare(engine, dtype, head_dim, head_dim_v, (causal, window, chunk, softcap, alibi, sinks, boolean_mask, documents,
   prefix, tree, block_mask, dropout, dropout_mask, ragged, paged, e4m3, token_scales, e4m3_queries, fast_sums,
   block_scales, k_rotary, latent, values_transposed, out_e4m3, e5m2), bias, score, mask, device): dtype and bias are
   (code, bits) of DLPack, (0, 0) for no bias; score and mask are as of launch.
 */
PyObject* prepare(PyObject* module, PyObject* args);
/* dropout_mask(probability, seed, offset, (batch, heads, seqlen_q, seqlen_kv)): bytes, 1 where a probability stays. */
PyObject* make_dropout_mask(PyObject* module, PyObject* args);
/* block_mask_dims(batch, heads, seqlen_q, seqlen_kv) */
PyObject* block_mask_dims(PyObject* module, PyObject* args);

#endif
