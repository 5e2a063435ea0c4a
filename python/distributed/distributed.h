/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the extension flashjit._distributed, over flashjit_distributed.h, with what it has in common with
   flashjit._core compiled a second time: so that package needs no libflashjit_distributed. */
#ifndef FLASHJIT_PYTHON_DISTRIBUTED_DISTRIBUTED_H
#define FLASHJIT_PYTHON_DISTRIBUTED_DISTRIBUTED_H

#include "flashjit_distributed.h"
#include "python/core/loans.h"

/* --- group.c ----------------------------------------------------------------------------------------------------- */

/* Makes flashjit._distributed.Group: empty until one of the functions below has made it. */
PyObject* make_group_type(void);
/* The handle of a group that was made. 0 on failure. */
int find_group(PyObject* group, flashjit_group** handle);

/* make_unique_id(): bytes. */
PyObject* make_unique_id(PyObject* module, PyObject* unused);
/* join(group, id, rank, size, device, timeout_ms) */
PyObject* join_group(PyObject* module, PyObject* args);
/* wrap(group, communicator, timeout_ms): an address. */
PyObject* wrap_communicator(PyObject* module, PyObject* args);
/* carry(group, transport, rank, size): over the methods of an object, as flashjit.distributed.Transport has them. */
PyObject* carry_messages(PyObject* module, PyObject* args);
/* wait(group), close(group) */
PyObject* wait_for_group(PyObject* module, PyObject* group);
PyObject* close_group(PyObject* module, PyObject* group);

#endif
