/* SPDX-License-Identifier: Apache-2.0 */
/* The call for arrays that Python code has made capsules or descriptions of (flashjit/_arrays.py). */
#include <stddef.h>

#include "python/core/core.h"

enum { kMaxRank = 8 };

/* A tensor that a call has on loan. */
typedef struct Loan {
  DLTensor view;
  DLManagedTensor* managed; /* at most one of these two, to be given back */
  ManagedTensor* versioned;
  int64_t shape[kMaxRank], strides[kMaxRank]; /* of a description */
} Loan;

/* Takes the tensor out of a capsule whose name says that it is still there; the new name says that it is gone. */
static void* take(PyObject* capsule, const char* name, const char* used_name) {
  if (!PyCapsule_IsValid(capsule, name)) return NULL;
  void* const taken = PyCapsule_GetPointer(capsule, name);
  return PyCapsule_SetName(capsule, used_name) == 0 ? taken : NULL;
}

static int read_extents(PyObject* values, int64_t* extents, int* count) {
  *count = (int)PySequence_Size(values);
  if (*count < 0 || *count > kMaxRank) return 0;
  for (int i = 0; i < *count; ++i) {
    PyObject* const value = PySequence_GetItem(values, i);
    extents[i] = value ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
  }
  return !PyErr_Occurred();
}

/* (address, device type, device, dtype code, bits, shape, strides or None); address and device as DLPack has them. */
static int read_description(PyObject* description, Loan* loan) {
  DLTensor* const view = &loan->view;
  unsigned long long address;
  int device_type, rank, stride_count;
  PyObject *shape, *strides;
  if (!PyArg_ParseTuple(description, "KiibbOO", &address, &device_type, &view->device.device_id, &view->dtype.code,
                        &view->dtype.bits, &shape, &strides) ||
      !read_extents(shape, loan->shape, &rank)) {
    return 0;
  }
  view->data = (void*)(uintptr_t)address;
  view->device.device_type = (DLDeviceType)device_type;
  view->dtype.lanes = 1;
  view->ndim = rank;
  view->shape = loan->shape;
  if (strides == Py_None) return 1;
  view->strides = loan->strides;
  return read_extents(strides, loan->strides, &stride_count) && stride_count == rank;
}

/* What is wrong with the source, or NULL. Raises nothing: what is on loan already has to be given back first. */
static const char* borrow(PyObject* source, int is_output, Loan* loan) {
  if (PyTuple_Check(source)) {
    if (read_description(source, loan)) return NULL;
    PyErr_Clear();
    return "must have at most 8 dimensions, and sizes and strides below 2^63";
  }
  loan->managed = (DLManagedTensor*)take(source, "dltensor", "used_dltensor");
  if (loan->managed) {
    loan->view = loan->managed->dl_tensor;
    return NULL;
  }
  loan->versioned = (ManagedTensor*)take(source, "dltensor_versioned", "used_dltensor_versioned");
  PyErr_Clear();
  if (!loan->versioned) return "must give a DLPack capsule that nobody has used yet";
  if (loan->versioned->version.major != kDlpackMajor) return "must give a DLPack capsule of major version 1";
  if (is_output && (loan->versioned->flags & kManagedTensorReadOnly)) return "must be writable, was read-only";
  loan->view = loan->versioned->tensor;
  return NULL;
}

static void give_back(Loan* loan) {
  if (loan->managed && loan->managed->deleter) loan->managed->deleter(loan->managed);
  if (loan->versioned && loan->versioned->deleter) loan->versioned->deleter(loan->versioned);
}

enum { kMostLoans = kTensorOptions + 10 + 2 * kMostCaptures };

typedef struct Call {
  Settings settings;
  GivenFunction score, mask;
  Loan own_loans[kMostLoans];
  Loan* loans; /* these, unless the call has more */
  int loan_count;
  const char *wrong_name, *wrong; /* the first thing that is; it is raised once all is given back */
} Call;

/* NULL for None, which the library judges, and where something is wrong, as the call then says. */
static const DLTensor* lend(Call* call, const char* name, PyObject* source, int is_output) {
  static const Loan nothing;
  if (call->wrong || source == Py_None) return NULL;
  Loan* const loan = &call->loans[call->loan_count++];
  *loan = nothing;
  call->wrong = borrow(source, is_output, loan);
  call->wrong_name = name;
  return call->wrong ? NULL : &loan->view;
}

