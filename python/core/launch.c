/* SPDX-License-Identifier: Apache-2.0 */
/* The call for arrays that Python code has made capsules or descriptions of (flashjit/_arrays.py). */
#include "python/core/core.h"

enum { kMaxRank = 8 };

/* A tensor that this call has on loan. */
typedef struct Loan {
  const char* name;
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

enum Tensor { kQ, kK, kV, kAlibiSlopes, kSinks, kOut, kLse, kTensors };

PyObject* launch(PyObject* module, PyObject* args) {
  (void)module;
  PyObject* sources[kTensors];
  GivenSettings given;
  unsigned long long stream;
  Settings settings;
  if (!PyArg_ParseTuple(args, "OOOOOOOOOOOOOKO:launch", &given.engine, &sources[kQ], &sources[kK], &sources[kV],
                        &sources[kAlibiSlopes], &sources[kSinks], &sources[kOut], &sources[kLse], &given.causal,
                        &given.window, &given.chunk, &given.scale, &given.softcap, &stream, &given.variant) ||
      !read_settings(&settings, &given)) {
    return NULL;
  }
  Loan loans[kTensors] = {{.name = "q"},     {.name = "k"},   {.name = "v"},  {.name = "alibi_slopes"},
                          {.name = "sinks"}, {.name = "out"}, {.name = "lse"}};
  const DLTensor* views[kTensors] = {NULL};
  const char *wrong_name = NULL, *wrong = NULL;
  for (int i = 0; i < kTensors && !wrong; ++i) {
    if (sources[i] == Py_None) continue; /* the library says of which tensors there must be one */
    wrong = borrow(sources[i], i >= kOut, &loans[i]);
    wrong_name = loans[i].name;
    views[i] = &loans[i].view;
  }
  flashjit_status status = FLASHJIT_OK;
  if (!wrong) {
    settings.options.stream = (void*)(uintptr_t)stream;
    settings.options.alibi_slopes = views[kAlibiSlopes];
    settings.options.sinks = views[kSinks];
    settings.options.lse = views[kLse];
    status = run(&settings, views[kQ], views[kK], views[kV], views[kOut]);
  }
  for (int i = 0; i < kTensors; ++i) give_back(&loans[i]);
  if (wrong) return raise_error(FLASHJIT_INVALID_ARGUMENT, "%s: %s", wrong_name, wrong);
  if (status != FLASHJIT_OK) return raise_status(status);
  Py_RETURN_NONE;
}
