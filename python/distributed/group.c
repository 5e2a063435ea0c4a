/* SPDX-License-Identifier: Apache-2.0 */
#include "python/distributed/distributed.h"

typedef struct Group {
  PyObject_HEAD flashjit_group* handle; /* NULL: empty, or closed */
  int on_host;
} Group;

static PyObject* group_type; /* made with the module, and never freed as the module is not */

static void destroy(Group* group) {
  flashjit_group* const handle = group->handle;
  group->handle = NULL;
  Py_BEGIN_ALLOW_THREADS; /* a group over NCCL waits for its stream, and another asks Python */
  flashjit_group_destroy(handle);
  Py_END_ALLOW_THREADS;
}

/* Kernels may still read a group's memory on a GPU when Python drops its last reference: such a group is left to the
   end of the process, unless it was closed. */
static void free_group(PyObject* self) {
  PyTypeObject* const type = Py_TYPE(self);
  if (((Group*)self)->on_host) destroy((Group*)self);
  ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
  Py_DECREF(type);
}

static PyType_Slot group_slots[] = {{Py_tp_dealloc, (void*)free_group}, {0, NULL}};
static PyType_Spec group_spec = {"flashjit._distributed.Group", sizeof(Group), 0,
                                 Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE, group_slots};

PyObject* make_group_type(void) {
  if (!group_type) group_type = PyType_FromSpec(&group_spec);
  Py_XINCREF(group_type);
  return group_type;
}

static Group* to_group(PyObject* group) {
  const int is_group = PyObject_IsInstance(group, group_type);
  if (is_group > 0) return (Group*)group;
  if (is_group == 0)
    raise_error(FLASHJIT_INVALID_ARGUMENT, "group: must be a flashjit.distributed.Group, was %.100R", group);
  return NULL;
}

int find_group(PyObject* group, flashjit_group** handle) {
  const Group* const found = to_group(group);
  if (!found) return 0;
  *handle = found->handle;
  if (*handle) return 1;
  raise_error(FLASHJIT_INVALID_ARGUMENT, "group: must be open, was closed");
  return 0;
}

PyObject* make_unique_id(PyObject* module, PyObject* unused) {
  (void)module;
  (void)unused;
  char id[FLASHJIT_UNIQUE_ID_BYTES];
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_make_unique_id(id);
  Py_END_ALLOW_THREADS;
  return status == FLASHJIT_OK ? PyBytes_FromStringAndSize(id, sizeof id) : raise_status(status);
}

PyObject* join_group(PyObject* module, PyObject* args) {
  (void)module;
  PyObject* given;
  const char* id;
  Py_ssize_t bytes;
  int rank, size;
  long long timeout;
  flashjit_group_options options = FLASHJIT_GROUP_OPTIONS_INIT;
  if (!PyArg_ParseTuple(args, "Oy#iiiL:join", &given, &id, &bytes, &rank, &size, &options.device, &timeout))
    return NULL;
  Group* const group = to_group(given);
  if (!group) return NULL;
  if (bytes != FLASHJIT_UNIQUE_ID_BYTES)
    return raise_error(FLASHJIT_INVALID_ARGUMENT, "id: must have %d bytes, had %zd", FLASHJIT_UNIQUE_ID_BYTES, bytes);
  options.timeout_ms = timeout;
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_group_from_unique_id(id, rank, size, &options, &group->handle);
  Py_END_ALLOW_THREADS;
  if (status != FLASHJIT_OK) return raise_status(status);
  Py_RETURN_NONE;
}

PyObject* wrap_communicator(PyObject* module, PyObject* args) {
  (void)module;
  PyObject* given;
  unsigned long long communicator;
  long long timeout;
  flashjit_group_options options = FLASHJIT_GROUP_OPTIONS_INIT;
  if (!PyArg_ParseTuple(args, "OKL:wrap", &given, &communicator, &timeout)) return NULL;
  Group* const group = to_group(given);
  if (!group) return NULL;
  options.timeout_ms = timeout;
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_group_from_nccl((void*)(uintptr_t)communicator, &options, &group->handle);
  Py_END_ALLOW_THREADS;
  if (status != FLASHJIT_OK) return raise_status(status);
  Py_RETURN_NONE;
}

/* --- Transports of Python ---------------------------------------------------------------------------------------- */

