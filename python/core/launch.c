/* SPDX-License-Identifier: Apache-2.0 */
/* The call for arrays that Python code has made capsules or descriptions of (flashjit/_arrays.py). */
#include <stddef.h>

#include "python/core/loans.h"

PyObject* launch(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *q, *k, *v, *out, *lse, *further, *score, *mask, *numbers, *plan;
  unsigned long long stream;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOOOO!OOO!OK:launch", &engine, &q, &k, &v, &out, &lse, &PyDict_Type, &further, &score,
                        &mask, &PyTuple_Type, &numbers, &plan, &stream) ||
      !read_options(&call, engine, score, mask, numbers, plan, stream)) {
    return NULL;
  }
  const Inputs inputs = lend_inputs(&call, q, k, v);
  lend_options(&call, further);
  lend_all_captures(&call);
  const DLTensor* const out_view = lend(&call, "out", out, 1);
  call.settings.options.lse = lend(&call, "lse", lse, 1);
  if (inputs.q && out_view) set_out_dtype(&call.settings, inputs.q, out_view);
  const flashjit_status status = call.wrong ? FLASHJIT_OK : run(&call.settings, inputs.q, inputs.k, inputs.v, out_view);
  return finish_call(&call, status);
}

PyObject* backward(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *dout, *q, *k, *v, *out, *lse, *dlse, *further, *score, *mask, *numbers;
  Gradients gradients;
  int deterministic;
  unsigned long long stream;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOOOOO(OOOOOO)pO!OOO!K:backward", &engine, &dout, &q, &k, &v, &out, &lse, &dlse,
                        &gradients.dq, &gradients.dk, &gradients.dv, &gradients.dbias, &gradients.dslopes,
                        &gradients.dsinks, &deterministic, &PyDict_Type, &further, &score, &mask, &PyTuple_Type,
                        &numbers, &stream) ||
      !read_options(&call, engine, score, mask, numbers, NULL, stream)) {
    return NULL;
  }
  const DLTensor* const dout_view = lend(&call, "dout", dout, 0);
  const Inputs inputs = lend_inputs(&call, q, k, v);
  const DLTensor* const out_view = lend(&call, "out", out, 0);
  const DLTensor* const lse_view = lend(&call, "lse", lse, 0);
  const DLTensor* const dlse_view = lend(&call, "dlse", dlse, 0);
  lend_options(&call, further);
  lend_all_captures(&call);
  flashjit_gradients into = lend_gradients(&call, &gradients);
  into.deterministic = deterministic;
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_attention_backward(call.settings.engine, dout_view, inputs.q, inputs.k, inputs.v, out_view,
                                         lse_view, dlse_view, &into, &call.settings.options);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

PyObject* reference(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *q, *k, *v, *out, *lse, *further, *score, *mask, *numbers;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOOOO!OOO!:reference", &engine, &q, &k, &v, &out, &lse, &PyDict_Type, &further, &score,
                        &mask, &PyTuple_Type, &numbers) ||
      !read_options(&call, engine, score, mask, numbers, NULL, 0)) {
    return NULL;
  }
  const Inputs inputs = lend_inputs(&call, q, k, v);
  lend_options(&call, further);
  lend_all_captures(&call);
  const DLTensor* const out_view = lend(&call, "out", out, 1);
  const DLTensor* const lse_view = lend(&call, "lse", lse, 1);
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_reference(call.settings.engine, inputs.q, inputs.k, inputs.v, out_view, lse_view,
                                &call.settings.options);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

PyObject* reference_backward(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *dout, *q, *k, *v, *dlse, *further, *score, *mask, *numbers;
  Gradients gradients;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOOO(OOOOOO)O!OOO!:reference_backward", &engine, &dout, &q, &k, &v, &dlse,
                        &gradients.dq, &gradients.dk, &gradients.dv, &gradients.dbias, &gradients.dslopes,
                        &gradients.dsinks, &PyDict_Type, &further, &score, &mask, &PyTuple_Type, &numbers) ||
      !read_options(&call, engine, score, mask, numbers, NULL, 0)) {
    return NULL;
  }
  const DLTensor* const dout_view = lend(&call, "dout", dout, 0);
  const Inputs inputs = lend_inputs(&call, q, k, v);
  const DLTensor* const dlse_view = lend(&call, "dlse", dlse, 0);
  lend_options(&call, further);
  lend_all_captures(&call);
  const flashjit_gradients into = lend_gradients(&call, &gradients);
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_reference_backward(call.settings.engine, dout_view, inputs.q, inputs.k, inputs.v, dlse_view,
                                         &into, &call.settings.options);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

