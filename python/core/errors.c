/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <string.h>

#include "python/core/core.h"

PyObject* import_attribute(const char* module, const char* name) {
  PyObject* const imported = PyImport_ImportModule(module);
  if (!imported) return NULL;
  PyObject* const attribute = PyObject_GetAttrString(imported, name);
  Py_DECREF(imported);
  return attribute;
}

static PyObject* class_of(flashjit_status status) {
  PyObject* const find = import_attribute("flashjit._errors", "class_of");
  if (!find) return NULL;
  PyObject* const found = PyObject_CallFunction(find, "s", flashjit_status_name(status));
  Py_DECREF(find);
  return found;
}

PyObject* raise_error(flashjit_status status, const char* format, ...) {
  PyObject* const type = class_of(status);
  if (!type) return NULL;
  va_list arguments;
  va_start(arguments, format);
  PyErr_FormatV(type, format, arguments);
  va_end(arguments);
  Py_DECREF(type);
  return NULL;
}

PyObject* raise_status(flashjit_status status) {
  /* What the library's message begins with, in the words of the arguments here. */
  static const char* const words[][2] = {{"softmax_scale:", "scale:"}, {"out_dtype:", "out:"}};
  const char* message = flashjit_last_error();
  const char* here = "";
  for (size_t i = 0; i < sizeof(words) / sizeof(*words); ++i) {
    const size_t length = strlen(words[i][0]);
    if (strncmp(message, words[i][0], length) != 0) continue;
    message += length, here = words[i][1];
    break;
  }
  return raise_error(status, "%s%s", here, message);
}

int refuse_value(const char* name, const char* must, PyObject* value) {
  PyObject* const ours[] = {PyExc_TypeError, PyExc_ValueError, PyExc_OverflowError, PyExc_LookupError};
  int is_ours = !PyErr_Occurred();
  for (size_t i = 0; i < sizeof(ours) / sizeof(*ours); ++i) is_ours = is_ours || PyErr_ExceptionMatches(ours[i]);
  if (!is_ours) return 0;
  PyErr_Clear();
  raise_error(FLASHJIT_INVALID_ARGUMENT, "%s: must be %s, was %.100R", name, must, value);
  return 0;
}