typedef struct Inputs {
  const DLTensor *q, *k, *v;
} Inputs;

static Inputs lend_inputs(Call* call, PyObject* q, PyObject* k, PyObject* v) {
  Inputs inputs;
  inputs.q = lend(call, "q", q, 0);
  inputs.k = lend(call, "k", k, 0);
  inputs.v = lend(call, "v", v, 0);
  return inputs;
}

/* Fields of a struct. */
typedef struct TensorOptions {
  const TensorOption* first;
  int count;
  void* fields;
} TensorOptions;

/* NULL: there is none of this name. */
static const TensorOption* find_option(const TensorOptions* options, PyObject* name) {
  for (int i = 0; i < options->count; ++i) {
    if (PyUnicode_CompareWithASCIIString(name, options->first[i].name) == 0) return &options->first[i];
  }
  return NULL;
}

static void lend_named(Call* call, const TensorOptions* options, PyObject* sources) {
  PyObject *name, *source;
  for (Py_ssize_t i = 0; PyDict_Next(sources, &i, &name, &source);) {
    const TensorOption* const option = find_option(options, name);
    const DLTensor** const place = option ? place_of(options->fields, option) : NULL;
    if (place && !*place) *place = lend(call, option->name, source, 0);
  }
}

static void lend_options(Call* call, PyObject* sources) {
  const TensorOptions options = {tensor_options, kTensorOptions, &call->settings.options};
  lend_named(call, &options, sources);
}

static void lend_captures(Call* call, Function* function) {
  for (int i = 0; i < function->tensor_count; ++i) {
    const DLTensor* const view = lend(call, function->labels[i], function->sources[i], 0);
    if (view) function->views[i] = *view;
  }
}

/* What functions capture. */
static void lend_all_captures(Call* call) {
  if (call->settings.options.score) lend_captures(call, &call->settings.score);
  if (call->settings.options.mask) lend_captures(call, &call->settings.mask);
}

static PyObject* finish(Call* call, flashjit_status status) {
  for (int i = 0; i < call->loan_count; ++i) give_back(&call->loans[i]);
  if (call->wrong) return raise_error(FLASHJIT_INVALID_ARGUMENT, "%s: %s", call->wrong_name, call->wrong);
  if (status != FLASHJIT_OK) return raise_status(status);
  Py_RETURN_NONE;
}

/* Without what only becomes known by reading. */
static void begin(Call* call) {
  call->loans = call->own_loans;
  call->loan_count = 0;
  call->wrong_name = call->wrong = NULL;
}

/* Of (text, tensors, numbers) or None: borrowed. */
static int read_described(PyObject* described, GivenFunction* function) {
  const GivenFunction none = {NULL, NULL, NULL};
  *function = none;
  return described == Py_None || PyArg_ParseTuple(described, "O!O!O!", &PyUnicode_Type, &function->text, &PyTuple_Type,
                                                  &function->tensors, &PyTuple_Type, &function->numbers);
}

/* What a call has but for its tensors: functions that are described, the options that are numbers, and a plan. */
static int read_options(Call* call, PyObject* engine, PyObject* score, PyObject* mask, PyObject* numbers,
                        PyObject* plan, unsigned long long stream) {
  GivenSettings given = {.engine = engine, .plan = plan, .score = &call->score, .mask = &call->mask};
  if (!read_described(score, &call->score) || !read_described(mask, &call->mask) ||
      !PyArg_ParseTuple(numbers, "OOOOOOOOOOOOO", &given.causal, &given.window, &given.chunk, &given.scale,
                        &given.softcap, &given.dropout, &given.dropout_seed, &given.dropout_offset, &given.max_seqlen_q,
                        &given.max_seqlen_kv, &given.fixed_split_size, &given.accumulate, &given.variant) ||
      !read_settings(&call->settings, &given)) {
    return 0;
  }
  call->settings.options.stream = (void*)(uintptr_t)stream;
  return 1;
}

PyObject* launch(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *q, *k, *v, *out, *lse, *further, *score, *mask, *numbers, *plan;
  unsigned long long stream;
  Call call;
  begin(&call);
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
  return finish(&call, status);
}