/* A list of (peer, address, bytes). */
static PyObject* to_list(const flashjit_message* messages, size_t count) {
  PyObject* const list = PyList_New((Py_ssize_t)count);
  for (size_t i = 0; list && i < count; ++i) {
    PyObject* const message = Py_BuildValue("iKn", messages[i].peer, (unsigned long long)(uintptr_t)messages[i].data,
                                            (Py_ssize_t)messages[i].bytes);
    if (message && PyList_SetItem(list, (Py_ssize_t)i, message) == 0) continue;
    Py_DECREF(list);
    return NULL;
  }
  return list;
}

/* Takes the exception that is set: the group fails by it, so its text is all that is left of it. */
static void take_text(char* error) {
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  PyErr_NormalizeException(&type, &value, &trace);
  PyObject* const text = value ? PyObject_Str(value) : NULL;
  PyObject* const bytes = text && PyUnicode_GetLength(text) > 0 ? PyUnicode_AsUTF8String(text) : NULL;
  PyOS_snprintf(error, FLASHJIT_TRANSPORT_ERROR_BYTES, "%s",
                bytes ? PyBytes_AsString(bytes) : "the transport raised an exception without a text");
  PyErr_Clear();
  Py_XDECREF(bytes);
  Py_XDECREF(text);
  Py_XDECREF(type);
  Py_XDECREF(value);
  Py_XDECREF(trace);
}

/* Of a result, which it takes: 0, or 1 with the text of the exception. */
static int end_call(PyObject* result, char* error) {
  if (!result) take_text(error);
  Py_XDECREF(result);
  return !result;
}

/* The library calls these without the GIL. */
static int start(void* context, const flashjit_message* sends, size_t send_count, const flashjit_message* receives,
                 size_t receive_count, void* after, char* error) {
  (void)after; /* host memory knows no streams */
  const PyGILState_STATE state = PyGILState_Ensure();
  PyObject* const sent = to_list(sends, send_count);
  PyObject* const received = sent ? to_list(receives, receive_count) : NULL;
  PyObject* const result = received ? PyObject_CallMethod(context, "start", "OO", sent, received) : NULL;
  const int failed = end_call(result, error);
  Py_XDECREF(sent);
  Py_XDECREF(received);
  PyGILState_Release(state);
  return failed;
}

static int call_method(void* context, const char* name, char* error) {
  const PyGILState_STATE state = PyGILState_Ensure();
  const int failed = end_call(PyObject_CallMethod(context, name, NULL), error);
  PyGILState_Release(state);
  return failed;
}

static int finish(void* context, void* before, char* error) {
  (void)before;
  return call_method(context, "finish", error);
}

static int wait(void* context, char* error) { return call_method(context, "wait", error); }

static void abort_group(void* context) {
  char error[FLASHJIT_TRANSPORT_ERROR_BYTES]; /* nobody to tell: the rank has given up already */
  call_method(context, "abort", error);
}

static void drop_context(void* context) {
  const PyGILState_STATE state = PyGILState_Ensure();
  Py_DECREF((PyObject*)context);
  PyGILState_Release(state);
}

PyObject* carry_messages(PyObject* module, PyObject* args) {
  (void)module;
  PyObject *given, *carrier;
  flashjit_transport transport = FLASHJIT_TRANSPORT_INIT;
  if (!PyArg_ParseTuple(args, "OOii:carry", &given, &carrier, &transport.rank, &transport.size)) return NULL;
  Group* const group = to_group(given);
  if (!group) return NULL;
  transport.context = carrier;
  transport.start = start;
  transport.finish = finish;
  transport.wait = wait;
  transport.abort = abort_group;
  transport.destroy = drop_context;
  const flashjit_status status = flashjit_group_from_transport(&transport, &group->handle);
  if (status != FLASHJIT_OK) return raise_status(status);
  Py_INCREF(carrier);
  group->on_host = 1;
  Py_RETURN_NONE;
}

PyObject* wait_for_group(PyObject* module, PyObject* group) {
  (void)module;
  flashjit_group* handle;
  if (!find_group(group, &handle)) return NULL;
  flashjit_status status;
  Py_BEGIN_ALLOW_THREADS;
  status = flashjit_group_wait(handle);
  Py_END_ALLOW_THREADS;
  if (status != FLASHJIT_OK) return raise_status(status);
  Py_RETURN_NONE;
}

PyObject* close_group(PyObject* module, PyObject* given) {
  (void)module;
  Group* const group = to_group(given);
  if (!group) return NULL;
  destroy(group);
  Py_RETURN_NONE;
}
