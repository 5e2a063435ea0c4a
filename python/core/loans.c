/* SPDX-License-Identifier: Apache-2.0 */
#include "python/core/loans.h"

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

const DLTensor* lend(Call* call, const char* name, PyObject* source, int is_output) {
  static const Loan nothing;
  if (call->wrong || source == Py_None) return NULL;
  Loan* const loan = &call->loans[call->loan_count++];
  *loan = nothing;
  call->wrong = borrow(source, is_output, loan);
  call->wrong_name = name;
  return call->wrong ? NULL : &loan->view;
}

Inputs lend_inputs(Call* call, PyObject* q, PyObject* k, PyObject* v) {
  Inputs inputs;
  inputs.q = lend(call, "q", q, 0);
  inputs.k = lend(call, "k", k, 0);
  inputs.v = lend(call, "v", v, 0);
  return inputs;
}

/* NULL: there is none of this name. */
static const TensorOption* find_option(const TensorOptions* options, PyObject* name) {
  for (int i = 0; i < options->count; ++i) {
    if (PyUnicode_CompareWithASCIIString(name, options->first[i].name) == 0) return &options->first[i];
  }
  return NULL;
}

void lend_named(Call* call, const TensorOptions* options, PyObject* sources) {
  PyObject *name, *source;
  for (Py_ssize_t i = 0; PyDict_Next(sources, &i, &name, &source);) {
    const TensorOption* const option = find_option(options, name);
    const DLTensor** const place = option ? place_of(options->fields, option) : NULL;
    if (place && !*place) *place = lend(call, option->name, source, 0);
  }
}

void lend_options(Call* call, PyObject* sources) {
  const TensorOptions options = {tensor_options, kTensorOptions, &call->settings.options};
  lend_named(call, &options, sources);
}

static void lend_captures(Call* call, Function* function) {
  for (int i = 0; i < function->tensor_count; ++i) {
    const DLTensor* const view = lend(call, function->labels[i], function->sources[i], 0);
    if (view) function->views[i] = *view;
  }
}

void lend_all_captures(Call* call) {
  if (call->settings.options.score) lend_captures(call, &call->settings.score);
  if (call->settings.options.mask) lend_captures(call, &call->settings.mask);
}

PyObject* finish_call(Call* call, flashjit_status status) {
  for (int i = 0; i < call->loan_count; ++i) give_back(&call->loans[i]);
  if (call->wrong) return raise_error(FLASHJIT_INVALID_ARGUMENT, "%s: %s", call->wrong_name, call->wrong);
  if (status != FLASHJIT_OK) return raise_status(status);
  Py_RETURN_NONE;
}

void begin_call(Call* call) {
  call->loans = call->own_loans;
  call->loan_count = 0;
  call->wrong_name = call->wrong = NULL;
}

int read_described(PyObject* described, GivenFunction* function) {
  const GivenFunction none = {NULL, NULL, NULL};
  *function = none;
  return described == Py_None || PyArg_ParseTuple(described, "O!O!O!", &PyUnicode_Type, &function->text, &PyTuple_Type,
                                                  &function->tensors, &PyTuple_Type, &function->numbers);
}

int read_options(Call* call, PyObject* engine, PyObject* score, PyObject* mask, PyObject* numbers, PyObject* plan,
                 unsigned long long stream) {
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

flashjit_gradients lend_gradients(Call* call, const Gradients* given) {
  flashjit_gradients into = FLASHJIT_GRADIENTS_INIT;
  into.dq = lend(call, "dq", given->dq, 1);
  into.dk = lend(call, "dk", given->dk, 1);
  into.dv = lend(call, "dv", given->dv, 1);
  into.dbias = lend(call, "dbias", given->dbias, 1);
  into.dslopes = lend(call, "dslopes", given->dslopes, 1);
  into.dsinks = lend(call, "dsinks", given->dsinks, 1);
  return into;
}