/* Borrowed, in the order of the interface's tuple; None is one that is not to be computed. */
typedef struct Gradients {
  PyObject *dq, *dk, *dv, *dbias, *dslopes, *dsinks;
} Gradients;

static flashjit_gradients lend_gradients(Call* call, const Gradients* given) {
  flashjit_gradients into = FLASHJIT_GRADIENTS_INIT;
  into.dq = lend(call, "dq", given->dq, 1);
  into.dk = lend(call, "dk", given->dk, 1);
  into.dv = lend(call, "dv", given->dv, 1);
  into.dbias = lend(call, "dbias", given->dbias, 1);
  into.dslopes = lend(call, "dslopes", given->dslopes, 1);
  into.dsinks = lend(call, "dsinks", given->dsinks, 1);
  return into;
}

PyObject* backward(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *dout, *q, *k, *v, *out, *lse, *dlse, *further, *score, *mask, *numbers;
  Gradients gradients;
  int deterministic;
  unsigned long long stream;
  Call call;
  begin(&call);
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
  return finish(&call, status);
}

PyObject* reference(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *q, *k, *v, *out, *lse, *further, *score, *mask, *numbers;
  Call call;
  begin(&call);
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
  return finish(&call, status);
}

PyObject* reference_backward(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *engine, *dout, *q, *k, *v, *dlse, *further, *score, *mask, *numbers;
  Gradients gradients;
  Call call;
  begin(&call);
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
  return finish(&call, status);
}

PyObject* make_plan(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *plan, *engine, *q, *k, *v, *memory, *further, *score, *mask, *numbers;
  unsigned long long stream;
  Call call;
  begin(&call);
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
  return finish(&call, status);
}

PyObject* make_block_mask(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *into, *further, *mask;
  GivenSettings given = {0};
  unsigned long long stream;
  flashjit_mask_shape shape;
  Call call;
  begin(&call);
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
  return finish(&call, status);
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
  PyObject* const done = finish(call, status);
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
  begin(&call);
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
                                              {"v_scale", offsetof(flashjit_append_options, v_scale)}};

PyObject* append(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *k, *v, *k_cache, *v_cache, *q_out, *further;
  GivenSettings given = {0};
  flashjit_append_options options = FLASHJIT_APPEND_OPTIONS_INIT;
  unsigned long long stream;
  Call call;
  begin(&call);
  if (!PyArg_ParseTuple(args, "OOOOOOO!pK:append", &given.engine, &k, &v, &k_cache, &v_cache, &q_out, &PyDict_Type,
                        &further, &options.rotary_interleaved, &stream) ||
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
  flashjit_status status = FLASHJIT_OK;
  if (!call.wrong) {
    Py_BEGIN_ALLOW_THREADS;
    status = flashjit_append(call.settings.engine, k_view, v_view, k_cache_view, v_cache_view, &options);
    Py_END_ALLOW_THREADS;
  }
  return finish(&call, status);
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
  begin(&call);
  if (!PyArg_ParseTuple(args, "OOOOO!ipLpKpK:quantize", &given.engine, &x, &out, &scale, &PyDict_Type, &further,
                        &options.scale_of, &options.scale_is_given, &block_size, &options.rotates, &seed,
                        &options.rotary_interleaved, &stream) ||
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
  return finish(&call, status);
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
  begin(&call);
  if (!PyArg_ParseTuple(args, "O(bb)ii(pppppppppppppppppppp)(bb)OOOi:prepare", &given.engine, &problem.dtype.code,
                        &problem.dtype.bits, &problem.head_dim, &problem.head_dim_v, &problem.causal, &problem.window,
                        &problem.chunk, &problem.softcap, &problem.alibi, &problem.sinks, &problem.boolean_mask,
                        &problem.documents, &problem.prefix, &problem.tree, &problem.block_mask, &problem.dropout,
                        &problem.dropout_mask, &problem.ragged, &problem.paged, &problem.e4m3, &problem.token_scales,
                        &problem.e4m3_queries, &problem.fast_sums, &problem.block_scales, &problem.bias.code,
                        &problem.bias.bits, &score, &mask, &kinds, &device) ||
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
  return finish(&call, status);
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