PyObject* make_plan(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *plan, *engine, *q, *k, *v, *memory, *further, *score, *mask, *numbers;
  unsigned long long stream;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOOOO!OOO!K:plan", &plan, &engine, &q, &k, &v, &memory, &PyDict_Type, &further, &score,
                        &mask, &PyTuple_Type, &numbers, &stream) ||
      !read_options(&call, engine, score, mask, numbers, NULL, stream)) {
    return NULL;
  }
  flashjit_plan** const place = place_of_plan(plan);
  if (!place) return NULL;
  const Inputs inputs = lend_inputs(&call, q, k, v);
  lend_options(&call, further);
  lend_all_captures(&call);
  const DLTensor* const memory_view = lend(&call, "memory", memory, 1);
  const Settings* const settings = &call.settings;
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = *place ? flashjit_plan_update(settings->engine, *place, inputs.q, inputs.k, inputs.v, &settings->options)
                    : flashjit_plan_create(settings->engine, inputs.q, inputs.k, inputs.v, &settings->options,
                                           memory_view, place);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

PyObject* make_block_mask(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *into, *further, *mask;
  GivenSettings given = {0};
  unsigned long long stream;
  flashjit_mask_shape shape;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOO!OK(LLLL):block_mask", &given.engine, &into, &PyDict_Type, &further, &mask, &stream,
                        &shape.batch, &shape.num_heads_q, &shape.seqlen_q, &shape.seqlen_kv) ||
      !read_described(mask, &call.mask)) {
    return NULL;
  }
  given.mask = &call.mask;
  if (!read_settings(&call.settings, &given)) return NULL;
  call.settings.options.stream = (void*)(uintptr_t)stream;
  lend_options(&call, further);
  lend_all_captures(&call);
  const DLTensor* const into_view = lend(&call, "into", into, 1);
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_block_mask(call.settings.engine, &call.settings.options, &shape, into_view);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

/* parts: ((out, lse), ...). 0 on failure: then a Python error is set. */
static int lend_parts(Call* call, PyObject* parts, flashjit_partial* partials) {
  const Py_ssize_t count = PyTuple_Size(parts);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject *out, *lse;
    if (!PyArg_ParseTuple(PyTuple_GetItem(parts, i), "OO", &out, &lse)) return 0;
    partials[i].out = lend(call, "parts", out, 0);
    partials[i].lse = lend(call, "parts", lse, 0);
  }
  return 1;
}

static PyObject* merge_parts(Call* call, PyObject* parts, PyObject* out, PyObject* lse, flashjit_partial* partials) {
  const size_t count = (size_t)PyTuple_Size(parts);
  const int described = lend_parts(call, parts, partials);
  const DLTensor* const out_view = described ? lend(call, "out", out, 1) : NULL;
  const DLTensor* const lse_view = described ? lend(call, "lse", lse, 1) : NULL;
  flashjit_status status = FLASHJIT_OK;
  if (described && !call->wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_merge(call->settings.engine, partials, count, out_view, lse_view, call->settings.options.stream);
    Py_END_ALLOW_THREADS;
  }
  PyObject* const done = finish_call(call, status);
  if (described || !done) return done;
  Py_DECREF(done);
  return NULL;
}

PyObject* merge(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *parts, *out, *lse;
  GivenSettings given = {0};
  unsigned long long stream;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OO!OOK:merge", &given.engine, &PyTuple_Type, &parts, &out, &lse, &stream) ||
      !read_settings(&call.settings, &given)) {
    return NULL;
  }
  call.settings.options.stream = (void*)(uintptr_t)stream;
  const size_t count = (size_t)PyTuple_Size(parts);
  flashjit_partial* const partials = PyMem_Calloc(count + 1, sizeof(flashjit_partial));
  call.loans = PyMem_Calloc(2 * count + 2, sizeof(Loan));
  PyObject* const done = partials && call.loans ? merge_parts(&call, parts, out, lse, partials) : PyErr_NoMemory();
  PyMem_Free(call.loans);
  PyMem_Free(partials);
  return done;
}

