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

/* The attribute of a module of this package. */
PyObject* import_attribute(const char* module, const char* name);

/* --- engine.c ---------------------------------------------------------------------------------------------------- */

/* Makes flashjit._core.Engine. */
PyObject* make_engine_type(void);
/* The handle of an engine, or with None or NULL of the default one, which may be NULL. 0 on failure. */
int find_engine(PyObject* engine, flashjit_engine** handle);
/* counters(engine) and prepare(engine, dtype, head_dim, head_dim_v, causal, window, chunk, softcap, alibi, sinks,
   device) of the module. */
PyObject* counters(PyObject* module, PyObject* engine);
PyObject* prepare(PyObject* module, PyObject* args);

/* --- attention.c ------------------------------------------------------------------------------------------------- */

/* Made once, when the module is. */
int prepare_keywords(void);
/* attention(q, k, v, *, ...) of the module, and of an engine, which has no keyword "engine". */
PyObject* attention_function(PyObject* module, PyObject* const* args, Py_ssize_t count, PyObject* keywords);
PyObject* attention_method(PyObject* engine, PyObject* const* args, Py_ssize_t count, PyObject* keywords);

/* What does not depend on where the tensors come from. options.variant points into the Python text, options.window to
   the window here, or nowhere where there is none. */
typedef struct Settings {
  flashjit_engine* engine;
  flashjit_attention_options options;
  flashjit_window window;
} Settings;
/* What the caller gave for them, NULL or None where it gave nothing. */
typedef struct GivenSettings {
  PyObject *engine, *causal, *window, *chunk, *scale, *softcap, *variant;
} GivenSettings;
/* 0 on failure. */
int read_settings(Settings* settings, const GivenSettings* given);
/* Without the GIL. */
flashjit_status run(const Settings* settings, const DLTensor* q, const DLTensor* k, const DLTensor* v,
                    const DLTensor* out);

/* --- launch.c ---------------------------------------------------------------------------------------------------- */

/* launch(engine, q, k, v, alibi_slopes, sinks, out, lse, causal, window, chunk, scale, softcap, stream, variant): the
   call for tensors that Python code described. */
PyObject* launch(PyObject* module, PyObject* args);

#endif
