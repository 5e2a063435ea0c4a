/* SPDX-License-Identifier: Apache-2.0 */
/* Functions that users write as text: flashjit.Score and flashjit.Mask (flashjit/_functions.py). */
#include <stdio.h>

#include "python/core/core.h"

static const struct {
  const char *name, *class_name, *must;
} kKinds[] = {{"score", "Score", "a flashjit.Score, a str or None"},
              {"mask", "Mask", "a flashjit.Mask, a str or None"}};

/* -1 on failure. */
static int is_instance(FunctionKind kind, PyObject* given) {
  static PyObject* classes[2];
  if (!classes[kind] && !(classes[kind] = import_attribute("flashjit._functions", kKinds[kind].class_name))) return -1;
  return PyObject_IsInstance(given, classes[kind]);
}

static int is_whole(const GivenFunction* function) {
  return function->text && PyUnicode_Check(function->text) && function->tensors && PyTuple_Check(function->tensors) &&
         function->numbers && PyTuple_Check(function->numbers);
}

int find_function(FunctionKind kind, PyObject* given, GivenFunction* function) {
  const GivenFunction none = {NULL, NULL, NULL};
  *function = none;
  if (!is_given(given)) return 1;
  if (PyUnicode_Check(given)) {
    Py_INCREF(given);
    function->text = given;
    function->tensors = PyTuple_New(0);
    function->numbers = PyTuple_New(0);
  } else {
    const int is_function = is_instance(kind, given);
    if (is_function < 0) return 0;
    if (is_function) {
      function->text = PyObject_GetAttrString(given, "text");
      function->tensors = PyObject_GetAttrString(given, "tensors");
      function->numbers = PyObject_GetAttrString(given, "numbers");
    }
  }
  if (is_whole(function)) return 1;
  drop_function(function);
  return refuse_value(kKinds[kind].name, kKinds[kind].must, given);
}

void drop_function(GivenFunction* function) {
  Py_XDECREF(function->text);
  Py_XDECREF(function->tensors);
  Py_XDECREF(function->numbers);
}

/* The name and the value of a capture, borrowed. */
static int read_pair(FunctionKind kind, PyObject* pair, const char** name, PyObject** value) {
  if (PyTuple_Check(pair) && PyTuple_Size(pair) == 2 && PyArg_Parse(PyTuple_GetItem(pair, 0), "s", name)) {
    *value = PyTuple_GetItem(pair, 1);
    return 1;
  }
  return refuse_value(kKinds[kind].name, "given captures with names without null characters", pair);
}

static int read_tensors(FunctionKind kind, PyObject* pairs, Function* function) {
  for (int i = 0; i < function->tensor_count; ++i) {
    flashjit_capture* const capture = &function->captures[i];
    if (!read_pair(kind, PyTuple_GetItem(pairs, i), &capture->name, &function->sources[i])) return 0;
    snprintf(function->labels[i], kLabelBytes, "%s: capture %s", kKinds[kind].name, capture->name);
    capture->tensor = &function->views[i];
  }
  return 1;
}

static int read_numbers(FunctionKind kind, PyObject* pairs, flashjit_capture* captures) {
  const Py_ssize_t count = PyTuple_Size(pairs);
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* value;
    if (!read_pair(kind, PyTuple_GetItem(pairs, i), &captures[i].name, &value)) return 0;
    captures[i].number = PyFloat_AsDouble(value);
    captures[i].is_integer = PyLong_Check(value);
    if (!PyErr_Occurred()) continue;
    char label[kLabelBytes];
    snprintf(label, kLabelBytes, "%s: capture %s", kKinds[kind].name, captures[i].name);
    return refuse_value(label, "an array, a float of 32 bits or an int of 32 bits", value);
  }
  return 1;
}

int read_function(FunctionKind kind, const GivenFunction* given, Function* function) {
  const char* const name = kKinds[kind].name;
  const Py_ssize_t tensors = PyTuple_Size(given->tensors), count = tensors + PyTuple_Size(given->numbers);
  if (count > kMostCaptures) {
    raise_error(FLASHJIT_INVALID_ARGUMENT, "%s: must have at most %d captures, had %zd", name, kMostCaptures, count);
    return 0;
  }
  const flashjit_function empty = FLASHJIT_FUNCTION_INIT;
  const flashjit_capture nothing = {NULL, NULL, 0, 0, 0};
  for (Py_ssize_t i = 0; i < count; ++i) function->captures[i] = nothing;
  function->function = empty;
  function->function.captures = function->captures;
  function->function.capture_count = (size_t)count;
  function->tensor_count = (int)tensors;
  Py_ssize_t bytes;
  if (!PyArg_Parse(given->text, "s#", &function->function.text, &bytes))
    return refuse_value(name, "a text that UTF-8 can encode", given->text);
  function->function.text_size = (size_t)bytes;
  return read_tensors(kind, given->tensors, function) &&
         read_numbers(kind, given->numbers, function->captures + tensors);
}