static const TensorOption append_tensors[] = {{"slots", offsetof(flashjit_append_options, slots)},
                                              {"seqused_kv", offsetof(flashjit_append_options, seqused_kv)},
                                              {"cu_seqlens", offsetof(flashjit_append_options, cu_seqlens)},
                                              {"page_table", offsetof(flashjit_append_options, page_table)},
                                              {"batch_indices_kv", offsetof(flashjit_append_options, batch_indices_kv)},
                                              {"leftpad_kv", offsetof(flashjit_append_options, leftpad_kv)},
                                              {"rotary_cos", offsetof(flashjit_append_options, rotary_cos)},
                                              {"rotary_sin", offsetof(flashjit_append_options, rotary_sin)},
                                              {"positions", offsetof(flashjit_append_options, positions)},
                                              {"q", offsetof(flashjit_append_options, q)},
                                              {"k_scale", offsetof(flashjit_append_options, k_scale)},
                                              {"v_scale", offsetof(flashjit_append_options, v_scale)},
                                              {"k_rotary", offsetof(flashjit_append_options, k_rotary)}};

PyObject* append(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *k, *v, *k_cache, *v_cache, *q_out, *k_rotary_cache, *further;
  GivenSettings given = {0};
  flashjit_append_options options = FLASHJIT_APPEND_OPTIONS_INIT;
  unsigned long long stream;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOOOOO!pK:append", &given.engine, &k, &v, &k_cache, &v_cache, &q_out, &k_rotary_cache,
                        &PyDict_Type, &further, &options.rotary_interleaved, &stream) ||
      !read_settings(&call.settings, &given)) {
    return NULL;
  }
  const TensorOptions tensors = {append_tensors, sizeof append_tensors / sizeof *append_tensors, &options};
  options.stream = (void*)(uintptr_t)stream;
  const DLTensor* const k_view = lend(&call, "k", k, 0);
  const DLTensor* const v_view = lend(&call, "v", v, 0);
  lend_named(&call, &tensors, further);
  const DLTensor* const k_cache_view = lend(&call, "k_cache", k_cache, 1);
  const DLTensor* const v_cache_view = lend(&call, "v_cache", v_cache, 1);
  options.q_out = lend(&call, "q_out", q_out, 1);
  options.k_rotary_cache = lend(&call, "k_rotary_cache", k_rotary_cache, 1);
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_append(call.settings.engine, k_view, v_view, k_cache_view, v_cache_view, &options);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

static const TensorOption quantize_tensors[] = {{"rotary_cos", offsetof(flashjit_quantize_options, rotary_cos)},
                                                {"rotary_sin", offsetof(flashjit_quantize_options, rotary_sin)},
                                                {"positions", offsetof(flashjit_quantize_options, positions)}};

PyObject* quantize(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *x, *out, *scale, *further;
  GivenSettings given = {0};
  flashjit_quantize_options options = FLASHJIT_QUANTIZE_OPTIONS_INIT;
  unsigned long long stream, seed;
  long long block_size;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "OOOOO!ipLpKppK:quantize", &given.engine, &x, &out, &scale, &PyDict_Type, &further,
                        &options.scale_of, &options.scale_is_given, &block_size, &options.rotates, &seed,
                        &options.rotary_interleaved, &options.bytes_are_e5m2, &stream) ||
      !read_settings(&call.settings, &given)) {
    return NULL;
  }
  const TensorOptions tensors = {quantize_tensors, sizeof quantize_tensors / sizeof *quantize_tensors, &options};
  options.stream = (void*)(uintptr_t)stream;
  options.block_size = block_size;
  options.rotation_seed = seed;
  const DLTensor* const x_view = lend(&call, "x", x, 0);
  lend_named(&call, &tensors, further);
  const DLTensor* const out_view = lend(&call, "out", out, 1);
  const DLTensor* const scale_view = lend(&call, "scale", scale, !options.scale_is_given);
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_quantize(call.settings.engine, x_view, out_view, scale_view, &options);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

/* Of captures only the types are read. kinds: of gradients, or None for calls of attention. */
PyObject* prepare(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *score, *mask, *kinds;
  flashjit_gradient_kinds gradients = FLASHJIT_GRADIENT_KINDS_INIT;
  GivenSettings given = {0};
  flashjit_problem problem = FLASHJIT_PROBLEM_INIT;
  int device;
  Call call;
  begin_call(&call);
  if (!PyArg_ParseTuple(args, "O(bb)ii(ppppppppppppppppppppppppp)(bb)OOOi:prepare", &given.engine, &problem.dtype.code,
                        &problem.dtype.bits, &problem.head_dim, &problem.head_dim_v, &problem.causal, &problem.window,
                        &problem.chunk, &problem.softcap, &problem.alibi, &problem.sinks, &problem.boolean_mask,
                        &problem.documents, &problem.prefix, &problem.tree, &problem.block_mask, &problem.dropout,
                        &problem.dropout_mask, &problem.ragged, &problem.paged, &problem.e4m3, &problem.token_scales,
                        &problem.e4m3_queries, &problem.fast_sums, &problem.block_scales, &problem.k_rotary,
                        &problem.latent, &problem.values_transposed, &problem.out_e4m3, &problem.e5m2,
                        &problem.bias.code, &problem.bias.bits, &score, &mask, &kinds, &device) ||
      !read_described(score, &call.score) || !read_described(mask, &call.mask) ||
      (kinds != Py_None && !PyArg_ParseTuple(kinds, "ppppp:prepare", &gradients.f32, &gradients.dbias,
                                             &gradients.dslopes, &gradients.dsinks, &gradients.deterministic))) {
    return NULL;
  }
  given.score = &call.score;
  given.mask = &call.mask;
  if (!read_settings(&call.settings, &given)) return NULL;
  lend_all_captures(&call);
  problem.bias.lanes = problem.bias.bits > 0;
  problem.score = call.settings.options.score;
  problem.mask = call.settings.options.mask;
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = kinds == Py_None ? flashjit_prepare(call.settings.engine, &problem, device)
                              : flashjit_prepare_backward(call.settings.engine, &problem, &gradients, device);
    Py_END_ALLOW_THREADS;
  }
  return finish_call(&call, status);
}

PyObject* make_dropout_mask(PyObject* module, PyObject* args) {
  (void)module;
  double probability;
  unsigned long long seed, offset;
  flashjit_mask_shape shape;
  if (!PyArg_ParseTuple(args, "dKK(LLLL):dropout_mask", &probability, &seed, &offset, &shape.batch, &shape.num_heads_q,
                        &shape.seqlen_q, &shape.seqlen_kv)) {
    return NULL;
  }
  const double bytes =
      (double)shape.batch * (double)shape.num_heads_q * (double)shape.seqlen_q * (double)shape.seqlen_kv;
  if (bytes > (double)PY_SSIZE_T_MAX) return PyErr_NoMemory();
  PyObject* const kept = PyBytes_FromStringAndSize(NULL, bytes > 0 ? (Py_ssize_t)bytes : 0);
  if (!kept) return NULL;
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_dropout_mask(probability, seed, offset, &shape, (uint8_t*)PyBytes_AsString(kept));
  Py_END_ALLOW_THREADS;
  if (status == FLASHJIT_OK) return kept;
  Py_DECREF(kept);
  return raise_status(status);
}

PyObject* block_mask_dims(PyObject* module, PyObject* args) {
  (void)module;
  flashjit_mask_shape shape;
  int64_t dims[FLASHJIT_BLOCK_MASK_RANK];
  if (!PyArg_ParseTuple(args, "LLLL:block_mask_dims", &shape.batch, &shape.num_heads_q, &shape.seqlen_q,
                        &shape.seqlen_kv)) {
    return NULL;
  }
  const flashjit_status status = flashjit_block_mask_dims(&shape, dims);
  if (status != FLASHJIT_OK) return raise_status(status);
  return Py_BuildValue("(LLLLL)", dims[0], dims[1], dims[2], dims[3], dims[4]);
}
